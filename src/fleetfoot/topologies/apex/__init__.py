"""Ape-X: actors and one learner, as Ray actors."""
