"""A session in the hands of a worker: how its turns begin, are driven, and end."""
