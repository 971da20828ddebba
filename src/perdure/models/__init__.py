"""The model protocol, simulated models, and the resolution of model names."""
