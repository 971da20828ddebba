"""Sessions owned by this worker: opening, driving and ending their turns."""
