"""What sessions can be given to work with, as protocols: each exists once, whatever implements it."""
