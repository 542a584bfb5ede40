"""A study: many configurations, each trained with the same seeds, in one folder. It can be killed and goes on.

This package only trains. What the configurations are and what their results mean is up to others, such as
`fleetfoot.scale`. The folder holds

    study.json          every configuration by name, as a whole recipe, and the number of seeds
    runs/NAME/seed-K    ordinary run folders
    logs/NAME.log       what the process that trained NAME printed
"""

from __future__ import annotations

from fleetfoot.study.folder import Study, open_study, read_study
from fleetfoot.study.runner import default_workers, run_study

__all__ = ["Study", "default_workers", "open_study", "read_study", "run_study"]
