"""Starts Ray or joins a cluster, for the topologies that are spread over processes and machines.

Without an address a run starts its own Ray, which ends with it and listens on this machine only. With an address it
joins that cluster and leaves it running. Recipes travel as JSON, weights and transitions as numpy arrays through Ray's
object store, which pickles the containers around them. Nothing here unpickles a file; when its object store is full,
Ray itself moves objects to files in its session folder and reads them back.
"""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch

from fleetfoot import extras
from fleetfoot.config import at_least, part
from fleetfoot.errors import Notice, UserError
from fleetfoot.topologies.ray import local
from fleetfoot.topologies.ray.workers import why_lost

GIB = 1024**3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFields:
    """The options of every topology on Ray."""

    address: str = ""
    """Address of a running cluster (host:port, or auto for the one on this machine); empty: start one for this run."""
    object_store_gib: float = 1.0
    """Shared memory of a Ray that this run starts."""
    max_restarts: int = 10
    """Workers that may die or fail before the run ends with an error. The count starts again at 0 when the learner is
    restarted or the run is resumed; losses of the learner itself are counted separately, to the same limit."""

    def when_stored(self) -> Self:
        """A stranger's run must not make this machine join a stranger's cluster."""
        if not self.address:
            return self
        warnings.warn(
            f"this run was made on the Ray cluster at {self.address:.80}; to join it again, repeat its address on the "
            "command line",
            Notice,
            stacklevel=2,
        )
        return dataclasses.replace(self, address="")


@part
class RayConfig(ClusterFields):
    """The Ray cluster, and what workers and learner ask it for."""

    worker_cpus: float = 1.0
    """Cores that each worker (actor, bundle, shard, evaluator) asks the cluster for."""
    learner_cpus: float = 1.0
    """Cores that the learner asks for."""
    learner_gpus: float = -1.0
    """GPUs that the learner asks for; below 0: one if the recipe's device is a GPU."""

    def __post_init__(self) -> None:
        at_least(self, "topology.ray", max_restarts=0, worker_cpus=0, learner_cpus=0)

    def gpus_of(self, device: torch.device) -> float:
        """GPUs for a learner on `device`."""
        check_device(device)
        if self.learner_gpus >= 0:
            return self.learner_gpus
        return 1.0 if device.type == "cuda" else 0.0


def check_device(device: torch.device) -> None:
    """UserError for a numbered GPU: Ray decides which GPU a process gets, and the process sees no other."""
    if device.type == "cuda" and device.index:
        raise UserError(
            f"under Ray a learner cannot choose {device}: use --device cuda, and to choose a GPU start "
            f"fleetfoot (or ray start) with CUDA_VISIBLE_DEVICES={device.index}."
        )


def load_ray() -> Any:
    """The module `ray`. UserError, with the command that installs it, where it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A process that asks for no GPU sees none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    return extras.load("ray", "ray", "this topology needs Ray")


@contextmanager
def cluster(
    cfg: ClusterFields,
    *,
    cpus: float,
    gpus: float,
    here: tuple[float, float] = (0.0, 0.0),
    folder: Path | None = None,
) -> Iterator[Any]:
    """The module `ray`, connected. `cpus` and `gpus`: what all processes of the run ask for together; `here`: the part
    of it that must be on this machine; `folder`: of the run, for the message if Ray dies.

    A Ray started here offers exactly that many cores, however many the machine has, so four actors also run on two
    cores. A Ray that this program is already connected to is used and left running.
    """
    if not cfg.address:
        # Ray then uses the loopback address for this machine, and all its services listen only there.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = load_ray()
    if ray.is_initialized():
        check_room(ray, cpus, gpus, here)
        yield ray
        return
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of calls that are given up
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if cfg.address:
            ray.init(cfg.address, **quiet)
        else:
            with local.own_groups():
                ray.init(
                    "local",
                    _node_ip_address="127.0.0.1",
                    include_dashboard=False,
                    num_cpus=math.ceil(cpus),
                    num_gpus=math.ceil(gpus),
                    object_store_memory=int(cfg.object_store_gib * GIB),
                    **quiet,
                )
    except Exception as error:  # a server that died while it started is a bare Exception
        where = f"connect to Ray at {cfg.address}" if cfg.address else "start Ray"
        raise UserError(f"cannot {where}: {why_lost(error)}") from error
    if not cfg.address:
        with local.watched(ray, folder):
            yield ray
        return
    try:
        check_room(ray, cpus, gpus)
        yield ray
    finally:
        ray.shutdown()


def check_room(ray: Any, cpus: float, gpus: float, here: tuple[float, float] = (0, 0)) -> None:
    """Refuse a cluster that is too small for the run: Ray itself would wait forever.

    Resources that other programs use now may become free, so they count.
    """
    this_node = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    offered_here, offered = nodes.get(this_node, {}), ray.cluster_resources()
    for name, needed, needed_here in (("CPU", cpus, here[0]), ("GPU", gpus, here[1])):
        if offered_here.get(name, 0.0) < needed_here:
            raise UserError(
                f"the learner asks for {needed_here:g} {name}s, Ray has {offered_here.get(name, 0.0):g} on this "
                f"machine, where the learner must be: start Ray here with more, or lower "
                f"--topology.ray.learner-{name.lower()}s."
            )
        if offered.get(name, 0.0) < needed:
            raise UserError(
                f"the run asks for {needed:g} {name}s, the cluster has {offered.get(name, 0.0):g}: "
                "add nodes, take fewer workers, or let each ask for less."
            )
