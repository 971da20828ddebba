"""A session as a fold of its log, and the model view."""
