"""Sessions as their users hold them: speak to one, wait for its answer, decide what it asks, edit, export, import."""
