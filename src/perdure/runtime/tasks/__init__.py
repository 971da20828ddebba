"""Tasks of sessions: runs in the background and commands, as views of processes."""
