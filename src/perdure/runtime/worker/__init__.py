"""The worker: finds streams with work, owns and drives them, parks waiting ones, and releases them."""
