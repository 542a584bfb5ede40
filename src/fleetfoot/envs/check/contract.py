"""The clauses of the environment contract, each about a single thing that an environment hands out.

Each clause has a name and a rule in `CLAUSES`; a `ContractError` carries the name. `check.py` runs whole trials.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetfoot.data import Continuous, Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.check.difference import changed, which
from fleetfoot.envs.vec_env import EnvConfig, VecEnv
from fleetfoot.errors import UserError
from fleetfoot.replay.mirror import problem_of

CLAUSES = {
    "methods": "the config has all methods of EnvConfig and the environments all of VecEnv",
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
    "state": "a restored environment continues exactly; the state is tensors plus JSON",
    "render": "render gives uint8 [H, W, 3] or raises UserError",
    "close": "close can be called twice",
}


class ContractError(AssertionError):
    """An environment breaks a clause of the contract."""

    def __init__(self, clause: str, problem: str) -> None:
        super().__init__(f"clause {clause!r} is broken ({CLAUSES[clause]}): {problem}")
        self.clause = clause


def require(condition: bool, clause: str, problem: str) -> None:
    if not condition:
        raise ContractError(clause, problem)


def _same_device(one: torch.device, other: torch.device) -> bool:
    # "cuda" names whichever GPU is current, so it agrees with "cuda:0".
    return one.type == other.type and (one.index == other.index or None in (one.index, other.index))


def check_methods(config: object | None, env: VecEnv) -> None:
    """`config` is None where a function built the environments."""
    for holder, protocol in ((config, EnvConfig), (env, VecEnv)):
        for name in vars(protocol) if holder is not None else ():
            wanted = not name.startswith("_")
            has = callable(getattr(holder, name, None))
            require(has or not wanted, "methods", f"{type(holder).__name__} has no {name}()")
    require(hasattr(env, "spec"), "methods", f"{type(env).__name__} has no attribute spec")


def check_spec(spec: EnvSpec, num_envs: int, device: torch.device | None) -> None:
    def sound(condition: bool, problem: str) -> None:
        require(condition, "spec", problem)

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
        problem = f"critic_prefix is {spec.critic_prefix}, these shapes allow at most {most}"
        sound(0 <= spec.critic_prefix <= most, problem)
    limit = spec.episode_length
    sound(limit is None or (type(limit) is int and limit > 0), f"episode_length is {limit!r}")
    ids, tasks = spec.task_ids, spec.tasks
    problem = f"{len(ids)} task_ids for {num_envs} environments and {len(tasks)} tasks"
    sound(len(ids) == (num_envs if tasks else 0), problem)
    known = all(type(i) is int and 0 <= i < len(tasks) for i in ids)
    sound(known, f"task_ids {ids} do not index the {len(tasks)} tasks")
    sound(len(set(tasks)) == len(tasks), f"tasks {tasks} repeat a name")
    sound(0 < spec.step_seconds < float("inf"), f"step_seconds is {spec.step_seconds}")
    unlike = None if spec.symmetry is None else problem_of(spec.symmetry, spec)
    sound(unlike is None, f"symmetry: {unlike}")


def _check_tensor(
    name: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype, spec: EnvSpec
) -> None:
    problem = f"{name} is a {type(value).__name__}, not a tensor"
    require(isinstance(value, Tensor), "tensors", problem)
    problem = f"{name} is {value.dtype} {list(value.shape)} on {value.device}"
    announced = f"announced {dtype} {list(shape)} on {spec.device}"
    agrees = value.shape == shape and value.dtype == dtype
    agrees = agrees and _same_device(value.device, spec.device)
    require(agrees, "tensors", f"{problem}, {announced}")
    require(not value.requires_grad, "tensors", f"{name} requires a gradient")
    require(bool(value.isfinite().all()), "tensors", f"{name} holds a NaN or an infinity")


def check_obs(spec: EnvSpec, obs: Obs, name: str) -> None:
    require(isinstance(obs, Obs), "tensors", f"{name} is a {type(obs).__name__}, not an Obs")
    shape = (spec.num_envs, *spec.obs_shape)
    _check_tensor(f"{name}, actor", obs.actor, shape, spec.obs_dtype, spec)
    same = obs.critic is obs.actor
    problem = f"{name}: critic_shape is {spec.critic_shape}, 'critic is actor' is {same}"
    require(same == (spec.critic_shape is None), "critic", problem)
    if spec.critic_shape is not None:
        shape, width = (spec.num_envs, *spec.critic_shape), spec.critic_prefix
        _check_tensor(f"{name}, critic", obs.critic, shape, spec.obs_dtype, spec)
        # Without a prefix there is nothing to compare, and images of unlike sizes cannot be.
        agree = width == 0 or torch.equal(obs.critic[:, :width], obs.actor[:, :width])
        require(agree, "critic", f"{name}: the first {width} features of the critic are others")
    has, wants = obs.task is not None, bool(spec.tasks)
    require(has == wants, "tasks", f"{name}: task is {obs.task}, tasks are {spec.tasks}")
    if obs.task is not None:
        _check_tensor(f"{name}, task", obs.task, (spec.num_envs,), torch.int64, spec)
        task = obs.task.tolist()
        problem = f"{name}: task is {task}, task_ids are {list(spec.task_ids)}"
        require(task == list(spec.task_ids), "tasks", problem)


def check_step(spec: EnvSpec, before: Obs, step: Step, clock: Tensor, at: str) -> None:
    """`clock` [N] counts the vec steps of each running episode, this one included."""
    require(isinstance(step, Step), "tensors", f"step gave a {type(step).__name__}, not a Step")
    check_obs(spec, step.obs, f"obs {at}")
    check_obs(spec, step.next_obs, f"next_obs {at}")
    _check_tensor(f"reward {at}", step.reward, (spec.num_envs,), torch.float32, spec)
    for name, end in (("terminated", step.terminated), ("truncated", step.truncated)):
        dtype = getattr(end, "dtype", type(end))
        require(dtype == torch.bool, "ends", f"{name} {at} is {dtype}")
        _check_tensor(f"{name} {at}", end, (spec.num_envs,), torch.bool, spec)
    for name, value in step.info.items():
        row_each = isinstance(value, Tensor) and value.shape == (spec.num_envs,)
        require(row_each, "tensors", f"info {name!r} {at} is not a tensor [{spec.num_envs}]")
    both = step.terminated & step.truncated
    require(not bool(both.any()), "ends", f"environments {which(both)} {at} are both")

    ended = step.terminated | step.truncated
    fresh = changed(step.next_obs, step.obs)
    problem = f"they differ in environments {which(fresh & ~ended)} {at}"
    require(not bool((fresh & ~ended).any()), "next_obs", problem)
    if spec.exact_final_obs and bool(ended.any()):
        problem = (
            f"it is the first one of the next episode in environments {which(ended & ~fresh)} {at}"
        )
        require(not bool((ended & ~fresh).any()), "final_obs", problem)
        moved = changed(step.next_obs, before)
        problem = f"it is the one before the last action in environments {which(ended)} {at}"
        require(bool((ended & moved).any()), "final_obs", problem)
    if spec.episode_length is not None:
        wrong = step.truncated != ((clock >= spec.episode_length) & ~step.terminated)
        problem = (
            f"truncated is {step.truncated[wrong].tolist()} in environments {which(wrong)} {at}"
        )
        problem += f" after {clock[wrong].tolist()} steps, episode_length is {spec.episode_length}"
        require(not bool(wrong.any()), "episode_length", problem)


def check_render(env: VecEnv) -> bool:
    for index in (0, env.spec.num_envs - 1):
        try:
            picture = env.render(index)
        except UserError:
            return False
        except Exception as error:
            raise ContractError("render", f"it raised {type(error).__name__}: {error}") from error
        require(isinstance(picture, np.ndarray), "render", f"it gave a {type(picture).__name__}")
        good = picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
        problem = f"it gave {picture.dtype} {list(picture.shape)}"
        require(good and picture.size > 0, "render", problem)
    return True


def close_twice(env: VecEnv) -> None:
    try:
        env.close()
        env.close()
    except Exception as error:
        raise ContractError("close", f"it raised {type(error).__name__}: {error}") from error


def through_json(value: Any, path: str) -> Any:
    """A state as it comes back from disk: tensors copied, the rest through JSON."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        names = all(isinstance(key, str) for key in value)
        require(names, "state", f"{path} has a key that is not a string")
        return {key: through_json(item, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list):
        return [through_json(item, f"{path}[{i}]") for i, item in enumerate(value)]
    plain = value is None or isinstance(value, bool | int | float | str)
    require(plain, "state", f"{path} is a {type(value).__name__}")
    return json.loads(json.dumps(value))
