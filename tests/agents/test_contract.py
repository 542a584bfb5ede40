"""The contract between agents and the rest: what is required, what is offered, and one sentence for what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from fleetfoot import recipes
from fleetfoot.agents import contract
from fleetfoot.agents.contract import Traits, check_agent
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.sac import ReDoConfig, SACConfig
from fleetfoot.api import train
from fleetfoot.data import Discrete
from fleetfoot.errors import UserError
from fleetfoot.nn.flash import FlashNetConfig
from fleetfoot.nn.pessimism import BanditBoundConfig
from fleetfoot.nn.torso import MLPTorsoConfig
from fleetfoot.nn.xqc import XQCNetConfig
from fleetfoot.topologies.pql.loop import SplitLearnersConfig
from support.made_up import CPU, make_batch, make_spec, small_run

AGENTS = ("fast_td3", "fast_sac", "sac", "bro", "dac", "vpl", "brc", "dqn", "ddpg")


def build(name: str, **changes: Any) -> Any:
    known: dict[str, str] = {
        "brc": "brc/pendulums",
        "dqn": "dqn/cartpole",
        "sac": "sac/cdql+none+none",
    }
    recipe = recipes.get(known.get(name, f"{name}/pendulum"))
    spec = make_spec(action=Discrete(3)) if name == "dqn" else make_spec()
    return replace(recipe, agent=replace(recipe.agent, **changes)).build_agent(spec, CPU)  # type: ignore[type-var]


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_says_what_may_be_compiled_and_recorded(name: str) -> None:
    agent = build(name)
    assert "critic_loss" in (contract.compiled_methods(agent) or ())
    assert contract.periods(agent) is not None
    assert contract.why_not_stacked(agent) is None


class Bare:
    """All that is required, and nothing more."""

    def __init__(self) -> None:
        self.policy = self.behaviour = nn.Linear(3, 2)
        self.updates = 0

    def observe(self, fresh: Any) -> None: ...
    def update(self, batch: Any) -> Any: ...
    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


CFG = FastTD3Config()


def test_what_is_required_is_enough() -> None:
    agent = Bare()
    assert check_agent(agent, CFG) is agent
    assert contract.compiled_methods(agent) is None
    assert contract.periods(agent) is None
    assert contract.why_not_stacked(agent) == "it declares no compiled_methods"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "policy",
            None,
            r"Bare\.policy must be a torch module \(Obs -> greedy action\), not missing",
        ),
        ("behaviour", abs, r"Bare\.behaviour must be a torch module .*, not a builtin_function"),
        ("updates", "3", r"Bare\.updates must be the number of updates so far, an int, not a str"),
        ("observe", None, r"Bare needs a method observe\(transition\) -> None"),
        ("update", None, r"Bare needs a method update\(batch\) -> UpdateResult"),
        ("state_dict", {}, r"Bare needs a method state_dict\(\) -> dict"),
        ("state_dict", dict, r'Bare.state_dict\(\) must have an entry "policy"'),
        ("load_state_dict", None, r"Bare needs a method load_state_dict\(state\) -> None"),
        ("compiled_methods", ["update"], r"compiled_methods must be a tuple of method names"),
        ("compiled_methods", ("loss",), r"compiled_methods names 'loss', which is not a method"),
        (
            "periods",
            (0,),
            r"periods must be a tuple of numbers of updates, 1 or more each, not \(0,\)",
        ),
        ("periods", 2, r"periods must be a tuple"),
    ],
)
def test_the_first_thing_that_is_wrong_is_named(name: str, value: Any, says: str) -> None:
    agent = Bare()
    setattr(agent, name, value)
    with pytest.raises(UserError, match=says):
        check_agent(agent, CFG)


def test_a_config_that_builds_something_else_is_refused_when_the_agent_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FastTD3Config, "build", lambda *_, **__: nn.Linear(1, 1))
    with pytest.raises(UserError, match=r"Linear\.policy must be a torch module"):
        build("fast_td3")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (contract.as_actor_critic, r"two learners \(it has no policy_state, critic, norms,"),
        (contract.as_served, r"parameter server.*\(it has no critic, critic_target, step_critic,"),
        (contract.as_prioritising, r"first priorities \(it has no initial_priority\)"),
        (contract.as_diagnosable, r"diagnosed \(it has no diagnose, q\)"),
    ],
)
def test_what_an_agent_does_not_offer_is_one_sentence(ask: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ask(Bare())


def test_who_offers_what() -> None:
    asked = {
        "two learners": contract.as_actor_critic,
        "served": contract.as_served,
        "priorities": contract.as_prioritising,
        "diagnosis": contract.as_diagnosable,
    }
    offers: dict[str, list[str]] = {what: [] for what in asked}
    for name in AGENTS:
        agent = build(name)
        for what, ask in asked.items():
            try:
                assert ask(agent) is agent
            except UserError:
                continue
            offers[what].append(name)
    assert offers == {
        "two learners": ["fast_td3", "fast_sac", "ddpg"],
        "served": ["dqn"],
        "priorities": ["dqn", "ddpg"],
        "diagnosis": ["fast_td3", "fast_sac", "sac", "bro", "vpl"],
    }


def test_brc_under_two_learners_is_refused_in_one_sentence(tmp_path: Path) -> None:
    recipe = small_run("brc/pendulums", topology=SplitLearnersConfig(), total_vec_steps=5)
    says = r"BRC cannot be shared by two learners \(it has no policy_state, policy_every\): use --topology Syn"
    with pytest.raises(UserError, match=says):
        train(recipe, tmp_path / "run")


def test_traits_are_known_before_anything_is_built() -> None:
    fixed: dict[str, Any] = {"v_min": -1.0, "v_max": 1.0}
    assert contract.traits(FastTD3Config(**fixed)) == Traits()
    assert contract.traits(FastTD3Config(**fixed, normalize_reward=True)).follows_episodes
    assert contract.traits(FastTD3Config()).follows_episodes  # the range follows the returns
    bandit = SACConfig(bound=BanditBoundConfig(), plasticity=ReDoConfig())
    assert contract.traits(bandit).follows_episodes
    assert "ReDo" in str(contract.traits(bandit).cannot_stack_reason)
    assert contract.traits(recipes.get("apex_dqn/cartpole").agent).gives_initial_priorities


def test_traits_that_the_agent_does_not_keep_are_refused() -> None:
    class Promising:
        traits = Traits(gives_initial_priorities=True)

    with pytest.raises(UserError, match="Bare cannot give first priorities"):
        check_agent(Bare(), Promising())  # type: ignore[arg-type]

    class Wrong:
        traits = True

    with pytest.raises(UserError, match=r"Wrong\.traits must be a Traits, not a bool"):
        contract.traits(Wrong())  # type: ignore[arg-type]


def test_what_cannot_be_stacked_says_why() -> None:
    agent: Any = build("dqn", torso=MLPTorsoConfig())
    agent.random = torch.Generator()
    assert (
        contract.why_not_stacked(agent)
        == "its random is a bare torch.Generator and no RandomStream"
    )
    del agent.random
    agent.weight = nn.Parameter(torch.zeros(1))
    assert contract.why_not_stacked(agent) == "its weight is in no module"


@pytest.mark.parametrize("name", AGENTS)
def test_losses_are_pure_functions_that_vmap_accepts(name: str) -> None:
    """Two batches at once give what each gives alone, whatever is compiled or stacked around them."""
    agent = build(name)
    spec = make_spec(action=Discrete(3)) if name == "dqn" else make_spec()
    batches = [make_batch(spec, seed=seed) for seed in (1, 2)]
    noise = torch.randn(2, 6, 2)
    before = [p.clone() for p in agent.critic.parameters()]
    inputs = [
        (batch, *([] if name == "dqn" else [n])) for batch, n in zip(batches, noise, strict=True)
    ]
    alone = [agent.critic_loss(*given) for given in inputs]
    both = tree_map(lambda *x: x[0] if x[0] is None else torch.stack(x), *inputs)
    dims = tree_map(lambda x: None if x is None else 0, both)
    together = torch.vmap(agent.critic_loss, in_dims=dims)(*both)
    for i, loss in enumerate(alone):
        mine = tree_map(lambda x, i=i: x[i], together)
        torch.testing.assert_close(tuple(mine), tuple(loss), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(p, q) for p, q in zip(agent.critic.parameters(), before, strict=True))


@pytest.mark.parametrize("net", [FlashNetConfig(width=8, blocks=1), XQCNetConfig(width=8)])
@pytest.mark.parametrize(
    ("name", "field"),
    [("fast_td3", "policy_net"), ("fast_sac", "critic_net"), ("ddpg", "critic_net")],
)
def test_who_does_not_update_statistics_refuses_batch_norms(
    name: str, field: str, net: Any
) -> None:
    with pytest.raises(UserError, match="does not update the statistics") as caught:
        build(name, **{field: net})
    assert type(net.build(2, 2)).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


class Networked(nn.Module):
    """An agent that is a module itself, and so has all that is required but these."""

    state_dict = Bare.state_dict  # type: ignore[assignment]

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.policy = self.behaviour = net
        self.updates = 0

    def observe(self, fresh: Any) -> None: ...
    def update(self, batch: Any) -> Any: ...


class Slotted:
    __slots__ = ("behaviour", "policy", "updates")
    observe, update = Bare.observe, Bare.update
    state_dict, load_state_dict = Bare.state_dict, Bare.load_state_dict

    def __init__(self) -> None:
        self.policy = self.behaviour = nn.Linear(3, 2)
        self.updates = 0


def test_agents_of_other_shapes_are_looked_at_too() -> None:
    with pytest.raises(UserError, match="Networked does not update the statistics"):
        check_agent(Networked(XQCNetConfig(width=8).build(3, 2)), CFG)
    check_agent(Networked(nn.Linear(3, 2)), CFG)
    check_agent(Slotted(), CFG)
