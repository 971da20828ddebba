"""The worker: finds streams with work, owns them one by one, waits with them or parks them, gives them back."""
