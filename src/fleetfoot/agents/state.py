"""The state of an agent: what a checkpoint keeps of it."""

from __future__ import annotations

from typing import Any, ClassVar

from fleetfoot.errors import UserError


class Stateful:
    """`state_dict` and `load_state_dict` from two lists of attribute names."""

    state_attrs: ClassVar[tuple[str, ...]]
    """Attributes that have a state of their own: modules, steppers, random streams. One that is None is left out, and
    an object that two names stand for is saved once, under the first."""
    counter_attrs: ClassVar[tuple[str, ...]] = ("updates",)
    """Attributes that are plain numbers."""

    def state_dict(self) -> dict[str, Any]:
        state = {name: part.state_dict() for name, part in self.stateful_parts().items()}
        return state | {name: getattr(self, name) for name in self.counter_attrs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.stateful_parts().items():
            part.load_state_dict(state[name])
        for name in self.counter_attrs:
            setattr(self, name, state[name])

    def stateful_parts(self) -> dict[str, Any]:
        """What `state_attrs` names, each object once."""
        parts: dict[str, Any] = {}
        kind = type(self).__name__
        for field, names in (
            ("state_attrs", self.state_attrs),
            ("counter_attrs", self.counter_attrs),
        ):
            for name in names:
                if not hasattr(self, name):
                    raise UserError(f"{kind}.{field} names {name!r}, which it lacks.")
        for name in self.state_attrs:
            part = getattr(self, name)
            if part is None or any(part is other for other in parts.values()):
                continue
            if not hasattr(part, "state_dict"):
                raise UserError(
                    f"{kind}.state_attrs names {name!r}, which has no state_dict; numbers belong in counter_attrs."
                )
            parts[name] = part
        return parts
