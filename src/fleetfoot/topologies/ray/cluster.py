"""Ray, for the topologies that are spread over processes and machines.

Without an address a run starts a Ray of its own, which ends with it and listens on this machine alone. With one it
joins the cluster there and leaves it running. What travels: recipes as JSON, weights and transitions as numpy arrays
through Ray's object store, which pickles what carries them. Nothing here unpickles a file; a Ray whose object store is
full moves objects to files of its own session folder and reads them back.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fleetfoot.config import part
from fleetfoot.errors import UserError
from fleetfoot.topologies.ray.workers import one_line

GIB = 1024**3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFields:
    """What every way to use Ray has to say."""

    address: str = ""
    """Of a running cluster (host:port, or auto for the one on this machine); empty: start one for this run alone."""
    object_store_gib: float = 1.0
    """Shared memory of a Ray started here."""
    max_restarts: int = 10
    """Workers that may die or fail before the run ends with an error. A learner that begins again, and a resumed
    run, count from 0; losses of the learner itself are counted apart, to the same limit."""


@part
class RayConfig(ClusterFields):
    worker_cpus: float = 1.0
    """Cores that each worker (actor, bundle, shard, evaluator) asks the cluster for."""
    learner_cpus: float = 1.0
    """Cores that the learner asks for."""
    learner_gpus: float = -1.0
    """GPUs that the learner asks for; below 0: one if the recipe's device is a GPU."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.worker_cpus < 0 or self.learner_cpus < 0:
            raise UserError("ray.max_restarts, worker_cpus and learner_cpus must be 0 or more.")

    def gpus_of(self, device: torch.device) -> float:
        """GPUs for a learner on `device`."""
        check_device(device)
        if self.learner_gpus >= 0:
            return self.learner_gpus
        return 1.0 if device.type == "cuda" else 0.0


def check_device(device: torch.device) -> None:
    """UserError for a certain GPU: which one a process gets is for Ray to say, and it sees no other."""
    if device.type == "cuda" and device.index:
        raise UserError(
            f"under Ray a learner cannot choose {device}: use --device cuda, and to choose a GPU start "
            f"fleetfoot (or ray start) with CUDA_VISIBLE_DEVICES={device.index}."
        )


def load_ray() -> Any:
    """The module `ray`, or one line about how to get it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # no GPU asked for, none seen
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError("this topology needs Ray: pip install 'fleetfoot[ray]'") from None


@contextmanager
def cluster(
    cfg: ClusterFields, *, cpus: float, gpus: float, here: tuple[float, float] = (0.0, 0.0)
) -> Iterator[Any]:
    """The module `ray`, connected; `cpus` and `gpus` are what the roles of the run ask for together, `here` is what
    those of them ask for that must be on this machine.

    A Ray started here promises just that many cores, whatever the machine has: four actors then run on two cores too,
    in turns. A Ray that the program is connected to already is used, and left as it is.
    """
    if not cfg.address:
        # Ray then takes the loopback address for this machine's, and all its services listen there alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = load_ray()
    if ray.is_initialized():
        check_room(ray, cpus, gpus, here)
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if cfg.address:
            ray.init(cfg.address, **quiet)
        else:
            ray.init(
                "local",
                _node_ip_address="127.0.0.1",
                include_dashboard=False,
                num_cpus=int(np.ceil(cpus)),
                num_gpus=int(np.ceil(gpus)),
                object_store_memory=int(cfg.object_store_gib * GIB),
                **quiet,
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"connect to Ray at {cfg.address}" if cfg.address else "start Ray"
        raise UserError(f"cannot {where}: {one_line(error)}") from error
    try:
        if cfg.address:
            check_room(ray, cpus, gpus)
        yield ray
    finally:
        ray.shutdown()


def check_room(ray: Any, cpus: float, gpus: float, here: tuple[float, float] = (0, 0)) -> None:
    """Refuse a cluster that could never hold the run: Ray itself would wait for ever.

    What other programs use now may become free, so it counts as room.
    """
    mine = ray.get_runtime_context().get_node_id()
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    own = alive.get(mine, {})
    whole = ray.cluster_resources()
    for name, all_roles, learner in (("CPU", cpus, here[0]), ("GPU", gpus, here[1])):
        if own.get(name, 0.0) < learner:
            raise UserError(
                f"the learner asks for {learner:g} {name}s, Ray has {own.get(name, 0.0):g} on this machine, where "
                f"the learner must be: start Ray here with more, or lower --topology.ray.learner-{name.lower()}s."
            )
        if whole.get(name, 0.0) < all_roles:
            raise UserError(
                f"the run asks for {all_roles:g} {name}s, the cluster has {whole.get(name, 0.0):g}: "
                "add nodes, take fewer workers, or let each ask for less."
            )
