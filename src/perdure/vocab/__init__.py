"""Shared nouns as frozen values without behaviour. All other modules are expressed in them."""
