"""Many actions per state: the variance of the policy gradient, measured and predicted, and what that buys.

With Y(s, a) = grad log pi(a|s) A(s, a), y(s) = E_a Y, and i.i.d. states, the mean over T states and N actions each has

    (1)  V(N, T) = (V_s(y) + E_s V_a(Y) / N) / T

and beats N = 1 with the T' = T (1 + delta (N - 1)) states that cost the same (delta: the price of an action, in
states) exactly if

    (2)  V_s(y) < E_s V_a(Y) (1 - delta) / (delta N).

Variances are traces of covariances (Nauman and Cygan 2023, arXiv 2210.13011).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.curves import draw_variants, finished, picture, points
from fleetfoot import recipes
from fleetfoot.agents.daa import DAA
from fleetfoot.api import train_seeds
from fleetfoot.config import to_json
from fleetfoot.data import Obs
from fleetfoot.envs.tensor import Pendulum, TensorConfig
from fleetfoot.errors import UserError
from fleetfoot.nn.imagine import imagine
from fleetfoot.nn.world_model import Prediction

CPU = torch.device("cpu")
PENDULUM = "daa/pendulum"
PENDULUM_LOWEST = -1_300.0  # about what a policy returns that has learned nothing


class Spread(NamedTuple):
    """The two parts of the variance of Y."""

    of_states: float  # V_s(y)
    of_actions: float  # E_s V_a(Y)


def variance(spread: Spread, actions: int, states: float = 1.0) -> float:
    """(1)"""
    return (spread.of_states + spread.of_actions / actions) / states


def many_win(spread: Spread, actions: int, price: float) -> bool:
    """(2)"""
    return bool(spread.of_states < spread.of_actions * (1.0 - price) / (price * actions))


def measured_spread(samples: Tensor) -> Spread:
    """From Y of K actions in each of S states, [S, K, P]; without bias."""
    actions = samples.shape[1]
    of_actions = float(samples.var(1).sum(-1).mean())
    of_means = float(samples.mean(1).var(0).sum())
    return Spread(of_means - of_actions / actions, of_actions)


def true_pendulum(obs: Tensor, action: Tensor) -> Prediction:
    """The simulator itself in the place of a model: the state is read off the observation."""
    state = torch.stack([torch.atan2(obs[:, 1], obs[:, 0]), obs[:, 2]], 1)
    state, reward, ended = Pendulum().advance(state, action)
    return Prediction(Pendulum().observe(state)[0], reward, 1.0 - ended.float())


def gradient_samples(agent: DAA, states: int, actions: int, seed: int) -> Tensor:
    """Y [S, K, P] at the weights of the policy as they are, with advantages from the true pendulum."""
    env = TensorConfig().build(states, seed, CPU)
    obs = env.reset().actor.repeat_interleave(actions, 0)
    noise = torch.randn(
        agent.cfg.horizon, len(obs), 1, generator=torch.Generator().manual_seed(seed)
    )
    path = imagine(
        true_pendulum,
        agent.actor,
        agent.critic,
        obs,
        noise,
        gamma=agent.gamma,
        lam=agent.cfg.gae_lambda,
    )
    weights = {name: weight.detach() for name, weight in agent.actor.named_parameters()}

    def log_prob(weights: dict[str, Tensor], obs: Tensor, action: Tensor) -> Tensor:
        row = Obs(obs.unsqueeze(0), obs.unsqueeze(0))
        params = torch.func.functional_call(agent.actor, weights, (row,))
        return agent.actor.log_prob(params, action.unsqueeze(0)).squeeze(0)

    by_row = torch.vmap(torch.func.grad(log_prob), in_dims=(None, 0, 0))
    gradients = by_row(weights, path.obs[0], path.action[0])
    rows = torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)
    return (rows * path.advantage[0].unsqueeze(1)).view(states, actions, -1)


def variance_over_actions(
    agent: DAA, counts: tuple[int, ...], states: int = 32, repeats: int = 150
) -> list[dict[str, float]]:
    """The variance of the estimate from so many actions in each of `states` states, over independent repeats."""
    most = max(counts)
    estimates: dict[int, list[Tensor]] = {count: [] for count in counts}
    spreads = []
    for repeat in range(repeats):
        samples = gradient_samples(agent, states, most, seed=repeat)
        spreads.append(measured_spread(samples))
        for count in counts:
            estimates[count].append(samples[:, :count].mean((0, 1)))
    spread = Spread(*map(float, np.mean(spreads, axis=0)))
    rows = []
    for count in counts:
        stacked = torch.stack(estimates[count])
        rows.append(
            {
                "actions": count,
                "variance": float(stacked.var(0).sum()),
                "predicted": variance(spread, count, states),
                "mean_norm": float(stacked.mean(0).norm()),
            }
        )
    return rows


def many_actions(
    counts: tuple[int, ...] = (1, 2, 3, 5, 9, 17),
    seeds: int = 5,
    first_seed: int = 100,
    runs: Path = Path("runs/many_actions"),
    pictures: Path | None = None,
    recipe: str = PENDULUM,
) -> Iterator[dict[str, Any]]:
    """Gradient variance over the number of actions per state, then learning curves with and without imagined actions.

    :param counts: Actions per state, the executed one included.
    :param seeds: Of the learning curves; 0: no curves.
    :param first_seed: The others follow it. The recipe was chosen on 0 to 2.
    :param runs: Folder of the runs; those that are there already are read, not trained again.
    :param pictures: Folder to draw pictures into (needs matplotlib).
    :param recipe: Of the curves; RECIPE-none is the one without imagined actions. Variance is the pendulum's alone.
    """
    named = {name: recipes.get(name) for name in (recipe, f"{recipe}-none")}
    if seeds < 1 and recipe != PENDULUM:
        raise UserError("without seeds there are no curves, and variance is the pendulum's alone.")
    result: dict[str, Any] = {}
    if recipe == PENDULUM:
        agent = recipes.get(recipe).build_agent(TensorConfig().build(8, 0, CPU).spec, CPU)
        assert isinstance(agent, DAA)
        result["variance"] = variance_over_actions(agent, counts)
        if pictures is not None:
            draw_variance(result["variance"], pictures / "daa-variance.png")
        yield result
    if seeds == 0:
        return
    curves: dict[str, list[dict[str, Any]]] = {}
    for name, plan in named.items():
        folder = runs / name.replace("/", "-")
        if not folder.exists():
            train_seeds(replace(plan, seed=first_seed), seeds, folder)
        places = [folder / f"seed-{first_seed + k}" for k in range(seeds)]
        curves[name] = [points(finished(place)) for place in places]
    lowest = PENDULUM_LOWEST if recipe == PENDULUM else 0.0
    areas = {name: [area(c, lowest) for c in of_name] for name, of_name in curves.items()}
    ours, theirs = map(np.array, areas.values())
    if theirs.mean() <= 0.0:
        raise UserError(
            f"returns of {recipe} are below 0, so that a gain in per cent means nothing."
        )
    result |= {
        "recipe": to_json(named[recipe]),
        "curves": curves,
        "area": areas,
        "gain": bootstrap(ours, theirs, lambda x, y: relative_gain(x.mean(), y.mean())),
        "probability_of_more": float((ours[:, None] > theirs[None, :]).mean()),
    }
    if pictures is not None:
        draw_variants(curves, pictures / f"{recipe.replace('/', '-')}.png")
    yield result


def area(columns: dict[str, Any], lowest: float) -> float:
    """The mean return over the run, above the lowest there is."""
    steps, values = np.array(columns["env_steps"]), np.array(columns["return"]) - lowest
    between = (values[1:] + values[:-1]) / 2 * np.diff(steps)
    return float((values[0] * steps[0] / 2 + between.sum()) / steps[-1])


def relative_gain(ours: float, theirs: float) -> float:
    return ours / theirs - 1.0


def bootstrap(
    ours: Any, theirs: Any, statistic: Callable[[Any, Any], float], repeats: int = 10_000
) -> dict[str, Any]:
    """The statistic, and its 95 % interval over seeds."""
    random = np.random.default_rng(0)
    drawn = [
        statistic(random.choice(ours, len(ours)), random.choice(theirs, len(theirs)))
        for _ in range(repeats)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"value": statistic(ours, theirs), "interval": [float(low), float(high)]}


def draw_variance(rows: list[dict[str, float]], path: Path) -> None:
    with picture(path, size=(5, 3.2)) as (_, (panel,)):
        counts = [row["actions"] for row in rows]
        panel.plot(counts, [row["predicted"] for row in rows], label="predicted")
        panel.plot(counts, [row["variance"] for row in rows], "o", label="measured")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("actions per state")
        panel.set_ylabel("variance of the gradient")
        panel.legend()
