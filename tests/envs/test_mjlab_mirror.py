"""The rules for mirror images of mjlab's velocity tasks, on a made-up simulator; `test_mjlab_mirror_physics.py` asks
mjlab itself whether they are right."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, TypeAlias

import mujoco
import pytest
import torch
from torch import Tensor

from fleetfoot.data import Continuous, Reflection, Symmetry
from fleetfoot.envs.lab.mirror import symmetry
from fleetfoot.errors import UserError
from fleetfoot.replay.mirror import make_mirror, problem_of
from support.made_up import make_spec

CPU = torch.device("cpu")

# Two legs that roll, a waist that turns; the left knee bends about y and the right one about -y.
LEG = """
<body name="robot/{side}_leg" pos="0 {y} 0"><joint name="robot/{side}_hip" axis="1 0 0"/><geom size=".1"/>
  <body><joint name="robot/{side}_knee" axis="0 {bend} 0"/><geom size=".1"/></body></body>"""
MODEL = f"""
<mujoco><worldbody><body name="robot/base"><freejoint/><geom size=".1"/>
  <site name="robot/imu"/><site name="robot/askew" euler="0 0 90"/>
  <body><joint name="robot/waist" axis="0 0 1"/><geom size=".1"/></body>
  {LEG.format(side="left", y=1, bend=1)}{LEG.format(side="right", y=-1, bend=-1)}
</body></worldbody><sensor>
  <velocimeter name="robot/velocity" site="robot/imu"/><gyro name="robot/gyro" site="robot/imu"/>
  <gyro name="robot/gyro_askew" site="robot/askew"/><magnetometer name="robot/north" site="robot/imu"/>
</sensor></mujoco>"""
JOINTS = ("waist", "left_hip", "left_knee", "right_hip", "right_knee")
POSE = torch.tensor([[0.0, 0.1, 0.5, -0.1, -0.5]] * 2)


class Rays:
    """A grid of 2 x 3 rays, y first."""

    def __init__(self, left: float = 0.5) -> None:
        self.places = [(x, y) for x in (0.0, 1.0) for y in (-0.5, 0.0, left)]

    def generate_rays(self, model: mujoco.MjModel, device: str) -> tuple[Tensor, Tensor]:
        starts = torch.tensor([[x, y, 0.0] for x, y in self.places], device=device)
        return starts, torch.tensor([[0.0, 0.0, -1.0]]).expand(len(starts), 3)


class JointPositionAction:
    cfg = SimpleNamespace(entity_name="robot", clip=None)

    def __init__(self, names: tuple[str, ...] = JOINTS, **changes: Any) -> None:
        self.target_names, self.scale, self.offset = list(names), 0.5, POSE
        vars(self).update(changes)


class UniformVelocityCommand:
    pass


Term: TypeAlias = tuple[str, str, dict[str, Any], int]


class Groups:
    """What mjlab's manager of observations tells: (name, function, parameters, size) of each term."""

    def __init__(self, groups: dict[str, list[Term]]) -> None:
        self.groups, self.changes = groups, dict[str, dict[str, Any]]()
        self.active_terms = {group: [name for name, *_ in terms] for group, terms in groups.items()}

    @property
    def group_obs_term_dim(self) -> dict[str, list[tuple[int]]]:
        return {
            group: [
                (size * max(self.changes.get(name, {}).get("history_length", 0), 1),)
                for name, _, _, size in terms
            ]
            for group, terms in self.groups.items()
        }

    def get_term_cfg(self, group: str, wanted: str) -> Any:
        function, params = next((f, p) for name, f, p, _ in self.groups[group] if name == wanted)
        named = SimpleNamespace(__name__=function)
        fields = {"func": named, "params": params, "history_length": 0, "scale": None, "clip": None}
        return SimpleNamespace(**fields | self.changes.get(wanted, {}))


def terms(*changed: Term) -> Groups:
    on_feet = {"sensor_name": "feet"}
    actor: list[Term] = [
        ("velocity", "builtin_sensor", {"sensor_name": "robot/velocity"}, 3),
        ("turning", "builtin_sensor", {"sensor_name": "robot/gyro"}, 3),
        ("gravity", "projected_gravity", {}, 3),
        ("joint_pos", "joint_pos_rel", {"biased": True}, 5),
        ("actions", "last_action", {}, 5),
        ("command", "generated_commands", {"command_name": "twist"}, 3),
    ]
    critic: list[Term] = [
        ("scan", "height_scan", {"sensor_name": "ground"}, 6),
        ("height", "foot_height", {"sensor_name": "foot_rays"}, 2),
        ("touch", "foot_contact", on_feet, 2),
        ("air", "foot_air_time", on_feet, 2),
        ("force", "foot_contact_forces", on_feet, 6),
    ]
    return Groups({"actor": actor, "critic": [*critic, *changed]})


def made_up(groups: Groups | None = None, action: Any = None, **changes: Any) -> Any:
    """The face of a simulator of mjlab that the rules look at."""
    feet = ["right_foot", "left_foot"]
    frames = tuple(SimpleNamespace(name=name) for name in feet)
    contacts = {"num_slots": 1, "reduce": "netforce", "global_frame": False}
    scene = {
        "robot": SimpleNamespace(
            joint_names=JOINTS,
            data=SimpleNamespace(default_joint_pos=POSE, default_joint_vel=0 * POSE),
        ),
        "ground": SimpleNamespace(num_frames=1, cfg=SimpleNamespace(pattern=Rays())),
        "foot_rays": SimpleNamespace(cfg=SimpleNamespace(frame=frames, reduction="min")),
        "feet": SimpleNamespace(primary_names=feet, cfg=SimpleNamespace(**contacts)),
    }
    action = action or JointPositionAction()
    command = UniformVelocityCommand()
    return SimpleNamespace(
        sim=SimpleNamespace(mj_model=mujoco.MjModel.from_xml_string(MODEL)),
        observation_manager=groups or terms(),
        action_manager=SimpleNamespace(active_terms=["joint_pos"], get_term=lambda _: action),
        command_manager=SimpleNamespace(get_term=lambda _: command),
        scene=scene | changes,
    )


def mirrored(envs: Any) -> Symmetry:
    return symmetry(envs, "Mjlab-Velocity-Flat-Unitree-G1", "actor")


def test_the_image_of_each_term() -> None:
    found = mirrored(made_up())
    joints, signs = (0, 3, 4, 1, 2), (-1.0, -1.0, -1.0, -1.0, -1.0)
    assert found.action == Reflection(joints, signs)
    at = [0, 1, 2, 3, 4, 5, 6, 7, 8, *(9 + i for i in joints), *(14 + i for i in joints)]
    assert found.actor == Reflection(
        (*at, 19, 20, 21),
        (1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, *signs, *signs, 1.0, -1.0, -1.0),
    )
    feet, forces = (7, 6, 9, 8, 11, 10), (15, 16, 17, 12, 13, 14)
    assert found.critic == Reflection(
        (2, 1, 0, 5, 4, 3, *feet, *forces), (1.0,) * 12 + (1.0, -1.0, 1.0) * 2
    )
    spec = make_spec(obs_shape=(22,), critic_shape=(18,), action=Continuous(5))
    assert problem_of(found, spec) is None


def test_the_frames_of_a_history_follow_one_another() -> None:
    groups = terms()
    groups.changes["touch"] = {"history_length": 3}
    found = mirrored(made_up(groups)).critic
    assert found is not None
    assert found.index[8:16] == (9, 8, 11, 10, 13, 12, 15, 14)


def test_joints_that_are_chosen_and_actions_in_an_order_of_their_own() -> None:
    chosen = SimpleNamespace(name="robot", joint_ids=[3, 0, 1])
    groups = terms(("hips", "joint_vel_rel", {"asset_cfg": chosen}, 3))
    order = ("right_knee", "waist", "left_knee")
    action = JointPositionAction(order, offset=POSE[:, [4, 0, 2]])
    groups.groups["actor"] = [("actions", "last_action", {"action_name": "joint_pos"}, 3)]
    groups.active_terms["actor"] = ["actions"]
    found = mirrored(made_up(groups, action))
    assert found.critic is not None
    assert found.critic.index[-3:] == (20, 19, 18)
    assert found.actor.index == found.action.index == (2, 1, 0)


def test_scales_of_a_term_must_be_symmetric() -> None:
    groups = terms()
    for scale in (2.0, [2.0, 1.0, 1.0, 1.0, 1.0]):
        groups.changes["joint_pos"] = {"scale": torch.tensor(scale), "clip": (-3.0, 3.0)}
        assert mirrored(made_up(groups)) == mirrored(made_up())
    for uneven in ({"scale": torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0])}, {"clip": (-1.0, 3.0)}):
        groups.changes["joint_pos"] = uneven
        with pytest.raises(UserError, match=r"'joint_pos' \(actor\) is scaled or clipped unevenly"):
            mirrored(made_up(groups))


CONTACT_FRAME = SimpleNamespace(num_slots=1, reduce="maxforce", global_frame=False)
FEET = ["left_foot", "right_foot"]


@pytest.mark.parametrize(
    ("envs", "said"),
    [
        (lambda: made_up(terms(("new", "phase", {}, 2))), r"'new' \(critic, phase\) is not known"),
        (
            lambda: made_up(terms(("n", "builtin_sensor", {"sensor_name": "robot/north"}, 3))),
            "sensor 'robot/north' is not known",
        ),
        (
            lambda: made_up(terms(("n", "builtin_sensor", {"sensor_name": "robot/gyro_askew"}, 3))),
            "y axis of site 'robot/askew'",
        ),
        (lambda: made_up(terms(("big", "projected_gravity", {}, 4))), "has 3 numbers, .* 4 in 1"),
        (lambda: made_up(action=SimpleNamespace()), "its actions .* not known"),
        (lambda: made_up(action=JointPositionAction(offset=POSE + 0.1)), "not mirror images"),
        (
            lambda: made_up(
                action=JointPositionAction(scale=torch.tensor([[1.0, 1.0, 2.0, 1.0, 1.0]]))
            ),
            "not mirror images",
        ),
        (lambda: made_up(action=JointPositionAction(("left_hip",), offset=0.0)), "'right_hip'"),
        (
            lambda: made_up(
                ground=SimpleNamespace(num_frames=1, cfg=SimpleNamespace(pattern=Rays(0.7)))
            ),
            "rays of 'ground' are not mirror images",
        ),
        (
            lambda: made_up(feet=SimpleNamespace(primary_names=["left_foot"], cfg=CONTACT_FRAME)),
            "'right_foot' on its other side",
        ),
        (
            lambda: made_up(feet=SimpleNamespace(primary_names=FEET, cfg=CONTACT_FRAME)),
            "forces of 'feet' is not known",
        ),
    ],
)
def test_what_has_no_rule_is_named(envs: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        mirrored(envs())
    assert "\n" not in str(caught.value)


def test_other_tasks_have_none_and_replay_says_why() -> None:
    with pytest.raises(UserError) as caught:
        symmetry(made_up(), "Mjlab-Cartpole-Balance", "actor")
    spec = make_spec(no_symmetry=str(caught.value))
    with pytest.raises(UserError, match=r"declares none \(mirror images of Mjlab-Cartpole") as seen:
        make_mirror(spec, CPU)
    assert re.search(r"Unitree-G1\): use --replay.no-mirror\.$", str(seen.value))
