"""Services available to sessions, as protocols: one per concept, independent of its implementations."""
