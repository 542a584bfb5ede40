"""The bundles of a Gorila run as processes on Ray: their shifts, and the replacement of lost bundles.

A bundle that dies or fails is replaced. Its replacement continues the schedules of the lost bundle, with an empty
replay and its own random numbers. The shift that was not reported is void and is assigned again.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from fleetfoot.errors import Halted, Notice
from fleetfoot.log import EpisodeStats
from fleetfoot.recipe import Recipe
from fleetfoot.run.interrupt import Interrupt
from fleetfoot.topologies.gorila.bundle import CARRIED_STATE, Bundle, Report, bundle_seeds
from fleetfoot.topologies.gorila.ray_server import RayServer, call_remote
from fleetfoot.topologies.gorila.server import Server, ShardSlice
from fleetfoot.topologies.ray.transport import PackedRecipe, pack_recipe, unpack_recipe
from fleetfoot.topologies.ray.workers import Workers, remote

if TYPE_CHECKING:
    from fleetfoot.topologies.gorila.loop import ParameterServerConfig

POLL_SECONDS = 0.5  # between two checks for Ctrl-C


class RayBundle:
    """A bundle as a Ray actor."""

    def __init__(
        self, packed: PackedRecipe, slices: list[ShardSlice], index: int, incarnation: int
    ):
        self.packed, self.slices, self.index = packed, slices, index
        self.incarnation = incarnation

    def start(
        self, shards: list[Any], carried_state: Any = None, state: Any = None
    ) -> dict[str, Any]:
        """Build everything, and return what a replacement carries on. Not in `__init__`, whose errors Ray reports as
        the death of the process."""
        recipe = unpack_recipe(self.packed)
        cfg = cast("ParameterServerConfig", recipe.topology)
        torch.set_num_threads(recipe.threads or max(1, int(cfg.ray.worker_cpus)))
        self.bundle = Bundle(
            recipe,
            Server(shards, self.slices, call_remote),
            bundles=cfg.bundles,
            index=self.index,
            incarnation=self.incarnation,
            lockstep=cfg.lockstep,
            outlier_stds=cfg.outlier_stds,
            outlier_memory=cfg.outlier_memory,
        )
        if carried_state is not None:
            self.bundle.take_over(carried_state)
        if state is not None:
            self.bundle.load_state_dict(state)
        return self.bundle.carried_state()

    def work(self, vec_steps: int, shards: list[Any]) -> Report:
        self.bundle.replica.server.shards = shards
        return self.bundle.work(vec_steps)

    def state_dict(self, with_replay: bool) -> dict[str, Any]:
        return self.bundle.state_dict(with_replay)


class Shift(NamedTuple):
    """Vec steps that a bundle makes before it reports."""

    bundle: int
    vec_steps: int


class BundleFleet:
    """The bundles of a run: assigns shifts, waits for reports and replaces lost bundles."""

    def __init__(self, ray: Any, cfg: ParameterServerConfig, recipe: Recipe, server: RayServer):
        self.ray, self.cfg, self.recipe, self.server = ray, cfg, recipe, server
        self.packed = pack_recipe(recipe)
        gpus = cfg.ray.gpus_of(recipe.torch_device()) / cfg.bundles
        self.bundle_class = remote(ray, RayBundle, cpus=cfg.ray.worker_cpus, gpus=gpus)
        self.workers = Workers(
            ray,
            self._launch,
            incarnations=[0] * cfg.bundles,
            name=self._name,
            restarts=server.restarts,
        )
        self.carried_states: list[dict[str, Any] | None] = [None] * cfg.bundles
        self.saved_states: list[Any] = [None] * cfg.bundles  # to start with
        self.idle = deque(range(cfg.bundles))  # in the order of their turns
        self.shifts: dict[Any, Shift] = {}  # under way, by the call
        self.unassigned = 0  # vec steps
        self.server_lost = False  # as a bundle reported

    def _name(self, index: int) -> str:
        seed = bundle_seeds(self.recipe.seed, index, self.workers.incarnations[index]).env
        return f"bundle {index} (environments of seed {seed})"

    def _launch(self, index: int) -> tuple[Any, Any]:
        """A bundle that starts from its saved state, or takes over from a lost one."""
        incarnation = self.workers.incarnations[index]
        bundle = self.bundle_class.remote(self.packed, self.server.slices, index, incarnation)
        state, self.saved_states[index] = self.saved_states[index], None
        carried_state = self.carried_states[index] if state is None else None
        return bundle, bundle.start.remote(self.server.shards, carried_state, state)

    def start(self) -> None:
        """Start all bundles."""
        self.carried_states = self.workers.launch_all()
        self.server.save()

    def work(self, vec_steps: int, interrupt: Interrupt) -> Iterator[Report]:
        """Make `vec_steps`, or fewer after an interrupt, and yield the reports. All bundles are idle at the
        end."""
        self.unassigned = vec_steps
        while self._is_busy() or (self.unassigned and not interrupt.asked):
            if self.server_lost and not self.shifts:
                self.server.restore()
                self.server_lost = False
            if not (self.server_lost or interrupt.asked):
                self._assign()
            yield from self._reports()

    def _is_busy(self) -> bool:
        return bool(self.shifts or self.workers.starting or self.server_lost)

    def _assign(self) -> None:
        """Give every idle bundle a shift; in lockstep, one at a time."""
        max_shifts = 1 if self.cfg.lockstep else self.cfg.bundles
        while self.unassigned and self.idle and len(self.shifts) < max_shifts:
            shift = Shift(self.idle.popleft(), min(self.cfg.shift_vec_steps, self.unassigned))
            bundle = self.workers.handles[shift.bundle]
            self.shifts[bundle.work.remote(shift.vec_steps, self.server.shards)] = shift
            self.unassigned -= shift.vec_steps

    def _reports(self) -> Iterator[Report]:
        """Wait a moment for the end of a shift, or for a replacement that is being built."""
        starting = {call: index for index, call in self.workers.starting.items()}
        if not (self.shifts or starting):
            return
        calls = [*self.shifts, *starting]
        done, _ = self.ray.wait(calls, num_returns=1, timeout=POLL_SECONDS)
        for call in done:
            if call not in starting:
                yield from self._end_shift(call)
            elif self.workers.started(starting[call]):
                self.idle.append(starting[call])

    def _end_shift(self, call: Any) -> Iterator[Report]:
        """The report of a shift. None where its bundle is lost: that is replaced, and the others work on meanwhile."""
        shift = self.shifts.pop(call)
        try:
            report: Report = self.ray.get(call)
        except Exception as error:
            self.unassigned += shift.vec_steps
            self.workers.replace(shift.bundle, error)
            return
        self.unassigned += shift.vec_steps - report.vec_steps
        self.carried_states[shift.bundle] = report.carried_state
        self.server_lost |= report.server_lost
        self.idle.append(shift.bundle)
        yield report

    def state_dict(self, with_replay: bool) -> dict[str, Any]:
        """The state of the server and of all bundles, which must be idle."""
        server = self.server.save()
        bundles = [self._bundle_state(index, with_replay) for index in range(self.cfg.bundles)]
        replays = [bundle.pop("replay") for bundle in bundles]
        state = {
            "server": server,
            "bundles": bundles,
            "generation": self.server.generation + 1,
            "incarnations": list(self.workers.incarnations),
            "turns": list(self.idle),
        }
        return state | ({"replay": replays} if with_replay else {})

    def _bundle_state(self, index: int, with_replay: bool) -> dict[str, Any]:
        while True:
            try:
                call = self.workers.handles[index].state_dict.remote(with_replay)
                state: dict[str, Any] = self.ray.get(call)
                return state
            except Exception as error:
                try:
                    self.workers.replace(index, error)
                except Halted:
                    return self._state_of_lost(index)  # the run gives up, and saves what is left
                self.workers.wait_for(index)

    def _state_of_lost(self, index: int) -> dict[str, Any]:
        """Whoever goes on begins new episodes and fills the replay of this bundle again."""
        carried_state = self.carried_states[index]
        assert carried_state is not None  # since `start`
        episodes = EpisodeStats(self.recipe.num_envs, torch.device("cpu"))
        new = {"episodes": episodes.state_dict(), "env": None, "replay": None}
        return carried_state | new

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Call before `start`."""
        self.server.resume(state["server"], state["generation"])
        # Bundles that were lost or at work when the run gave up had no turn.
        self.idle = deque(dict.fromkeys([*state["turns"], *range(self.cfg.bundles)]))
        self.workers.incarnations[:] = state["incarnations"]
        bundles = state["bundles"]
        self.carried_states = [{name: b[name] for name in CARRIED_STATE} for b in bundles]
        replays = state.pop("replay", [None] * self.cfg.bundles)
        if empty := [str(index) for index, replay in enumerate(replays) if replay is None]:
            text = (
                f"the checkpoint holds no replay of bundle {', '.join(empty)}: it fills again, and learning goes on "
                f"after {self.recipe.pace.warmup_vec_steps:,} vec steps of that bundle."
            )
            warnings.warn(text, Notice, stacklevel=2)
        pairs = zip(bundles, replays, strict=True)
        self.saved_states = [bundle | {"replay": replay} for bundle, replay in pairs]

    def close(self) -> None:
        """End the processes of all bundles; a cluster that keeps running must not keep them."""
        self.workers.close()
