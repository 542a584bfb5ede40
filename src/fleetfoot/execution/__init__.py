"""How updates are executed: precision, compilation and CUDA graphs, applied to agents from outside."""
