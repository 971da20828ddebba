"""The turn as a value: its records, and the effects owed next."""
