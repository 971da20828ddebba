"""Triggers: occurrences at a source start a process per subscription."""
