"""The five-minute tour: an agent that books a flight, a worker to kill, and a ledger that tells the truth."""
