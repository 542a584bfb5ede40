"""Every test process uses one torch thread: the suite runs several processes at once, and tests stay repeatable."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
# As in an activated environment: advice then names commands without their path.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# Some virtual machines advertise AMX and then end the process at its first instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Ray's workers otherwise give way to every other process, and tests wait for them while another test computes.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
# Processes that tests start would compile the whole library, each of them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import coverage
import pytest
import torch

from support.compiler import BUILT_SLOW, TRACED

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
    "test_golden.py::test_same_weights_on_ray": "ray",
    "test_study.py::test_on_a_cluster": "ray",
    "test_playground.py": "compiled simulators",
    "test_envpool.py": "envpool",
    "test_atari.py": "atari",
    "test_analysis.py": "statistics",
    "test_command.py": "statistics",
    "test_curves.py": "statistics",
    "test_laws.py": "statistics",
    "test_compare.py": "statistics",
    "test_report.py": "statistics",
    "test_dashboard.py": "statistics",
    "test_export_agents.py": "onnx",
    "test_export_run.py": "onnx",
    "test_ranks.py": "ranks",
    "test_runs.py": "a finished run",
    "test_missing_extras.py": "missing extras",
}


# Their code is the library's in other processes, or compiled; measured, they would only take longer.
UNMEASURED = {"ray", "compiled simulators"}


def group(nodeid: str) -> str | None:
    name = nodeid.partition("[")[0].rpartition("/")[2]  # file.py::test
    return TOGETHER.get(name) or TOGETHER.get(name.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out tests one by one, but for those that belong together, in the order of collection."""

        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid) or nodeid

    config.option.loadscopereorder = (
        False  # by the number of tests: those on Ray are few, and take longest
    )
    return Grouped(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected lives until the end. Python need not search it for garbage: not while it comes to
    be, and not later, where a test makes some."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, specname="pytest_collection")
def pytest_collection_unmeasured() -> Generator[None, object, object]:
    """Coverage sees the library being imported, and then nothing of the collection: it makes Python code almost twice
    as slow, and here that is pytest's, not ours."""
    measuring = coverage.Coverage.current()
    if measuring is None:
        return (yield)
    import fleetfoot

    for module in pkgutil.walk_packages(fleetfoot.__path__, "fleetfoot."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: at the end one process would wait for another that has just begun one of them. A test that
    learns repeats the same lines thousands of times, which others have run once; coverage leaves it alone."""
    groups = list(dict.fromkeys(TOGETHER.values()))  # Ray takes longest

    def place(item: pytest.Item) -> int:
        if (name := group(item.nodeid)) is not None:
            return groups.index(name)
        return len(groups) + (item.get_closest_marker("learning") is None)

    items.sort(key=place)
    for item in items:
        if "ray" in getattr(item, "fixturenames", ()) and group(item.nodeid) != "ray":
            raise pytest.UsageError(f"{item.nodeid} would start a Ray of its own: see TOGETHER")
        if item.get_closest_marker("learning") or group(item.nodeid) in UNMEASURED:
            item.add_marker("no_cover")


@pytest.fixture(params=[TRACED, BUILT_SLOW])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend of torch.compile."""
    true, backend = torch.compile, str(request.param)

    def compiled(function: Any, *, options: Any, **how: Any) -> Any:
        if backend == "inductor":  # no other backend has options
            return true(function, options=options, **how)
        return true(function, backend=backend, **how)

    monkeypatch.setattr(torch, "compile", compiled)
    return backend


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """One local Ray for all tests: it takes seconds to start, and a run uses the one it finds."""
    from fleetfoot.topologies.ray.cluster import RayConfig, cluster

    with cluster(RayConfig(), cpus=16, gpus=0) as started:
        yield started
