"""Files of a session: the protocol, and the implementation in the store."""
