"""Stores: the protocol, its laws (in `perdure.testing.laws`), and one folder per backend."""
