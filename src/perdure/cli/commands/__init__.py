"""One module per command: it parses, calls the runtime, prints."""
