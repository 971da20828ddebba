"""The turn as a value: what happened in it, and what is therefore owed."""
