"""The demo: an agent that books a flight, its worker, and the experiments that kill the worker."""
