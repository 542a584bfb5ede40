"""The tasks of mjlab: manager-based robot tasks in the style of Isaac Lab, on MuJoCo Warp.

Simulation is on the device the environments are built for, and torch sees its memory directly. By default mjlab
restarts ended environments inside `step` and shows their first observation in place of the last one. Here it does not
(`auto_reset=False`): `step` shows what really followed the action, and then `reset(env_ids=...)` restarts what ended.
What mjlab (1.6) does there:

- It computes the observations of *all* environments once more, with new sensor noise. Only restarted rows are taken.
- Physics, commands, timers, delays and observation histories of the others stay as they are. `forward` is computed
  again for all of them, which is the price (docs/environments/mjlab.md has figures).
- Which environments ended must be known on the host, since mjlab wants their numbers. It asks for such numbers itself
  several times in each step (commands that are due, pushes that are due), so a step waits for the device in any case.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import io
import logging
import os
from dataclasses import field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.config import part
from fleetfoot.data import Obs
from fleetfoot.envs.lab.isaac_lab import LabEnv, OwnRandom, building, check_scale
from fleetfoot.envs.lab.mirror import symmetry
from fleetfoot.envs.render import Renderer, View
from fleetfoot.errors import UserError, nearest, one_line
from fleetfoot.extras import install_line


@part
class MjlabConfig:
    """A registered mjlab task by its id; `names()` lists them."""

    task: str = "Mjlab-Velocity-Flat-Unitree-Go1"
    action_scale: float = 1.0
    """What an action of 1 becomes; mjlab's actions are unbounded."""
    exact_final_obs: bool = True
    """False: a cheaper step, but truncated rows are not learned from."""
    spread_ends: bool = False
    """The first episodes end at random times instead of all at once."""
    play: bool = False
    """mjlab's variant for watching: no sensor noise, pushes or curricula."""
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Changes to the task's own configuration, by path: {"rewards.upright.weight": 2.0}."""

    def __post_init__(self) -> None:
        check_scale(self.action_scale)

    def build(self, num_envs: int, seed: int, device: torch.device) -> MjlabEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        return MjlabEnv(self, num_envs, seed, device)

    def for_evaluation(self) -> MjlabConfig:
        """mjlab's play variant, with the time limit of training and true last observations."""
        return dataclasses.replace(self, play=True, spread_ends=False)


def names() -> list[str]:
    """The ids registered with mjlab: its own, and those of installed packages that add some."""
    tasks: list[str] = _load("mjlab.tasks.registry").list_tasks()
    return tasks


class MjlabEnv(LabEnv):
    """N environments of one mjlab task behind the `VecEnv` contract."""

    def __init__(self, config: MjlabConfig, num_envs: int, seed: int, device: torch.device) -> None:
        cfg = task_config(config)
        cfg.scene.num_envs = num_envs
        cfg.seed = seed % 2**31  # warp takes 31 bits
        cfg.auto_reset = not config.exact_final_obs
        place = device
        if device.type == "cuda" and device.index is None:  # torch and Warp may mean different ones
            place = torch.device("cuda", torch.cuda.current_device())
        stream = OwnRandom(seed, place)
        try:
            # mjlab prints its whole configuration while it builds.
            with building(stream), contextlib.redirect_stdout(io.StringIO()):
                envs = _load("mjlab.envs").ManagerBasedRlEnv(cfg, device=str(place))
        except (
            FileNotFoundError
        ) as error:  # a motion to be imitated is a file that mjlab does not bring
            raise UserError(
                f"{config.task} needs a file, and {error.filename!r} does not exist; name yours in env.changes, "
                "for a motion under 'commands.motion.motion_file'."
            ) from None
        super().__init__(
            envs,
            f"mjlab/{config.task}",
            stream,
            device,
            action_scale=config.action_scale,
            spread_ends=config.spread_ends,
            episode_length=_limit(cfg, envs),
            exact_final_obs=config.exact_final_obs,
        )
        commands = [
            envs.command_manager.get_term(name) for name in envs.command_manager.active_terms
        ]
        self.succeed = [term for term in commands if "episode_success" in term.metrics]
        self.renderer: Renderer | None = None
        try:
            mirrored = symmetry(envs, config.task, self.actor)
            self.spec = dataclasses.replace(self.spec, symmetry=mirrored)
        # It matters to those alone who ask for mirror images, also where another mjlab tells less or other things.
        except UserError as error:
            self.spec = dataclasses.replace(self.spec, no_symmetry=str(error))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"this mjlab describes the task differently: {one_line(error)}"
            self.spec = dataclasses.replace(self.spec, no_symmetry=why)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        if self.renderer is None:
            self.renderer = _renderer(self.envs)
        data = self.envs.sim.data
        rows = [data.qpos, data.qvel]
        if self.envs.sim.mj_model.nmocap:  # robots that stand fixed are placed by these
            rows += [data.mocap_pos, data.mocap_quat]
        return self.renderer.picture(*(row[index].cpu().numpy() for row in rows))

    def close(self) -> None:
        if self.renderer is not None:
            self.renderer.close()
            self.renderer = None
        super().close()

    def _obs(self, groups: dict[str, Tensor]) -> Obs:
        # mjlab makes new tensors each time, so they can be given away as they are.
        actor = groups[self.actor]
        return Obs(actor, groups["critic"] if self.privileged else actor)

    def _info(self) -> dict[str, Tensor]:
        info = super()._info()
        if self.succeed:
            info["success"] = torch.stack(
                [term.metrics["episode_success"] for term in self.succeed]
            ).amax(0)
        return info

    def _restart(self, next_obs: Obs, ended: Tensor) -> Obs:
        if not self.spec.exact_final_obs:
            return next_obs
        rows = ended.nonzero().squeeze(1)  # waits for the device, as mjlab itself does in each step
        if len(rows) == 0:
            return next_obs
        fresh = self._obs(self.envs.reset(env_ids=rows)[0])
        actor = torch.where(ended.unsqueeze(1), fresh.actor, next_obs.actor)
        if not self.privileged:
            return Obs(actor, actor)
        return Obs(actor, torch.where(ended.unsqueeze(1), fresh.critic, next_obs.critic))


def task_config(config: MjlabConfig) -> Any:
    """mjlab's own configuration of the task, changed as asked."""
    known = names()
    if config.task not in known:
        raise UserError(
            f"mjlab has no task {config.task!r}.{nearest(config.task, known)} "
            "`fleetfoot list environments` names them all."
        )
    load = _load("mjlab.tasks.registry").load_env_cfg
    cfg = load(config.task, play=config.play)
    if config.play:  # episodes that never end could not be evaluated
        cfg.episode_length_s = load(config.task).episode_length_s
    for path, value in config.changes.items():
        _change(cfg, path, value)
    return cfg


def _change(cfg: Any, path: str, value: Any) -> None:
    """Set `cfg.a["b"].c` for the path "a.b.c"."""
    keys = path.split(".")
    place = cfg
    for depth, key in enumerate(keys, start=1):
        inside = place if isinstance(place, dict) else getattr(place, "__dict__", {})
        if key not in inside:
            raise UserError(
                f"env.changes: {path!r} does not exist: there is no {key!r}.{nearest(key, inside)}"
            )
        if depth == len(keys):
            inside[key] = value
        place = inside[key]


def _limit(cfg: Any, envs: Any) -> int | None:
    """Steps after which an episode is truncated, if nothing else truncates it."""
    if cfg.is_finite_horizon:
        return None
    clock = _load("mjlab.envs.mdp").time_out
    ends = [term.func for term in cfg.terminations.values() if term is not None and term.time_out]
    return int(envs.max_episode_length) if ends == [clock] else None


def _renderer(envs: Any) -> Renderer:
    viewer = envs.cfg.viewer
    body = (
        f"{viewer.entity_name}/{viewer.body_name}"
        if viewer.entity_name and viewer.body_name
        else ""
    )
    view = View(
        body=body, distance=viewer.distance, azimuth=viewer.azimuth, elevation=viewer.elevation
    )
    # A copy: pictures need settings of their own in the model.
    return Renderer(copy.copy(envs.sim.mj_model), 2 * viewer.width, 2 * viewer.height, view)


def _load(module: str) -> Any:
    quiet = os.environ.setdefault("MJLAB_WARP_QUIET", "1") != "0"
    gl = os.environ.get("MUJOCO_GL")
    try:
        importlib.import_module("mjlab.tasks")
        if quiet:  # Warp has a line for each of some hundred kernels; this is how its newer versions are told
            importlib.import_module("warp").config.log_level = logging.WARNING
        return importlib.import_module(module)
    except ImportError as error:
        # Where it is installed, a part of it or a package that it needs is missing. A folder of that name has no
        # origin.
        spec = importlib.util.find_spec("mjlab")
        if spec is not None and spec.origin is not None:
            raise UserError(
                f"mjlab cannot be imported: {' '.join(str(error).split())}. "
                "Give mjlab 1.6 a separate Python environment (docs/environments/mjlab.md)."
            ) from None
        raise UserError(f"mjlab tasks need mjlab 1.6: {install_line('mjlab')}") from None
    finally:
        # mjlab chooses EGL for everyone; which OpenGL works is found out when a picture is asked for.
        if gl is None:
            os.environ.pop("MUJOCO_GL", None)
