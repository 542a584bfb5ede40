"""Several seeds of one recipe, as one batched computation or one after the other."""
