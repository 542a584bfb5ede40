"""Recipes as flags, on parts made for the purpose."""

from __future__ import annotations

import dataclasses
import io
import sys
from typing import Any, Literal, Protocol

import pytest

from fleetfoot.cli.form import parse, parse_recipe
from fleetfoot.config import part
from fleetfoot.errors import UserError


class Wheels(Protocol):
    def roll(self, metres: float) -> float: ...


class Brake(Protocol):
    def stop(self, metres: float, hard: bool) -> float: ...


@part
class FormSlip:
    share: float = 0.1  # of the force that is lost


@part
class FormRound:
    """A wheel that is round."""

    radius: float = 0.5
    """Metres from hub to rim."""
    spokes: tuple[int, ...] = (8, 6)
    bounds: tuple[float, float] = (0.0, 1.0)
    tread: Literal["smooth", "deep"] = "smooth"
    spare: int | None = None
    driven: bool = True
    prices: dict[str, float] = dataclasses.field(default_factory=dict)
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    slip: FormSlip | None = None

    def __post_init__(self) -> None:
        if self.radius <= 0:
            raise UserError(f"wheels.radius is {self.radius}; give more than 0.")

    def roll(self, metres: float) -> float:
        return metres / self.radius


@part
class FormSquare:
    side: int = 1

    def roll(self, metres: float) -> float:
        return 0.0


@part
class FormChain:
    links: int

    def roll(self, metres: float) -> float:
        return metres


@part
class FormDrum:
    def stop(self, metres: float, hard: bool) -> float:
        return 0.0


@part
class FormCart:
    """A cart."""

    name: str
    wheels: Wheels
    axle: FormRound | FormSquare = FormSquare()
    load_kg: int = 3
    """What it carries."""
    open_top: bool = False
    slips: tuple[FormSlip, ...] = (FormSlip(), FormSlip(share=0.2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    folder: str | None = None
    """Where to."""
    video: bool = True


CART = FormCart(name="cart", wheels=FormRound(radius=2.0))


def filled(*args: str) -> tuple[Any, Any]:
    return parse_recipe(CART, Options, args, "prog", fixed=("name",))


def changed(*args: str) -> Any:
    return filled(*args)[0]


def refusal(*args: str) -> str:
    with pytest.raises(UserError) as caught:
        filled(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_arguments_nothing_changes() -> None:
    assert filled() == (CART, Options())


@pytest.mark.parametrize(
    ("args", "path", "value"),
    [
        (["--load-kg", "7"], "load_kg", 7),
        (["--load_kg=7"], "load_kg", 7),
        (["--open-top"], "open_top", True),
        (["--wheels.radius", "3"], "wheels.radius", 3.0),
        (["--wheels.spokes", "1", "2", "3"], "wheels.spokes", (1, 2, 3)),
        (["--wheels.spokes", "none"], "wheels.spokes", ()),
        (["--wheels.bounds", "-1", "-0.5"], "wheels.bounds", (-1.0, -0.5)),
        (["--wheels.tread", "deep"], "wheels.tread", "deep"),
        (["--wheels.spare", "4"], "wheels.spare", 4),
        (["--wheels.no-driven"], "wheels.driven", False),
        (["--wheels.prices", "rim", "2.5"], "wheels.prices", {"rim": 2.5}),
        (["--wheels.extras", '{"a": [1, "b"]}'], "wheels.extras", {"a": [1, "b"]}),
        (["--axle.side", "9"], "axle.side", 9),
    ],
)
def test_each_kind_of_field_can_be_overridden(args: list[str], path: str, value: object) -> None:
    got: Any = changed(*args)
    assert type(got.wheels) is FormRound  # the recipe's own classes, not the form's
    for name in path.split("."):
        got = getattr(got, name)
    assert got == value
    assert type(got) is type(value)


def test_parts_in_a_tuple_are_reached_by_number() -> None:
    assert changed("--slips.1.share", "0.5").slips == (FormSlip(), FormSlip(share=0.5))


def test_options_are_kept_apart_from_the_recipe() -> None:
    cart, options = filled("--no-video", "--folder", "here", "--load-kg", "1")
    assert options == Options(folder="here", video=False)
    assert cart == dataclasses.replace(CART, load_kg=1)


def test_a_whole_part_is_exchanged_by_its_name_wherever_it_stands() -> None:
    assert changed("--wheels.side", "4", "--wheels", "FormSquare").wheels == FormSquare(side=4)
    assert changed("--axle=FormRound", "--axle.radius", "1").axle == FormRound(radius=1.0)
    got = changed("--wheels.slip", "FormSlip", "--wheels.slip.share", "0.3")
    assert got.wheels.slip == FormSlip(share=0.3)
    with_slip = dataclasses.replace(CART, wheels=FormRound(slip=FormSlip()))
    got, _ = parse_recipe(with_slip, Options, ["--wheels.slip", "none"], "prog", fixed=("name",))
    assert got.wheels.slip is None


def test_a_new_part_may_need_values() -> None:
    assert changed("--wheels", "FormChain", "--wheels.links", "9").wheels == FormChain(links=9)
    assert "--wheels.links" in refusal("--wheels", "FormChain")


def test_only_parts_that_fit_are_accepted() -> None:
    # A brake has other methods than wheels; a cart could not roll on it.
    assert "FormSquare" in refusal("--wheels", "FormSqare")
    assert refusal("--wheels", "FormSqare").endswith("Your own parts need --import MODULE.")
    assert "needs the name of a part" in refusal("--wheels", "FormDrum")
    assert "not 'FormDrum' (it has no " in refusal("--wheels", "FormDrum")
    assert refusal("--axle", "FormSlip").endswith("it can be FormRound, FormSquare.")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ["--wheels.radus", "3"],
            "there is no option --wheels.radus. Did you mean --wheels.radius",
        ),
        (["--radius", "3"], "Did you mean --wheels.radius?"),
        (["--load-kgs", "3"], "Did you mean --load-kg"),
        (["--load-kg", "abc"], "--load-kg: 'abc' is not a whole number"),
        (["--wheels.radius", "wide"], "--wheels.radius: 'wide' is not a number"),
        (["--wheels.tread", "dep"], "'dep'"),
        (["--wheels.bounds", "1"], "--wheels.bounds"),
        (["--wheels.slip.share", "1"], "name one first: --wheels.slip NAME"),
        (["--wheels.extras", "{"], "--wheels.extras"),
        (["--load-kg"], "--load-kg"),
        (["--wheels.spokes"], "--wheels.spokes needs at least one value; for an empty list write"),
        (["--wheels.spokes", "--load-kg", "3"], "--wheels.spokes needs at least one value"),
        (["stray"], "unexpected argument 'stray'"),
        (["--wheels.radius", "0"], "wheels.radius is 0.0; give more than 0."),
        (["--name", "other"], "there is no option --name"),
    ],
)
def test_what_cannot_be_understood_is_one_line(args: list[str], says: str) -> None:
    assert says in refusal(*args)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_line_is_the_same_with_and_without_box_characters(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    told = refusal("--load-kg", "abc")
    monkeypatch.undo()
    assert told == "--load-kg: 'abc' is not a whole number (see prog --help)."


def test_help_shows_the_real_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        filled("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--wheels.radius FLOAT" in text
    assert "Metres from hub to rim. (default: 2.0)" in text  # the recipe's, not the class's 0.5
    assert "FormRound: A wheel that is round." in text
    assert "--wheels.slip {None|FormSlip}" in text
    assert "of the force that is lost (default: 0.2)" in text


def test_plain_options_parse_too() -> None:
    assert parse(Options, ["--folder", "x"], "prog") == Options(folder="x")
