"""The threat model: its ids, and the page that is generated from guards and tests."""
