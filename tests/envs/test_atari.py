"""The Atari adapter: contract, preprocessing, and the three things it does in ale-py's stead."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.speed.atari import bench_atari
from fleetfoot.config import from_json, to_json
from fleetfoot.data import Discrete, Step
from fleetfoot.envs import atari
from fleetfoot.envs.atari import AtariConfig, AtariEnv, names
from fleetfoot.envs.check import check_env
from fleetfoot.errors import UserError
from support.extras import needs

needs("ale_py")
CPU = torch.device("cpu")


def script(length: int, num_envs: int, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(count, (length, num_envs), generator=generator)


def play(config: AtariConfig, length: int, num_envs: int = 2, seed: int = 3) -> list[Step]:
    env = config.build(num_envs, seed, CPU)
    env.reset()
    assert isinstance(env.spec.action, Discrete)
    steps = [env.step(action) for action in script(length, num_envs, env.spec.action.count)]
    env.close()
    return steps


def bare(like: AtariEnv, game: str, **options: Any) -> Any:
    """ale-py's own environment from the same seeds, restarting one step late, as it does by itself."""
    from ale_py.vector_env import AtariVectorEnv

    settings: dict[str, Any] = {"noop_max": 31, "reward_clipping": False, "use_fire_reset": False}
    return AtariVectorEnv(game, like.spec.num_envs, **settings, **options)


@pytest.mark.parametrize(
    ("config", "vec_steps", "ends"),
    [
        (
            AtariConfig(
                game="Pong",
                max_frames=100,
                sticky=0.25,
                full_actions=True,
                fire_start=True,
                threads=2,
            ),
            55,
            {"truncations"},
        ),
        pytest.param(
            AtariConfig(game="Breakout", fire_start=True, threads=2),
            230,
            {"terminations"},
            marks=pytest.mark.slow,
        ),
        (
            AtariConfig(game="Qbert", life_loss=True, max_frames=640),
            170,
            {"terminations", "truncations"},
        ),
    ],
    ids=["cap", "game over", "lives and cap"],
)
def test_contract(config: AtariConfig, vec_steps: int, ends: set[str]) -> None:
    # In Pong and Breakout no-ops change the console, but nothing that the first picture shows.
    starts = config.game == "Qbert"
    report = check_env(config, num_envs=2, vec_steps=vec_steps, random_starts=starts)
    assert {"terminations", "truncations"} & {k for k, v in vars(report).items() if v} == ends
    assert report.renders
    assert not report.saves_state
    assert report.spec.exact_final_obs


def test_spec() -> None:
    env = AtariConfig(game="Pong").build(2, 0, CPU)
    assert env.spec.name == "atari/Pong"
    assert env.spec.obs_shape == (4, 84, 84)
    assert env.spec.obs_dtype == torch.uint8
    assert env.spec.action == Discrete(6)
    assert env.spec.episode_length == 27_000
    assert env.spec.frame_stack == 4
    assert env.spec.step_seconds == pytest.approx(1 / 15)
    assert AtariConfig(full_actions=True).build(1, 0, CPU).spec.action == Discrete(18)
    assert AtariConfig(max_frames=50_000).build(1, 0, CPU).spec.episode_length == 12_500
    # Lives are episodes, the cap is on the game.
    assert AtariConfig(life_loss=True).build(1, 0, CPU).spec.episode_length is None


def area_weights(given: int, wanted: int) -> Any:
    """[wanted, given]: the share of each pixel in the mean over the stretch that becomes one pixel."""
    scale = given / wanted
    begin = np.arange(wanted)[:, None] * scale
    pixel = np.arange(given)[None]
    overlap = np.minimum(begin + scale, pixel + 1) - np.maximum(begin, pixel)
    return np.clip(overlap, 0, None) / scale


def resize(image: Any, size: tuple[int, int], interpolation: int) -> Any:
    rows, columns = (area_weights(image.shape[i], size[1 - i]) for i in range(2))
    return np.rint(rows @ image.astype(np.float64) @ columns.T).astype(np.uint8)


@pytest.mark.parametrize("game", ["Breakout", "Pong", "Seaquest"])
def test_preprocessing_is_that_of_gymnasium(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Gymnasium's wrapper with the definition of area interpolation in the place of OpenCV.
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(resize=resize, INTER_AREA=3))
    env = AtariConfig(game=game, max_noops=0, clip_rewards=False).build(1, 0, CPU)
    console = gymnasium.make(
        f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True
    )
    oracle: Any = gymnasium.wrappers.FrameStackObservation(
        gymnasium.wrappers.AtariPreprocessing(console, noop_max=0), 4, padding_type="zero"
    )
    assert isinstance(env.spec.action, Discrete)
    assert env.spec.action.count == oracle.action_space.n

    def same(seen: Tensor, wanted: Any) -> None:
        # Both round a mean to a whole number; a mean halfway between two may go either way.
        difference = (seen.int() - torch.from_numpy(wanted).int()).abs()
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 0.002

    wanted, _ = oracle.reset(seed=0)
    same(env.reset().actor[0], wanted)
    for action in script(150, 1, env.spec.action.count):
        wanted, reward, terminated, _, _ = oracle.step(int(action))
        step = env.step(action)
        same(step.next_obs.actor[0], wanted)
        assert float(step.reward) == reward
        assert bool(step.terminated) == terminated
        if terminated:
            break
    oracle.close()


def test_an_episode_begins_with_black_frames_behind_its_first() -> None:
    env = AtariConfig(game="Pong", max_frames=80).build(2, 0, CPU)
    for obs in (env.reset(), play(AtariConfig(game="Pong", max_frames=80), 20)[-1].obs):
        assert not obs.actor[:, :3].any()
        assert obs.actor[:, 3].float().mean() > 10


def test_rewards_are_clipped_in_training_only() -> None:
    config = AtariConfig(game="MsPacman")
    train, true = play(config, 80), play(config.for_evaluation(), 80)
    seen = torch.stack([step.reward for step in train])
    points = torch.stack([step.reward for step in true])
    assert points.max() >= 10
    assert torch.equal(seen, points.clamp(-1, 1))
    assert torch.equal(torch.stack([step.info["env/score"] for step in train]), points)


def test_a_lost_life_ends_an_episode_while_the_game_goes_on() -> None:
    config = AtariConfig(game="Breakout", life_loss=True)
    env = config.build(2, 3, CPU)
    oracle = bare(env, "breakout")
    frames, info = oracle.reset(seed=env.seeds)
    lives, age = info["lives"], np.full(2, 10)  # age: steps since the last lost life
    env.reset()
    losses = 0
    for action in script(400, 2, 4):
        frames, _, over, _, info = oracle.step(action.numpy())
        if over.any():
            break
        step = env.step(action)
        lost = info["lives"] < lives
        lives, age, losses = info["lives"], age + 1, losses + lost.sum()
        assert step.terminated.tolist() == lost.tolist()
        assert not step.truncated.any()
        for row in range(2):
            last = torch.from_numpy(frames[row].copy())
            last[: max(0, 4 - 1 - age[row])] = 0  # nothing of an earlier life
            assert torch.equal(step.next_obs.actor[row], last)
            if lost[row]:
                age[row] = 0
                last[:3] = 0
            assert torch.equal(step.obs.actor[row], last)
    assert losses >= 4
    env.close()


def test_a_game_that_is_over_shows_its_last_frames() -> None:
    env = AtariConfig(game="Breakout").build(3, 1, CPU)
    oracle = bare(env, "breakout")
    oracle.reset(seed=env.seeds)
    env.reset()
    for action in script(400, 3, 4):
        frames, points, over, _, _ = oracle.step(action.numpy())
        step = env.step(action)
        assert step.terminated.tolist() == over.tolist()
        assert step.info["env/score"].tolist() == points.tolist()
        assert torch.equal(step.next_obs.actor, torch.from_numpy(frames))
        if over.any():
            break
    ended = step.terminated
    assert ended.any()
    assert not step.obs.actor[ended, :3].any()  # a new game has begun
    assert torch.equal(step.obs.actor[~ended], step.next_obs.actor[~ended])
    env.close()


def test_the_cap_truncates_with_the_true_last_observation() -> None:
    free = play(AtariConfig(game="Breakout"), 10)
    capped = play(AtariConfig(game="Breakout", max_frames=43), 25)  # ten whole steps
    for t, step in enumerate(capped, start=1):
        assert step.truncated.tolist() == [t % 10 == 0] * 2
        assert not step.terminated.any()
    for one, other in zip(free, capped, strict=False):
        assert torch.equal(one.next_obs.actor, other.next_obs.actor)
        assert torch.equal(one.reward, other.reward)
    assert not capped[9].obs.actor[:, :3].any()


def test_a_console_that_is_capped_alone_leaves_the_others_as_they_are() -> None:
    config = AtariConfig(game="Breakout", max_frames=640)
    steps = play(config, 330, num_envs=4)
    alone = torch.stack([step.truncated for step in steps]).sum(1)
    assert ((alone > 0) & (alone < 4)).any()  # games that were over shifted their clocks
    for row in range(4):
        clock = 0
        for step in steps:
            clock += 1
            assert bool(step.truncated[row]) == (clock == 160 and not step.terminated[row])
            kept = not (step.truncated[row] or step.terminated[row])
            assert torch.equal(step.obs.actor[row], step.next_obs.actor[row]) == kept
            clock = clock if kept else 0


def test_threads_change_no_bit() -> None:
    one, two = (play(AtariConfig(game="Pong", sticky=0.5, threads=k), 40, 3) for k in (1, 2))
    for left, right in zip(one, two, strict=True):
        assert torch.equal(left.obs.actor, right.obs.actor)
        assert torch.equal(left.reward, right.reward)


def test_sticky_actions_and_noops_are_what_they_say() -> None:
    def last(**options: Any) -> Tensor:
        steps = play(AtariConfig(game="Breakout", **options), 40, num_envs=2)
        return torch.stack([step.next_obs.actor for step in steps])

    plain = last(max_noops=0)
    assert torch.equal(plain, last(max_noops=0))
    assert not torch.equal(plain, last(max_noops=0, sticky=0.25))
    starts = play(AtariConfig(game="MsPacman", max_noops=0, max_frames=4), 1, num_envs=2)[0].obs
    assert torch.equal(starts.actor, starts.actor[:1].expand_as(starts.actor))


def test_noops_are_drawn_from_0_to_the_most() -> None:
    from ale_py.vector_env import AtariVectorEnv

    seen: list[dict[str, Any]] = []

    class Spy(AtariVectorEnv):
        def reset(self, **kwargs: Any) -> Any:
            frames, info = super().reset(**kwargs)
            seen.append(info)
            return frames, info

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ale_py.vector_env.AtariVectorEnv", Spy)
        AtariConfig(game="Pong", max_noops=3).build(8, 0, CPU).reset()
    assert set(seen[0]["episode_frame_number"].tolist()) == {0, 1, 2, 3}


def test_evaluation_plays_the_true_game() -> None:
    config = AtariConfig(game="Qbert", life_loss=True, sticky=0.25, max_frames=50_000, threads=2)
    wanted = AtariConfig(game="Qbert", clip_rewards=False, threads=2)
    assert config.for_evaluation() == wanted
    asked = AtariConfig(sticky=0.25, sticky_in_evaluation=True)
    assert asked.for_evaluation().sticky == 0.25
    assert from_json(to_json(config)) == config


def test_pictures_are_the_newest_frame_enlarged() -> None:
    env = AtariConfig(game="Pong").build(2, 0, CPU)
    obs = env.reset()
    picture = env.render(1)
    assert picture.shape == (420, 336, 3)
    assert (picture[::5, ::4, 0] == obs.actor[1, 3].numpy()).all()
    assert (picture[4::5, 3::4, 2] == obs.actor[1, 3].numpy()).all()
    env.close()


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("Pnog", "Did you mean .*Pong"),
        ("SpaceInvader", "SpaceInvaders"),
        ("ms_pacman", "MsPacman"),
        ("ALE/Pong-v5", "Pong"),
        ("Warlords", "no Atari game 'Warlords'"),  # for two
    ],
)
def test_wrong_names_get_the_nearest(game: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        AtariConfig(game=game).build(1, 0, CPU)
    assert "\n" not in str(caught.value)


def test_names_are_those_of_gymnasium() -> None:
    assert {"Pong", "Breakout", "MontezumaRevenge", "MsPacman", "UpNDown"} <= set(names())
    ids = {name[4:-3] for name in gymnasium.registry if name.startswith("ALE/")}
    assert set(names()) == ids


@pytest.mark.parametrize(
    "wrong",
    [
        {"sticky": 1.0},
        {"sticky": -0.1},
        {"max_frames": 3},
        {"evaluation_max_frames": 0},
        {"max_noops": -1},
        {"threads": -1},
    ],
    ids=str,
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UserError, match=rf"env\.{name} "):
        AtariConfig(**wrong)
    with pytest.raises(UserError, match="num_envs"):
        AtariConfig().build(0, 0, CPU)


@pytest.mark.parametrize(
    "action",
    [torch.tensor([0, 6]), torch.tensor([-1, 0]), torch.tensor([0]), torch.tensor([0.0, 1.0])],
    ids=str,
)
def test_actions_that_do_not_exist_are_refused_and_nothing_hangs(action: Tensor) -> None:
    env = AtariConfig(game="Pong").build(2, 0, CPU)
    env.reset()
    with pytest.raises(UserError, match="actions"):
        env.step(action)
    env.step(torch.tensor([0, 5]))
    env.close()


def test_without_ale_py_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ale_py", "ale_py.roms", "ale_py.vector_env"):
        monkeypatch.setitem(sys.modules, module, None)
    atari._games.cache_clear()
    for call in (names, lambda: AtariConfig().build(1, 0, CPU)):
        with pytest.raises(UserError, match=r"pip install 'ale-py>=") as caught:
            call()
        assert "\n" not in str(caught.value)
    env: Any = object.__new__(AtariEnv)
    env.spec = SimpleNamespace(name="atari/Pong")
    with pytest.raises(UserError, match="atari/Pong cannot be restored: ale-py"):
        env.load_state_dict({})


def test_benchmark_compares_with_the_bare_environment() -> None:
    result = bench_atari(num_envs=2, seconds=0.2, rounds=2)
    speed = result["env_steps_per_second"]
    assert result["ratio_to_bare"] == pytest.approx(speed["fleetfoot"] / speed["bare"])
    assert result["passed"] == (result["ratio_to_bare"] >= 0.7)
    assert [len(rates) for rates in result["rounds_env_steps_per_second"].values()] == [2, 2]
    with pytest.raises(UserError, match="seconds > 0"):
        bench_atari(seconds=0)
