"""A study: many configurations, each trained with the same seeds, in one folder. It can be killed and goes on.

`fleetfoot sweep` chooses the configurations by a grid (`space.py`) or a search (`search.py`), `fleetfoot scale` by its
own. The folder holds

    study.json          every configuration by name, as a whole recipe, and the number of seeds
    runs/NAME/seed-K    ordinary run folders
    logs/NAME.log       what the process that trained NAME printed
    provenance.json     what made it

A `Plan` (`jobs.py`) says which job comes next, the `Runner` keeps processes busy, a `Launcher` starts them here or on a
Ray cluster, and each (`worker.py`) goes on with the run folder that it is given.
"""

from __future__ import annotations

from fleetfoot.study.folder import Study, open_study, read_study
from fleetfoot.study.runner import default_workers, run_study

__all__ = ["Study", "default_workers", "open_study", "read_study", "run_study"]
