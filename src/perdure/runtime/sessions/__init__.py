"""Sessions and their API: send, wait, decide, edit, export, import."""
