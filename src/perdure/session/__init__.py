"""A session as a fold of its log, and what its model is shown."""
