"""How a task of MuJoCo Playground is found, configured and loaded. JAX is imported inside the functions.

Above 300 lines: everything that depends on how Playground's versions differ is here and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import torch

from fleetfoot import extras
from fleetfoot.envs.playground.describe import describe
from fleetfoot.errors import UserError, nearest

if TYPE_CHECKING:
    from fleetfoot.envs.playground import PlaygroundConfig

# FastTD3's reward for training (Seo et al. 2025, table of the tuned reward); the other terms keep their weights.
TUNED_REWARD = {
    "energy": -5e-5,
    "action_rate": -0.1,
    "torques": -1e-3,
    "pose": -1.0,
    "tracking_ang_vel": 1.25,
    "tracking_lin_vel": 1.25,
    "feet_phase": 1.0,
    "ang_vel_xy": -0.3,
    "orientation": -5.0,
}
TUNED_TASKS = (
    "T1JoystickFlatTerrain",
    "T1JoystickRoughTerrain",
    "G1JoystickFlatTerrain",
    "G1JoystickRoughTerrain",
)
PUSHES = ("push_config", "pert_config")  # as the tasks call them; both have a field `enable`
WARP = "warp."  # before the name of one of MuJoCo Warp's own options
STOCK_ENVS = 8192  # robots for which Playground chooses the room for contacts


@dataclass(frozen=True)
class Wanted:
    """What a compiled program depends on.

    Not the time limit, and for the tasks with a tuned reward neither weights nor pushes: those are arguments of it, so
    that training and evaluation share one program.
    """

    task: str
    impl: str
    randomize_domain: bool
    pushes: bool
    start_states: int
    metrics: bool
    overrides: tuple[str, ...]
    menagerie: str
    device: torch.device

    @staticmethod
    def of(config: PlaygroundConfig, device: torch.device) -> Wanted:
        index = (
            torch.cuda.current_device()
            if device.type == "cuda" and device.index is None
            else device.index
        )
        return Wanted(
            task=config.task,
            impl=config.impl,
            randomize_domain=config.randomize_domain,
            pushes=config.pushes and config.task not in TUNED_TASKS,
            start_states=config.start_states,
            metrics=config.metrics,
            overrides=config.overrides,
            menagerie=config.menagerie or os.environ.get("FLEETFOOT_MENAGERIE", ""),
            device=torch.device(device.type, index) if device.type == "cuda" else device,
        )


@dataclass(frozen=True)
class Task:
    """A loaded task and what the spec needs to know of it."""

    env: Any  # mujoco_playground's MjxEnv
    config: Any  # its ConfigDict
    device: Any  # jax.Device
    episode_length: int  # its own
    action_repeat: int
    obs_size: int
    action_size: int
    critic_size: int  # 0: the critic sees what the actor sees
    critic_prefix: int
    metrics: tuple[str, ...]  # names for the log
    randomizer: Any
    start: Any  # shapes of a state

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """Of its control and its joints."""
        return describe(self)

    @property
    def step_seconds(self) -> float:
        return float(self.env.dt) * self.action_repeat

    def drawn_model(self) -> mujoco.MjModel:
        model: mujoco.MjModel = self.env.mj_model
        return model


def prepare(device: torch.device) -> None:
    """Import JAX with settings that suit a process in which torch lives too."""
    # JAX would take three quarters of the GPU's memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax, warp = _load("jax"), _load("warp")
    warp.config.log_level = warp.LOG_ERROR  # it tells of every kernel it compiles
    if device.type == "cuda":
        if not any(other.platform == "gpu" for other in jax.devices()):
            raise UserError(
                "device cuda was asked for, but JAX sees no GPU: pip install 'jax[cuda13]' (or use --device cpu)"
            )
        # Compiling a robot takes minutes there: do it once per machine.
        if jax.config.jax_compilation_cache_dir is None:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            jax.config.update("jax_compilation_cache_dir", str(base / "fleetfoot" / "jax"))


def names() -> list[str]:
    return sorted(_load("mujoco_playground").registry.ALL_ENVS)


def load(wanted: Wanted, num_envs: int) -> Task:
    """The task on its device, with everything in its config that must be fixed before compiling."""
    jax, registry = _load("jax"), _load("mujoco_playground").registry
    if wanted.task not in registry.ALL_ENVS:
        raise UserError(
            f"there is no Playground task {wanted.task!r}.{nearest(wanted.task, registry.ALL_ENVS)} "
            "`fleetfoot list playground` names them all."
        )
    config = registry.get_default_config(wanted.task)
    _configure(config, wanted, num_envs)
    kind = "cuda" if wanted.device.type == "cuda" else "cpu"
    device = jax.devices(kind)[wanted.device.index or 0]
    with on(device), _models(wanted):
        env = registry.load(wanted.task, config=config)
        _tune_warp(env, wanted)
        shapes = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
        obs_size, critic_size, critic_prefix = _sizes(env, wanted.task, shapes.obs)
    randomizer = registry.get_domain_randomizer(wanted.task) if wanted.randomize_domain else None
    if wanted.randomize_domain and randomizer is None:
        raise UserError(
            f"{wanted.task} has no domain randomisation; leave env.randomize_domain off."
        )
    return Task(
        env=env,
        config=config,
        device=device,
        episode_length=int(config.episode_length),
        action_repeat=int(config.get("action_repeat", 1)),
        obs_size=obs_size,
        action_size=int(env.action_size),
        critic_size=critic_size,
        critic_prefix=critic_prefix,
        metrics=tuple(f"env/{name}" for name in sorted(shapes.metrics)) if wanted.metrics else (),
        randomizer=randomizer,
        start=shapes,
    )


@contextlib.contextmanager
def on(device: Any) -> Iterator[None]:
    """MJX takes the first GPU there is, for models and for data made while tracing; here it takes `device`."""
    jax, io = _load("jax"), _load("mujoco.mjx._src.io")
    resolve_before = io._resolve_device
    io._resolve_device = lambda impl: device
    try:
        with jax.default_device(device):
            yield
    finally:
        io._resolve_device = resolve_before


def scales(task: Task) -> tuple[str, ...]:
    """The terms of the reward whose weights are arguments of the compiled step."""
    return tuple(sorted(task.config.reward_config.scales))


def _configure(config: Any, wanted: Wanted, num_envs: int) -> None:
    with config.unlocked():
        if wanted.impl != "auto":
            config.impl = wanted.impl
        elif wanted.device.type == "cpu" and config.get("naconmax", 1) == 0:
            config.impl = "jax"
        room = config.get("naconmax", 0)  # for the contacts of all robots together
        if num_envs > STOCK_ENVS:
            config.naconmax = room * num_envs // STOCK_ENVS
        elif wanted.device.type == "cpu" and room:  # where all of it is walked through
            config.naconmax = min(room, 128 * num_envs)
    for name in PUSHES:
        if name in config and "enable" in config[name]:
            config[name].enable = wanted.pushes
    config.lock()  # so that a misspelt field is noticed
    for path, value in _overrides(wanted, warp=False):
        with _fitting(wanted, path):
            config.update_from_flattened_dict({path: value})


def _tune_warp(env: Any, wanted: Wanted) -> None:
    """No messages from the device, which cost more than the physics; then what the user wants."""
    model = env._mjx_model
    if model.impl.value != "warp":
        return
    changes = {"warn_overflow": 0, **dict(_overrides(wanted, warp=True))}
    for name in changes:
        with _fitting(wanted, WARP + name):
            getattr(model.opt._impl, name)
    if "graph_mode" in changes:
        with _fitting(wanted, WARP + "graph_mode"):
            modes = _load("mujoco.mjx.warp.types").GraphMode
            changes["graph_mode"] = modes[str(changes["graph_mode"]).upper()]
    env._mjx_model = model.replace(opt=model.opt.replace(_impl=model.opt._impl.replace(**changes)))


def _overrides(wanted: Wanted, *, warp: bool) -> Iterator[tuple[str, Any]]:
    """Name and value of each entry that is for MuJoCo Warp's options, or of each that is not."""
    for entry in wanted.overrides:
        path, separator, text = entry.partition("=")
        with _fitting(wanted, entry):
            if not separator:
                raise ValueError("there is no '='")
            value = json.loads(text)
        if path.startswith(WARP) == warp:
            yield path.removeprefix(WARP) if warp else path, value


@contextlib.contextmanager
def _fitting(wanted: Wanted, entry: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"env.overrides: {entry!r} does not fit {wanted.task} ({reason}); write name=value with a field of "
            "the task's config, such as noise_config.level=0.5, and texts in quotes."
        ) from None


def _sizes(env: Any, task: str, obs: Any) -> tuple[int, int, int]:
    """Of the actor's observation, the critic's, and what they share at their beginning."""
    if not isinstance(obs, dict):
        return int(obs.shape[-1]), 0, 0
    if "state" not in obs or any(name.startswith("pixels") for name in obs):
        raise UserError(f"{task} shows {sorted(obs)}; only tasks that observe numbers can be used.")
    size = int(obs["state"].shape[-1])
    if "privileged_state" not in obs:
        return size, 0, 0
    critic = int(obs["privileged_state"].shape[-1])
    return size, critic, size if _begins_with_state(env) else 0


def _begins_with_state(env: Any) -> bool:
    """Whether the privileged observation is the actor's with more behind it, noise and all.

    Seen in the program that makes it rather than in numbers, so that nothing has to be compiled or run.
    """
    jax = _load("jax")

    def both(key: Any) -> Any:
        obs = env.reset(key).obs
        return obs["state"], obs["privileged_state"]

    program = jax.make_jaxpr(both)(jax.random.PRNGKey(0)).jaxpr
    part, whole = program.outvars
    return _head(program, whole) is _origin(program, part)


def _origin(program: Any, value: Any) -> Any:
    """Back through jitted functions that hand a value on unchanged."""
    made = _maker(program, value)
    if made is None or (inner := _inside(made)) is None:
        return value
    origin = _origin(inner, inner.outvars[made.outvars.index(value)])
    if origin not in inner.invars:
        return value
    return _origin(program, made.invars[inner.invars.index(origin)])


def _head(program: Any, value: Any) -> Any:
    """What stands first in `value`, if it was put together from parts."""
    value = _origin(program, value)
    made = _maker(program, value)
    if made is None:
        return None
    if made.primitive.name == "concatenate":
        return _origin(program, made.invars[0])
    if (inner := _inside(made)) is not None:
        head = _head(inner, inner.outvars[made.outvars.index(value)])
        if head in inner.invars:
            return _origin(program, made.invars[inner.invars.index(head)])
    return None


def _maker(program: Any, value: Any) -> Any:
    return next((eqn for eqn in program.eqns if any(out is value for out in eqn.outvars)), None)


def _inside(made: Any) -> Any:
    return getattr(made.params.get("jaxpr"), "jaxpr", None)


@contextlib.contextmanager
def _models(wanted: Wanted) -> Iterator[None]:
    """Playground reads the robots from one folder, and clones it from the network where it is missing."""
    place = _load("mujoco_playground._src.mjx_env")
    path_before = place.MENAGERIE_PATH
    if wanted.menagerie:
        if not Path(wanted.menagerie).is_dir():
            raise UserError(f"the folder of robot models {wanted.menagerie} does not exist.")
        place.MENAGERIE_PATH = _load("etils.epath").Path(wanted.menagerie)
    folder = place.MENAGERIE_PATH
    try:
        yield
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the robot models of {wanted.task} are neither in {folder} nor could they be downloaded ({reason}); "
            "name a checkout of github.com/google-deepmind/mujoco_menagerie in FLEETFOOT_MENAGERIE."
        ) from error
    finally:
        place.MENAGERIE_PATH = path_before


def _load(module: str) -> Any:
    return extras.load(module, "playground", f"MuJoCo Playground needs {module}")
