"""Adapters for code written against other names."""
