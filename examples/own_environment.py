"""Bring an environment of your own: a Gymnasium class, or a simulator that steps many copies.

python examples/own_environment.py            # check both against the contract
python examples/own_environment.py --train    # and train on the second one, for a few minutes
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetfoot import UserError, part, recipes, train
from fleetfoot.data import Continuous, EnvSpec, Obs, Step
from fleetfoot.envs.check import check_env
from fleetfoot.envs.counter import env_keys, uniforms
from fleetfoot.envs.gym import GymConfig


class Reach(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """The first way: any Gymnasium class. Move a point on a line to the origin."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-0.2, 0.2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, {}

    def step(self, action: NDArray[np.float32]) -> Any:
        self.x = self.x + action
        distance = abs(float(self.x[0]))
        return self.x, -distance, distance > 2, False, {}


gymnasium.register("Reach-v0", Reach, max_episode_steps=50)


class Springs:
    """The second way: N copies in a few tensors. Bring masses on springs to rest."""

    def __init__(self, num_envs: int, seed: int, device: torch.device) -> None:
        self.spec = EnvSpec("springs", num_envs, (2,), Continuous(1), device, episode_length=100)
        self.key = env_keys(seed, num_envs, device)
        self.episode = torch.zeros_like(self.key)
        self.reset()

    def reset(self) -> Obs:
        self.episode, self.clock = self.episode + 1, torch.zeros_like(self.key)
        self.x = uniforms(self.key, self.episode, 2) * 2 - 1  # [N, 2]: position, velocity
        return Obs(self.x, self.x)

    def step(self, action: Tensor) -> Step:
        position, velocity = self.x.unbind(1)
        velocity = velocity + 0.05 * (2 * action[:, 0] - position)
        last = torch.stack([position + 0.05 * velocity, velocity], 1)
        reward = -last.square().sum(1)
        terminated = last[:, 0].abs() > 3  # the spring breaks: nothing follows
        self.clock = self.clock + 1
        truncated = (self.clock >= 100) & ~terminated  # time is up: the future still counts
        ended = terminated | truncated
        self.episode, self.clock = self.episode + ended, torch.where(ended, 0, self.clock)
        start = uniforms(self.key, self.episode, 2) * 2 - 1
        self.x = torch.where(ended[:, None], start, last)
        return Step(Obs(self.x, self.x), Obs(last, last), reward, terminated, truncated, {})

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("key", "episode", "clock", "x")}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        vars(self).update({name: saved.to(self.spec.device) for name, saved in state.items()})
        return Obs(self.x, self.x)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        raise UserError("springs have no pictures.")

    def close(self) -> None: ...


@part
class SpringsConfig:
    """What goes into a recipe, and from there into the run's recipe.json."""

    def build(self, num_envs: int, seed: int, device: torch.device) -> Springs:
        return Springs(num_envs, seed, device)

    def for_evaluation(self) -> SpringsConfig:
        return self


def main(arguments: list[str]) -> None:
    for config in (GymConfig(id="Reach-v0"), SpringsConfig()):
        report = check_env(config)
        ends = f"{report.terminations} terminations, {report.truncations} truncations"
        print(f"{report.spec.name}: passed; {ends}; not tried: {report.untried or 'nothing'}")
    if "--train" in arguments:
        recipe = replace(recipes.get("flash_sac/own"), name="springs", env=SpringsConfig())
        print(f"last return {train(recipe).last_return:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
