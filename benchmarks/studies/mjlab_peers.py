"""Velocity tracking in mjlab: runs of fleetfoot beside rsl_rl's PPO, at equal seconds of training on one machine.

rsl_rl is trained by mjlab's own runner with mjlab's own configuration of the task, as `mjlab.scripts.train` does, but
for the logger, which is off. Its clock starts when the simulator is built and has made a step, and so its kernels are
compiled. The clock of a fleetfoot run leaves out compilation too, evaluations and checkpoints.

All policies are judged by the same deterministic episodes: one set of environments (mjlab's play variant with the time
limit of training, as in every evaluation of fleetfoot), whose random numbers start anew for each policy. Returns of
the same policy may still differ in the fourth digit: some reward terms of mjlab remember the episode before.

Actions. mjlab's have no bounds, and rsl_rl's policy has none: its mean goes to mjlab as it is, clipped only where
mjlab's configuration of the task has `clip_actions`. A policy of fleetfoot is clipped to [-1, 1] and multiplied by the
`action_scale` of its recipe, which is what its own environments do.

Tracking errors are means over the steps of the judged episodes: |commanded - actual| velocity in the robot's frame, of
the horizontal part in m/s and of the yaw rate in rad/s. Each velocity is compared with the command that stood before
the step, which is what the reward compares. The last step of an episode that falls is left out, since the robot is
back at the start by then.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fleetfoot import checkpoint
from fleetfoot.config import to_json
from fleetfoot.data import Obs, Step
from fleetfoot.envs.lab.isaac_lab import OwnRandom
from fleetfoot.envs.lab.mjlab import MjlabConfig, MjlabEnv, task_config
from fleetfoot.errors import UserError
from fleetfoot.evaluate import first_episodes
from fleetfoot.files import read_json, replacing, write_text
from fleetfoot.run.clock import Clock
from fleetfoot.run.folder import is_run, read_recipe
from fleetfoot.system import resolve_device

MAX_VEC_STEPS = 10_000  # of an episode
VERSIONS = ("mjlab", "rsl-rl-lib", "mujoco", "mujoco-warp", "warp-lang")


def mjlab_peers(
    ours: tuple[Path, ...] = (),
    task: str = "Mjlab-Velocity-Flat-Unitree-G1",
    minutes: float = 5.0,
    every: float = 60.0,
    num_envs: int = 4_096,
    episodes: int = 512,
    evaluate: bool = True,
    seed: int = 0,
    device: str = "auto",
    runs: Path = Path("runs/mjlab_peers"),
) -> Iterator[dict[str, Any]]:
    """Return and tracking errors over seconds of training.

    :param ours: Run folders of fleetfoot on the same task; train them with a large --checkpoint.keep.
    :param task: A velocity task of mjlab.
    :param minutes: Minutes of training; what was saved later is left out.
    :param every: Seconds of training between two policies that are judged.
    :param num_envs: Environments that rsl_rl trains in.
    :param episodes: Judged episodes of each policy.
    :param evaluate: False: only train.
    :param seed: Of rsl_rl's training.
    :param device: Where to simulate and to train.
    :param runs: Where rsl_rl's snapshots go; those that are there already are read, and nothing is trained.
    """
    if min(minutes, every) <= 0 or min(num_envs, episodes) < 1:
        raise UserError("minutes and every are above 0, num_envs and episodes at least 1.")
    marks = [every * count for count in range(1, int(minutes * 60 / every) + 1)]
    if not marks:
        raise UserError(f"every ({every} s) is longer than minutes ({minutes}).")
    place = torch.empty(0, device=resolve_device(device)).device  # a GPU with its number, for Warp
    env_config = MjlabConfig(task=task)
    for folder in ours:
        check_trained_on(folder, task)
    if len({run.name for run in ours}) < len(ours):
        raise UserError("two of --ours have the same name; rows are told apart by it.")
    folder = runs / f"rsl_rl-{task}-seed{seed}"
    result: dict[str, Any] = {
        "task": task,
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS},
        "rows": [],
    }
    if not folder.exists():
        train_rsl_rl(env_config, num_envs, marks, seed, place, folder)
    result["rsl_rl"] = about = finished(folder)
    if about["num_envs"] != num_envs or about["marks"][: len(marks)] != marks:
        raise UserError(
            f"{folder} was trained with other options: delete it, or name other --runs."
        )
    result["recipes"] = {run.name: to_json(read_recipe(run)) for run in ours}
    yield result
    if not evaluate:
        return
    judge = Judge(env_config, episodes, place)
    for snapshot in sorted(folder.glob("*.safetensors")):
        theirs = rsl_rl_policy(judge.env, task, snapshot)
        about = read_json(snapshot.with_suffix(".json"))
        if about["mark"] > marks[-1]:
            continue
        result["rows"].append({"peer": "rsl_rl PPO", **about, **judge(theirs)})
        yield result
    for run in ours:
        for mark, saved in at_marks(run, marks):
            policy, about = our_policy(run, saved, judge.env)
            row = {"peer": f"{about.pop('recipe')} ({run.name})", "mark": mark, **about}
            result["rows"].append({**row, **judge(policy)})
            yield result
    judge.env.close()


class JudgedEnv(MjlabEnv):
    """Evaluation environments that take actions as mjlab does, and measure how well the velocity is tracked."""

    def __init__(self, config: MjlabConfig, num_envs: int, seed: int, device: torch.device) -> None:
        super().__init__(config, num_envs, seed, device)
        manager = self.envs.command_manager
        terms = [manager.get_term(name) for name in manager.active_terms]
        velocity = [term for term in terms if "error_vel_xy" in term.metrics]
        if not velocity:
            raise UserError(f"{config.task} commands no velocity, so there is no tracking error.")
        self.velocity = velocity[0]

    def reset(self) -> Obs:
        obs = super().reset()
        self.running = torch.ones(self.rows, dtype=torch.bool, device=self.spec.device)
        self.steps = torch.zeros((), device=self.spec.device)
        self.errors = torch.zeros(2, device=self.spec.device)  # horizontal, yaw
        return obs

    def step(self, action: Tensor) -> Step:
        command = self.velocity.command.clone()
        step = super().step(action)
        self.running &= ~(step.terminated | step.truncated)
        robot = self.velocity.robot.data
        horizontal = (command[:, :2] - robot.root_link_lin_vel_b[:, :2]).norm(dim=1)
        yaw = (command[:, 2] - robot.root_link_ang_vel_b[:, 2]).abs()
        self.errors += (torch.stack([horizontal, yaw]) * self.running).sum(1)
        self.steps += self.running.sum()
        return step

    def _command(self, action: Tensor) -> Tensor:
        return action

    def tracking(self) -> dict[str, float]:
        horizontal, yaw = (self.errors / self.steps).tolist()
        return {"error_vel_xy": horizontal, "error_vel_yaw": yaw}


class Judge:
    """One set of environments for all policies; each meets the same random numbers."""

    def __init__(
        self, config: MjlabConfig, episodes: int, device: torch.device, seed: int = 12_345
    ):
        self.seed = seed
        self.env = JudgedEnv(config.for_evaluation(), episodes, seed, device)

    def __call__(self, policy: nn.Module) -> dict[str, float]:
        self.env.stream = OwnRandom(self.seed, self.env.spec.device)
        found = first_episodes(policy, self.env, self.env.reset(), MAX_VEC_STEPS)
        metrics = {name.removeprefix("eval/"): value for name, value in found.metrics().items()}
        return metrics | self.env.tracking()


class Scaled(nn.Module):
    """A policy of fleetfoot with what its environments do to its actions."""

    def __init__(self, policy: nn.Module, action_scale: float) -> None:
        super().__init__()
        self.policy, self.action_scale = policy, action_scale

    def forward(self, obs: Obs) -> Tensor:
        action: Tensor = self.policy(obs)
        return action.clamp(-1.0, 1.0) * self.action_scale


class RslRlPolicy(nn.Module):
    """The mean action of rsl_rl's policy, clipped only where mjlab clips it."""

    def __init__(self, network: nn.Module, clip: float | None) -> None:
        super().__init__()
        self.network, self.clip = network, clip

    def forward(self, obs: Obs) -> Tensor:
        action: Tensor = self.network({"actor": obs.actor, "critic": obs.critic})
        return action if self.clip is None else action.clamp(-self.clip, self.clip)


class TimeIsUp(Exception):  # noqa: N818
    """Ends rsl_rl's loop, which knows a number of iterations only."""


class Snapshots:
    """Keeps the policy after the first iteration past each of `marks` (seconds), and ends training with the last."""

    def __init__(self, runner: Any, marks: list[float], folder: Path) -> None:
        self.runner, self.left, self.folder = runner, list(marks), folder
        self.iteration_env_steps = runner.cfg["num_steps_per_env"] * runner.env.num_envs
        self.env_steps = 0
        self.clock = Clock()

    def after_iteration(self) -> None:
        self.env_steps += self.iteration_env_steps
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the clock reads work done, not work asked for
        seconds = self.clock.seconds()
        if seconds < self.left[0]:
            return
        with self.clock.paused():
            passed = [mark for mark in self.left if mark <= seconds]
            self.left = self.left[len(passed) :]
            self.keep(passed[-1], seconds)
        if not self.left:
            raise TimeIsUp

    def keep(self, mark: float, seconds: float) -> None:
        about = {
            "mark": mark,
            "train_seconds": round(seconds, 2),
            "env_steps": self.env_steps,
        }
        print(json.dumps(about), flush=True)
        path = self.folder / f"{self.env_steps:012}.safetensors"
        weights = self.runner.alg.get_policy().state_dict()
        write_text(path.with_suffix(".json"), json.dumps(about))
        with replacing(path) as hidden:
            save_file({name: value.contiguous() for name, value in weights.items()}, hidden)


def train_rsl_rl(
    config: MjlabConfig,
    num_envs: int,
    marks: list[float],
    seed: int,
    device: torch.device,
    folder: Path,
) -> None:
    """Train until the last of `marks`, as `mjlab.scripts.train` does."""
    cfg = task_config(config)
    cfg.scene.num_envs, cfg.seed = num_envs, seed
    importlib.import_module("mjlab.utils.torch").configure_torch_backends()
    with contextlib.redirect_stdout(io.StringIO()):  # mjlab prints its whole configuration
        envs = importlib.import_module("mjlab.envs").ManagerBasedRlEnv(cfg, device=str(device))
    runner, agent = rsl_rl_runner(envs, config.task, seed, device)
    envs.step(torch.zeros(num_envs, runner.env.num_actions, device=device))  # loads the kernels
    envs.reset()
    snapshots, update = Snapshots(runner, marks, folder), runner.alg.update

    def update_and_look() -> Any:  # the update is the end of an iteration
        losses = update()
        snapshots.after_iteration()
        return losses

    runner.alg.update = update_and_look
    with contextlib.suppress(TimeIsUp):
        runner.learn(agent.max_iterations, init_at_random_ep_len=True)
    envs.close()
    about = {"num_envs": num_envs, "marks": marks, "seed": seed, "settings": asdict(agent)}
    write_text(
        folder / "about.json", json.dumps(about)
    )  # the last one: it says that training ended


def finished(folder: Path) -> Any:
    """What rsl_rl trained with; a `UserError` where its training was stopped."""
    if not (folder / "about.json").exists():
        raise UserError(f"{folder} holds a training that was stopped: delete it.")
    return read_json(folder / "about.json")


def rsl_rl_runner(envs: Any, task: str, seed: int, device: torch.device) -> tuple[Any, Any]:
    """mjlab's runner on these environments, and its settings of the task."""
    registry = importlib.import_module("mjlab.tasks.registry")
    rl = importlib.import_module("mjlab.rl")
    agent = registry.load_rl_cfg(task)
    agent.seed = seed
    wrapped = rl.RslRlVecEnvWrapper(envs, clip_actions=agent.clip_actions)
    make = registry.load_runner_cls(task) or rl.MjlabOnPolicyRunner
    return make(wrapped, asdict(agent), None, str(device)), agent


def rsl_rl_policy(env: MjlabEnv, task: str, snapshot: Path) -> RslRlPolicy:
    runner, agent = rsl_rl_runner(env.envs, task, 0, env.spec.device)
    network = runner.get_inference_policy(str(env.spec.device))
    network.load_state_dict(load_file(snapshot, device=str(env.spec.device)))
    return RslRlPolicy(network, agent.clip_actions)


def check_trained_on(run: Path, task: str) -> None:
    if not is_run(run):
        raise UserError(f"{run} is no run folder.")
    config = read_recipe(run).env
    if not isinstance(config, MjlabConfig) or config.task != task or config.changes:
        raise UserError(f"{run} was not trained on {task} as mjlab has it.")


def at_marks(run: Path, marks: list[float]) -> list[tuple[float, Path]]:
    """Of each mark the newest checkpoint that was made before it, if there is a new one."""
    times = {folder: seconds_of(folder) for folder in checkpoint.steps(run).values()}
    chosen: dict[Path, float] = {}
    for mark in marks:
        before = [folder for folder, seconds in times.items() if seconds <= mark]
        if before:
            chosen.setdefault(max(before, key=lambda folder: times[folder]), mark)
    return [(mark, folder) for folder, mark in chosen.items()]


def seconds_of(folder: Path) -> float:
    seconds = checkpoint.plain_values(folder).get("train_seconds")
    if not isinstance(seconds, float):
        raise UserError(f"{folder} does not tell its seconds of training.")
    return seconds


def our_policy(run: Path, saved: Path, env: MjlabEnv) -> tuple[Scaled, dict[str, Any]]:
    """The policy of one checkpoint, and what is known of it."""
    recipe = read_recipe(run)
    assert isinstance(recipe.env, MjlabConfig)
    loaded = checkpoint.load(saved, which="last", with_replay=False)
    agent = recipe.build_agent(env.spec, env.spec.device)
    agent.policy.load_state_dict(loaded.state["agent"]["policy"])
    about = {
        "recipe": recipe.name,
        "train_seconds": round(float(loaded.state["train_seconds"]), 2),
        "env_steps": loaded.step * recipe.num_envs,
    }
    return Scaled(agent.policy.eval(), recipe.env.action_scale), about
