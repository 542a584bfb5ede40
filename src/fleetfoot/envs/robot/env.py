"""Many copies of a robot with a task, behind the environment contract.

One vec step is three parts on tensors that stay in place, so that all of it can be captured as CUDA graphs:

    A  action -> targets of the joints, pushes          torch
    B  the timesteps of one control step                the engine
    C  task, observations, ends, restarts               torch

Nothing in A and C depends on a value: restarts are chosen with `torch.where`, from start states that were made before
the first step (`engine.make_starts`), so no physics runs for a restart. Random numbers are hashes of (seed, robot,
episode, step, channel): they are the same in both engines, and nothing depends on N.

    layout.py      where everything lies in the tensors
    physics.py     which engine, and whether a vec step is captured (cuda_graph.py)
    describe.py    what whoever runs a policy elsewhere must know

Above 300 lines: the three parts of a step and the contract work on the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot.data import Obs, Step
from fleetfoot.envs.counter import Draw, env_keys, keys_of
from fleetfoot.envs.render import Arrow, Renderer, velocity_arrows
from fleetfoot.envs.robot.conditions import Conditions, ConditionsConfig
from fleetfoot.envs.robot.describe import describe_task
from fleetfoot.envs.robot.engine import Engine, make_starts
from fleetfoot.envs.robot.layout import Layout, StateLayout, check_saved, columns
from fleetfoot.envs.robot.mirror import symmetry
from fleetfoot.envs.robot.physics import PhysicsConfig
from fleetfoot.envs.robot.randomise import Randomiser
from fleetfoot.envs.robot.returns import check_changes, check_columns
from fleetfoot.envs.robot.robot import Robot
from fleetfoot.envs.robot.task import Now, State, Task
from fleetfoot.errors import UserError

FASTEST = 1e3  # rad/s or m/s: a robot whose joints move faster has exploded
# Of the camera's distance: how far above its base a film shows a robot's velocity.
ARROWS_ABOVE = 0.25
LOG_EVERY = 8  # on a GPU: vec steps between two that tell their reward terms; each term is a launch for the log


class RobotEnv:
    """N robots (`VecEnv`)."""

    def __init__(
        self,
        robot: Robot,
        task: Task,
        num_envs: int,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        physics: PhysicsConfig | None = None,
        conditions: ConditionsConfig | None = None,
        render_size: tuple[int, int] = (640, 480),
    ) -> None:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}")
        physics = physics or PhysicsConfig()
        device, cfg = torch.device(device), conditions or ConditionsConfig()
        self.robot, self.task, self.cfg, self._seed = robot, task, cfg, seed
        self.built, self.physics = robot.build(physics.timestep), physics
        if cfg.push_speed is not None and not self.built.pushable:
            raise UserError(f"{robot.name} has no free base to push; leave out push_speed.")
        self.dt = physics.timestep * physics.substeps
        home = physics.home(device)  # where the task is computed
        task.bind(self.built, self.dt, home)
        starts = make_starts(self.built, task, seed)
        varied = cfg.randomise.anything
        randomiser = Randomiser(cfg.randomise, self.built, num_envs, seed) if varied else None
        self.engine: Engine = physics.build(self.built, num_envs, starts, device, randomiser)
        self._starts = starts.on(home)
        self._home, self._on_gpu = home, home.type == "cuda"
        self._conditions = Conditions(cfg, self.built.num_joints, self.dt)
        self._q, self._v = (columns(wanted, home) for wanted in (self.built.q, self.built.v))
        self._offset, self._scale = (
            torch.tensor(rows.copy(), dtype=torch.float32, device=home)
            for rows in (self.built.offset, self.built.scale)
        )
        self._limits = self._tighter_limits()
        self._look_size = render_size
        self._renderer: Renderer | None = None
        self._allocate(num_envs, seed)
        self._lay_out(device)
        self._run = self._make_run()

    def _tighter_limits(self) -> tuple[Tensor, Tensor] | None:
        """Bounds of the targets, which a controller of the real robot keeps; None where MuJoCo's own are as tight."""
        built, told = self.built, self.built.model.actuator_ctrllimited.astype(bool)
        low, high = (
            torch.tensor(rows, dtype=torch.float32, device=self._home)
            for rows in (built.target_low, built.target_high)
        )
        span = np.where(told[:, None], built.model.actuator_ctrlrange, [-np.inf, np.inf])
        own = torch.tensor(span, dtype=torch.float32, device=self._home)
        tighter = (low > own[:, 0]) | (high < own[:, 1])
        return (low, high) if bool(tighter.any()) else None

    def _allocate(self, num_envs: int, seed: int) -> None:
        """What every robot has, whatever its task."""
        home = self._home
        self._key = env_keys(seed, num_envs, home)
        self._episode = torch.full((num_envs,), -1, dtype=torch.int64, device=home)
        self._clock = torch.zeros(num_envs, dtype=torch.int64, device=home)
        self._given = torch.zeros(num_envs, self.built.num_joints, device=home)
        self._action = torch.zeros_like(self._given)
        self._count = 0  # vec steps since the last reset
        self._begun = False
        self._step_draws = self._begin_draws = 0  # learned from the first step and the first start

    def _lay_out(self, device: torch.device) -> None:
        """Sizes of state, observations and log, from one start that is thrown away."""
        rows = len(self._key)
        draw = Draw(keys_of(self._key, self._episode, 0))
        draw.uniform(1)
        state = self._state_of(draw, None)
        self._columns = StateLayout(state)
        self._packed = self._columns.pack(state).clone()  # [N, S]
        self._state = self._columns.unpack(self._packed)
        now = self._moment(*self._starts_of(torch.zeros_like(self._key)), state)
        self._layout = layout = Layout(self.task, self.cfg, now, rows)
        check_changes(self.task, "after", self.task.after(now), state)
        check_changes(self.task, "advance", self.task.advance(now, draw), state)
        self._frames = layout.frames
        self._buffer = torch.zeros(rows, layout.frames.length, layout.frame_size, device=self._home)
        self._flat = torch.zeros(layout.flat_size(), device=self._home)
        mirrored = symmetry(
            self.built, self.task.mirror, layout.terms, layout.extra, self.cfg.history
        )
        self._flags = torch.zeros(2, rows, dtype=torch.bool, device=self._home)
        name = f"{self.robot.name}-{self.task.name}"
        self.spec = replace(
            layout.spec(name, self.built.num_joints, device, self.dt),
            episode_length=self.task.episode_length,
            description=self.describe(),
            symmetry=mirrored,
        )

    @property
    def terms(self) -> dict[str, int]:
        """The sizes of what the policy observes."""
        return self._layout.terms

    def _act(self) -> None:
        """A."""
        torch.clamp(self._given, -1.0, 1.0, out=self._action)
        executed, changed = self._conditions.act(self._action, self._state)
        for name, value in changed.items():
            self._state[name].copy_(value)
        torch.addcmul(self._offset, executed, self._scale, out=self.engine.control)
        if self._limits is not None:
            torch.clamp(self.engine.control, *self._limits, out=self.engine.control)
        if "push" in self._state:
            self.engine.kick(self._state["push"])

    def _finish(self) -> None:
        """C."""
        engine, task = self.engine, self.task
        clock = self._clock + 1
        draw, later = self._draws(clock)
        now = self._moment(engine.qpos, engine.qvel, engine.sensor, self._state)
        now.state = now.state | task.after(now)
        buffer = self._frames.push(self._buffer, self._frame(now, draw))
        actor, critic = self._obs_of(buffer, now)
        steady = engine.qvel.abs().amax(1) < FASTEST  # NaN is not
        exploded = ~(steady & engine.sensor.sum(1).isfinite())
        terminated = task.terminated(now) | exploded
        truncated = (clock >= task.episode_length) & ~terminated
        ended = terminated | truncated
        terms = torch.stack([*task.reward(now, terminated).values()])  # [K, N]
        told = torch.cat([terms, torch.stack([*task.info(now).values(), task.power(now)])])
        told = torch.cat([told.masked_fill(exploded, 0.0), exploded.float()[None]])
        reward = task.total(terms)
        state = now.state | task.advance(now, draw)
        state |= self._conditions.advance(state, self._action, clock, draw)
        self._step_draws = max(self._step_draws, draw.used)
        reward = reward.masked_fill(exploded, 0.0)
        new_actor, new_critic, packed = actor, critic, self._columns.pack(state)
        if self._on_gpu or bool(ended.any()):  # to ask costs nothing on a CPU
            new_actor, new_critic, packed, buffer = self._restarted(
                ended, later, state, packed, buffer, actor, critic
            )
        self._packed.copy_(packed)
        self._buffer.copy_(buffer)
        self._clock.copy_(clock.masked_fill(ended, 0))
        self._episode += ended
        pieces = (new_actor, new_critic, actor, critic, reward, told)
        torch.cat([piece.flatten() for piece in pieces], out=self._flat)
        self._flat.nan_to_num_(0.0, 0.0, 0.0)  # an explosion must not reach a replay buffer
        torch.stack([terminated, truncated], out=self._flags)

    def _restarted(
        self,
        ended: Tensor,
        draw: Draw | None,
        state: State,
        packed: Tensor,
        buffer: Tensor,
        actor: Tensor,
        critic: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """New episodes where one ended: observations, packed state and frames with those rows replaced."""
        row, first_buffer, begun, first_actor, first_critic = self._begin(state, draw)
        self.engine.restart(ended, row)
        self.engine.vary(ended, begun)
        chosen = ended[:, None]
        return (
            torch.where(chosen, first_actor, actor),
            torch.where(chosen, first_critic, critic),
            torch.where(chosen, self._columns.pack(begun), packed),
            torch.where(chosen[:, :, None], first_buffer, buffer),
        )

    def _draws(self, clock: Tensor) -> tuple[Draw, Draw | None]:
        """For this step, and for the episodes that may begin after it; on a CPU those are drawn where one does."""
        if not self._on_gpu:
            return Draw(keys_of(self._key, self._episode, clock), self._step_draws), None
        episode = torch.stack([self._episode, self._episode + 1])
        step = torch.stack([clock, torch.zeros_like(clock)])
        keys = keys_of(self._key, episode, step)  # [2, N]
        now, later = Draw.several(keys, max(self._step_draws, self._begin_draws))
        return now, later

    def _begin(
        self, before: State | None, draw: Draw | None = None
    ) -> tuple[Tensor, Tensor, State, Tensor, Tensor]:
        """The next episode of every robot: number of its start, frames, state and observations."""
        if draw is None:
            draw = Draw(keys_of(self._key, self._episode + 1, 0), self._begin_draws)
        row = (draw.uniform(1)[:, 0] * len(self._starts[0])).long()
        state = self._state_of(draw, before)
        now = self._moment(*self._starts_of(row), state)
        now.action = torch.zeros_like(now.action)
        buffer = self._frames.first(self._frame(now, draw))
        self._begin_draws = max(self._begin_draws, draw.used)
        actor, critic = self._obs_of(buffer, now)
        return row, buffer, state, actor, critic

    def _state_of(self, draw: Draw, before: State | None) -> State:
        """Of an episode that begins: of the conditions, of the robot itself, and of the task."""
        varied = self.engine.varied
        ours = self._conditions.begin(draw) | ({} if varied is None else varied.begin(draw))
        theirs = self.task.begin(draw, before)
        check_columns(self.task, "begin", theirs, len(self._key))
        if taken := ours.keys() & theirs.keys():
            raise UserError(
                f"begin() of {self.task.name} names {min(taken)!r}, which is the environment's own."
            )
        return ours | theirs

    def _starts_of(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qpos, qvel, sensor = self._starts
        return qpos[row], qvel[row], sensor[row]

    def _moment(self, qpos: Tensor, qvel: Tensor, sensor: Tensor, state: State) -> Now:
        built = self.built
        return Now(
            qpos=qpos,
            qvel=qvel,
            sensor={name: sensor[:, part] for name, part in built.sensors.items()},
            joint_pos=qpos[:, self._q],
            joint_vel=qvel[:, self._v],
            action=self._action,
            last_action=state["last_action"],
            state=state,
        )

    def _frame(self, now: Now, draw: Draw) -> Tensor:
        """[N, D]: one observation of the policy, with its noise."""
        frame = self._layout.frame(self.task, now)
        if not self._layout.noisy:
            return frame
        return torch.addcmul(frame, draw.uniform(frame.shape[1], -1.0, 1.0), self._layout.noise)

    def _obs_of(self, buffer: Tensor, now: Now) -> tuple[Tensor, Tensor]:
        actor = self._frames.seen(buffer, now.state.get("obs_delay"))
        if not self._layout.extra_size:
            return actor, actor
        return actor, torch.cat([actor, self._layout.beside(self.task, now)], 1)

    def _make_run(self) -> Callable[[], None]:
        if not self.physics.captures(self._on_gpu):
            return self._vec_step
        from fleetfoot.envs.robot.cuda_graph import capture
        from fleetfoot.envs.robot.warp import WarpEngine

        assert isinstance(self.engine, WarpEngine)
        return capture(self, self.engine)

    def _forget(self) -> None:
        """As if nothing had happened yet."""
        self._episode.fill_(-1)
        self._begun = False
        self.engine.forget()

    def _vec_step(self) -> None:
        self._act()
        self.engine.advance()
        self._finish()

    @torch.no_grad()
    def reset(self) -> Obs:
        before = self._state if self._begun else None
        row, buffer, state, actor, critic = self._begin(before)
        everyone = torch.ones_like(row, dtype=torch.bool)
        self.engine.restart(everyone, row)
        self.engine.vary(everyone, state)
        self._packed.copy_(self._columns.pack(state))
        self._buffer.copy_(buffer)
        self._clock.zero_()
        self._episode += 1
        self._count, self._begun = 0, True
        self._flat[: self._layout.obs_size] = torch.cat([actor.flatten(), critic.flatten()])
        return self._handed_out()[0]

    @torch.no_grad()
    def step(self, action: Tensor) -> Step:
        self._require_reset()
        if action.shape != self._given.shape:
            expected = tuple(self._given.shape)
            raise UserError(f"actions must have shape {expected}, not {tuple(action.shape)}")
        self._given.copy_(action.detach())
        if not self._on_gpu and bool(self._given.isnan().any()):
            raise UserError(
                "an action is NaN: the policy has diverged; lower the learning rate or clip its gradients"
            )
        self._run()
        self._count += 1
        self.engine.check()
        obs, next_obs, reward, told = self._handed_out()
        terminated, truncated = self._flags.to(self.spec.device, copy=True).unbind(0)
        info = {}
        if not self._on_gpu or self._count % LOG_EVERY == 0:
            info = {f"env/{name}": row for name, row in zip(self._layout.told, told, strict=True)}
        return Step(obs, next_obs, reward, terminated, truncated, info)

    def _handed_out(self) -> tuple[Obs, Obs, Tensor, Tensor]:
        """Copies of the outputs, which the next step overwrites: one copy for all of them."""
        return self._layout.split(self._flat.to(self.spec.device, copy=True))

    def _in_place(self) -> dict[str, Tensor]:
        """What changes from step to step, beside the engine's own."""
        return {
            "episode": self._episode,
            "clock": self._clock,
            "state": self._packed,
            "frames": self._buffer,
            "obs": self._flat[: self._layout.obs_size],
        }

    def state_dict(self) -> dict[str, Any]:
        tensors = self._in_place() | self.engine.state_dict()
        copies = {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
        return {"name": self.spec.name, "seed": self._seed, "count": self._count, **copies}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        if state.get("name") != self.spec.name:
            raise UserError(f"this saved state is of {state.get('name')!r}, not {self.spec.name!r}")
        if len(state["clock"]) != self.spec.num_envs:
            raise UserError(
                f"this saved state is of {len(state['clock'])} robots; build as many, not {self.spec.num_envs}"
            )
        mine = self._in_place()
        check_saved(state, mine)
        if self.cfg.randomise.anything and state["seed"] != self._seed:
            raise UserError(
                f"this saved state is of robots randomised with seed {state['seed']}; build with that seed"
            )
        for name, value in mine.items():
            value.copy_(state[name])
        self.engine.load_state_dict({k: v for k, v in state.items() if isinstance(v, Tensor)})
        self.engine.vary(torch.ones_like(self._clock, dtype=torch.bool), self._state)
        if state["seed"] != self._seed:
            self._take_seed(int(state["seed"]))
        self._count, self._begun = int(state["count"]), True
        return self._handed_out()[0]

    def _take_seed(self, seed: int) -> None:
        """Draw as the environments that were saved would have: their keys and their start states."""
        self._seed = seed
        self._key.copy_(env_keys(seed, len(self._key), self._home))
        starts = make_starts(self.built, self.task, seed)
        for mine, theirs in zip(self._starts, starts.on(self._home), strict=True):
            mine.copy_(theirs)
        self.engine.take_starts(starts)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        if not 0 <= index < self.spec.num_envs:
            raise UserError(
                f"there is no environment {index}; they are 0 to {self.spec.num_envs - 1}"
            )
        self._require_reset()
        if self._renderer is None:
            model = self.robot.pictured()
            self._renderer = Renderer(model, *self._look_size, self.robot.view)
        qpos, qvel = (t[index].double().cpu().numpy() for t in (self.engine.qpos, self.engine.qvel))
        arrows: Sequence[Arrow] = ()
        wanted = self.task.wanted_velocity(self._state)
        if wanted is not None and self.built.free:
            above = ARROWS_ABOVE * self._renderer.distance
            arrows = velocity_arrows(qpos, qvel, wanted[index].double().cpu().numpy(), above)
        return self._renderer.picture(qpos, qvel, arrows=arrows)

    def close(self) -> None:
        self.engine.close()
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def describe(self) -> dict[str, Any]:
        """What whoever runs a policy elsewhere must know, as JSON values."""
        return self.built.describe() | describe_task(
            self.task, self.cfg, self.physics, self.terms, self._layout.widths
        )

    def _require_reset(self) -> None:
        if not self._begun:
            raise UserError("call reset() first: no episode has begun")
