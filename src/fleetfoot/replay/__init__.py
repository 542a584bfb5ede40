"""The replay memory: storage, sampling, priorities and n-step windows."""
