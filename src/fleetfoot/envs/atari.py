"""Atari games on ale-py's C++ vector environment: many consoles at once, on the CPU cores.

An observation is the last four grey frames of 84 x 84, oldest first; frames from before an episode began are black. One
step is four frames of the console, of which the last two are merged by their maximum.

Three things are done here rather than by ale-py, whose own ways would break the contract (version 0.12.1):

- *The frame cap.* ale-py stops before it has looked at the last frame, so the final observation of an episode that is
  cut would be mixed with older frames. Here the step is finished first, and then the console restarts.
- *Lost lives.* Its `episodic_life` starts a new game, and its `life_loss_info` leaves the final observation unwritten.
- *Invalid actions.* A worker thread that meets one gives no answer, and `step` would wait for it without end.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot import extras
from fleetfoot.config import at_least, part
from fleetfoot.data import Discrete, EnvSpec, Obs, Step
from fleetfoot.envs.host import HostEnv, seeds_of_copies
from fleetfoot.errors import UserError, nearest
from fleetfoot.system import usable_cores

FRAME_SKIP = 4  # frames of the console per step
FRAME_SECONDS = 1 / 60
STACK = 4  # frames in an observation
SIDE = 84  # pixels
NO_CAP = 10**9  # frames; more than half a year of play
TWO_PLAYERS = ("combat", "joust", "maze_craze", "warlords")  # games nobody can play alone


@part
class AtariConfig:
    """One game by its name in Gymnasium's ids (ALE/Pong-v5: Pong). `names()` lists them."""

    on_host: ClassVar[bool] = True  # simulated on the CPU, whatever the device

    game: str = "Pong"
    """Name of the game."""
    full_actions: bool = False
    """All 18 actions instead of those that do something in this game."""
    clip_rewards: bool = True
    """Clip rewards to [-1, 1]; never in evaluation."""
    life_loss: bool = False
    """A lost life ends a training episode; never in evaluation."""
    sticky: float = 0.0
    """Probability, in each frame, that the console repeats the last action."""
    sticky_in_evaluation: bool = False
    """Use sticky actions in evaluation too."""
    max_noops: int = 30
    """An episode begins with 0 to this many no-op frames."""
    fire_start: bool = False
    """Press FIRE first, if the game has it."""
    max_frames: int = 108_000
    """Frames of a game until it is truncated."""
    evaluation_max_frames: int = 108_000
    """The same in evaluation; the default is 30 minutes of play."""
    threads: int = 0
    """Threads that step the consoles; 0: all available cores."""

    def __post_init__(self) -> None:
        if not 0 <= self.sticky < 1:
            raise UserError(f"env.sticky must be a probability in [0, 1), not {self.sticky}.")
        at_least(
            self,
            "env",
            max_frames=FRAME_SKIP,
            evaluation_max_frames=FRAME_SKIP,
            max_noops=0,
            threads=0,
        )

    def build(self, num_envs: int, seed: int, device: torch.device) -> AtariEnv:
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, not {num_envs}.")
        return AtariEnv(self, num_envs, seed, device)

    def for_evaluation(self) -> AtariConfig:
        """The game as its score is reported: true points, all lives, 30 minutes."""
        return dataclasses.replace(
            self,
            clip_rewards=False,
            life_loss=False,
            sticky=self.sticky if self.sticky_in_evaluation else 0.0,
            max_frames=self.evaluation_max_frames,
        )


def names() -> list[str]:
    """The games that come with ale-py, sorted."""
    return sorted(_games())


def rom_of(game: str) -> str:
    """ale-py's own name of a game."""
    games = _games()
    if game not in games:
        raise UserError(
            f"there is no Atari game {game!r}.{nearest(game, games)} "
            "`fleetfoot list environments` names them all."
        )
    return games[game]


class AtariEnv(HostEnv):
    """N consoles with the same game behind the `VecEnv` contract."""

    why_no_state = "ale-py's vector environment does not tell its state"

    def __init__(self, config: AtariConfig, num_envs: int, seed: int, device: torch.device) -> None:
        self.envs: Any = _load("ale_py.vector_env").AtariVectorEnv(
            rom_of(config.game),
            num_envs,
            num_threads=min(config.threads or usable_cores(), num_envs),
            max_num_frames_per_episode=NO_CAP,
            repeat_action_probability=config.sticky,
            full_action_space=config.full_actions,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=SIDE,
            img_width=SIDE,
            stack_num=STACK,
            frameskip=FRAME_SKIP,
            noop_max=config.max_noops + 1,  # ale-py draws fewer than this
            reward_clipping=False,  # clipped here, so that the log can have the points as well
            use_fire_reset=config.fire_start,
        )
        self.life_loss, self.clip = config.life_loss, config.clip_rewards
        self.limit = config.max_frames // FRAME_SKIP  # vec steps of a game
        self.spec = EnvSpec(
            name=f"atari/{config.game}",
            num_envs=num_envs,
            obs_shape=(STACK, SIDE, SIDE),
            obs_dtype=torch.uint8,
            action=Discrete(int(self.envs.single_action_space.n)),
            device=device,
            # The cap is on the game: where each life is an episode, no episode has a fixed length.
            episode_length=None if config.life_loss else self.limit,
            frame_stack=STACK,
            step_seconds=FRAME_SKIP * FRAME_SECONDS,
            description={"actions": self._buttons()},
        )
        # 31 bits of each are used: ale-py takes a negative seed as none.
        words = [word >> 1 for word in seeds_of_copies(seed, num_envs)]
        self.seeds: NDArray[np.int64] | None = np.array(words, dtype=np.int64)
        self.clock = np.zeros(num_envs, dtype=np.int64)  # vec steps of each running game
        self.lives = np.zeros(num_envs, dtype=np.int32)
        self.past = np.zeros(num_envs, dtype=np.int64)  # frames in the stack from an earlier life
        self.newest = np.zeros((num_envs, STACK, SIDE, SIDE), dtype=np.uint8)  # for pictures

    def _buttons(self) -> list[str]:
        """What each action presses: NOOP, FIRE, UP, ..."""
        return [action.name for action in self.envs.ale.get_action_set()]

    def reset(self) -> Obs:
        # Only the first reset plants the seeds: later ones go on in each console's own stream.
        frames, info = self.envs.reset(seed=self.seeds)
        self.seeds = None
        self.lives = info["lives"]
        self.clock[:] = 0
        self.past[:] = 0
        return self._obs(frames)

    def step(self, action: Tensor) -> Step:
        # ale-py hands out new arrays each time, so they can be written to and given away.
        frames, points, over, _, info = self.envs.step(self._checked(action))
        lives = info["lives"]
        self.clock += 1
        # Some games (Q*bert) show no lives at all for some frames before they are over.
        lost = self.life_loss & (lives < self.lives) & (lives > 0) & ~over
        capped = (self.clock >= self.limit) & ~over
        ended = np.flatnonzero(over | lost | capped)
        final = frames[ended]  # a copy
        np.maximum(self.past - 1, 0, out=self.past)
        if len(ended):
            if over.any():  # else there are no final observations
                final[over[ended]] = info["final_obs"][over]
            _blacken(final, self.past[ended])
            if capped.any():
                begun, info = self.envs.reset(options={"reset_mask": capped})
                frames[capped], lives[capped] = begun[capped], info["lives"][capped]
            self.past[lost] = STACK - 1
            self.past[over | capped] = 0
            self.clock[over | capped] = 0
        _blacken(frames, self.past)
        self.lives = lives

        obs = next_obs = self._obs(frames)
        if len(ended):
            actor = obs.actor.clone()
            actor.index_copy_(0, self._tensor(ended), self._tensor(final))
            next_obs = Obs(actor, actor)
        score = self._tensor(points.astype(np.float32))
        return Step(
            obs,
            next_obs,
            score.clamp(-1, 1) if self.clip else score,
            self._tensor(over | lost),
            self._tensor(capped & ~lost),
            {"env/score": score},
        )

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """The newest frame as the policy sees it, grey, at about twice the size of the console's 210 x 160 pixels."""
        grey = self.newest[index, -1].repeat(5, axis=0).repeat(4, axis=1)
        return np.stack([grey] * 3, axis=-1)

    def close(self) -> None:
        self.envs = None  # its destructor ends the threads

    def _checked(self, action: Tensor) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = action.cpu().numpy()
        count = self.envs.single_action_space.n
        if rows.dtype != np.int64 or rows.shape != self.clock.shape:
            raise UserError(
                f"{self.spec.name} takes actions int64 [{len(self.clock)}], not {rows.dtype} {list(rows.shape)}."
            )
        if rows.min() < 0 or rows.max() >= count:
            raise UserError(
                f"{self.spec.name} has actions 0 to {count - 1}; {rows.min()} to {rows.max()} were given."
            )
        return rows

    def _obs(self, rows: NDArray[np.uint8]) -> Obs:
        self.newest = rows
        return super()._obs(rows)


def _blacken(frames: NDArray[np.uint8], past: NDArray[np.int64]) -> None:
    """Black out the `past` oldest frames of each row: the stack of a new life holds nothing of the last one."""
    for row in np.flatnonzero(past):
        frames[row, : past[row]] = 0


@functools.cache
def _games() -> dict[str, str]:
    """Name of each game -> its ROM."""
    roms = _load("ale_py.roms").get_all_rom_ids()
    return {rom.title().replace("_", ""): rom for rom in roms if rom not in TWO_PLAYERS}


def _load(module: str) -> Any:
    return extras.load(module, "atari", "Atari games need ale-py 0.12.1 or newer")
