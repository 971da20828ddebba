"""Tasks of sessions: background runs and commands, as views of processes."""
