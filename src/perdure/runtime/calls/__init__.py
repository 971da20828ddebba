"""Execution of owed effects: model calls, tool calls, and the calls that tools make themselves."""
