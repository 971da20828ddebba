"""Triggers: what happens at a source starts a process for whoever wants one."""
