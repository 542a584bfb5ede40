"""Checks that several agents make of their configuration: one clear line for what cannot work."""

from __future__ import annotations

import math
from typing import Any

from fleetfoot.config import at_least
from fleetfoot.data import Continuous, EnvSpec, Obs
from fleetfoot.errors import UserError
from fleetfoot.nn.reward_scale import Bound


def flat_actions(agent: str, spec: EnvSpec) -> int:
    """The size of an action; UserError unless actions are continuous and observations vectors."""
    if not isinstance(spec.action, Continuous) or len(spec.obs_shape) != 1:
        raise UserError(
            f"{agent} needs continuous actions and flat observations; {spec.name} has "
            f"{spec.action} and observations of shape {spec.obs_shape}."
        )
    return spec.action.size


def check_tau(tau: float) -> None:
    if not 0.0 < tau <= 1.0:
        raise UserError(f"agent.tau must be above 0 and at most 1, not {tau}.")


def check_above_zero(cfg: object, *names: str) -> None:
    for name in names:
        if not getattr(cfg, name) > 0.0:
            raise UserError(f"agent.{name} must be above 0, not {getattr(cfg, name)}.")


def check_soft_policy(cfg: Any) -> None:
    """The temperature, and the bounds of a tanh-Gaussian policy's log standard deviation."""
    check_above_zero(cfg, "alpha")
    if not -math.inf < cfg.log_std_min <= cfg.log_std_max < math.inf:
        raise UserError(
            "agent.log_std_min must not be above agent.log_std_max, and both must be finite, not "
            f"{cfg.log_std_min} and {cfg.log_std_max}."
        )


def check_proximal(cfg: Any) -> None:
    """What PPO's loss and its advantages are made of."""
    at_least(cfg, "agent", epochs=1, minibatches=1)
    check_above_zero(cfg, "clip", "std")
    if not 0.0 <= cfg.gae_lambda <= 1.0:
        raise UserError(f"agent.gae_lambda must lie between 0 and 1, not {cfg.gae_lambda}.")
    for name in ("value_clip", "clip_obs"):
        if getattr(cfg, name) is not None:
            check_above_zero(cfg, name)


def check_support(num_atoms: int | None, v_min: Bound, v_max: Bound) -> None:
    """Of a categorical critic; None atoms: its values are plain numbers, and there is nothing to check."""
    if (v_min == "auto") != (v_max == "auto"):
        raise UserError(
            f"agent.v_min and agent.v_max must be both auto or both numbers, not {v_min} and {v_max}."
        )
    empty = v_min != "auto" and v_max != "auto" and v_min >= v_max
    if num_atoms is not None and (num_atoms < 2 or empty):
        raise UserError(
            "a categorical critic needs agent.num_atoms of at least 2 and agent.v_min below agent.v_max, "
            f"not {num_atoms}, {v_min} and {v_max}."
        )


def check_categorical(cfg: Any) -> None:
    """Refuse settings of categorical critics and normalised rewards that cannot learn."""
    check_support(cfg.num_atoms, cfg.v_min, cfg.v_max)
    at_least(cfg, "agent", num_critics=1, policy_every=1, smoothness=0)
    check_tau(cfg.tau)
    if cfg.v_min == "auto" or cfg.v_max == "auto":
        return
    if cfg.normalize_reward and not cfg.v_min < 0.0 < cfg.v_max:
        raise UserError(
            "agent.normalize_reward scales returns into the value range, which must contain 0; "
            f"v_min is {cfg.v_min} and v_max is {cfg.v_max}."
        )


def check_smoothness(weight: float, next_obs: Obs | None) -> None:
    if weight and next_obs is None:
        raise UserError(
            "agent.smoothness compares an action with the next one, and this topology's policy learner sees no next "
            "observations: use --agent.smoothness 0, or --topology SynchronousConfig."
        )
