"""Common problems of a learner, measured: overestimated values, overfitted targets, dormant units.

These are functions of tensors and modules. An agent calls them in its `diagnose` (see `agents/contract.py`) on its own
networks. Metrics are scalar tensors on their device. Activations are [B, H], or [E, B, H] of an ensemble.
"""

from __future__ import annotations

from fleetfoot.diagnose.learner import actor_critic
from fleetfoot.diagnose.smoothness import SmoothnessMeter
from fleetfoot.diagnose.units import (
    capture_outputs,
    dormant,
    effective_rank,
    feature_norm,
    hidden_activations,
    parameter_norm,
    plasticity,
)
from fleetfoot.diagnose.values import Overfitting, monte_carlo, overestimation, overfitting

__all__ = [
    "Overfitting",
    "SmoothnessMeter",
    "actor_critic",
    "capture_outputs",
    "dormant",
    "effective_rank",
    "feature_norm",
    "hidden_activations",
    "monte_carlo",
    "overestimation",
    "overfitting",
    "parameter_norm",
    "plasticity",
]
