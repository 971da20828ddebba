"""The seam between the machine and the world: keys, the journal of what was asked and answered, controllers."""
