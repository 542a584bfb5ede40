"""Ways to spread a training over threads, processes and machines."""
