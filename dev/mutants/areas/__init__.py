"""The mutants, one file per area."""
