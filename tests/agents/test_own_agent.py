"""An agent of one's own, with what the contract asks for and no more, trains everywhere and says what it lacks."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetfoot.agents.contract import check_agent, periods, why_not_stacked
from fleetfoot.agents.fast_td3 import FastTD3Config
from fleetfoot.agents.state import Stateful
from fleetfoot.api import evaluate_run, resume, train
from fleetfoot.data import Batch, Transition, UpdateResult
from fleetfoot.errors import UserError
from fleetfoot.execution import CapturedLearner, EagerLearner, make_learner
from fleetfoot.pace import PaceConfig
from fleetfoot.recipe import Recipe
from fleetfoot.topologies import synchronous as synchronous_module
from support.learners import noise, parts
from support.made_up import make_batch, make_spec
from support.own_agent import DeclaredTD3, OwnTD3, OwnTD3Config
from support.runs import agent_state, assert_same, interrupted_at, small, tensors

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
EAGERLY = "OwnTD3 declares no compiled_methods, so its updates run eagerly."


def recipe(declared: bool = False, **changes: Any) -> Recipe:
    return small(agent=OwnTD3Config(declared=declared), **changes)


def told(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What comes of it, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = work()
    return out, [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def test_it_trains_resumes_and_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, said = told(lambda: train(recipe(), tmp_path / "whole"))
    assert whole.finished
    assert said == []
    with monkeypatch.context() as patch:
        patch.setattr(synchronous_module, "rollout", interrupted_at(150))
        assert not train(recipe(), tmp_path / "parts").finished
    assert resume(tmp_path / "parts").finished
    assert_same(agent_state(tmp_path / "whole"), agent_state(tmp_path / "parts"))
    assert "eval/return" in evaluate_run(tmp_path / "whole", episodes=2).metrics()


@pytest.mark.parametrize("mode", ["compiled", "captured"])
def test_asked_to_compile_it_runs_eagerly_and_says_so_in_one_line(
    mode: Any, tmp_path: Path
) -> None:
    train(recipe(total_vec_steps=40), tmp_path / "eager")
    _, said = told(lambda: train(recipe(total_vec_steps=40, execution=mode), tmp_path / mode))
    assert said == [EAGERLY]
    assert_same(agent_state(tmp_path / "eager"), agent_state(tmp_path / mode))


@pytest.mark.usefixtures("compiler")
def test_once_it_declares_its_losses_they_are_compiled() -> None:
    agents = [OwnTD3Config(declared=True).build(make_spec(), **BUILD) for _ in range(2)]
    batches = [make_batch(rows=16, seed=seed) for seed in range(4)]
    learn, said = told(lambda: learner(agents[0], batches, mode="compiled"))
    eager = learner(agents[1], batches, mode="eager")
    assert (learn.mode, eager.mode) == ("compiled", "eager")
    (found, wanted), more = told(lambda: (learn(4), eager(4)))
    assert said + more == []
    assert found.keys() == wanted.keys() == {"critic/loss", "policy/loss"}
    one, two = (tensors(agent.state_dict()) for agent in agents)
    for name in one:
        if one[name].is_floating_point():
            torch.testing.assert_close(one[name], two[name], atol=2e-5, rtol=2e-4)


BUILD: dict[str, Any] = {"gamma": 0.9, "total_updates": 40, "seed": 0, "device": CPU}


class Planned:
    """A memory that gives planned batches, one after the other: all that a learner needs of one."""

    prioritised = False

    def __init__(self, batches: list[Batch]):
        self.batches, self.device, self.sampler = list(batches), CPU, self
        self.given = 0

    def draw(self, rows: int) -> tuple[Any, ...]:
        self.given += 1
        return (self.batches[self.given - 1],)

    def gather(self, batch: Batch) -> Batch:
        return batch


def learner(agent: Any, batches: list[Batch], **changes: Any) -> EagerLearner:
    options: dict[str, Any] = {"precision": "float32", "mode": "eager", "device": CPU}
    return make_learner(agent, Planned(batches), 16, **(options | changes))


def test_an_update_that_returns_something_else_is_one_sentence() -> None:
    class Careless(OwnTD3):
        def update(self, batch: Batch) -> Any:
            return super().update(batch).metrics

    agent = Careless(OwnTD3Config(), make_spec(), 0, CPU)
    with pytest.raises(
        UserError, match=r"Careless\.update must return an UpdateResult, not a dict"
    ):
        learner(agent, [make_batch(rows=16)])(1)


def test_a_metric_that_is_no_tensor_is_one_sentence() -> None:
    class Careless(OwnTD3):
        def update(self, batch: Batch) -> Any:
            return super().update(batch).with_metrics({"critic/bound": 3.0})  # type: ignore[dict-item]

    agent = Careless(OwnTD3Config(), make_spec(), 0, CPU)
    with pytest.raises(UserError, match=r"metrics as tensors; critic/bound is a float"):
        learner(agent, [make_batch(rows=16)])(1)


def test_an_update_that_does_not_count_itself_is_one_sentence() -> None:
    class Careless(OwnTD3):
        def update(self, batch: Batch) -> Any:
            before = self.updates
            result = super().update(batch)
            self.updates = before
            return result

    agent = Careless(OwnTD3Config(), make_spec(), 0, CPU)
    with pytest.raises(UserError, match=r"Careless\.update must add 1 to its `updates`"):
        learner(agent, [make_batch(rows=16)])(1)


def test_a_part_of_the_state_that_is_not_there_is_one_sentence() -> None:
    class Careless(Stateful):
        state_attrs = ("policy", "crtic")
        policy = torch.nn.Linear(1, 1)

    with pytest.raises(UserError, match=r"Careless\.state_attrs names 'crtic', which it lacks"):
        Careless().state_dict()


@pytest.mark.parametrize(
    ("field", "names", "says"),
    [
        ("counter_attrs", ("updates", "polcy_updates"), "names 'polcy_updates', which it lacks"),
        ("state_attrs", ("policy", "action_size"), "names 'action_size', which has no state_dict"),
        ("state_attrs", ("critic",), 'must have an entry "policy"'),
    ],
)
def test_a_state_that_cannot_be_saved_is_found_before_training(
    field: str, names: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = FastTD3Config().build(make_spec(), **BUILD)
    monkeypatch.setattr(agent, field, names)
    with pytest.raises(UserError, match=says):
        check_agent(agent, FastTD3Config())


class Rollout:
    """A memory for on-policy learning: T vec steps, handed to `update` as one batch, and then the next ones."""

    prioritised = False

    def __init__(self, length: int):
        self.length, self.device, self.sampler = length, CPU, self
        self.steps: list[Transition] = []

    def append(self, step: Transition) -> None:
        self.steps.append(step)

    def draw(self, rows: int) -> tuple[Any, ...]:
        return ()

    def gather(self) -> torch.Tensor:
        assert len(self.steps) == self.length
        return torch.stack([step.reward for step in self.steps])  # [T, N]

    def trim(self, updates: int) -> None:
        if updates:
            self.steps = []


def test_a_rollout_of_an_on_policy_agent_is_a_memory_too() -> None:
    class OnPolicy(OwnTD3):
        def update(self, batch: Any) -> UpdateResult:
            self.updates += 1
            return UpdateResult({"rollout/reward": batch.mean()})

    agent, memory = OnPolicy(OwnTD3Config(), make_spec(), 0, CPU), Rollout(4)
    learn = make_learner(agent, memory, 1, precision="float32", mode="eager", device=CPU)
    pace = PaceConfig(updates_per_vec_step=1 / 4, warmup_vec_steps=0).build()
    rewards, found = [], []
    for step in noise(make_spec(), 12):
        memory.append(step)
        rewards.append(step.reward.mean())
        if metrics := learn(pace.owed()):
            found.append(metrics["rollout/reward"].item())
    assert agent.updates == 3
    wanted = torch.stack(rewards).view(3, 4).mean(1)
    assert found == pytest.approx(wanted.tolist(), abs=1e-6)


class Undeclared(OwnTD3):
    """It says what may be compiled, and not which updates are alike."""

    compiled_methods = ("critic_loss", "policy_loss")


def on_gpu(cls: Any, mode: Any) -> tuple[Any, EagerLearner]:
    _, replay = parts("fast_td3", CUDA)
    spec = make_spec(critic_shape=(5,), critic_prefix=3, device=CUDA)
    agent = cls(OwnTD3Config(), spec, 0, CUDA)
    learn = make_learner(agent, replay, 16, precision="float32", mode=mode, device=CUDA)
    return agent, learn


@pytest.mark.gpu
def test_on_a_gpu_what_is_not_declared_is_not_done() -> None:
    (agent, learn), said = told(lambda: on_gpu(OwnTD3, "auto"))
    assert said == [EAGERLY]
    assert learn(4).keys() == {"critic/loss", "policy/loss"}
    assert learn.mode == "eager"
    (agent, learn), said = told(lambda: on_gpu(Undeclared, "auto"))
    assert [text for text in said if "without CUDA graphs: Undeclared declares no periods" in text]
    assert len(said) == 1
    learn(4)
    assert learn.mode == "compiled"
    assert agent.updates == 4


@pytest.mark.gpu
def test_on_a_gpu_what_is_declared_is_recorded_and_learns_the_same() -> None:
    agents = []
    for mode in ("eager", "captured"):
        agent, learn = on_gpu(DeclaredTD3, mode)
        start = copy.deepcopy(tensors(agent.state_dict()))
        for _ in range(8):
            learn(3)
        torch.cuda.synchronize()
        assert learn.mode == mode
        assert agent.updates == 24
        agents.append(agent)
    assert isinstance(learn, CapturedLearner)
    assert len(learn.recorded) == 2, "three updates, of which one or two are the policy's too"
    one, two = (tensors(agent.state_dict()) for agent in agents)
    names = [name for name in one if name.startswith(("/policy/", "/critic/"))]
    apart = sum(float((one[name] - two[name]).abs().sum()) for name in names)
    moved = sum(float((one[name] - start[name]).abs().sum()) for name in names)
    assert apart < 1e-3 * moved


def listing() -> str:
    """The agent of the tutorial, as a reader copies it."""
    page = (Path(__file__).parents[2] / "docs/tutorials/own-algorithm.md").read_text()
    start = page.index('"""my_agent.py')
    return page[start : page.index("```", start)]


def test_the_agent_of_the_page_trains_resumes_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_agent.py").write_text(listing())
    monkeypatch.syspath_prepend(tmp_path)
    cfg = importlib.import_module("my_agent").MyTD3Config()
    short = small(agent=cfg)
    assert train(short, tmp_path / "whole").finished
    with monkeypatch.context() as patch:
        patch.setattr(synchronous_module, "rollout", interrupted_at(150))
        assert not train(short, tmp_path / "parts").finished
    assert resume(tmp_path / "parts").finished
    assert_same(agent_state(tmp_path / "whole"), agent_state(tmp_path / "parts"))
    agent = short.build_agent(make_spec(), CPU)
    assert why_not_stacked(agent) is None
    assert periods(agent) == ((2, 0),)
    losses = [agent.update(make_batch(rows=32)).metrics["critic/loss"].item() for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
