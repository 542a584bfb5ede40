"""The algorithms, one file each, and the contract they fulfil."""
