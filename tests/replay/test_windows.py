"""Windows of stored experience against a plain list of all vec steps."""

from __future__ import annotations

import torch

from fleetfoot.data import Discrete, EnvSpec, Obs, Transition
from fleetfoot.replay.windows import StoredWindows

N, LINES, LENGTH = 3, 7, 3
FALSE = torch.zeros(N, dtype=torch.bool)
SPEC = EnvSpec("made up", N, (2,), Discrete(4), torch.device("cpu"))


def steps(count: int) -> list[Transition]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        terminated = torch.rand(N, generator=generator) < 0.2
        truncated = (torch.rand(N, generator=generator) < 0.2) & ~terminated
        obs = torch.stack([torch.full((N,), float(number)), torch.arange(N).float()], 1)
        action = torch.randint(4, (N,), generator=generator)
        reward = torch.randn(N, generator=generator)
        made.append(
            Transition(Obs(obs, obs), action, reward, terminated, truncated, Obs(obs, obs), {})
        )
    return made


def test_windows_are_stretches_of_the_last_vec_steps() -> None:
    memory, made = StoredWindows(SPEC, capacity=N * LINES + 1), steps(17)
    for step in made:
        memory.append(step)
    rows = memory.draw(torch.linspace(0, 1 - 1e-6, 400), LENGTH)
    assert rows.obs.shape == (LENGTH + 1, 400, 2)
    seen = set()
    for b in range(400):
        first, column = int(rows.obs[0, b, 0]), int(rows.obs[0, b, 1])
        seen.add((first, column))
        over = False
        for i in range(LENGTH):
            step = made[first + i]
            assert rows.obs[i, b].tolist() == [first + i, column]
            assert rows.action[i, b] == step.action[column]
            assert rows.reward[i, b] == step.reward[column]
            assert rows.terminated[i, b] == step.terminated[column]
            assert bool(rows.counts[i, b]) is not over
            ended = bool(step.terminated[column] | step.truncated[column])
            assert bool(rows.known[i, b]) is not (over or ended)
            over = over or ended
        assert rows.obs[LENGTH, b].tolist() == [first + LENGTH, column]
    assert seen == {(t, n) for t in range(17 - LINES, 17 - LENGTH) for n in range(N)}


def test_with_too_few_vec_steps_nothing_counts() -> None:
    memory = StoredWindows(SPEC, capacity=N * LINES)
    for step in steps(LENGTH):
        memory.append(step)
    assert not memory.draw(torch.rand(10), LENGTH).counts.any()
    memory.append(steps(1)[0])
    assert memory.draw(torch.rand(10), LENGTH).counts[0].all()


def test_no_window_crosses_a_break() -> None:
    memory = StoredWindows(SPEC, capacity=N * LINES)
    memory.mark_break()  # nothing is stored yet
    made = [step._replace(terminated=FALSE, truncated=FALSE) for step in steps(5)]
    for number, step in enumerate(made):
        memory.append(step)
        if number == 1:
            memory.mark_break()
    rows = memory.draw(torch.linspace(0, 1 - 1e-6, 60), 2)
    assert set(rows.obs[0, :, 0].tolist()) == {0.0, 1.0, 2.0}
    assert torch.equal(rows.known[0], rows.obs[0, :, 0] != 1)
    assert torch.equal(rows.counts[1], rows.obs[0, :, 0] != 1)


def test_the_state_is_all_of_it() -> None:
    one, other = StoredWindows(SPEC, capacity=20), StoredWindows(SPEC, capacity=20)
    for step in steps(9):
        one.append(step)
    other.load_state_dict(one.state_dict())
    uniform = torch.rand(50)
    for a, b in zip(one.draw(uniform, 2), other.draw(uniform, 2), strict=True):
        assert torch.equal(a, b)
