"""The contract test of environments: `check_env` raises at the first clause an adapter breaks.

It is a plain function, so whoever brings an environment can call it from a test of their own:

    report = check_env(MyConfig())

Each clause of the contract has a name and a rule in `CLAUSES`; a `ContractError` carries the name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fleetfoot.data import Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.check.contract import (
    CLAUSES,
    ContractError,
    check_methods,
    check_obs,
    check_render,
    check_spec,
    check_step,
    close_twice,
    require,
    through_json,
)
from fleetfoot.envs.check.difference import changed, clone, difference, equal, fields, which
from fleetfoot.envs.vec_env import EnvConfig, VecEnv

__all__ = ["CLAUSES", "ContractError", "Report", "check_env"]

Make: TypeAlias = Callable[[int, int], VecEnv]  # (num_envs, seed) -> environments


@dataclass(frozen=True)
class Report:
    """What a passing check has seen."""

    spec: EnvSpec
    vec_steps: int
    terminations: int
    truncations: int
    saves_state: bool
    renders: bool
    untried: tuple[str, ...]  # clauses that had no occasion to fail, e.g. because no episode ended


def check_env(
    source: EnvConfig | Make,
    *,
    num_envs: int = 4,
    vec_steps: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    random_starts: bool = True,
    independent_seeds: bool = True,
    render: bool = True,
) -> Report:
    """Check an environment config, or a function `(num_envs, seed) -> VecEnv`.

    `vec_steps` is the length of a trial; by default two episodes, at most 1,100. Switch off
    `random_starts` for tasks that always start alike, `independent_seeds` for simulators whose
    copies share a random stream, `render` where drawing is not wanted. Raises `ContractError`.
    """
    made: list[VecEnv] = []

    def build(rows: int, with_seed: int) -> VecEnv:
        if hasattr(source, "build"):
            made.append(source.build(rows, with_seed, torch.device(device)))
        else:
            made.append(source(rows, with_seed))
        return made[-1]

    try:
        env = build(num_envs, seed)
        check_methods(source if hasattr(source, "build") else None, env)
        spec = env.spec
        check_spec(spec, num_envs, torch.device(device) if hasattr(source, "build") else None)
        limit = spec.episode_length
        length = vec_steps or (200 if limit is None else min(2 * limit + 5, 1100))
        trials = _Trials(build, seed, length, made[0])
        terminations = sum(int(step.terminated.sum()) for step in trials.steps)
        truncations = sum(int(step.truncated.sum()) for step in trials.steps)
        saves_state, renders = trials.again(render)
        if random_starts:
            trials.another_seed()
        if independent_seeds:
            trials.more_envs()
            trials.other_neighbours()
        trials.opposite_actions()
    except BaseException:
        for env in made:
            with contextlib.suppress(Exception):
                env.close()
        raise
    for env in made:
        close_twice(env)
    tried = {
        "final_obs": spec.exact_final_obs and terminations + truncations > 0,
        "episode_length": limit is not None and truncations > 0,
        "different_seeds": random_starts,
        "independent_seeds": independent_seeds,
        "state": saves_state,
        "render": renders,
    }
    untried = tuple(clause for clause, was in tried.items() if not was)
    return Report(spec, length, terminations, truncations, saves_state, renders, untried)


class _Trials:
    """One run whose every step is checked and kept, and the runs that are compared with it."""

    def __init__(self, build: Make, seed: int, length: int, env: VecEnv) -> None:
        self.build, self.seed, self.spec = build, seed, env.spec
        self.rows = env.spec.num_envs
        # A set of fewer environments gets the first rows of the actions of a larger one: [length, N + 3, .].
        self.all_actions = _random_actions(env.spec, length, self.rows + 3, seed)
        self.actions = self.all_actions[:, : self.rows]
        self.first, self.steps = _checked_run(env, self.actions)

    def again(self, render: bool) -> tuple[bool, bool]:
        """The same seed, drawn and saved half way; then on from the saved state elsewhere."""
        half = len(self.steps) // 2
        env, again = self.build(self.rows, self.seed), "a second set with the same seed"
        self.expect(_restart(env, self.actions), self.first, "same_seed", f"{again}, after reset")
        self.repeat(env, slice(0, half), "same_seed", again)
        renders = render and check_render(env)
        saved = env.state_dict()
        stored = None if saved is None else through_json(saved, "state")
        self.repeat(env, slice(half, None), "same_seed", f"{again}, drawn and saved")
        if stored is None:
            return False, renders
        problem = "the saved state changed while the environments went on"
        require(equal(stored, through_json(saved, "state")), "state", problem)

        other = self.build(self.rows, self.seed + 1)
        other.reset()
        for target, what in ((other, "restored into another set"), (env, "restored in place")):
            obs = target.load_state_dict(stored)
            check_obs(self.spec, obs, "obs of load_state_dict")
            self.expect(obs, self.steps[half - 1].obs if half else self.first, "state", what)
            self.repeat(target, slice(half, None), "state", what)
        return True, renders

    def another_seed(self) -> None:
        env = self.build(self.rows, self.seed + 1)
        alike = difference(_restart(env, self.actions), self.first, self.rows) is None
        for action, step in zip(self.actions[:50], self.steps[:50], strict=True):
            alike = alike and difference(env.step(action.clone()), step, self.rows) is None
        require(not alike, "different_seeds", "two seeds gave the same observations and rewards")
        actor, critic = self.first.actor, self.first.critic
        copies = Obs(actor[:1].expand_as(actor), critic[:1].expand_as(critic))
        varied = self.rows == 1 or bool(changed(self.first, copies).any())
        problem = f"all {self.rows} environments start with the same observation"
        require(varied, "different_seeds", problem)

    def more_envs(self) -> None:
        more = self.all_actions.shape[1]
        env, what = self.build(more, self.seed), f"{more} environments instead of {self.rows}"
        obs = _restart(env, self.all_actions)
        self.expect(obs, self.first, "independent_seeds", f"{what}, after reset")
        self.repeat(env, slice(None), "independent_seeds", what, self.all_actions)

    def other_neighbours(self) -> None:
        for unchanged in {1, self.rows - 1} - {0, self.rows}:
            env, what = self.build(self.rows, self.seed), f"other actions after row {unchanged - 1}"
            _restart(env, self.actions)
            others = self.actions.clone()
            others[:, unchanged:] = others[:, unchanged:].flip(0)
            self.repeat(env, slice(0, 100), "independent_seeds", what, others, unchanged)

    def opposite_actions(self) -> None:
        if isinstance(self.spec.action, Discrete):
            low = torch.zeros_like(self.actions[0])
            high = low + self.spec.action.count - 1
        else:
            high = torch.ones_like(self.actions[0])
            low = -high
        one, other = (self.build(self.rows, self.seed) for _ in range(2))
        one.reset()
        other.reset()
        length = min(len(self.steps), 100)
        responded = torch.zeros(self.rows, dtype=torch.bool, device=self.spec.device)
        for _ in range(length):
            left, right = one.step(low.clone()), other.step(high.clone())
            responded |= changed(left.next_obs, right.next_obs) | (left.reward != right.reward)
            if bool(responded.all()):
                return
        problem = f"opposite actions made no difference to environments {which(~responded)}"
        raise ContractError("actions", f"{problem} in {length} vec steps")

    def expect(self, actual: Obs, wanted: Obs, clause: str, what: str) -> None:
        parted = difference(actual, wanted, self.rows)
        require(parted is None, clause, f"{what}: {parted}")

    def repeat(
        self,
        env: VecEnv,
        part: slice,
        clause: str,
        what: str,
        actions: Tensor | None = None,
        rows: int | None = None,
    ) -> None:
        """Step `env` through a part of the first run; its leading `rows` must do what was seen."""
        taken = (self.actions if actions is None else actions)[part]
        for t, (action, wanted) in enumerate(zip(taken, self.steps[part], strict=True)):
            step = env.step(action.clone())
            parted = difference(step, wanted, self.rows if rows is None else rows)
            require(parted is None, clause, f"{what}, {t + 1} vec steps on: {parted}")


def _checked_run(env: VecEnv, actions: Tensor) -> tuple[Obs, list[Step]]:
    """Every single step against the spec; returns copies of what was seen."""
    handed_out: list[tuple[str, Tensor, Tensor]] = []  # name, tensor, copy at the time

    def copy(value: Any, at: str) -> Any:
        copied = clone(value, {})
        pairs = zip(fields(value), fields(copied), strict=True)
        handed_out.extend((f"{name} {at}", field, then) for (name, field), (_, then) in pairs)
        return copied

    obs = _restart(env, actions)
    check_obs(env.spec, obs, "obs of reset")
    first, steps = copy(obs, "of reset"), []
    clock = torch.zeros(env.spec.num_envs, dtype=torch.int64, device=env.spec.device)
    for t, action in enumerate(actions):
        given = action.clone()
        step = env.step(given)
        problem = f"the action was written to at vec step {t}"
        require(torch.equal(given, action), "ownership", problem)
        clock += 1
        check_step(env.spec, obs, step, clock, f"at vec step {t}")
        clock[step.terminated | step.truncated] = 0
        steps.append(copy(step, f"of vec step {t}"))
        obs = step.obs
    for name, tensor, then in handed_out:
        require(torch.equal(tensor, then), "ownership", f"{name} was overwritten by a later step")
    return first, steps


def _random_actions(spec: EnvSpec, length: int, rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(spec.action, Discrete):
        drawn = torch.randint(spec.action.count, (length, rows), generator=generator)
    else:
        drawn = torch.rand((length, rows, spec.action.size), generator=generator) * 2 - 1
    return drawn.to(spec.device)


def _restart(env: VecEnv, actions: Tensor) -> Obs:
    """Reset twice, so that a clock which `reset` forgets shows as a wrong truncation."""
    env.reset()
    for action in actions[:3]:
        env.step(action.clone())
    return env.reset()
