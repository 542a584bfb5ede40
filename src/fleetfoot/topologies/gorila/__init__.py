"""Gorila: bundles that each collect and learn, and a parameter server, as Ray actors."""
