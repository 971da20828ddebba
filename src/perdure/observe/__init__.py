"""Reading sessions: durable facts, live deltas, explicit gaps. Observers cannot affect execution."""
