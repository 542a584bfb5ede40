"""The Playground adapter: contract, true final observations, start states, settings, and what goes wrong for users."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.speed.env import bench_env
from benchmarks.speed.playground import bench_playground
from fleetfoot import checkpoint, recipes
from fleetfoot.envs.check import check_env
from fleetfoot.envs.playground import PlaygroundConfig, PlaygroundEnv, describe
from fleetfoot.envs.playground import task as playground_task
from fleetfoot.envs.robot.config import stock_of
from fleetfoot.errors import UserError
from support.extras import needs

needs("mujoco_playground", "jax")
CPU = torch.device("cpu")
N, POOL, LIMIT = 4, 8, 12
# One config for all tests, since each new one is compiled anew.
CARTPOLE = PlaygroundConfig(
    task="CartpoleBalance", impl="jax", episode_length=LIMIT, start_states=POOL, metrics=True
)
MODELS = os.environ.get("FLEETFOOT_MENAGERIE")


@pytest.fixture(scope="module", autouse=True)
def _quick_to_compile() -> Any:
    config: Any = importlib.import_module("jax").config
    config.update("jax_disable_most_optimizations", True)
    yield
    config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def env() -> Any:
    made = CARTPOLE.build(N, 0, CPU)
    yield made
    made.close()


def script(length: int, seed: int = 0) -> Tensor:
    return torch.rand(length, N, 1, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize(
    "independent_seeds",
    # True: another number of environments, for which everything is compiled once more.
    [False, pytest.param(True, marks=pytest.mark.slow)],
)
def test_the_contract(independent_seeds: bool) -> None:
    report = check_env(CARTPOLE, vec_steps=2 * LIMIT + 3, independent_seeds=independent_seeds)
    assert report.saves_state
    assert report.truncations == 2 * N
    assert set(report.untried) <= {"render", *(() if independent_seeds else ("independent_seeds",))}
    assert report.spec.step_seconds == pytest.approx(0.01)


def test_it_tells_its_joints(env: Any) -> None:
    told = env.spec.description
    assert told["control_hz"] == pytest.approx(100)
    (joint,) = told["joints"]
    assert (joint["name"], joint["servo"]) == ("slider", False)
    assert (joint["action_offset"], joint["action_scale"]) == (0.0, 1.0)
    assert (joint["target_low"], joint["target_high"]) == (-1.0, 1.0)


class Robot:
    """A task of two joints; `targets` says what they are told."""

    action_size = 2

    def __init__(self, targets: Any, jitted: bool) -> None:
        import jax

        self.targets = targets
        self.step = jax.jit(self._step) if jitted else self._step

    def _step(self, state: Any, action: Any) -> Any:
        from mujoco_playground._src import mjx_env

        return mjx_env.step(None, state, self.targets(state, action), 4)


def bent(action: Any) -> Any:
    import jax

    return jax.numpy.tanh(3 * action)


@pytest.mark.parametrize("jitted", [False, True], ids=["plain", "jitted"])
@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (lambda state, action: action * 0.5 + 0.25, ([0.25, 0.25], [0.5, 0.5])),
        (lambda state, action: (action * 0.5 + 0.25).clip(-0.5, 0.5), ([0.25, 0.25], [0.5, 0.5])),
        (lambda state, action: state + action * 0.5, None),
        (lambda state, action: action[::-1], None),
        (lambda state, action: state, None),
        # At its limit the slope is half of the scale.
        (lambda state, action: (action * 0.5 - 0.5).clip(-0.5, 0.5), ([-0.5, -0.5], [0.5, 0.5])),
        (lambda state, action: (action * 0.5 + 0.6).clip(-0.5, 0.5), None),  # beyond it
        (lambda state, action: bent(action) * 0.5 + 0.1, None),
        (lambda state, action: action * action, None),
        (
            lambda state, action: action + (action - action[::-1]) ** 2,
            None,
        ),  # straight where all are equal
    ],
    ids=[
        *("affine", "clipped", "from the last", "crossed", "constant"),
        *("at a limit", "beyond a limit", "tanh", "square", "crossed away from 0"),
    ],
)
def test_targets_are_told_only_where_they_are_offset_and_scale(
    targets: Any, told: Any, jitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax: Any = importlib.import_module("jax")
    from mujoco_playground._src import mjx_env

    def moves(model: Any, data: Any, target: Any, substeps: int) -> Any:
        return data + substeps

    monkeypatch.setattr(mjx_env, "step", moves)
    robot = Robot(targets, jitted)
    found = describe.targets(robot, jax.ShapeDtypeStruct((2,), np.float32))
    assert mjx_env.step is moves
    assert (None if found is None else tuple(one.tolist() for one in found)) == told
    # No program with the replaced step in it was kept.
    assert robot.step(np.zeros(2, np.float32), np.ones(2, np.float32)).tolist() == [4, 4]


def test_a_task_that_cannot_be_described_is_built_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mujoco

    jax: Any = importlib.import_module("jax")
    link = "<body><geom size='.1'/><joint name='{0}'/></body>"
    motor = "<motor joint='{0}'/>"
    robot: Any = Robot(lambda state, action: action * 0.5, False)
    robot.mj_model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody>{link.format('a')}{link.format('b')}</worldbody>"
        f"<actuator>{motor.format('a')}{motor.format('b')}</actuator></mujoco>"
    )
    start = jax.ShapeDtypeStruct((2,), np.float32)
    task: Any = SimpleNamespace(env=robot, start=start, step_seconds=0.02)
    rate = {"control_hz": 50.0}
    assert [one["name"] for one in describe.describe(task)["joints"]] == ["a", "b"]

    with monkeypatch.context() as patch:
        patch.setattr(robot, "targets", lambda state, action: action.no_such_method())
        assert describe.describe(task) == rate
    with monkeypatch.context() as patch:
        patch.setattr(robot, "_init_q", np.zeros(1), raising=False)  # shorter than the joints
        assert describe.describe(task) == rate
    with monkeypatch.context() as patch:  # in another version of JAX
        patch.delattr(importlib.import_module("jax.interpreters.partial_eval"), "dce_jaxpr")
        assert describe.describe(task) == rate
    assert "joints" in describe.describe(task)


def test_an_environment_starts_the_same_however_many_there_are(env: PlaygroundEnv) -> None:
    more = CARTPOLE.build(N + 3, 0, CPU)
    assert torch.equal(more.reset().actor[:N], env.reset().actor)
    more.close()


def test_every_observation_is_what_the_bare_task_gives_across_the_end_of_an_episode(
    env: PlaygroundEnv,
) -> None:
    """The task without any wrapper, stepped from the same start by hand: it does not know that an episode ends."""
    import jax
    from mujoco_playground import registry

    first = env.reset()
    state = jax.tree.map(lambda leaf: leaf.copy(), env._program._state(env._running))
    assert torch.equal(first.actor, torch.utils.dlpack.from_dlpack(state.obs))
    bare = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    step_bare = jax.jit(jax.vmap(bare.step))
    for t, action in enumerate(script(LIMIT)):
        step = env.step(action)
        state = step_bare(state, action.numpy())
        torch.testing.assert_close(step.next_obs.actor, torch.utils.dlpack.from_dlpack(state.obs))
        torch.testing.assert_close(step.reward, torch.utils.dlpack.from_dlpack(state.reward))
        assert step.truncated.tolist() == [t == LIMIT - 1] * N
        assert not step.terminated.any()
        same = (step.obs.actor == step.next_obs.actor).all(1)
        assert same.tolist() == [t != LIMIT - 1] * N
    assert set(step.info) == {f"env/{name}" for name in state.metrics}
    for name, value in state.metrics.items():
        torch.testing.assert_close(step.info[f"env/{name}"], torch.utils.dlpack.from_dlpack(value))


def test_episodes_begin_with_states_of_the_pool_and_random_streams_of_their_own(
    env: PlaygroundEnv,
) -> None:
    starts = [env.reset().actor]
    streams = [env.state_dict()["running"]["info['rng']"]]
    for _ in range(5):
        for action in script(LIMIT):
            step = env.step(action)
        starts.append(step.obs.actor)
        streams.append(env.state_dict()["running"]["info['rng']"])
    seen = {tuple(row.tolist()) for row in torch.cat(starts)}
    assert env._world is not None
    place = [env._program.layout.names[i] for i in env._program.layout.drawn].index("obs")
    pool = {tuple(row.tolist()) for row in torch.utils.dlpack.from_dlpack(env._world.pool[place])}
    assert len(pool) == POOL
    assert seen <= pool
    assert len(seen) > POOL // 2
    keys = {tuple(row.tolist()) for row in torch.cat(streams).to(torch.int64)}
    assert len(keys) == 6 * N  # no two episodes share their random numbers


def test_a_simulation_that_blows_up_ends_and_leaves_no_nan_behind(env: PlaygroundEnv) -> None:
    env.reset()
    env.step(script(1)[0])
    state = env.state_dict()
    state["running"]["data.qpos"][1] = float("nan")
    env.load_state_dict(state)
    step = env.step(script(1)[0])
    assert step.terminated.tolist() == [False, True, False, False]
    assert not step.truncated.any()
    for tensor in (step.next_obs.actor, step.obs.actor, step.reward):
        assert tensor.isfinite().all()
    following = env.step(script(1)[0])
    assert not following.terminated.any()
    assert following.next_obs.actor.isfinite().all()


def test_a_saved_state_goes_through_a_checkpoint_and_must_fit(env: PlaygroundEnv) -> None:
    env.reset()
    state = env.state_dict()
    tensors, tree = checkpoint.pack(state)
    again = checkpoint.unpack(tensors, tree)
    assert again["running"].keys() == state["running"].keys()
    assert not any("_impl" in name for name in state["running"])
    with pytest.raises(UserError, match="of 'playground/Other'"):
        env.load_state_dict(state | {"task": "playground/Other"})
    few = {"running": {"clock": torch.zeros(3)}}
    with pytest.raises(UserError, match="of 3 environments"):
        env.load_state_dict(state | few)


def test_actions_cross_without_a_copy_and_of_the_right_shape(env: PlaygroundEnv) -> None:
    from fleetfoot.envs.playground import step as playground_step

    action = torch.zeros(64, 16)
    assert playground_step.from_torch(action).unsafe_buffer_pointer() == action.data_ptr()
    with pytest.raises(UserError, match="call reset"):
        env.step(script(1)[0])
    env.reset()
    with pytest.raises(UserError, match=r"shape \(4, 1\)"):
        env.step(torch.zeros(N, 2))
    with pytest.raises(UserError, match="float32"):
        env.step(torch.zeros(N, 1, dtype=torch.float64))


def test_training_and_evaluation_share_one_compiled_program(env: PlaygroundEnv) -> None:
    other = CARTPOLE.for_evaluation().build(N, 1, CPU)
    assert other._program is env._program
    assert (env.spec.episode_length, other.spec.episode_length) == (LIMIT, 1000)


def test_evaluation_has_the_stock_task() -> None:
    config = PlaygroundConfig(
        task="T1JoystickFlatTerrain", tuned_reward=True, pushes=True, randomize_domain=True
    )
    stock = config.for_evaluation()
    assert stock == PlaygroundConfig(task="T1JoystickFlatTerrain")
    wanted = playground_task.Wanted.of
    plain = PlaygroundConfig(task="T1JoystickFlatTerrain", tuned_reward=True, pushes=True)
    assert wanted(stock, CPU) == wanted(plain, CPU)  # so they share the program


@pytest.mark.parametrize("task", playground_task.TUNED_TASKS)
def test_the_tuned_reward_reaches_what_the_task_reads(task: str) -> None:
    import jax
    from mujoco_playground import registry

    from fleetfoot.envs.playground.step import Program, _Settings

    config = registry.get_default_config(task).lock()
    stock = dict(config.reward_config.scales)
    assert set(playground_task.TUNED_REWARD) <= set(stock)
    loaded: Any = SimpleNamespace(config=config, env=SimpleNamespace(_config=config))
    program: Any = SimpleNamespace(task=loaded, terms=playground_task.scales(loaded))

    @jax.jit
    def read(settings: Any) -> Any:
        with _Settings(loaded, program.terms, settings):
            now = loaded.env._config
            return dict(now.reward_config.scales), now.push_config.enable * 1.0

    for tuned, pushes in ((False, True), (True, False)):
        chosen = PlaygroundConfig(task=task, tuned_reward=tuned, pushes=pushes)
        weights, pushed = read(Program.settings(program, chosen))
        expected = stock | (playground_task.TUNED_REWARD if tuned else {})
        assert {name: float(w) for name, w in weights.items()} == pytest.approx(expected)
        assert float(pushed) == pushes
    assert loaded.env._config is config  # as it was


def test_the_shared_beginning_of_both_observations_is_found() -> None:
    import jax
    from jax import numpy as jp

    def task(privileged: Any) -> Any:
        def reset(key: Any) -> Any:
            noise = jax.random.uniform(key, (3,))
            seen = jp.hstack([noise, jp.ones(2)])
            return SimpleNamespace(obs={"state": seen, "privileged_state": privileged(seen, noise)})

        return SimpleNamespace(reset=reset)

    begins = playground_task._begins_with_state
    assert begins(task(lambda seen, noise: jp.hstack([seen, noise])))
    assert begins(task(lambda seen, noise: jax.jit(jp.hstack)([seen, noise])))
    assert not begins(task(lambda seen, noise: jp.hstack([noise, seen])))
    assert not begins(task(lambda seen, noise: jp.hstack([seen + noise.sum(), noise])))


def test_overrides_reach_the_task() -> None:
    config = PlaygroundConfig(task="CartpoleBalance", overrides=("ctrl_dt=0.02", "sim_dt=0.01"))
    task = playground_task.load(playground_task.Wanted.of(config, CPU), 2)
    assert task.env.n_substeps == 2
    assert task.step_seconds == pytest.approx(0.02)
    assert task.config.impl == "jax"  # no contacts, and a CPU
    chosen = ("warp.graph_conditional=false", 'warp.graph_mode="none"')
    config = PlaygroundConfig(task="CartpoleBalance", impl="warp", overrides=chosen)
    task = playground_task.load(playground_task.Wanted.of(config, CPU), 2)
    options = task.env.mjx_model.opt._impl
    assert (options.graph_conditional, int(options.graph_mode), options.warn_overflow) == (
        False,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": "CartpoleBalanse"}, "Did you mean CartpoleBalance"),
        ({"overrides": ("sim_dd=1",)}, "'sim_dd' does not fit CartpoleBalance"),
        ({"overrides": ("sim_dt",)}, "write name=value"),
        ({"overrides": ("impl=jax",)}, "texts in quotes"),
        ({"impl": "warp", "overrides": ("warp.graphs=1",)}, "'warp.graphs' does not fit"),
        ({"randomize_domain": True}, "has no domain randomisation"),
        ({"menagerie": "/nowhere/at/all"}, "/nowhere/at/all does not exist"),
    ],
)
def test_mistakes_get_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as seen:
        PlaygroundConfig(**({"task": "CartpoleBalance"} | changes)).build(2, 0, CPU)
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tuned_reward": True}, "tuned_reward is for T1JoystickFlatTerrain"),
        ({"episode_length": -1}, "at least 0"),
        ({"start_states": 0}, "at least 1"),
    ],
)
def test_configs_that_cannot_work_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        PlaygroundConfig(**changes)


def test_models_that_are_missing_get_one_line(tmp_path: Any) -> None:
    config = PlaygroundConfig(task="T1JoystickFlatTerrain", menagerie=str(tmp_path))
    with pytest.raises(UserError, match="FLEETFOOT_MENAGERIE") as seen:
        config.build(2, 0, CPU)
    assert "\n" not in str(seen.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UserError, match=r"pip install 'mujoco-mjx=="):
        CARTPOLE.build(2, 0, CPU)


def test_recipes_are_made_without_jax() -> None:
    code = (
        "import sys; from fleetfoot import recipes; from fleetfoot.run.folder import load_own_parts;"
        "load_own_parts();"
        "made = [recipes.get(name) for name in recipes.names()]; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    recipe = recipes.get("fast_td3/g1-joystick-rough")
    assert recipe.evaluation.episodes == recipe.num_envs
    assert recipe.off_policy_replay().capacity == 10_240 * recipe.num_envs


def test_bench_refuses_what_it_cannot_measure() -> None:
    with pytest.raises(UserError, match="seconds > 0"):
        bench_playground(CARTPOLE, 4, 0.0)
    with pytest.raises(UserError, match="Did you mean"):
        bench_env("T1JoystickFlatTerain", num_envs=2, device="cpu")


@pytest.mark.slow
def test_bench_compares_with_the_raw_step_and_the_wrapper() -> None:
    result = bench_playground(CARTPOLE, N, 0.1, device="cpu", rounds=1, steps=5)
    assert set(result["env_steps_per_second"]) == {"fleetfoot", "raw", "wrapper"}
    assert min(result["env_steps_per_second"].values()) > 0


@pytest.mark.skipif(not MODELS, reason="FLEETFOOT_MENAGERIE names no folder with robot models")
@pytest.mark.parametrize("robot", ["go1", "t1", "g1"])
def test_a_robot_tells_what_ours_does(robot: str) -> None:
    """Its joints are read from Playground's model and task, the rest is that of our stock robot."""
    task = f"{robot.title()}JoystickFlatTerrain"
    env = PlaygroundConfig(task=task, start_states=POOL).build(2, 0, CPU)
    stock = stock_of(task)
    assert stock is not None
    given, ours = env.spec.description, stock.description
    for joint, own in zip(given["joints"], ours["joints"], strict=True):
        assert joint == pytest.approx(own, abs=1e-6)
    assert {**given, "joints": [], "control_hz": 0} == {**ours, "joints": [], "control_hz": 0}
    assert given["control_hz"] == pytest.approx(ours["control_hz"])
    changed = ("action_scale=0.25", "lin_vel_x=[0.0, 0.5]") if robot == "t1" else ()
    if changed:
        env = PlaygroundConfig(task=task, start_states=POOL, overrides=changed).build(2, 0, CPU)
        assert set(env.spec.description) == {"control_hz", "joints"}
        assert {joint["action_scale"] for joint in env.spec.description["joints"]} == {0.25}


@pytest.mark.slow
@pytest.mark.skipif(not MODELS, reason="FLEETFOOT_MENAGERIE names no folder with robot models")
def test_a_humanoid_with_everything_switched_on() -> None:
    """About two minutes on two busy cores, once the kernels are in the cache of Warp."""
    config = PlaygroundConfig(
        task="T1JoystickFlatTerrain",
        episode_length=6,
        start_states=POOL,
        tuned_reward=True,
        pushes=True,
        randomize_domain=True,
    )
    report = check_env(config, vec_steps=14, render=False)
    assert report.saves_state
    assert report.spec.critic_prefix == report.spec.obs_shape[0] == 85
    assert report.spec.critic_shape == (180,)
