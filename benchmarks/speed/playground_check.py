"""The Playground adapter on a GPU: contract, zero copies, final observations, speed beside the raw step.

The whole contract test compiles for several numbers of robots; here only what one number can show is tried. The robots'
models come from FLEETFOOT_MENAGERIE or Playground's own folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.speed.playground import bench_playground
from fleetfoot.data import Obs, Step
from fleetfoot.envs.check import ContractError, check_env
from fleetfoot.envs.playground import PlaygroundConfig, PlaygroundEnv


class Report:
    """What was seen, printed at once: compilation takes minutes."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def note(self, what: str, value: object) -> None:
        """Remember one line."""
        self.rows[what] = str(value)
        print(f"{what}: {value}", flush=True)

    def attempt(self, what: str, test: Callable[[], object]) -> None:
        """Note what `test` returns; a failure must not hide the other results."""
        begin = time.perf_counter()
        try:
            value = test()
        except Exception as error:
            value = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self.note(what, f"{value} ({time.perf_counter() - begin:.1f} s)")


def tensors(value: Any) -> Iterator[torch.Tensor]:
    for field in value:
        if isinstance(field, Obs):
            yield from tensors(field)
        elif isinstance(field, torch.Tensor):
            yield field


def actions(env: PlaygroundEnv, count: int) -> torch.Tensor:
    generator = torch.Generator(device=env.spec.device).manual_seed(0)
    size = env._program.task.action_size
    shape = (count, env.spec.num_envs, size)
    return torch.rand(shape, generator=generator, device=env.spec.device) * 2 - 1


def zero_copy(env: PlaygroundEnv) -> str:
    """Actions arrive, and observations leave, where they already are."""
    from fleetfoot.envs.playground import step as playground_step

    action = actions(env, 1)[0]
    given = playground_step.from_torch(action)
    arrives = given.unsafe_buffer_pointer() == action.data_ptr()
    new, seen = env._program.step(env._world, env._running, given)  # type: ignore[arg-type]
    env._running = new
    leaves = env._obs(seen["obs"]).actor.data_ptr() == seen["obs"][0].unsafe_buffer_pointer()
    apart = len({part.unsafe_buffer_pointer() for part in (*seen["obs"], *seen["next_obs"])})
    inside = {leaf.unsafe_buffer_pointer() for leaf in new if leaf.size}
    shared = any(
        part.unsafe_buffer_pointer() in inside for part in (*seen["obs"], *seen["next_obs"])
    )
    wanted = 2 * len(seen["obs"])
    good = arrives and leaves and apart == wanted and not shared
    return f"{good} (in {arrives}, out {leaves}, {apart} of {wanted} buffers apart, shared with the state {shared})"


def same_addresses(env: PlaygroundEnv) -> str:
    """The running state stays where it is; MuJoCo Warp knows its CUDA graphs by address."""
    names = ("clock", "episode", *env._program.layout.names)
    kept = [i for i, leaf in enumerate(env._running) if leaf.size]
    before = [env._running[i].unsafe_buffer_pointer() for i in kept]
    for action in actions(env, 3):
        env.step(action)
    moved = [
        names[i]
        for i, was in zip(kept, before, strict=True)
        if env._running[i].unsafe_buffer_pointer() != was
    ]
    return f"{len(moved)} of {len(kept)} arrays moved in 3 steps: {', '.join(moved[:8])}"


def owned(env: PlaygroundEnv) -> str:
    """What was handed out is not written to by later steps, though the device is always behind the host."""
    kept: list[tuple[Step, list[torch.Tensor]]] = []
    for action in actions(env, 40):
        step = env.step(action)
        kept.append((step, [tensor.clone() for tensor in tensors(step)]))
    torch.cuda.synchronize() if env.spec.device.type == "cuda" else None
    wrong = sum(
        not torch.equal(tensor, copy)
        for step, copies in kept
        for tensor, copy in zip(tensors(step), copies, strict=True)
    )
    return f"{wrong} tensors changed"


def ends(env: PlaygroundEnv) -> str:
    """Random actions: robots fall or the clock runs out; the last observation is not the first of the next episode."""
    env.reset()
    terminated = truncated = lost = wrong = 0
    for action in actions(env, env.spec.episode_length or 100):
        step = env.step(action)
        ended = step.terminated | step.truncated
        fresh = (step.obs.actor != step.next_obs.actor).any(1)
        lost += int((ended & ~fresh).sum())
        wrong += int((fresh & ~ended).sum()) + int((step.terminated & step.truncated).sum())
        wrong += int((~step.next_obs.critic.isfinite()).any(1).sum())
        terminated, truncated = (
            terminated + int(step.terminated.sum()),
            truncated + int(step.truncated.sum()),
        )
    return f"{terminated} terminated, {truncated} truncated, {lost} final observations lost, {wrong} rows wrong"


def check_contract(config: PlaygroundConfig, num_envs: int, device: torch.device) -> str:
    try:
        report = check_env(
            config,
            num_envs=num_envs,
            vec_steps=40,
            device=device,
            independent_seeds=False,
            render=False,
        )
    except ContractError as error:
        if error.clause in ("same_seed", "state"):  # sums on a GPU have no fixed order
            return f"not bit for bit: {' '.join(str(error).split())[:200]}"
        raise
    return f"passed, not tried: {', '.join(report.untried) or 'nothing'}"


def no_wait(env: PlaygroundEnv) -> str:
    """How long the host is busy with a step, and how long the device."""
    script = actions(env, 20)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for action in script:
        env.step(action)
    queued = time.perf_counter() - begin
    torch.cuda.synchronize()
    whole = time.perf_counter() - begin
    return f"host {1e3 * queued / 20:.2f} ms, with the device {1e3 * whole / 20:.2f} ms"


def check_playground(
    task: str = "T1JoystickFlatTerrain",
    num_envs: int = 1024,
    seconds: float = 10.0,
    wrapper: bool = False,
    contract: bool = True,
    speed: bool = True,
    device: str = "cuda",
) -> dict[str, Any]:
    """What was seen of each property; `FAILED` where a test failed.

    :param task: A task of MuJoCo Playground.
    :param num_envs: Robots.
    :param seconds: Of the measurement of speed.
    :param wrapper: Measure Playground's training wrapper too.
    :param contract: Run the contract test.
    :param speed: Measure beside the raw step.
    :param device: Torch's name of it.
    """
    place = torch.device(device)
    tuned = task in ("T1JoystickFlatTerrain", "G1JoystickFlatTerrain")
    config = PlaygroundConfig(task=task, tuned_reward=tuned, episode_length=30)
    report = Report()
    note, attempt = report.note, report.attempt

    begin = time.perf_counter()
    env = config.build(num_envs, 0, place)
    spec = env.spec
    note("spec", f"obs {spec.obs_shape}, critic {spec.critic_shape}, shared {spec.critic_prefix}")
    note("physics", env._program.task.env.mjx_model.impl.value)
    note("built", f"{time.perf_counter() - begin:.1f} s")
    begin = time.perf_counter()
    first = env.reset()
    note("first reset", f"{time.perf_counter() - begin:.1f} s")
    begin = time.perf_counter()
    reward = float(env.step(actions(env, 1)[0]).reward.mean())
    note("first step", f"{time.perf_counter() - begin:.1f} s, mean reward {reward:.4f}")
    width = spec.critic_prefix
    note("prefix agrees", torch.equal(first.critic[:, :width], first.actor[:, :width]))
    attempt("zero copy", lambda: zero_copy(env))
    attempt("same addresses", lambda: same_addresses(env))
    attempt("ownership", lambda: owned(env))
    attempt("ends", lambda: ends(env))
    if place.type == "cuda":
        attempt("host and device", lambda: no_wait(env))
        free, total = torch.cuda.mem_get_info()
        note("memory", f"{(total - free) / 2**30:.1f} GiB in use")
    stock = config.for_evaluation().build(num_envs, 1, place)
    note("evaluation shares the program", stock._program is env._program)
    if contract:
        attempt("contract", lambda: check_contract(config, num_envs, place))
    if speed:
        attempt("speed", lambda: beside_raw(config, num_envs, seconds, device, wrapper))
    return {"checks": report.rows}


def beside_raw(
    config: PlaygroundConfig, num_envs: int, seconds: float, device: str, wrapper: bool
) -> str:
    """Milliseconds of a vec step, ours and the raw one."""
    result = bench_playground(
        config, num_envs, seconds, device=device, wrapper=wrapper, steps=50, rounds=3
    )
    times = result["milliseconds_per_vec_step"]
    shown = ", ".join(f"{name} {value:.2f} ms" for name, value in times.items())
    return f"{shown}; ratio to raw {result['ratio_to_raw']:.3f}"
