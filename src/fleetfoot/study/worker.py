"""One configuration of a study, trained in a process of its own: `python -m fleetfoot.study.worker STUDY NAME`.

Standard input is a pipe from the process that runs the study. When that process ends, however it ends, the pipe closes,
and the worker saves and stops like after Ctrl-C. So nothing trains on behind the back of a study that was killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleetfoot import api
from fleetfoot.errors import UserError
from fleetfoot.recipe import Result
from fleetfoot.run.folder import folder_lock, is_run, seed_folders
from fleetfoot.study.folder import Study, read_study, stored_imports

FINISHED, REFUSED, INTERRUPTED = 0, 2, 130
PREDECESSOR_SECONDS = 60


def main(args: Sequence[str]) -> int:
    folder, name = Path(args[0]), args[1]
    threading.Thread(target=stop_at_end_of, args=(sys.stdin.fileno(),), daemon=True).start()
    sys.path.insert(0, os.getcwd())  # where the user's modules are
    try:
        for module in stored_imports(folder):
            __import__(module)
        results = train(read_study(folder), name)
    except UserError as error:
        print(f"fleetfoot: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    return FINISHED if all(result.finished for result in results) else INTERRUPTED


def stop_at_end_of(pipe: int) -> None:
    os.read(pipe, 1)  # nobody writes; not through sys.stdin, whose lock Python needs when it ends
    os.kill(os.getpid(), signal.SIGTERM)


def train(study: Study, name: str) -> Sequence[Result]:
    """Begin with a configuration, or go on with it."""
    wait_for_predecessor(study, name)
    recipe, folder = study.points[name], study.point_folder(name)
    recipe = replace(recipe, log=replace(recipe.log, console_seconds=60.0))
    if study.finished(name):
        return []
    if study.seeds > 1:
        if not seed_folders(folder):
            return api.train_seeds(recipe, study.seeds, folder)
        return api.resume_seeds(folder, restart=True)
    (place,) = study.seed_folders(name)
    if is_run(place):
        return [api.resume(place, restart=True)]
    shutil.rmtree(place, ignore_errors=True)  # killed before its recipe was written
    return [api.train(recipe, place)]


def wait_for_predecessor(study: Study, name: str) -> None:
    """A worker of a study that was killed may still be saving."""
    for folder in filter(is_run, study.seed_folders(name)):
        for attempt in range(PREDECESSOR_SECONDS):
            try:
                with folder_lock(folder):
                    break
            except UserError:
                if attempt == PREDECESSOR_SECONDS - 1:
                    raise
                time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
