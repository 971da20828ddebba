"""Processes: what is started and outlives its turn, and the functions that run in one."""
