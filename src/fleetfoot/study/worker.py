"""Trains runs in a process of its own: `python -m fleetfoot.study.worker FOLDER [MODULE ...]`.

The folder is that of one run, or holds those of several seeds; they are begun, or gone on with. The modules are
imported first. Standard input is a pipe from the process that runs the study. When that process ends, however it ends,
the pipe closes, and the worker saves and stops like after Ctrl-C. So nothing trains on behind the back of a study that
was killed.
"""

from __future__ import annotations

import importlib
import os
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
from fleetfoot.run.folder import folder_lock, is_run, read_recipe, seed_folders
from fleetfoot.topologies.multi_seed.seeds import is_finished

FINISHED, REFUSED, INTERRUPTED = 0, 2, 130
PREDECESSOR_SECONDS = 60


def main(args: Sequence[str]) -> int:
    folder, *modules = args
    threading.Thread(target=stop_at_end_of, args=(sys.stdin.fileno(),), daemon=True).start()
    try:
        for module in modules:
            importlib.import_module(module)
        results = train(Path(folder))
    except UserError as error:
        print(f"fleetfoot: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    return FINISHED if all(result.finished for result in results) else INTERRUPTED


def stop_at_end_of(pipe: int) -> None:
    os.read(pipe, 1)  # nobody writes; not through sys.stdin, whose lock Python needs when it ends
    os.kill(os.getpid(), signal.SIGTERM)


def train(folder: Path) -> Sequence[Result]:
    """Begin with the runs in a folder, or go on with them."""
    runs = [folder] if is_run(folder) else seed_folders(folder)
    wait_for_predecessor(runs)
    recipe = read_recipe(runs[0])
    if all(is_finished(run, recipe) for run in runs):
        return []
    recipe = replace(recipe, log=replace(recipe.log, console_seconds=60.0))
    # A kill may have left a best checkpoint and no last one: it begins anew, and makes the same one again.
    anew = {"restart": True, "delete_checkpoints": True}
    if is_run(folder):
        return [api.resume_as(folder, recipe, **anew)]
    return api.resume_seeds_as(folder, recipe, **anew)


def wait_for_predecessor(runs: Sequence[Path]) -> None:
    """A worker of a study that was killed may still be saving."""
    for run in runs:
        for attempt in range(PREDECESSOR_SECONDS):
            try:
                with folder_lock(run):
                    break
            except UserError:
                if attempt == PREDECESSOR_SECONDS - 1:
                    raise
                time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
