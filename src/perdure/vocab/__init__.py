"""The shared nouns, as frozen values. They do nothing; everything else is said in terms of them."""
