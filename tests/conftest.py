"""Every test process uses one torch thread: the suite runs several processes at once, and tests stay repeatable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines advertise AMX and then end the process at its first instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Ray's workers otherwise give way to every other process, and tests wait for them while another test computes.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Also after a test that trained with more: two processes with a thread for every core take several times as long,
    because each waits for threads that are not running."""
    torch.set_num_threads(1)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What takes seconds to make is made once: under xdist the tests of these files run in one process.
TOGETHER = {
    "test_actor_learner.py": "ray",
    "test_losing_workers.py": "ray",
    "test_parameter_server_on_ray.py": "ray",
    "test_split_on_ray.py": "ray",
    "test_playground.py": "compiled simulators",
    "test_ranks.py": "ranks",
    "test_runs.py": "a finished run",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out tests one by one, but for those that belong together: they come first."""

        def _split_scope(self, nodeid: str) -> str:
            return TOGETHER.get(nodeid.partition("::")[0].rpartition("/")[2], nodeid)

    return Grouped(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: at the end one process would wait for another that has just begun one of them."""
    items.sort(key=lambda item: item.get_closest_marker("learning") is None)


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """One local Ray for all tests: it takes seconds to start, and a run uses the one it finds."""
    from fleetfoot.topologies.ray.cluster import RayConfig, cluster

    with cluster(RayConfig(), cpus=16, gpus=0) as started:
        yield started
