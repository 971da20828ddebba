"""How what a turn owes is performed: models are asked, tools run, and what those call themselves."""
