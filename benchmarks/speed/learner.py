"""What an update costs: eager, compiled and captured, at the sizes of published runs, against what the card can do."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.rates import stretch, wait
from benchmarks.speed.kernels import slowest_kernels
from fleetfoot.agents.fast_td3 import FastTD3, FastTD3Config
from fleetfoot.agents.flash_sac import FlashSAC, FlashSACConfig
from fleetfoot.data import Continuous, EnvSpec, Obs, Transition
from fleetfoot.errors import UserError
from fleetfoot.execution import EagerLearner, Mode, Precision, make_learner
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.linear import Linear
from fleetfoot.nn.simba import SimbaV2Config
from fleetfoot.optim import AdamWConfig
from fleetfoot.replay.replay import Replay, ReplayConfig
from fleetfoot.system import resolve_device

Name = Literal[
    "g1", "simba", "humanoid-bench", "isaac", "tiny", "flash-g1", "flash-g1-large", "flash-tiny"
]
Measured = FastTD3 | FlashSAC


@dataclass(frozen=True)
class Size:
    """A run's sizes, and its updates per vec step."""

    num_envs: int
    obs: int
    critic_obs: int | None
    actions: int
    batch: int
    agent: FastTD3Config | FlashSACConfig
    updates: int = 2
    n_step: int = 1
    stored: int = 256 * 1024  # transitions


SIMBA = FastTD3Config(
    policy_net=SimbaV2Config(width=256, blocks=1),
    critic_net=SimbaV2Config(width=512, blocks=2),
    policy_optim=AdamWConfig(weight_decay=0.0),
    critic_optim=AdamWConfig(weight_decay=0.0),
)
FLASH_LARGE = FlashSACConfig(
    policy_net=FlashNetConfig(width=256), critic_net=FlashNetConfig(width=512)
)
FLASH_TINY = FlashSACConfig(
    num_atoms=11,
    policy_net=FlashNetConfig(width=64, blocks=2),  # sizes that are one operation on a GPU
    critic_net=FlashNetConfig(width=64, blocks=2),
)
SIZES: dict[str, Size] = {
    "g1": Size(1024, 103, 216, 29, 32_768, FastTD3Config(v_min=-10, v_max=10)),
    "simba": Size(128, 151, None, 61, 8_192, SIMBA),
    "humanoid-bench": Size(128, 151, None, 61, 32_768, FastTD3Config()),
    "isaac": Size(
        4096, 123, None, 37, 32_768, FastTD3Config(v_min=-10, v_max=10, num_atoms=251), 4, n_step=8
    ),
    "tiny": Size(16, 5, 7, 2, 64, FastTD3Config(num_atoms=11), stored=1024),
    "flash-g1": Size(4096, 103, 216, 29, 2_048, FlashSACConfig(), 8),
    "flash-g1-large": Size(4096, 103, 216, 29, 4_096, FLASH_LARGE, 8),
    "flash-tiny": Size(16, 9, 12, 2, 128, FLASH_TINY, stored=1024),
}


def bench_learner(
    sizes: tuple[Name, ...] = ("g1",),
    modes: tuple[Mode, ...] = ("eager", "captured"),
    precision: Precision = "bf16",
    updates: int = 100,
    check: bool = False,
    kernels: int = 0,
    device: str = "auto",
) -> dict[str, Any]:
    """Milliseconds per update, batch drawing included, on a replay filled with noise.

    :param sizes: g1 (FastTD3 on Playground's G1), simba, humanoid-bench, isaac or tiny; flash-g1 (FlashSAC on the same
        robot at its published sizes), flash-g1-large or flash-tiny.
    :param modes: eager, compiled, captured.
    :param precision: float32, tf32 or bf16.
    :param updates: Updates timed, at least.
    :param check: Compare captured (or, without a GPU, compiled) updates with eager ones first.
    :param kernels: List so many of the slowest kernels, on a GPU.
    :param device: auto, cpu, cuda or cuda:K.
    """
    place = resolve_device(device)
    result: dict[str, Any] = {}
    if check:
        result["same_weights"] = [compare(name, p, place) for name in sizes for p in PRECISIONS]
    rate = matrix_rate(place)
    result["matrix_products"] = {"TFLOP/s of one large bf16 product": rate / 1e12}
    result["updates"] = [
        measure(name, mode, precision, updates, place, rate) for name in sizes for mode in modes
    ]
    if kernels and place.type == "cuda":
        for name in sizes:
            result[f"kernels_{name}"] = profile(SIZES[name], precision, place, kernels)
    return result


PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bf16")


def measure(
    name: str, mode: Mode, precision: Precision, updates: int, device: torch.device, rate: float
) -> dict[str, Any]:
    size = SIZES[name]
    forget(device)
    agent, _, learn = build(size, mode, precision, device)
    begun = time.perf_counter()
    for _ in range(5):  # compilation, capture, one replay
        learn(size.updates)
    wait(device)
    ready = time.perf_counter() - begun
    rounds = -(-updates // size.updates)
    begun = time.perf_counter()
    for _ in range(rounds):
        learn(size.updates)
    wait(device)
    seconds = (time.perf_counter() - begun) / (rounds * size.updates)
    flops = flops_of_update(agent, size.batch)
    row = {
        "size": name,
        "mode": learn.mode,
        "precision": precision,
        "ms_per_update": 1e3 * seconds,
        "TFLOP_per_update": flops / 1e12,
        "TFLOP/s": flops / seconds / 1e12,
        "share_of_floor": flops / rate / seconds,
        "seconds_until_ready": ready,
    }
    if device.type == "cuda":
        row["peak_GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
    return row


def profile(
    size: Size, precision: Precision, device: torch.device, most: int
) -> list[dict[str, Any]]:
    """The slowest kernels of captured updates."""
    forget(device)
    _, _, learn = build(size, "captured", precision, device)
    for _ in range(5):
        learn(size.updates)
    return slowest_kernels(learn, size.updates, most)


def compare(name: str, precision: Precision, device: torch.device) -> dict[str, Any]:
    """The mean difference between weights after the same updates, eager and not, as a share of the way they moved.

    Rounding alone drives weights apart, in some networks (BatchNorm) further than in others. So eager updates from
    weights that were changed by about one rounding are the measure: twice what they differ by is allowed.
    """
    size = SIZES[name]
    mode: Mode = "captured" if device.type == "cuda" else "compiled"

    def weights(asked: Mode, nudge: float = 0.0) -> tuple[Tensor, Tensor]:
        """Before and after."""
        agent, _, learn = build(size, asked, precision, device)
        before = _weights(agent)
        _nudge_(agent, nudge)
        for _ in range(6):
            learn(size.updates)
        if learn.mode != asked:
            raise UserError(f"{asked} updates were asked for, but these were {learn.mode}.")
        return before, _weights(agent)

    start, eager = weights("eager")
    moved = (eager - start).abs().mean()
    apart = (eager - weights(mode)[1]).abs()
    drift = float((eager - weights("eager", ROUNDING)[1]).abs().mean() / moved)
    allowed = max(1e-3 if precision == "float32" else 0.2, 2.0 * drift)
    ratio = float(apart.mean() / moved)
    if not ratio <= allowed:
        raise UserError(
            f"{mode} updates differ from eager ones at {name} sizes in {precision}: their weights are {ratio:.2g} "
            f"of the way they moved apart, and {allowed:.2g} is allowed."
        )
    return {
        "size": name,
        "precision": precision,
        "compared": f"{mode} with eager",
        "updates": 6 * size.updates,
        "mean_difference": float(apart.mean()),
        "largest_difference": float(apart.max()),
        "mean_way": float(moved),
        "ratio": ratio,
        "ratio_after_one_rounding": drift,
        "allowed": allowed,
    }


ROUNDING = 1e-7  # the relative distance of neighbouring float32 numbers


@torch.no_grad()
def _nudge_(agent: Measured, by: float) -> None:
    for parameter in (*agent.critic.parameters(), *agent.policy.parameters()):
        random = torch.Generator(parameter.device).manual_seed(parameter.numel())
        parameter.mul_(
            1.0 + by * torch.randn(parameter.shape, generator=random, device=parameter.device)
        )


def build(
    size: Size, mode: Mode, precision: Precision, device: torch.device
) -> tuple[Measured, Replay, EagerLearner]:
    spec = EnvSpec(
        "noise",
        size.num_envs,
        (size.obs,),
        Continuous(size.actions),
        device,
        critic_shape=None if size.critic_obs is None else (size.critic_obs,),
        critic_prefix=0 if size.critic_obs is None else size.obs,
        episode_length=1000,
    )
    agent = size.agent.build(spec, gamma=0.97, total_updates=10**5, seed=0, device=device)
    rows = size.stored // size.num_envs
    cfg = ReplayConfig(capacity=rows * size.num_envs, storage="bf16", n_step=size.n_step)
    replay = cfg.build(spec, gamma=0.97, seed=0, device=device)
    for transition in noise(spec, rows):
        agent.observe(transition)
        replay.append(transition)
    learn = make_learner(agent, replay, size.batch, precision=precision, mode=mode, device=device)
    return agent, replay, learn


def noise(spec: EnvSpec, rows: int) -> list[Transition]:
    """A few vec steps of random numbers, again and again."""
    random = torch.Generator(spec.device).manual_seed(0)
    device, envs = spec.device, spec.num_envs
    assert isinstance(spec.action, Continuous)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, device=device)

    def obs() -> Obs:
        actor = normal(envs, *spec.obs_shape)
        if spec.critic_shape is None:
            return Obs(actor, actor)
        return Obs(
            actor, torch.cat([actor, normal(envs, spec.critic_shape[0] - spec.obs_shape[0])], 1)
        )

    no = torch.zeros(envs, dtype=torch.bool, device=device)
    observations = [obs() for _ in range(9)]
    some = [
        Transition(
            observations[i],
            normal(envs, spec.action.size).clamp(-1, 1),
            normal(envs),
            torch.rand(envs, generator=random, device=device) < 0.002,
            no,
            observations[i + 1],
            {},
        )
        for i in range(8)
    ]
    return [some[t % 8] for t in range(rows)]


def flops_of_update(agent: Measured, rows: int) -> float:
    """Multiplications and additions of the matrix products that one update needs, the policy's share included."""
    policy_net = agent.gaussian.net if isinstance(agent, FlashSAC) else agent.policy.net
    critic, policy = _products(agent.critic.net), _products(policy_net)
    forward_critic, forward_policy = 2 * rows * sum(critic), 2 * rows * sum(policy)
    if isinstance(agent, FlashSAC):
        # Both critics, and the policy that learns, see the joint rows. What a BatchNorm learns needs the gradients of
        # what enters the first product too.
        critic_update = forward_policy + 2 * forward_critic + 3 * 2 * forward_critic
        policy_update = 3 * 2 * forward_policy + 2 * forward_critic
        return critic_update + policy_update / agent.cfg.policy_every
    # Backward: gradients of the weights of all layers, and of what enters all layers but the first.
    critic_update = forward_policy + 2 * forward_critic + 2 * forward_critic - 2 * rows * critic[0]
    through_critic = 2 * forward_critic
    policy_update = through_critic + 3 * forward_policy - 2 * rows * policy[0]
    return critic_update + policy_update / agent.cfg.policy_every


def _products(net: nn.Module) -> list[int]:
    """Weights of each layer, all members together."""
    return [layer.weight.numel() for layer in net.modules() if isinstance(layer, Linear)]


def matrix_rate(device: torch.device) -> float:
    """FLOP/s of one large product in bf16."""
    side = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))

    def product() -> None:
        torch.mm(a, b)

    stretch(product, 0.0, device)  # warm-up
    return 2 * side**3 * stretch(product, 0.05, device)


def forget(device: torch.device) -> None:
    """Give back what earlier measurements held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.set_device(device if device.index is not None else torch.cuda.current_device())
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _weights(agent: Measured) -> Tensor:
    both = [*agent.critic.parameters(), *agent.policy.parameters()]
    return torch.cat([parameter.detach().flatten().clone() for parameter in both])
