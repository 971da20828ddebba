"""The process machine: a process as a fold of its log, and the next step it owes. Pure."""
