"""Schedules: inputs, processes and occurrences that start at a time, once per due time."""
