"""What a learner suffers from: values too high, targets learned by heart, units that have died.

Functions of tensors and modules, nothing else; an agent that knows which of its networks to ask calls them from its
`diagnose` (see `agents/contract.py`). Metrics are scalar tensors on their device. Activations are [B, H], or [E, B, H]
of an ensemble.
"""

from __future__ import annotations

from fleetfoot.diagnose.learner import actor_critic
from fleetfoot.diagnose.units import (
    collected,
    dormant,
    effective_rank,
    feature_norm,
    gradient_norm,
    hidden,
    parameter_norm,
    plasticity,
)
from fleetfoot.diagnose.values import Overfitting, monte_carlo, overestimation, overfitting

__all__ = [
    "Overfitting",
    "actor_critic",
    "collected",
    "dormant",
    "effective_rank",
    "feature_norm",
    "gradient_norm",
    "hidden",
    "monte_carlo",
    "overestimation",
    "overfitting",
    "parameter_norm",
    "plasticity",
]
