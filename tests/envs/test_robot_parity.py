"""The robots' *stock* tasks against MuJoCo Playground itself: the same models, and from the same physics the same
observations, reward terms and ends. Needs Playground, and its robots in FLEETFOOT_MENAGERIE.
"""

from __future__ import annotations

import os
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from fleetfoot.envs.counter import Draw
from fleetfoot.envs.robot import terms
from fleetfoot.envs.robot.config import on_ground
from fleetfoot.envs.robot.joystick import Joystick
from fleetfoot.envs.robot.robot import Built
from fleetfoot.envs.robot.robots import ROBOTS
from fleetfoot.envs.robot.task import Now

MODELS = os.environ.get("FLEETFOOT_MENAGERIE")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODELS, reason="FLEETFOOT_MENAGERIE names no folder with robot models"),
]
STEPS, ROWS = 100, 8
TIMESTEP = {"go1": 0.004, "t1": 0.002, "g1": 0.002}
FOLDER = {"go1": "unitree_go1", "t1": "booster_t1", "g1": "unitree_g1"}
TASK = {
    "go1": "Go1JoystickFlatTerrain",
    "t1": "T1JoystickFlatTerrain",
    "g1": "G1JoystickFlatTerrain",
}
FEET_TOUCH = {"t1": "left_foot_right_foot_found", "g1": "right_foot_left_foot_found"}


@pytest.fixture(scope="module", params=["go1", "t1", "g1"])
def robot(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def theirs(robot: str) -> Any:
    playground = pytest.importorskip("mujoco_playground")
    epath = pytest.importorskip("etils.epath")
    from mujoco_playground._src import mjx_env

    mjx_env.MENAGERIE_PATH = epath.Path(MODELS)
    quiet: dict[str, Any] = {"noise_config.level": 0.0}
    if robot != "go1":
        quiet["push_config.enable"] = False
    return playground.locomotion.load(TASK[robot], config_overrides=quiet)


def test_models_are_equal(robot: str, theirs: Any) -> None:
    own, other = Built(ROBOTS[robot], TIMESTEP[robot]), theirs.mj_model
    for name in dir(other):
        given = getattr(other, name)
        physical = name.startswith(("body_", "jnt_", "dof_", "actuator_", "qpos", "pair_"))
        if not physical or not isinstance(given, np.ndarray) or given.dtype.kind != "f":
            continue
        if name == "dof_length":  # from the looks; only sleeping robots would need it
            continue
        np.testing.assert_allclose(
            getattr(own.model, name), given, rtol=0, atol=1e-12, err_msg=name
        )
    one, two = mujoco.MjData(own.model), mujoco.MjData(other)
    rng = np.random.default_rng(0)
    for data in (one, two):
        data.qpos[:] = own.qpos
    for _ in range(STEPS):
        control = own.pose + rng.uniform(-0.3, 0.3, own.num_joints)
        for model, data in ((own.model, one), (other, two)):
            data.ctrl[:] = control
            mujoco.mj_step(model, data, 5)
        np.testing.assert_allclose(one.qpos, two.qpos, rtol=0, atol=1e-9)


def test_task_is_equal(robot: str, theirs: Any) -> None:
    """What they compute from their physics, and what our task makes of the same numbers."""
    import jax

    built = Built(ROBOTS[robot], TIMESTEP[robot])
    task = Joystick(terms.SPECS[robot])
    task.bind(built, 0.02, torch.device("cpu"))
    state = jax.jit(jax.vmap(theirs.reset))(jax.random.split(jax.random.PRNGKey(1), ROWS))
    step = jax.jit(jax.vmap(theirs.step))
    rng = np.random.default_rng(2)
    draw = Draw(torch.arange(ROWS))
    ours = task.begin(draw, None)
    _take(ours, state.info)
    action = last = torch.zeros(ROWS, built.num_joints)
    first = Moment(theirs, built, state.data).now(ours, action, last)
    _close(_seen(task, first), state.obs, "the first observation")
    running = np.ones(ROWS, bool)
    ends = 0
    for t in range(STEPS):
        _take(ours, state.info)
        last, action = action, torch.tensor(rng.uniform(-1, 1, action.shape), dtype=torch.float32)
        action = action * (0.15 if t < STEPS // 2 else 1.0)  # at first it stands, then it falls
        state = step(state, jax.numpy.asarray(action.numpy()))
        now = Moment(theirs, built, state.data).now(ours, action, last)
        now.state = now.state | task.after(now)
        _close(_seen(task, now), state.obs, f"observation {t}", running)
        terminated = task.terminated(now)
        done = np.asarray(state.done) > 0.5
        np.testing.assert_array_equal(terminated.numpy()[running], done[running])
        paid = task.reward(now, terminated)
        for name, value in paid.items():
            wanted = np.asarray(state.metrics[f"reward/{name}"])
            got = value.numpy() / 0.02
            np.testing.assert_allclose(
                got[running], wanted[running], rtol=1e-5, atol=1e-5, err_msg=f"{name} {t}"
            )
        total = task.total(torch.stack([*paid.values()])).numpy()
        np.testing.assert_allclose(
            total[running], np.asarray(state.reward)[running], rtol=1e-5, atol=1e-5
        )
        ours = now.state | task.advance(now, draw)
        for name, mine in (("air", "feet_air_time"), ("peak", "swing_peak"), ("phase", "phase")):
            if name in ours:
                wanted = np.asarray(state.info[mine])
                np.testing.assert_allclose(
                    ours[name].numpy()[running], wanted[running], rtol=0, atol=2e-5, err_msg=name
                )
        ends += int(done[running].sum())
        running &= ~done
    assert ends > 0, "no robot fell: the test has not seen an end"


def test_every_weight_is_theirs(robot: str, theirs: Any) -> None:
    scales = {k: v for k, v in theirs._config.reward_config.scales.items() if v != 0.0}
    assert Joystick(terms.SPECS[robot]).weights == pytest.approx(scales)


def test_heights_are_theirs_in_kind(robot: str, theirs: Any) -> None:
    """Of their rough task: another field of the same size, with as steep slopes, which collides with the same geoms,
    with the same parameters. Robots begin as high, to 2.5 cm."""
    from mujoco_playground import locomotion

    other = locomotion.load(TASK[robot].replace("Flat", "Rough")).mj_model
    built = on_ground("heights", ROBOTS[robot]).build(TIMESTEP[robot])
    own = built.model
    for name in ("hfield_size", "hfield_nrow", "hfield_ncol"):
        np.testing.assert_array_equal(getattr(own, name), getattr(other, name))
    for name in ("contype", "conaffinity", "condim", "priority", "friction", "solref", "solimp"):
        mine, wanted = (getattr(model.geom("floor"), name) for model in (own, other))
        np.testing.assert_allclose(mine, wanted, atol=1e-12, err_msg=name)
    for name in ("dim", "friction", "solref", "solimp", "margin"):
        mine, wanted = (getattr(model, f"pair_{name}") for model in (own, other))
        with_floor = [model.geom("floor").id for model in (own, other)]
        rows = [
            (model.pair_geom1 == floor) | (model.pair_geom2 == floor)
            for model, floor in zip((own, other), with_floor, strict=True)
        ]
        np.testing.assert_array_equal(mine[rows[0]], wanted[rows[1]], err_msg=name)
    fields = [model.hfield_data.reshape(256, 256) for model in (own, other)]
    for value in (np.mean, np.std, lambda field: np.diff(field).std()):
        mine, wanted = (float(value(field)) for field in fields)
        assert mine == pytest.approx(wanted, abs=0.01)
    key = "home" if robot != "g1" else "knees_bent"
    begin = built.qpos[2] + built.robot.rise
    assert begin == pytest.approx(other.keyframe(key).qpos[2], abs=0.025)


class Moment:
    """Playground's physics as the rows that our tasks read."""

    def __init__(self, env: Any, built: Built, data: Any) -> None:
        self.env, self.built, self.data = env, built, data
        self.sensors = np.asarray(data.sensordata)

    def sensor(self, name: str) -> Tensor:
        model = self.env.mj_model
        at = model.sensor(name)
        begin = int(at.adr[0])
        return torch.tensor(self.sensors[:, begin : begin + int(at.dim[0])])

    def sites(self, names: tuple[str, ...]) -> Tensor:
        ids = [self.env.mj_model.site(name).id for name in names]
        return torch.tensor(np.asarray(self.data.site_xpos)[:, ids]).flatten(1)

    def now(self, state: dict[str, Tensor], action: Tensor, last: Tensor) -> Now:
        robot = self.built.robot
        tail = "_pelvis" if robot.name == "g1" else ""
        imu = self.env.mj_model.site(robot.imu).id
        matrix = torch.tensor(np.asarray(self.data.site_xmat)[:, imu]).reshape(-1, 3, 3)
        sensor = {
            "gyro": self.sensor(f"gyro{tail}"),
            "linvel": self.sensor(f"local_linvel{tail}"),
            "accelerometer": self.sensor(f"accelerometer{tail}"),
            "up": self.sensor(f"upvector{tail}"),
            "forward": self.sensor(f"forwardvector{tail}"),
            "global_linvel": self.sensor(f"global_linvel{tail}"),
            "global_angvel": self.sensor(f"global_angvel{tail}"),
            "world_up": matrix[:, 2],
            "foot_pos": self.sites(robot.feet),
            "foot_vel": torch.cat([self.sensor(f"{foot}_global_linvel") for foot in robot.feet], 1),
            "torque": torch.tensor(np.asarray(self.data.actuator_force)),
            "foot_contact": torch.stack([self.contact(foot) for foot in robot.feet], 1),
        }
        if robot.name in FEET_TOUCH:
            sensor["touch_feet"] = self.sensor(FEET_TOUCH[robot.name])
        if robot.name == "g1":
            sensor |= {
                "up_torso": self.sensor("upvector_torso"),
                "global_angvel_torso": self.sensor("global_angvel_torso"),
                "touch_left_hand": self.sensor("left_hand_left_thigh_found"),
                "touch_right_hand": self.sensor("right_hand_right_thigh_found"),
                "foot_force": torch.cat(
                    [self.sensor(f"{side}_foot_force") for side in ("left", "right")], 1
                ),
            }
        qpos = torch.tensor(np.asarray(self.data.qpos))
        qvel = torch.tensor(np.asarray(self.data.qvel))
        return Now(qpos, qvel, sensor, qpos[:, 7:], qvel[:, 6:], action, last, state)

    def contact(self, foot: str) -> Tensor:
        if self.built.robot.name != "t1":
            return self.sensor(f"{foot}_floor_found")[:, 0]
        corners = [self.sensor(f"{foot}_{i}_floor_found")[:, 0] > 0 for i in range(1, 5)]
        return torch.stack(corners).any(0).float()


def _take(state: dict[str, Tensor], info: Any) -> None:
    """Their command and gait, which are random."""
    given = {"command": "command", "phase": "phase", "phase_step": "phase_dt"}
    for mine, name in given.items():
        if mine in state:
            state[mine] = torch.tensor(np.asarray(info[name]), dtype=torch.float32)


def _seen(task: Joystick, now: Now) -> tuple[Tensor, Tensor]:
    actor = torch.cat([*task.observe(now).values()], 1)
    return actor, torch.cat([actor, *task.privileged(now).values()], 1)


def _close(seen: tuple[Tensor, Tensor], obs: Any, what: str, rows: Any = slice(None)) -> None:
    for mine, name in zip(seen, ("state", "privileged_state"), strict=True):
        wanted = np.asarray(obs[name])[rows]
        np.testing.assert_allclose(
            mine.numpy()[rows], wanted, rtol=1e-5, atol=1e-5, err_msg=f"{what}, {name}"
        )
