"""The process machine: what a process is, what happened to it, and what is owed to it. Pure."""
