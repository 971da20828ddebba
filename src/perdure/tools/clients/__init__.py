"""What a tool can reach through its context, one module per service. The runtime provides them; each is optional."""
