"""What is measured in returns: these train agents."""
