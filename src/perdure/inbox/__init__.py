"""Inbox items and their admission: the same item twice is admitted once."""
