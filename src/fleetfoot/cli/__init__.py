"""The `fleetfoot` command: the only place with side effects beyond a run's own folder."""
