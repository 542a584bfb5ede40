"""Which keys play an environment that somebody else wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Keys: TypeAlias = dict[str, int]  # the code of a key, as browsers name it -> action

UP, DOWN, LEFT, RIGHT, SPACE = "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Space"
# By the beginning of a Gymnasium id: what keys mean, and the action while none is pressed (None: the last one).
KNOWN: dict[str, tuple[Keys, int | None]] = {
    "CartPole": ({LEFT: 0, RIGHT: 1}, None),
    "MountainCar": ({LEFT: 0, RIGHT: 2}, 1),
    "Acrobot": ({LEFT: 0, RIGHT: 2}, 1),
    "LunarLander": ({LEFT: 1, UP: 2, RIGHT: 3}, 0),
    "FrozenLake": ({LEFT: 0, DOWN: 1, RIGHT: 2, UP: 3}, None),
    "CliffWalking": ({UP: 0, RIGHT: 1, DOWN: 2, LEFT: 3}, None),
}
BUTTONS = {"UP": UP, "DOWN": DOWN, "LEFT": LEFT, "RIGHT": RIGHT, "FIRE": SPACE}
# Where a game has no UP and no DOWN: the paddle of Pong goes up with RIGHT.
TURNED = {"UP": "RIGHT", "DOWN": "LEFT"}
DIGITS = 10


def keys_of(name: str, count: int) -> tuple[Keys, int | None]:
    """Of discrete actions: those that are known for this environment, and a digit for each action."""
    keys, idle = next(
        (known for begin, known in KNOWN.items() if name.removeprefix("gym/").startswith(begin)),
        ({}, None),
    )
    digits = {f"Digit{i}": i for i in range(min(count, DIGITS))}
    return digits | {key: action for key, action in keys.items() if action < count}, idle


def pressed_action(buttons: Sequence[str], held: set[str]) -> int:
    """Of a console: the action that presses exactly these, or as many of them as any does."""
    wanted = {button for button, key in BUTTONS.items() if key in held}
    if not wanted & {"LEFT", "RIGHT"} and not any(b in name for name in buttons for b in TURNED):
        wanted = {TURNED.get(button, button) for button in wanted}

    def score(name: str) -> tuple[int, int]:
        pressed = {button for button in BUTTONS if button in name}
        return (len(pressed & wanted) - 2 * len(pressed - wanted), -len(pressed))

    return max(range(len(buttons)), key=lambda i: score(buttons[i]))
