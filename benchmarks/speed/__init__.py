"""What is measured in seconds and bytes."""
