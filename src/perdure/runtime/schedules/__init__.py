"""Schedules: what is done when its time comes, once, whoever is there."""
