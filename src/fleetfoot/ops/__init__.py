"""Mathematics with a name and a definition of its own, as plain functions of tensors."""
