"""Reading what happens: durable facts, live deltas, explicit gaps. Observers cannot hurt what they observe."""
