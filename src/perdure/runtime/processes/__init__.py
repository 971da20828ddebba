"""Processes: durable functions that outlive the turn that started them."""
