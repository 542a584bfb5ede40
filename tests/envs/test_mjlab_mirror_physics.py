"""Mirror images of mjlab's velocity tasks: its physics itself says that they are right."""

from __future__ import annotations

import re
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from fleetfoot.data import Reflection
from fleetfoot.envs.lab.mirror import SIDES
from fleetfoot.envs.lab.mjlab import MjlabConfig, MjlabEnv
from fleetfoot.envs.mirror import of_joints
from fleetfoot.errors import UserError
from fleetfoot.replay.mirror import make_mirror, problem_of
from support.symmetric import even_model

CPU = torch.device("cpu")
FLAT = {name: f"Mjlab-Velocity-Flat-Unitree-{name}" for name in ("Go1", "G1")}
ROUGH = {name: f"Mjlab-Velocity-Rough-Unitree-{name}" for name in ("Go1", "G1")}


@pytest.fixture
def simulator() -> None:
    pytest.importorskip("mjlab")


@pytest.fixture
def even_robots(simulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from mjlab.sim import Simulation

    original = Simulation._init_with_model

    def exactly_symmetric(self: Any, model: mujoco.MjModel) -> None:
        even(model)
        original(self, model)

    monkeypatch.setattr(Simulation, "_init_with_model", exactly_symmetric)


def even(model: mujoco.MjModel) -> None:
    """Masses and places; and where Go1 has its IMU beside the middle, and G1 a capsule that lies askew."""
    ids = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE)
    joints = {model.joint(i).name: int(i) for i in ids}
    go1 = "robot/FR_hip_joint" in joints
    base = int(model.body_rootid[model.jnt_bodyid[ids[0]]])
    any_pose, ones = np.zeros(len(ids)), np.ones(len(ids))
    sides = SIDES[FLAT["Go1" if go1 else "G1"]]
    reflection = of_joints("robot", model, base, joints, sides, pose=any_pose, scale=ones)
    even_model(model, ids, reflection, model.jnt_dofadr[ids])
    if go1:
        model.site("robot/imu").pos[1] = 0.0
        return
    one, other = (model.geom(f"robot/{side}_foot1_collision") for side in ("left", "right"))
    one.pos[:], one.quat[:], one.size[:] = other.pos, other.quat, other.size
    model.geom_sameframe[:] = 0


def build(task: str) -> MjlabEnv:
    """Without noise, pushes and randomised robots."""
    changes: dict[str, Any] = {"observations.actor.enable_corruption": False}
    drawn = ["encoder_bias", "base_com", "push_robot"]
    axes = ["_slide", "_spin", "_roll"] if task.endswith("Go1") else [""]
    changes |= {f"events.{name}": None for name in drawn}
    changes |= {f"events.foot_friction{axis}": None for axis in axes}
    env = MjlabConfig(task=task, changes=changes).build(2, 0, CPU)
    env.reset()
    return env


def image(reflection: Reflection, rows: Tensor) -> Tensor:
    return rows[..., list(reflection.index)] * torch.tensor(reflection.sign, dtype=rows.dtype)


def joints_by_name(names: tuple[str, ...]) -> Reflection:
    """What the names say, and not the axes: abduction of Go1's hips, roll and yaw of G1's joints change their sign."""
    swap = {"left": "right", "right": "left", "FR": "FL", "FL": "FR", "RR": "RL", "RL": "RR"}
    words = re.compile("|".join(swap))
    other = [words.sub(lambda found: swap[found[0]], name) for name in names]
    turning = "hip" if "FR_hip_joint" in names else "roll|yaw"
    sign = tuple(-1.0 if re.search(turning, name) else 1.0 for name in names)
    return Reflection(tuple(names.index(name) for name in other), sign)


def mirror_robot(env: MjlabEnv, generator: torch.Generator) -> None:
    """Robot 0 tilted and moving, just above the ground; robot 1 is its mirror image."""
    robot, data = env.envs.scene["robot"], env.envs.sim.data
    at, moving = (getattr(robot.indexing, f"joint_{what}_adr").long() for what in "qv")
    joints, size = joints_by_name(robot.joint_names), len(robot.joint_names)
    place, speed = data.qpos[0].clone(), torch.zeros_like(data.qvel[0])
    place[:2] = torch.tensor([0.3, 0.2])
    place[3:7] = torch.nn.functional.normalize(torch.tensor([0.94, 0.03, 0.04, 0.34]), dim=0)
    place[at] += 0.1 * (torch.rand(size, generator=generator) * 2 - 1)
    speed[:6] = torch.tensor([0.3, 0.2, 0.1, 0.2, -0.3, 0.4])
    speed[moving] = torch.rand(size, generator=generator) - 0.5
    other_place, other_speed = place.clone(), speed.clone()
    other_place[[1, 4, 6]] *= -1.0  # y; x and z of the quaternion
    other_speed[[1, 3, 5]] *= -1.0
    other_place[at], other_speed[moving] = image(joints, place[at]), image(joints, speed[moving])
    data.qpos[:] = torch.stack([place, other_place])
    data.qvel[:] = torch.stack([speed, other_speed])
    data.qacc_warmstart[:] = 0.0
    env.envs.sim.forward()
    env.envs.sim.sense()  # rewards look at heights of feet that were sensed before
    twist = env.envs.command_manager.get_term("twist")
    twist.vel_command_b[:] = torch.tensor([[0.7, 0.4, -0.9], [0.7, -0.4, 0.9]])
    twist.time_left[:] = 1e6
    for name in ("heading", "standing", "world", "forward"):
        getattr(twist, f"is_{name}_env")[:] = False


@pytest.mark.slow
@pytest.mark.usefixtures("even_robots")
@pytest.mark.parametrize("name", ["Go1", "G1"])
def test_mirrored_physics_is_the_physics_of_the_mirror_image(name: str) -> None:
    """With mirrored actions: the mirrored observations of policy and critic, the same reward terms, the same ends.
    Measured: 3e-5, and 0.002 for the logarithms of forces on feet."""
    env = build(FLAT[name])
    found = env.spec.symmetry
    assert found is not None
    assert found.critic is not None
    generator = torch.Generator().manual_seed(1)
    mirror_robot(env, generator)
    seen: dict[str, list[Tensor]] = {"actor": [], "critic": []}
    for _ in range(30):
        action = torch.rand(len(found.action.index), generator=generator) - 0.5
        step = env.step(torch.stack([action, image(found.action, action)]))
        seen["actor"].append(step.next_obs.actor)
        seen["critic"].append(step.next_obs.critic)
        assert len(step.info) == {"Go1": 13, "G1": 14}[name]
        for one, other in [step.reward, *step.info.values()]:
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-4)
        assert step.terminated[0] == step.terminated[1]
    forces = 3 * len(env.envs.scene["feet_ground_contact"].primary_names)  # the critic's last
    for group in ("actor", "critic"):
        reflection: Reflection = getattr(found, group)
        rows = torch.stack(seen[group])  # [T, 2, D]
        bound = torch.full(rows.shape[2:], 1e-4)
        if group == "critic":
            bound[-forces:] = 5e-3  # log(1 + newtons)
        wrong = (image(reflection, rows[:, 0]) - rows[:, 1]).abs().amax(0)
        assert (wrong < bound).all(), (group, wrong)
        # No other number of the row would do, with either sign: a mistake in any one place is found.
        for i, j in enumerate(reflection.index):
            for sign in (1.0, -1.0):
                apart = (sign * rows[:, 0] - rows[:, 1, i, None]).abs().amax(0)  # [D]
                if sign == reflection.sign[i]:
                    apart[j] = torch.inf
                assert apart.min() > 20 * bound[i], (group, i, sign)


@pytest.mark.slow
@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize("task", [*FLAT.values(), *ROUGH.values()])
def test_twice_is_the_identity(task: str) -> None:
    config = MjlabConfig(task=task)
    env = config.build(2, 0, CPU)
    obs, found = env.reset(), env.spec.symmetry
    assert found is not None
    assert found.critic is not None
    assert problem_of(found, env.spec) is None
    make_mirror(env.spec, CPU)
    for reflection, rows in ((found.actor, obs.actor), (found.critic, obs.critic)):
        assert not torch.equal(image(reflection, rows), rows)
        assert torch.equal(image(reflection, image(reflection, rows)), rows)
    if task in FLAT.values():
        return
    # The heights of the ground: each ray becomes the one that hits it as far to the other side.
    manager = env.envs.observation_manager
    sizes = [size for (size,) in manager.group_obs_term_dim["actor"]]
    first = sum(sizes[: manager.active_terms["actor"].index("height_scan")])
    sensor = env.envs.scene["terrain_scan"]
    rays, _ = sensor.cfg.pattern.generate_rays(None, "cpu")
    assert len(rays) == 187
    index = torch.tensor(found.actor.index[first : first + len(rays)]) - first
    torch.testing.assert_close(rays[index], rays * torch.tensor([1.0, -1.0, 1.0]))
    # And mjlab shows them in this order: seen from a robot that looks ahead.
    data = env.envs.sim.data
    data.qpos[:, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    env.envs.sim.forward()
    env.envs.sim.sense()
    sensor._cache_valid = False
    hit = sensor.data.hit_pos_w[:, :, :2] - sensor.data.pos_w[:, None, :2]
    torch.testing.assert_close(hit, rays[:, :2].expand_as(hit), rtol=0.0, atol=1e-4)


@pytest.mark.usefixtures("simulator")
def test_tasks_without_a_mirror_say_so() -> None:
    env = MjlabConfig(task="Mjlab-Cartpole-Balance").build(1, 0, CPU)
    assert env.spec.symmetry is None
    with pytest.raises(UserError, match="not known, only of Mjlab-Velocity-Flat-Unitree-Go1"):
        make_mirror(env.spec, CPU)
