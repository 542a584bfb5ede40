"""Environments of Isaac Lab and of mjlab, which share a design."""
