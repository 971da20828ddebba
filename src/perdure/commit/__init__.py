"""One atomic write, decided before a connection is opened."""
