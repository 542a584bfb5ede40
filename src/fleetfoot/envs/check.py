"""The contract test of environments: `check_env` raises at the first clause an adapter breaks.

It is a plain function, so whoever brings an environment can call it from a test of their own:

    report = check_env(MyConfig())

Each clause of the contract has a name and a rule in `CLAUSES`; a `ContractError` carries the name.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.vec_env import EnvConfig, VecEnv
from fleetfoot.part import UserError

Make: TypeAlias = Callable[[int, int], VecEnv]  # (num_envs, seed) -> environments

CLAUSES = {
    "spec": "the spec is consistent in itself and is what was asked for",
    "tensors": "every tensor has the shape, dtype and device of the spec, and is finite",
    "critic": "obs.critic is obs.actor unless critic_shape is set; critic_prefix features agree",
    "tasks": "obs.task is the spec's task_ids, or None where there are no tasks",
    "ends": "terminated and truncated are bool and never both",
    "next_obs": "next_obs equals obs, bit for bit, where no episode ended",
    "final_obs": "where an episode ended, next_obs is its true last observation",
    "episode_length": "an episode that does not terminate is truncated exactly at episode_length",
    "ownership": "tensors handed out or taken in are never written to",
    "same_seed": "same seed and actions, same bits; rendering and saving disturb nothing",
    "different_seeds": "another seed, and another environment of the set, starts differently",
    "independent_seeds": "environment i depends on neither num_envs nor its neighbours",
    "actions": "every environment responds to its action",
    "state": "a restored environment goes on exactly; the state is tensors plus JSON",
    "render": "render gives uint8 [H, W, 3] or raises UserError",
    "close": "close can be called twice",
}


class ContractError(AssertionError):
    """An environment breaks a clause of the contract."""

    def __init__(self, clause: str, seen: str) -> None:
        super().__init__(f"clause {clause!r} is broken ({CLAUSES[clause]}): {seen}")
        self.clause = clause


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
        spec = build(num_envs, seed).spec
        _check_spec(spec, num_envs, torch.device(device) if hasattr(source, "build") else None)
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
        _close_twice(env)
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
        # A set of fewer environments gets the first rows of the actions of a larger one.
        self.all_actions = _random_actions(
            env.spec, length, self.rows + 3, seed
        )  # [length, N+3, .]
        self.actions = self.all_actions[:, : self.rows]
        self.first, self.steps = _checked_run(env, self.actions)

    def again(self, render: bool) -> tuple[bool, bool]:
        """The same seed, drawn and saved half way; then on from the saved state elsewhere."""
        half = len(self.steps) // 2
        env, again = self.build(self.rows, self.seed), "a second set with the same seed"
        self.expect(_restart(env, self.actions), self.first, "same_seed", f"{again}, after reset")
        self.repeat(env, slice(0, half), "same_seed", again)
        renders = render and _check_render(env)
        saved = env.state_dict()
        kept = None if saved is None else _through_json(saved, "state")
        self.repeat(env, slice(half, None), "same_seed", f"{again}, drawn and saved")
        if kept is None:
            return False, renders
        seen = "the saved state changed while the environments went on"
        _require(_equal(kept, _through_json(saved, "state")), "state", seen)

        other = self.build(self.rows, self.seed + 1)
        other.reset()
        for target, what in ((other, "restored into another set"), (env, "restored in place")):
            obs = target.load_state_dict(kept)
            _check_obs(self.spec, obs, "obs of load_state_dict")
            self.expect(obs, self.steps[half - 1].obs if half else self.first, "state", what)
            self.repeat(target, slice(half, None), "state", what)
        return True, renders

    def another_seed(self) -> None:
        env = self.build(self.rows, self.seed + 1)
        alike = _difference(_restart(env, self.actions), self.first, self.rows) is None
        for action, step in zip(self.actions[:50], self.steps[:50], strict=True):
            alike = alike and _difference(env.step(action.clone()), step, self.rows) is None
        _require(not alike, "different_seeds", "two seeds gave the same observations and rewards")
        actor, critic = self.first.actor, self.first.critic
        copies = Obs(actor[:1].expand_as(actor), critic[:1].expand_as(critic))
        varied = self.rows == 1 or bool(_changed(self.first, copies).any())
        seen = f"all {self.rows} environments start with the same observation"
        _require(varied, "different_seeds", seen)

    def more_envs(self) -> None:
        more = self.all_actions.shape[1]
        env, what = self.build(more, self.seed), f"{more} environments instead of {self.rows}"
        obs = _restart(env, self.all_actions)
        self.expect(obs, self.first, "independent_seeds", f"{what}, after reset")
        self.repeat(env, slice(None), "independent_seeds", what, self.all_actions)

    def other_neighbours(self) -> None:
        for kept in {1, self.rows - 1} - {0, self.rows}:
            env, what = self.build(self.rows, self.seed), f"other actions after row {kept - 1}"
            _restart(env, self.actions)
            changed = self.actions.clone()
            changed[:, kept:] = changed[:, kept:].flip(0)
            self.repeat(env, slice(0, 100), "independent_seeds", what, changed, kept)

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
            responded |= _changed(left.next_obs, right.next_obs) | (left.reward != right.reward)
            if bool(responded.all()):
                return
        seen = f"opposite actions made no difference to environments {_rows(~responded)}"
        raise ContractError("actions", f"{seen} in {length} vec steps")

    def expect(self, seen: Obs, wanted: Obs, clause: str, what: str) -> None:
        difference = _difference(seen, wanted, self.rows)
        _require(difference is None, clause, f"{what}: {difference}")

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
            seen = env.step(action.clone())
            difference = _difference(seen, wanted, self.rows if rows is None else rows)
            _require(difference is None, clause, f"{what}, {t + 1} vec steps on: {difference}")


def _checked_run(env: VecEnv, actions: Tensor) -> tuple[Obs, list[Step]]:
    """Every single step against the spec; returns copies of what was seen."""
    handed_out: list[tuple[str, Tensor, Tensor]] = []  # name, tensor, copy at the time

    def copy(value: Any, at: str) -> Any:
        copied = _clone(value, {})
        pairs = zip(_fields(value), _fields(copied), strict=True)
        handed_out.extend((f"{name} {at}", field, then) for (name, field), (_, then) in pairs)
        return copied

    obs = _restart(env, actions)
    _check_obs(env.spec, obs, "obs of reset")
    first, steps = copy(obs, "of reset"), []
    clock = torch.zeros(env.spec.num_envs, dtype=torch.int64, device=env.spec.device)
    for t, action in enumerate(actions):
        given = action.clone()
        step = env.step(given)
        seen = f"the action was written to at vec step {t}"
        _require(torch.equal(given, action), "ownership", seen)
        clock += 1
        _check_step(env.spec, obs, step, clock, f"at vec step {t}")
        clock[step.terminated | step.truncated] = 0
        steps.append(copy(step, f"of vec step {t}"))
        obs = step.obs
    for name, tensor, then in handed_out:
        _require(torch.equal(tensor, then), "ownership", f"{name} was overwritten by a later step")
    return first, steps


def _require(condition: bool, clause: str, seen: str) -> None:
    if not condition:
        raise ContractError(clause, seen)


def _same_device(one: torch.device, other: torch.device) -> bool:
    # "cuda" names whichever GPU is current, so it agrees with "cuda:0".
    return one.type == other.type and (one.index == other.index or None in (one.index, other.index))


def _check_spec(spec: EnvSpec, num_envs: int, device: torch.device | None) -> None:
    def sound(condition: bool, seen: str) -> None:
        _require(condition, "spec", seen)

    def shape(name: str, value: tuple[int, ...]) -> None:
        plain = isinstance(value, tuple) and all(type(size) is int and size > 0 for size in value)
        sound(plain and len(value) in (1, 3), f"{name} is {value!r}, neither (D,) nor (C, H, W)")

    sound(isinstance(spec, EnvSpec), f"spec is a {type(spec).__name__}, not an EnvSpec")
    sound(bool(spec.name), "name is empty")
    sound(spec.num_envs == num_envs, f"num_envs is {spec.num_envs}, asked for {num_envs}")
    sound(isinstance(spec.device, torch.device), f"device is {spec.device!r}, not a torch.device")
    agrees = device is None or _same_device(spec.device, device)
    sound(agrees, f"device is {spec.device}, asked for {device}")
    shape("obs_shape", spec.obs_shape)
    sound(spec.obs_dtype in (torch.float32, torch.uint8), f"obs_dtype is {spec.obs_dtype}")
    sound(isinstance(spec.action, Continuous | Discrete), f"action is {spec.action!r}")
    size = spec.action.size if isinstance(spec.action, Continuous) else spec.action.count
    sound(type(size) is int and size > 0, f"{spec.action!r} is not of a positive size")
    if spec.critic_shape is None:
        sound(spec.critic_prefix == 0, f"critic_prefix {spec.critic_prefix} without critic_shape")
    else:
        shape("critic_shape", spec.critic_shape)
        flat = len(spec.obs_shape) == 1 == len(spec.critic_shape)
        most = min(spec.obs_shape[0], spec.critic_shape[0]) if flat else 0
        seen = f"critic_prefix is {spec.critic_prefix}, these shapes allow at most {most}"
        sound(0 <= spec.critic_prefix <= most, seen)
    limit = spec.episode_length
    sound(limit is None or (type(limit) is int and limit > 0), f"episode_length is {limit!r}")
    ids, tasks = spec.task_ids, spec.tasks
    seen = f"{len(ids)} task_ids for {num_envs} environments and {len(tasks)} tasks"
    sound(len(ids) == (num_envs if tasks else 0), seen)
    known = all(type(i) is int and 0 <= i < len(tasks) for i in ids)
    sound(known, f"task_ids {ids} do not index the {len(tasks)} tasks")
    sound(len(set(tasks)) == len(tasks), f"tasks {tasks} repeat a name")
    sound(0 < spec.step_seconds < float("inf"), f"step_seconds is {spec.step_seconds}")


def _check_tensor(
    name: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype, spec: EnvSpec
) -> None:
    seen = f"{name} is a {type(value).__name__}, not a tensor"
    _require(isinstance(value, Tensor), "tensors", seen)
    seen = f"{name} is {value.dtype} {list(value.shape)} on {value.device}"
    announced = f"announced {dtype} {list(shape)} on {spec.device}"
    agrees = value.shape == shape and value.dtype == dtype
    agrees = agrees and _same_device(value.device, spec.device)
    _require(agrees, "tensors", f"{seen}, {announced}")
    _require(not value.requires_grad, "tensors", f"{name} requires a gradient")
    _require(bool(value.isfinite().all()), "tensors", f"{name} holds a NaN or an infinity")


def _check_obs(spec: EnvSpec, obs: Obs, name: str) -> None:
    _require(isinstance(obs, Obs), "tensors", f"{name} is a {type(obs).__name__}, not an Obs")
    shape = (spec.num_envs, *spec.obs_shape)
    _check_tensor(f"{name}, actor", obs.actor, shape, spec.obs_dtype, spec)
    same = obs.critic is obs.actor
    seen = f"{name}: critic_shape is {spec.critic_shape}, 'critic is actor' is {same}"
    _require(same == (spec.critic_shape is None), "critic", seen)
    if spec.critic_shape is not None:
        shape, width = (spec.num_envs, *spec.critic_shape), spec.critic_prefix
        _check_tensor(f"{name}, critic", obs.critic, shape, spec.obs_dtype, spec)
        # Without a prefix there is nothing to compare, and images of unlike sizes cannot be.
        agree = width == 0 or torch.equal(obs.critic[:, :width], obs.actor[:, :width])
        _require(agree, "critic", f"{name}: the first {width} features of the critic are others")
    has, wants = obs.task is not None, bool(spec.tasks)
    _require(has == wants, "tasks", f"{name}: task is {obs.task}, tasks are {spec.tasks}")
    if obs.task is not None:
        _check_tensor(f"{name}, task", obs.task, (spec.num_envs,), torch.int64, spec)
        task = obs.task.tolist()
        seen = f"{name}: task is {task}, task_ids are {list(spec.task_ids)}"
        _require(task == list(spec.task_ids), "tasks", seen)


def _check_step(spec: EnvSpec, before: Obs, step: Step, clock: Tensor, at: str) -> None:
    """`clock` [N] counts the vec steps of each running episode, this one included."""
    _require(isinstance(step, Step), "tensors", f"step gave a {type(step).__name__}, not a Step")
    _check_obs(spec, step.obs, f"obs {at}")
    _check_obs(spec, step.next_obs, f"next_obs {at}")
    _check_tensor(f"reward {at}", step.reward, (spec.num_envs,), torch.float32, spec)
    for name, end in (("terminated", step.terminated), ("truncated", step.truncated)):
        dtype = getattr(end, "dtype", type(end))
        _require(dtype == torch.bool, "ends", f"{name} {at} is {dtype}")
        _check_tensor(f"{name} {at}", end, (spec.num_envs,), torch.bool, spec)
    for name, value in step.info.items():
        row_each = isinstance(value, Tensor) and value.shape == (spec.num_envs,)
        _require(row_each, "tensors", f"info {name!r} {at} is no tensor [{spec.num_envs}]")
    both = step.terminated & step.truncated
    _require(not bool(both.any()), "ends", f"environments {_rows(both)} {at} are both")

    ended = step.terminated | step.truncated
    fresh = _changed(step.next_obs, step.obs)
    seen = f"they differ in environments {_rows(fresh & ~ended)} {at}"
    _require(not bool((fresh & ~ended).any()), "next_obs", seen)
    if spec.exact_final_obs and bool(ended.any()):
        seen = (
            f"it is the first one of the next episode in environments {_rows(ended & ~fresh)} {at}"
        )
        _require(not bool((ended & ~fresh).any()), "final_obs", seen)
        moved = _changed(step.next_obs, before)
        seen = f"it is the one before the last action in environments {_rows(ended)} {at}"
        _require(bool((ended & moved).any()), "final_obs", seen)
    if spec.episode_length is not None:
        wrong = step.truncated != ((clock >= spec.episode_length) & ~step.terminated)
        seen = f"truncated is {step.truncated[wrong].tolist()} in environments {_rows(wrong)} {at}"
        seen += f" after {clock[wrong].tolist()} steps, episode_length is {spec.episode_length}"
        _require(not bool(wrong.any()), "episode_length", seen)


def _check_render(env: VecEnv) -> bool:
    for index in (0, env.spec.num_envs - 1):
        try:
            picture = env.render(index)
        except UserError:
            return False
        except Exception as error:
            raise ContractError("render", f"it raised {type(error).__name__}: {error}") from error
        _require(isinstance(picture, np.ndarray), "render", f"it gave a {type(picture).__name__}")
        good = picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
        seen = f"it gave {picture.dtype} {list(picture.shape)}"
        _require(good and picture.size > 0, "render", seen)
    return True


def _close_twice(env: VecEnv) -> None:
    try:
        env.close()
        env.close()
    except Exception as error:
        raise ContractError("close", f"it raised {type(error).__name__}: {error}") from error


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


def _fields(value: Obs | Step) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bundle by name; not `info`, which may hold wall-clock times."""
    for name, field in zip(value._fields, value, strict=True):
        if isinstance(field, Obs):
            yield from ((f"{name}.{inner}", tensor) for inner, tensor in _fields(field))
        elif isinstance(field, Tensor):
            yield name, field


def _difference(seen: Obs | Step, wanted: Obs | Step, rows: int) -> str | None:
    """Where the first `rows` environments of both part, or None where they are equal."""
    for (name, one), (_, other) in zip(_fields(seen), _fields(wanted), strict=True):
        unequal = (one[:rows] != other[:rows]).flatten(1 if one.dim() > 1 else 0)
        unequal = unequal.any(1) if unequal.dim() > 1 else unequal
        if bool(unequal.any()):
            return f"{name} differs in environments {_rows(unequal)}"
    return None


def _changed(one: Obs, other: Obs) -> Tensor:
    """[N] bool: where anything the actor or the critic sees is different."""
    actor = (one.actor != other.actor).flatten(1).any(1)
    return actor | (one.critic != other.critic).flatten(1).any(1)


def _rows(flags: Tensor) -> list[int]:
    return [i for i, flag in enumerate(flags.tolist()) if flag]


def _clone(value: Any, copies: dict[int, Tensor]) -> Any:
    """A deep copy in which one tensor under two names (obs.actor, obs.critic) is copied once."""
    if isinstance(value, Tensor):
        return (
            copies[id(value)]
            if id(value) in copies
            else copies.setdefault(id(value), value.clone())
        )
    if isinstance(value, Obs | Step):
        return type(value)(*(_clone(field, copies) for field in value))
    return value


def _through_json(value: Any, path: str) -> Any:
    """A state as it comes back from disk: tensors copied, the rest through JSON."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        names = all(isinstance(key, str) for key in value)
        _require(names, "state", f"{path} has a key that is no string")
        return {key: _through_json(item, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list):
        return [_through_json(item, f"{path}[{i}]") for i, item in enumerate(value)]
    plain = value is None or isinstance(value, bool | int | float | str)
    _require(plain, "state", f"{path} is a {type(value).__name__}")
    return json.loads(json.dumps(value))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)
