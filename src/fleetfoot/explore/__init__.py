"""Explorers turn the output of the behaviour network into the action that is executed.

They own all exploration state of the environments.
"""

from __future__ import annotations

from fleetfoot.explore.contract import (
    ActsInTwoHalves,
    ClipsLate,
    Explorer,
    ExplorerConfig,
    check_behaviour,
    share_of,
)
from fleetfoot.explore.epsilon import (
    EpsilonAnneal,
    EpsilonAnnealConfig,
    EpsilonLadder,
    EpsilonLadderConfig,
    GreedyConfig,
    ladder,
)
from fleetfoot.explore.from_policy import FromPolicy, FromPolicyConfig
from fleetfoot.explore.noise import (
    AsSampled,
    AsSampledConfig,
    HeldNoise,
    HeldNoiseConfig,
    NoiseLadder,
    NoiseLadderConfig,
)

__all__ = [
    "ActsInTwoHalves",
    "AsSampled",
    "AsSampledConfig",
    "ClipsLate",
    "EpsilonAnneal",
    "EpsilonAnnealConfig",
    "EpsilonLadder",
    "EpsilonLadderConfig",
    "Explorer",
    "ExplorerConfig",
    "FromPolicy",
    "FromPolicyConfig",
    "GreedyConfig",
    "HeldNoise",
    "HeldNoiseConfig",
    "NoiseLadder",
    "NoiseLadderConfig",
    "check_behaviour",
    "ladder",
    "share_of",
]
