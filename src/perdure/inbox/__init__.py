"""What may enter a stream, and the one rule of entering it: the same thing twice is one thing."""
