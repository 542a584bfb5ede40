"""A trained policy as files that explain and check themselves (`fleetfoot export`)."""

from fleetfoot.export.run import Export, export_run

__all__ = ["Export", "export_run"]
