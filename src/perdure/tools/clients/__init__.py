"""Clients in a tool's context, one module per service. The runtime provides them; each is optional."""
