"""The public kit for testing with Perdure: manual clock, store laws."""
