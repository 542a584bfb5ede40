"""Small tasks written in torch: thousands of copies in one tensor, on CPU or GPU.

They serve tests and benchmarks: `step` has no loop over environments and never waits for the
device. Random starts come from a counter, so what environment i draws depends only on the seed,
on i, and on how many episodes it has begun. Above 300 lines: half of it is a list of tasks.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.config import at_least, part
from fleetfoot.data import Action, Continuous, Discrete, EnvSpec, Obs, Reflection, Step, Symmetry
from fleetfoot.envs.counter import env_keys, uniforms
from fleetfoot.errors import UserError, nearest


class Task(Protocol):
    """The mathematics of one task; a row of `state` is one environment."""

    obs_shape: tuple[int, ...]
    critic_shape: tuple[int, ...] | None
    obs_dtype: torch.dtype
    action: Action
    episode_length: int | None
    step_seconds: float
    draws: int  # uniform numbers that one start uses
    symmetry: Symmetry | None = None

    def start(self, u: Tensor) -> Tensor:
        """The first state [N, S] of an episode from uniforms [N, draws]."""
        ...

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(state, reward, terminated) after one step."""
        ...

    def observe(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """What the actor and the critic see: new tensors, one and the same if alike."""
        ...

    def draw(self, state: list[float], picture: Picture) -> None: ...


class Pendulum(Task):
    """Gymnasium's Pendulum-v1: swing up and hold, torque within +-2. State: angle, speed."""

    obs_shape, critic_shape, obs_dtype = (3,), None, torch.float32
    action, episode_length, step_seconds, draws = Continuous(1), 200, 0.05, 2
    symmetry = Symmetry(Reflection((0, 1, 2), (1, -1, -1)), Reflection((0,), (-1,)))

    def start(self, u: Tensor) -> Tensor:
        angle, speed = (2 * u - 1).unbind(1)
        return torch.stack([math.pi * angle, speed], 1)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind(1)
        torque = 2 * action[:, 0].clamp(-1, 1)
        cost = angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = (speed + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        angle = angle + speed * 0.05
        # Kept within one turn: the same motion, and float32 stays precise.
        angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        return torch.stack([angle, speed], 1), -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, state: Tensor) -> tuple[Tensor, Tensor]:
        angle, speed = state.unbind(1)
        obs = torch.stack([angle.cos(), angle.sin(), speed], 1)
        return obs, obs

    def draw(self, state: list[float], picture: Picture) -> None:
        tip = (0.8 * math.sin(-state[0]), 0.8 * math.cos(state[0]))
        picture.line((0, 0), tip, 0.08, RED)
        picture.line((0, 0), (0, 0), 0.05, BLACK)


class Pendulums(Pendulum):
    """Pendulums as tasks that only the task id tells apart.

    In every other one the torque acts in the opposite direction, and rewards of task k are 10^(k % 4) times as large.
    """

    def __init__(self, task: Tensor) -> None:
        self.way, self.scale = 1.0 - 2.0 * (task % 2), 10.0 ** (task % 4)  # [N]

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state, reward, terminated = super().advance(state, self.way[:, None] * action)
        return state, self.scale * reward, terminated


class CartPole(Task):
    """Gymnasium's CartPole-v1. State: cart position and speed, pole angle and speed."""

    obs_shape, critic_shape, obs_dtype = (4,), None, torch.float32
    action, episode_length, step_seconds, draws = Discrete(2), 500, 0.02, 4

    def start(self, u: Tensor) -> Tensor:
        return 0.1 * u - 0.05

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, x_speed, angle, angle_speed = state.unbind(1)
        force = 20.0 * action - 10.0
        sin, cos = angle.sin(), angle.cos()
        push = (force + 0.05 * angle_speed.square() * sin) / 1.1
        angle_acc = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos.square() / 1.1))
        x_acc = push - 0.05 * angle_acc * cos / 1.1
        rates = torch.stack([x_speed, x_acc, angle_speed, angle_acc], 1)
        state = state + 0.02 * rates
        fallen = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > math.radians(12))
        return state, torch.ones_like(x), fallen

    def observe(self, state: Tensor) -> tuple[Tensor, Tensor]:
        obs = state.clone()
        return obs, obs

    def draw(self, state: list[float], picture: Picture) -> None:
        x, _, angle, _ = state
        x /= 2.4
        picture.line((-1, -0.5), (1, -0.5), 0.01, BLACK)
        picture.line((x - 0.1, -0.5), (x + 0.1, -0.5), 0.06, BLUE)
        picture.line(
            (x, -0.5), (x + 0.8 * math.sin(angle), -0.5 + 0.8 * math.cos(angle)), 0.04, RED
        )


class Catch(Task):
    """A ball falls down a 10 x 10 image; the paddle on the last row must be below it.

    Actions: left, stay, right. Reward +1 or -1 when the ball lands, after 9 steps; zero before.
    State: ball column, ball row, paddle column.
    """

    obs_shape, critic_shape, obs_dtype = (1, 10, 10), None, torch.uint8
    action, episode_length, step_seconds, draws = Discrete(3), None, 0.1, 1

    def start(self, u: Tensor) -> Tensor:
        column = (10 * u[:, 0]).floor()
        return torch.stack([column, torch.zeros_like(column), torch.full_like(column, 5)], 1)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        column, row, paddle = state.unbind(1)
        paddle, row = (paddle + action - 1).clamp(0, 9), row + 1
        landed = row == 9
        reward = torch.where(paddle == column, 1.0, -1.0) * landed
        return torch.stack([column, row, paddle], 1), reward, landed

    def observe(self, state: Tensor) -> tuple[Tensor, Tensor]:
        column, row, paddle = state[:, :, None].unbind(1)  # [N, 1] each
        cells = torch.arange(10, device=state.device)
        ball = (row == cells)[:, :, None] & (column == cells)[:, None, :]
        bar = (cells == 9)[:, None] & (paddle == cells)[:, None, :]
        image = (ball | bar)[:, None].to(torch.uint8) * 255  # [N, 1, 10, 10]
        return image, image

    def draw(self, state: list[float], picture: Picture) -> None:
        column, row, paddle = (x / 5 - 0.9 for x in state)
        picture.line((column, -row), (column, -row), 0.1, RED)
        picture.line((paddle - 0.05, -0.9), (paddle + 0.05, -0.9), 0.05, BLUE)


class PointMass(Task):
    """Push a point to a goal in [-1, 1]^2. State: position, velocity, goal (two numbers each).

    Reward: the distance gained, +1 at the goal, -1 for leaving the arena; both end the episode.
    With `privileged`, velocity and goal distance are for the critic alone. With several tasks,
    goal and reward scale belong to the task, and only the task id tells where the goal is.
    """

    obs_dtype, action, episode_length, step_seconds, draws = (
        torch.float32,
        Continuous(2),
        100,
        0.05,
        4,
    )

    def __init__(self, privileged: bool, num_tasks: int, task: Tensor) -> None:
        self.privileged, self.num_tasks = privileged, num_tasks
        size = 2 + 2 * (num_tasks == 1) + 2 * (not privileged)
        self.obs_shape = (size,)
        self.critic_shape = (size + 3,) if privileged else None
        angle = task * (2 * math.pi / num_tasks)
        self.goal = 0.6 * torch.stack([angle.cos(), angle.sin()], 1)  # [N, 2]
        self.scale = 10.0 ** (task % 3 - 1) if num_tasks > 1 else torch.ones_like(angle)
        if num_tasks == 1:  # up and down; the distance stays
            sign = (1.0, -1.0) * (size // 2)
            actor = Reflection(tuple(range(size)), sign)
            critic = Reflection(tuple(range(size + 3)), (*sign, 1.0, -1.0, 1.0))
            action = Reflection((0, 1), (1.0, -1.0))
            self.symmetry = Symmetry(actor, action, critic if privileged else None)

    def start(self, u: Tensor) -> Tensor:
        spread = 1.6 * u - 0.8
        position, goal = spread[:, :2], spread[:, 2:] if self.num_tasks == 1 else self.goal
        return torch.cat([position, torch.zeros_like(position), goal], 1)

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, velocity, goal = state.tensor_split(3, 1)
        before = (goal - position).norm(dim=1)
        velocity = velocity + (4 * action.clamp(-1, 1) - 2 * velocity) * self.step_seconds
        position = position + velocity * self.step_seconds
        distance = (goal - position).norm(dim=1)
        reached, left = distance < 0.1, (position.abs() > 1).any(1)
        reward = self.scale * (before - distance + reached.float() - left.float())
        return torch.cat([position, velocity, goal], 1), reward, reached | left

    def observe(self, state: Tensor) -> tuple[Tensor, Tensor]:
        position, velocity, goal = state.tensor_split(3, 1)
        visible = [position] if self.num_tasks > 1 else [position, goal - position]
        if not self.privileged:
            obs = torch.cat([*visible, velocity], 1)
            return obs, obs
        distance = (goal - position).norm(dim=1, keepdim=True)
        return torch.cat(visible, 1), torch.cat([*visible, velocity, distance], 1)

    def draw(self, state: list[float], picture: Picture) -> None:
        picture.line((state[4], state[5]), (state[4], state[5]), 0.1, GREEN)
        picture.line((state[0], state[1]), (state[0], state[1]), 0.04, RED)


class TensorEnv:
    """`num_envs` copies of a task. Every step makes new tensors, so nothing handed out changes."""

    def __init__(self, name: str, task: Task, tasks: int, seed: int, task_id: Tensor) -> None:
        self.device, rows = task_id.device, len(task_id)
        self.task, self.task_id = task, task_id if tasks > 1 else None
        self.spec = EnvSpec(
            name=name,
            num_envs=rows,
            obs_shape=task.obs_shape,
            critic_shape=task.critic_shape,
            critic_prefix=task.obs_shape[0] if task.critic_shape else 0,
            obs_dtype=task.obs_dtype,
            action=task.action,
            device=self.device,
            episode_length=task.episode_length,
            tasks=tuple(f"task-{k}" for k in range(tasks)) if tasks > 1 else (),
            task_ids=tuple(i % tasks for i in range(rows)) if tasks > 1 else (),
            step_seconds=task.step_seconds,
            symmetry=task.symmetry,
        )
        self.key = env_keys(seed, rows, self.device)
        self.episode = torch.zeros_like(self.key)
        self.reset()

    def reset(self) -> Obs:
        self.episode = self.episode + 1
        self.clock = torch.zeros_like(self.key)
        self.state = self.task.start(uniforms(self.key, self.episode, self.task.draws))
        return self._obs(*self.task.observe(self.state))

    def step(self, action: Tensor) -> Step:
        state, reward, terminated = self.task.advance(self.state, action)
        clock, limit = self.clock + 1, self.task.episode_length
        truncated = (
            torch.zeros_like(terminated) if limit is None else (clock >= limit) & ~terminated
        )
        ended = terminated | truncated
        # All environments draw a start and few keep it: choosing by `ended` would wait for the GPU.
        self.episode = self.episode + ended
        fresh = self.task.start(uniforms(self.key, self.episode, self.task.draws))
        self.state = torch.where(ended[:, None], fresh, state)
        self.clock = torch.where(ended, 0, clock)
        next_obs = self._obs(*self.task.observe(state))
        start = self._obs(*self.task.observe(fresh))
        actor = _choose(ended, start.actor, next_obs.actor)
        same = next_obs.critic is next_obs.actor
        critic = actor if same else _choose(ended, start.critic, next_obs.critic)
        return Step(self._obs(actor, critic), next_obs, reward, terminated, truncated, {})

    def state_dict(self) -> dict[str, Any]:
        names = ("state", "clock", "episode", "key")
        return {name: getattr(self, name).clone() for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        current = self.state_dict()
        for name, now in current.items():
            saved = state.get(name)
            if saved is None or saved.shape != now.shape:
                shape = None if saved is None else list(saved.shape)
                raise UserError(
                    f"the saved state does not fit {self.spec.name}: {name!r} is {shape}, not "
                    f"{list(now.shape)}. Restore it with the same task and number of environments."
                )
        for name, now in current.items():
            setattr(self, name, state[name].to(self.device, now.dtype, copy=True))
        return self._obs(*self.task.observe(self.state))

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        picture = Picture()
        self.task.draw(self.state[index].tolist(), picture)
        return picture.pixels

    def close(self) -> None:
        """Nothing to close."""

    def _obs(self, actor: Tensor, critic: Tensor) -> Obs:
        return Obs(actor, critic, self.task_id)


def _choose(condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(condition.view(-1, *[1] * (one.dim() - 1)), one, other)


BLACK, RED, GREEN, BLUE = (20, 20, 20), (200, 60, 50), (60, 160, 80), (50, 90, 180)


class Picture:
    """A white square over [-1, 1]^2 (y upwards) to draw thick lines on; a dot has no length."""

    def __init__(self, size: int = 240) -> None:
        self.pixels = np.full((size, size, 3), 255, dtype=np.uint8)
        across = (np.arange(size) + 0.5) / size * 2 - 1
        self.x, self.y = np.meshgrid(across, -across)

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        radius: float,
        colour: tuple[int, int, int],
    ) -> None:
        along = (end[0] - start[0], end[1] - start[1])
        length2 = max(along[0] ** 2 + along[1] ** 2, 1e-12)
        x, y = self.x - start[0], self.y - start[1]
        t = np.clip((x * along[0] + y * along[1]) / length2, 0, 1)
        near = np.hypot(x - t * along[0], y - t * along[1]) <= radius
        self.pixels[near] = colour


@part
class TensorConfig:
    """A small task written in torch. `privileged` is for `point_mass`, `num_tasks` for `point_mass` and
    `pendulum`."""

    task: str = "pendulum"
    """pendulum, cartpole, catch or point_mass."""
    privileged: bool = False
    """The critic sees more than the actor."""
    num_tasks: int = 1
    """Environment i belongs to task i % num_tasks."""

    def __post_init__(self) -> None:
        at_least(self, "env", num_tasks=1)

    def build(self, num_envs: int, seed: int, device: torch.device) -> TensorEnv:
        if self.task not in names():
            known = ", ".join(names())
            close = nearest(self.task, names())
            raise UserError(f"no tensor task is named {self.task!r}; there are {known}.{close}")
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        task_id = torch.arange(num_envs, device=device) % self.num_tasks
        task: Task
        if self.task == "point_mass":
            task = PointMass(self.privileged, self.num_tasks, task_id)
        elif self.task == "pendulum" and self.num_tasks > 1 and not self.privileged:
            task = Pendulums(task_id)
        elif self.privileged or self.num_tasks > 1:
            raise UserError(
                f"{self.task} has no privileged form; only point_mass has one."
                if self.privileged
                else f"{self.task} has no multi-task form; point_mass and pendulum have one."
            )
        else:
            task = SINGLE[self.task]()
        return TensorEnv(f"tensor/{self.task}", task, self.num_tasks, seed, task_id)

    def for_evaluation(self) -> TensorConfig:
        return self


SINGLE: dict[str, type[Task]] = {
    "pendulum": Pendulum,
    "cartpole": CartPole,
    "catch": Catch,
}


def names() -> list[str]:
    return [*SINGLE, "point_mass"]
