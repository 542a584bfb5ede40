"""Several seeds of one recipe as one batched computation."""
