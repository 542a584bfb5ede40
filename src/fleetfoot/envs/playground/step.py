"""One vec step of a MuJoCo Playground task as one compiled call. This file needs JAX; `playground` imports it late.

    step -> end flags -> true last observations -> start states where an episode ended

Playground's own wrapper overwrites the last observation of an episode and restarts each robot where it first began.
Here an episode begins with a state drawn from a pool that is made before the first one: a reset of all robots inside
every step would compute N new starts to use a few.

Everything random comes from keys: episode e of environment i uses fold_in(key of i, e), for the start state that is
drawn and for the random stream of the episode. It depends on neither the number of environments nor their neighbours.

The running state is a flat list of arrays that each step takes over (donates), so it stays in the same memory; that
also lets MuJoCo Warp find its CUDA graphs again, which it knows by address.

Above 300 lines, because it is one program for the compiler: all parts know the layout of that list.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np
import torch
from jax import numpy as jp
from ml_collections import ConfigDict
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.envs.playground import task as playground_task
from fleetfoot.envs.playground.task import TUNED_REWARD, TUNED_TASKS, Task, Wanted

if TYPE_CHECKING:
    from fleetfoot.envs.playground import PlaygroundConfig

# MuJoCo's integration state: with it, and nothing else, a simulation goes on exactly. Then what tasks look at before
# they step the physics.
PHYSICS_STATE = (
    *("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "plugin_state", "ctrl"),
    *("qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat", "userdata"),
    *("xpos", "xquat", "xmat", "site_xpos", "site_xmat", "sensordata"),
)

Array: TypeAlias = jax.Array
Leaves: TypeAlias = list[Array]


# Compiled once for any number of environments, unless that changes the room for contacts.
_STARTS: dict[tuple[Wanted, int], Any] = {}


class World(NamedTuple):
    """What stays the same from step to step."""

    keys: Array  # [N, 2] of each environment
    pool: Leaves  # [P, ...] start states
    limit: Array  # steps until truncation
    settings: Array  # weights of the reward, then whether there are pushes; empty for most tasks
    models: dict[str, Array]  # [N, ...] the randomised numbers of each robot


@dataclass(frozen=True)
class Layout:
    """Where things are in the flat running state: clock, episode, then the leaves of Playground's State."""

    tree: Any  # of the State
    names: tuple[str, ...]  # of its leaves
    drawn: tuple[int, ...]  # leaves drawn from the pool when an episode begins; also what is saved
    rowwise: tuple[bool, ...]  # leaves with a row for each environment


@functools.cache
def program(wanted: Wanted, num_envs: int) -> Program:
    """Environments of the same kind (training and evaluation) share what was compiled."""
    return Program(wanted, num_envs)


def from_torch(action: Tensor) -> Array:
    taken: Array = jax.dlpack.from_dlpack(action.detach().contiguous())
    return taken


class Program:
    """The functions of one task, for N environments on one device."""

    def __init__(self, wanted: Wanted, num_envs: int) -> None:
        self.task: Task = playground_task.load(wanted, num_envs)
        self.num_envs, self.start_states = num_envs, wanted.start_states
        self.terms = playground_task.scales(self.task) if wanted.task in TUNED_TASKS else ()
        self.layout = self._layout()
        room = self.task.config.get("naconmax", 0)
        self._starts = _STARTS.setdefault((wanted, room), jax.jit(self._make_starts))
        self._first = jax.jit(self._make_first)
        self._restart = jax.jit(self._make_restart, donate_argnums=1)
        self._step = jax.jit(self._make_step, donate_argnums=1)

    def settings(self, config: PlaygroundConfig) -> NDArray[np.float32]:
        """The weights of the reward and the pushes, which do not need another compilation."""
        if not self.terms:
            return np.zeros(0, np.float32)
        weights = dict(self.task.config.reward_config.scales)
        if config.tuned_reward:
            weights |= TUNED_REWARD
        return np.array([*(weights[term] for term in self.terms), config.pushes], np.float32)

    def world(self, seed: int, limit: int, settings: NDArray[np.float32]) -> tuple[World, Leaves]:
        """Keys, start states and robots of a seed, and a running state with the right memory but no episode yet."""
        with playground_task.on(self.task.device):
            root = jax.random.PRNGKey(seed)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(root, jp.arange(self.num_envs))
            # Environments count up from 0; the pool and the robots are drawn beyond them.
            starts = self._starts(jax.random.fold_in(root, 2**31 - 1), jp.asarray(settings))
            models: dict[str, Array] = {}
            if self.task.randomizer is not None:
                mixed = jax.vmap(jax.random.fold_in, (0, None))(keys, 2**31 - 1)
                models, _ = self._randomised(mixed)
            pool = [starts[i] for i in self.layout.drawn]
            world = World(keys, pool, jp.int32(limit), jp.asarray(settings), models)
            world = jax.device_put(world, self.task.device)  # committed: jit follows its arguments
            return world, jax.device_put(self._first(starts), self.task.device)

    def restart(self, world: World, running: Leaves) -> tuple[Leaves, tuple[Array, ...]]:
        """New episodes everywhere."""
        return self._restart(world, running)  # type: ignore[no-any-return]

    def step(self, world: World, running: Leaves, action: Array) -> tuple[Leaves, dict[str, Any]]:
        return self._step(world, running, action)  # type: ignore[no-any-return]

    def saved(self, running: Leaves) -> dict[str, Tensor]:
        names = ("clock", "episode", *(self.layout.names[i] for i in self.layout.drawn))
        leaves = (running[0], running[1], *(running[i + 2] for i in self.layout.drawn))
        # numpy, since DLPack has trouble with arrays of no size.
        copies = {
            name: torch.from_numpy(np.array(leaf)) for name, leaf in zip(names, leaves, strict=True)
        }
        return {name: copy.cpu() for name, copy in copies.items()}

    def restored(
        self, running: Leaves, saved: dict[str, Tensor]
    ) -> tuple[Leaves, tuple[Array, ...]]:
        leaves = list(running)
        for i, name in enumerate(("clock", "episode", *self.layout.names)):
            if name in saved:
                given = np.array(saved[name].cpu().numpy())
                leaves[i] = jax.device_put(given, self.task.device)
        state = self._state(leaves)
        return leaves, tuple(jp.copy(part) for part in self._obs_parts(state.obs))

    def posture(self, running: Leaves, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        data = self._state(running).data
        return np.asarray(data.qpos[index], np.float64), np.asarray(data.qvel[index], np.float64)

    def _layout(self) -> Layout:
        shapes = jax.eval_shape(
            self._reset_all, jax.eval_shape(self._keys_of_starts, jax.random.PRNGKey(0))
        )
        leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
        names = tuple(jax.tree_util.keystr(path).lstrip(".") for path, _ in leaves)
        drawn = tuple(i for i, name in enumerate(names) if _is_drawn(name))
        warp = self.task.env.mjx_model.impl.value == "warp"
        return Layout(tree, names, drawn, tuple(not warp or _rowwise(name) for name in names))

    def _state(self, leaves: Leaves) -> Any:
        return jax.tree.unflatten(self.layout.tree, leaves[2:])

    def _keys_of_starts(self, key: Array) -> Array:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jp.arange(self.start_states))

    def _reset_all(self, keys: Array) -> Any:
        with playground_task.on(self.task.device):
            return jax.vmap(self.task.env.reset)(keys)

    def _make_starts(self, key: Array, settings: Array) -> Leaves:
        with self._using(settings):
            return [
                _plain(leaf) for leaf in jax.tree.leaves(self._reset_all(self._keys_of_starts(key)))
            ]

    def _make_first(self, starts: Leaves) -> Leaves:
        """Memory for N environments. Which start states it holds does not matter: a restart follows."""
        rows = jp.arange(self.num_envs) % self.start_states
        zero = jp.zeros(self.num_envs, jp.int32)
        leaves = [
            leaf[rows] if rowwise else leaf + jp.zeros((), leaf.dtype)
            for leaf, rowwise in zip(starts, self.layout.rowwise, strict=True)
        ]
        return [zero, zero.copy(), *leaves]

    def _make_restart(self, world: World, running: Leaves) -> tuple[Leaves, tuple[Array, ...]]:
        begun = self._begin(world, running, jp.ones(self.num_envs, bool))
        return begun, self._obs_parts(self._state(begun).obs)

    def _make_step(
        self, world: World, running: Leaves, action: Array
    ) -> tuple[Leaves, dict[str, Any]]:
        clock, episode = running[0] + 1, running[1]
        before = self._state(running)
        before = before.replace(done=jp.zeros_like(before.done))
        with self._using(world.settings):
            after = self._advance(world.models, before, jp.clip(action, -1.0, 1.0))
        parts = self._obs_parts(after.obs)
        # A simulation that blew up is over, and must not put a NaN into a replay buffer.
        broken = ~jp.isfinite(after.reward)
        for part in parts:
            broken |= ~jp.isfinite(part).all(-1)
        terminated = (after.done > 0.5) | broken
        truncated = (clock >= world.limit) & ~terminated
        next_obs = tuple(jp.where(jp.isfinite(part), part, 0.0) for part in parts)
        reward = jp.where(broken, 0.0, after.reward)

        old = [clock, episode, *jax.tree.leaves(after)]
        ended = terminated | truncated
        new = [
            _like(leaf, was)
            for leaf, was in zip(self._begin(world, old, ended), running, strict=True)
        ]
        shown: dict[str, Any] = {
            "obs": tuple(
                _rows(ended, begun, part)
                for begun, part in zip(self._obs_parts(self._state(new).obs), next_obs, strict=True)
            ),
            "next_obs": next_obs,
            "reward": reward.astype(jp.float32),
            "terminated": terminated,
            "truncated": truncated,
        }
        if self.task.metrics:
            values = [after.metrics[name] for name in sorted(after.metrics)]
            shown["metrics"] = jp.stack([value.astype(jp.float32) for value in values])
        return new, shown

    def _advance(self, models: dict[str, Array], state: Any, action: Array) -> Any:
        """All robots, `action_repeat` times. Rewards add up, and an end is an end."""
        env = self.task.env

        def one(model: dict[str, Array], state: Any, action: Array) -> Any:
            model_before = env._mjx_model
            if model:
                env._mjx_model = model_before.tree_replace(model)
            try:
                return env.step(state, action)
            finally:
                env._mjx_model = model_before

        after = jax.vmap(one)(models, state, action)
        for _ in range(self.task.action_repeat - 1):
            more = jax.vmap(one)(models, after, action)
            running = after.done < 0.5
            more = more.replace(
                reward=after.reward + jp.where(running, more.reward, 0.0),
                done=jp.maximum(after.done, more.done),
            )
            after = more
        return after

    def _begin(self, world: World, running: Leaves, ended: Array) -> Leaves:
        """A start state from the pool where an episode ended, with a random stream of its own."""
        clock, episode = running[0], running[1]
        keys = jax.vmap(jax.random.fold_in)(world.keys, episode)
        keys = jax.vmap(jax.random.split)(keys)  # [N, 2, 2]
        rows = jax.vmap(lambda key: jax.random.randint(key, (), 0, self.start_states))(keys[:, 0])
        leaves = list(running)
        leaves[0] = jp.where(ended, 0, clock)
        leaves[1] = episode + ended.astype(episode.dtype)
        for i, start in zip(self.layout.drawn, world.pool, strict=True):
            begun = keys[:, 1] if self.layout.names[i] == "info['rng']" else start[rows]
            leaves[i + 2] = _rows(ended, begun, running[i + 2])
        return leaves

    def _obs_parts(self, obs: Any) -> tuple[Array, ...]:
        if not isinstance(obs, dict):
            return (obs.astype(jp.float32),)
        named = ("state", "privileged_state") if self.task.critic_size else ("state",)
        return tuple(obs[name].astype(jp.float32) for name in named)

    def _using(self, settings: Array) -> _Settings:
        return _Settings(self.task, self.terms, settings)

    def _randomised(self, keys: Array) -> tuple[dict[str, Array], Any]:
        """The numbers of the model that differ between robots, by name."""
        model, axes = self.task.randomizer(self.task.env.mjx_model, keys)
        per_robot = jax.tree_util.tree_flatten_with_path(axes)[
            0
        ]  # None is no leaf: only what is mapped remains
        paths = {
            ".".join(str(step.name) for step in path): path for path, axis in per_robot if axis == 0
        }
        return {name: functools.reduce(getattr, name.split("."), model) for name in paths}, axes


class _Settings:
    """While tracing, the task reads the weights of its reward and its pushes from an argument of the program."""

    def __init__(self, task: Task, terms: tuple[str, ...], settings: Array) -> None:
        self.env, self.config_before = task.env, task.env._config
        self.terms, self.settings = terms, settings

    def __enter__(self) -> None:
        if self.terms:
            config = ConfigDict(self.config_before.to_dict(), type_safe=False)
            for i, term in enumerate(self.terms):
                config.reward_config.scales[term] = self.settings[i]
            config.push_config.enable = self.settings[-1]
            self.env._config = config

    def __exit__(self, *_: object) -> None:
        self.env._config = self.config_before


def _is_drawn(name: str) -> bool:
    """What an episode begins with. The rest of the physics is computed anew by each step, and so are the metrics."""
    return name.startswith(("info", "obs")) or name.removeprefix("data.") in PHYSICS_STATE


def _rowwise(name: str) -> bool:
    """MuJoCo Warp keeps the contacts of all robots in one list; everything else has a row per robot."""
    if not name.startswith("data._impl."):
        return True
    from mujoco.mjx.warp import types

    return bool(types._BATCH_DIM["Data"].get(name.removeprefix("data._impl."), True))


def _rows(chosen: Array, one: Array, other: Array) -> Array:
    """Rows of `one` where chosen, else of `other`."""
    return jp.where(chosen.reshape(-1, *(1,) * (other.ndim - 1)), one.astype(other.dtype), other)


def _plain(leaf: Array) -> Array:
    """Without JAX's weak type, which would make the second step compile anew."""
    return jax.lax.convert_element_type(jp.asarray(leaf), jp.asarray(leaf).dtype)


def _like(leaf: Array, was: Array) -> Array:
    return jax.lax.convert_element_type(leaf, was.dtype)
