"""A process that steps its share of Gymnasium environments, in memory it shares with the one that started it.

Run by `envs.subprocess.env`, never by hand. Requests come as single bytes on standard input, answers go to a pipe;
actions and observations travel in shared memory alone. Nothing here imports torch: a worker is small.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
from typing import Any, BinaryIO

import numpy as np
from gymnasium import spaces
from numpy.random.mtrand import set_bit_generator
from numpy.typing import NDArray

from fleetfoot.envs.gym_copy import FAULT, make_copy
from fleetfoot.envs.info import MOST_NAMES
from fleetfoot.errors import one_line

RESET, STEP, DRAW = b"r", b"s", b"d"  # requests
# The first byte of an answer. A text follows the last three; NAMED: done, and there are new names in `info`.
DONE, FAULTY, MISTAKE, NAMED = b"k", b"f", b"m", b"n"
ALIGN = 64  # bytes; no two arrays share a cache line


class Shared:
    """The arrays of one vec step of all environments, laid out in one piece of memory."""

    def __init__(self, memory: Any, num_envs: int, obs_size: int, action_size: int) -> None:
        self.end, self.memory = 0, memory
        self.action: NDArray[np.float32] = self._take(np.float32, num_envs, action_size)
        self.next_obs: NDArray[np.float32] = self._take(np.float32, num_envs, obs_size)
        self.obs: NDArray[np.float32] = self._take(np.float32, num_envs, obs_size)
        self.reward: NDArray[np.float32] = self._take(np.float32, num_envs)
        # What was told in this step, NaN: nothing. Each process has its own names for these lines.
        self.info: NDArray[np.float32] = self._take(np.float32, MOST_NAMES, num_envs)
        # At the first row of each process: the environment whose turn it is, should it hang or die there.
        self.current: NDArray[np.int32] = self._take(np.int32, num_envs)
        self.terminated: NDArray[np.bool_] = self._take(np.bool_, num_envs)
        self.truncated: NDArray[np.bool_] = self._take(np.bool_, num_envs)

    def _take(self, dtype: Any, *shape: int) -> Any:
        start = self.end
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.end = -(-(start + size) // ALIGN) * ALIGN
        if self.memory is None:  # to learn how much is needed
            return np.empty(0)
        return np.frombuffer(self.memory, dtype, int(np.prod(shape)), start).reshape(shape)


def write_text(out: BinaryIO, kind: bytes, text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    out.write(kind + struct.pack("<I", len(data)) + data)
    out.flush()


def read_text(source: BinaryIO) -> bytes:
    """What `write_text` wrote after its first byte. Raises `EOFError` where the other side is gone."""
    (size,) = struct.unpack("<I", read_exactly(source, 4))
    return read_exactly(source, size)


def read_exactly(source: BinaryIO, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.read(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


class Fault(Exception):  # noqa: N818
    """An environment misbehaved; the message says how."""


class Member:
    """One environment with its row of the shared arrays and its own stream of numpy's global random numbers.

    Some environments (HumanoidBench's) draw from that global generator: without a stream of its own, what one of them
    draws would depend on its neighbours.
    """

    def __init__(self, name: str, kwargs: dict[str, Any], row: int, seed: int) -> None:
        self.env: Any = make_copy(name, kwargs, None, row, os.getpid())
        self.about = describe(self.env)
        self.row, self.seed = row, seed
        self.info: dict[str, float] = {}  # of the last step
        self.stream = np.random.MT19937(seed)
        space: Any = self.env.action_space
        self.low, self.half = space.low, (space.high - space.low) / 2

    def reset(self, shared: Shared) -> None:
        set_bit_generator(self.stream)  # to exchange it takes less time than to copy its state
        # Only the first reset plants the seed: later ones go on in the environment's own stream.
        seed, self.seed = (None if self.seed < 0 else self.seed), -1
        shared.obs[self.row] = checked(*self.env.reset(seed=seed))

    def step(self, shared: Shared) -> None:
        set_bit_generator(self.stream)
        row = self.row
        action = np.clip(shared.action[row], -1, 1)
        action = np.asarray(self.low + (action + 1) * self.half, self.env.action_space.dtype)
        obs, reward, terminated, truncated, self.info = self.env.step(action)
        shared.next_obs[row] = shared.obs[row] = checked(obs, self.info)
        shared.reward[row] = reward
        shared.terminated[row], shared.truncated[row] = terminated, truncated and not terminated
        if terminated or truncated:
            self.reset(shared)


def checked(obs: Any, info: dict[str, Any]) -> Any:
    if FAULT in info:
        raise Fault(info[FAULT])
    return obs


def tell(shared: Shared, members: list[Member], names: list[str]) -> bool:
    """Write what the environments told into the shared lines; True where `names` has become longer."""
    before = len(names)
    for member in members:
        names += [name for name in member.info if name not in names][: MOST_NAMES - len(names)]
    for line, name in enumerate(names):
        for member in members:
            shared.info[line, member.row] = member.info.get(name, np.nan)
    return len(names) > before


def describe(env: Any) -> dict[str, Any]:
    obs, action = env.observation_space, env.action_space
    if not (isinstance(obs, spaces.Box) and len(obs.shape) == 1):
        raise ValueError(f"it has observations {obs}; only flat ones are understood")
    bounded = isinstance(action, spaces.Box) and bool(np.isfinite([action.low, action.high]).all())
    if not (bounded and len(action.shape) == 1):
        raise ValueError(f"it has actions {action}; only a vector with bounds is understood")
    limit = env.spec.max_episode_steps if env.spec else None
    fps = env.metadata.get("render_fps") or 20
    return {
        "obs_size": obs.shape[0],
        "action_size": action.shape[0],
        "episode_length": limit,
        "step_seconds": 1 / fps,
    }


def serve(memory_file: int, requests: BinaryIO, answers: BinaryIO) -> None:
    settings = json.loads(read_text(requests))
    try:
        members = [
            Member(settings["name"], settings["kwargs"], settings["first"] + i, seed)
            for i, seed in enumerate(settings["seeds"])
        ]
    except (Exception, SystemExit) as error:
        write_text(answers, MISTAKE, one_line(error))
        return
    about, first = members[0].about, settings["first"]
    write_text(answers, DONE, json.dumps(about))
    requests.read(1)  # by now the memory has its size
    memory = mmap.mmap(memory_file, 0)
    shared = Shared(memory, settings["num_envs"], about["obs_size"], about["action_size"])
    for_pictures = np.random.MT19937(0)
    names: list[str] = []  # of the lines of `shared.info`, in the order they were first told
    while request := requests.read(1):
        if request == DRAW:
            (row,) = struct.unpack("<I", read_exactly(requests, 4))
            shared.current[first] = row
            # Some draw random numbers for a picture: not from the stream of the last that was stepped.
            set_bit_generator(for_pictures)
            picture = members[row - first].env.picture(row)
            if isinstance(picture, str):
                write_text(answers, MISTAKE, picture)
            else:
                size = struct.pack("<II", *picture.shape[:2])
                write_text(answers, DONE, size + picture.astype(np.uint8).tobytes())
            continue
        try:
            for member in members:
                shared.current[first] = member.row
                member.step(shared) if request == STEP else member.reset(shared)
        except Fault as fault:
            write_text(answers, FAULTY, str(fault))
            continue
        new_names = request == STEP and tell(shared, members, names)
        if new_names:
            write_text(answers, NAMED, json.dumps(names))
        else:
            answers.write(DONE)
            answers.flush()


def main() -> None:
    # What a terminal or a scheduler sends to all processes is for the parent, which then closes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    memory_file, answers = (int(word) for word in sys.argv[1:3])
    serve(memory_file, os.fdopen(0, "rb", buffering=0), os.fdopen(answers, "wb"))
    os._exit(0)  # nothing is to be saved, and OpenGL complains when Python takes it apart


if __name__ == "__main__":
    main()
