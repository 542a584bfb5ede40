"""Beside Stable-Baselines3: the same task, the same environment steps, the same networks and batch, in one run.

Three contestants share the machine one after the other. `fleetfoot` is FastTD3 with the default recipe's settings.
`sb3_td3` is TD3 of Stable-Baselines3 as its users run it, one update for each environment step. `sb3_td3_matched` is
the same with our number of environments and our number of updates, to show what the schedule alone does.

With `--algorithm ppo` there are two: PPO with the recipe's settings here and there, in as many environments.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from fleetfoot import recipes
from fleetfoot.agents.ppo import PPOConfig
from fleetfoot.api import train
from fleetfoot.envs.mujoco import MuJoCoConfig
from fleetfoot.errors import UserError
from fleetfoot.evaluate import EvaluationConfig
from fleetfoot.extras import install_line
from fleetfoot.log import LogConfig
from fleetfoot.nn.mlp import MLPConfig
from fleetfoot.recipe import Recipe
from fleetfoot.replay.rollouts import RolloutConfig
from fleetfoot.system import usable_cores

EPISODES = 8
EVALUATION_SEED = 12_345


def bench_peers(
    task: str = "HalfCheetah-v5",
    total_env_steps: int = 64_000,
    seeds: tuple[int, ...] = (0,),
    threads: int = 0,
    algorithm: Literal["td3", "ppo"] = "td3",
) -> dict[str, Any]:
    """Wall-clock of training and final return of each contestant; evaluation is not counted."""
    threads = threads or usable_cores()
    torch.set_num_threads(threads)
    if algorithm == "ppo":
        return _ppo(task, total_env_steps, seeds, threads)
    recipe = _recipe(task, total_env_steps, threads)
    rows = []
    for seed in seeds:
        rows.append(_ours(replace(recipe, seed=seed)))
        rows.append(_sb3(recipe, seed, matched=False))
        rows.append(_sb3(recipe, seed, matched=True))
    means = {
        name: {key: _mean(rows, name, key) for key in ("seconds", "return")}
        for name in dict.fromkeys(row["contestant"] for row in rows)
    }
    ours, theirs = means["fleetfoot"], means["sb3_td3"]
    matched = means["sb3_td3_matched"]
    return {
        "task": task,
        "runs": rows,
        "speedup_over_sb3": theirs["seconds"] / ours["seconds"],
        "speedup_over_sb3_matched": matched["seconds"] / ours["seconds"],
        "return": {name: values["return"] for name, values in means.items()},
    }


def _ppo(task: str, total_env_steps: int, seeds: tuple[int, ...], threads: int) -> dict[str, Any]:
    recipe = _quiet(recipes.get("ppo/halfcheetah"), task, total_env_steps, threads)
    rows = []
    for seed in seeds:
        rows += [_ours(replace(recipe, seed=seed)), _sb3_ppo(recipe, seed)]
    ours, theirs = (
        {key: _mean(rows, name, key) for key in ("seconds", "return")}
        for name in ("fleetfoot", "sb3_ppo")
    )
    return {
        "task": task,
        "algorithm": "ppo",
        "runs": rows,
        "speedup_over_sb3": theirs["seconds"] / ours["seconds"],
        "return": {"fleetfoot": ours["return"], "sb3_ppo": theirs["return"]},
    }


def _sb3_ppo(recipe: Recipe, seed: int) -> dict[str, Any]:
    """Observations are normalised there as here: by running statistics, clipped at 10."""
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import VecNormalize
    except ImportError as error:
        raise UserError(f"bench peers needs Stable-Baselines3: {install_line('bench')}") from error
    agent, rollouts = recipe.agent, recipe.replay
    assert isinstance(agent, PPOConfig)
    assert isinstance(rollouts, RolloutConfig)
    assert isinstance(agent.policy_net, MLPConfig)
    task = recipe.env.task  # type: ignore[attr-defined]
    env = VecNormalize(make_vec_env(task, n_envs=recipe.num_envs, seed=seed), norm_reward=False)
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=agent.policy_optim.lr,
        n_steps=rollouts.length,
        batch_size=recipe.batch_size // agent.minibatches,
        n_epochs=agent.epochs,
        gamma=recipe.gamma,
        gae_lambda=agent.gae_lambda,
        clip_range=agent.clip,
        ent_coef=agent.entropy_coef,
        vf_coef=agent.value_coef,
        max_grad_norm=agent.policy_optim.max_grad_norm or 1e9,
        policy_kwargs={"net_arch": list(agent.policy_net.hidden)},
        seed=seed,
        device="cpu",
    )
    total = recipe.total_vec_steps * recipe.num_envs
    start = time.perf_counter()
    model.learn(total)
    seconds = time.perf_counter() - start
    judge = VecNormalize(
        make_vec_env(task, n_envs=1, seed=EVALUATION_SEED), norm_reward=False, training=False
    )
    judge.obs_rms = env.obs_rms
    mean: Any = evaluate_policy(model, judge, n_eval_episodes=EPISODES, deterministic=True)[0]
    env.close()
    judge.close()
    return {
        "contestant": "sb3_ppo",
        "seed": seed,
        "env_steps": total,
        "updates": total // recipe.batch_size,
        "seconds": seconds,
        "return": float(mean),
    }


def _mean(rows: list[dict[str, Any]], name: str, key: str) -> float:
    values = [row[key] for row in rows if row["contestant"] == name]
    return float(sum(values) / len(values))


def _recipe(task: str, total_env_steps: int, threads: int) -> Recipe:
    base = recipes.get("fast_td3/halfcheetah")
    return _quiet(base, task, total_env_steps, threads)


def _quiet(base: Recipe, task: str, total_env_steps: int, threads: int) -> Recipe:
    steps = total_env_steps // base.num_envs
    if base.pace.updates_after(steps) < 1:
        raise UserError(f"bench peers needs more than {total_env_steps:,} environment steps.")
    return replace(
        base,
        env=MuJoCoConfig(task=task),
        total_vec_steps=steps,
        threads=threads,
        device="cpu",
        log=LogConfig(tensorboard=False, console=False),
        evaluation=EvaluationConfig(every_vec_steps=0, episodes=EPISODES),
    )


def _ours(recipe: Recipe) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = train(recipe, Path(folder) / "run")
    return {
        "contestant": "fleetfoot",
        "seed": recipe.seed,
        "env_steps": result.counters.env_steps,
        "updates": result.counters.updates,
        "seconds": result.counters.train_seconds,
        "return": result.last_return,
    }


def _sb3(recipe: Recipe, seed: int, matched: bool) -> dict[str, Any]:
    try:
        from stable_baselines3 import TD3
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
    except ImportError as error:
        raise UserError(f"bench peers needs Stable-Baselines3: {install_line('bench')}") from error
    import numpy as np

    agent: Any = recipe.agent
    task = recipe.env.task  # type: ignore[attr-defined]
    assert isinstance(agent.policy_net, MLPConfig)
    assert isinstance(agent.critic_net, MLPConfig)
    total = recipe.total_vec_steps * recipe.num_envs
    num_envs = recipe.num_envs if matched else 1
    updates = int(recipe.pace.updates_per_vec_step) if matched else 1
    env = make_vec_env(task, n_envs=num_envs, seed=seed)
    size = int(np.prod(env.action_space.shape or ()))
    noise: Any = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    model = TD3(
        "MlpPolicy",
        env,
        learning_rate=1e-3,  # its own default
        batch_size=recipe.batch_size,
        gamma=recipe.gamma,
        learning_starts=recipe.pace.warmup_vec_steps * recipe.num_envs,
        train_freq=1,
        gradient_steps=updates,
        action_noise=noise if num_envs == 1 else VectorizedActionNoise(noise, num_envs),
        policy_kwargs={
            "net_arch": {
                "pi": list(agent.policy_net.hidden),
                "qf": list(agent.critic_net.hidden),
            }
        },
        seed=seed,
        device="cpu",
    )
    start = time.perf_counter()
    model.learn(total)
    seconds = time.perf_counter() - start
    judge = make_vec_env(task, n_envs=1, seed=EVALUATION_SEED)
    mean: Any = evaluate_policy(model, judge, n_eval_episodes=EPISODES, deterministic=True)[0]
    env.close()
    judge.close()
    return {
        "contestant": "sb3_td3_matched" if matched else "sb3_td3",
        "seed": seed,
        "env_steps": total,
        "updates": model._n_updates,
        "seconds": seconds,
        "return": float(mean),
    }
