"""Signatures of every kind that a tool may have, for the goldens of schemas and of what is said of wrong arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, Required, TypedDict
from uuid import UUID

from annotated_types import Ge, Le, Len
from pydantic import BaseModel, Field
from typing_extensions import Doc

from workbench.values import Task


class Unit(Enum):
    CELSIUS = "C"
    KELVIN = "K"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Place:
    """Where something is."""

    name: Annotated[str, "of the town"]
    height: float = 0.0
    made: str = field(default="", init=False)


@dataclass
class Journey:
    legs: list[Place]
    by: Literal["train", "foot"] = "train"
    notes: dict[str, str] = field(default_factory=dict)


class Person(TypedDict):
    """Somebody."""

    name: str
    age: NotRequired[int]


class Loose(TypedDict, total=False):
    title: str
    kind: Required[Unit]


class Window(NamedTuple):
    low: int
    high: int = 9


class Ticket(BaseModel):
    """A ticket."""

    title: str
    seats: list[int] = Field(default_factory=list, max_length=4)
    at: Place | None = None


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


def nothing() -> str:
    """Says nothing."""


def scalars(text: str, whole: int, number: float, flag: bool, empty: None) -> str:
    """Takes one of each.

    It goes on here.

    Args:
        text: what to write,
            at length
        whole (int): a count
        number: how much
    """


def defaults(
    a: str = "x",
    b: int = 3,
    c: float = 0.5,
    d: bool = True,
    e: None = None,
    f: list[int] = [1, 2],  # noqa: B006
    g: dict[str, int] = {"k": 1},  # noqa: B006
    h: Unit = Unit.KELVIN,
    i: float = float("inf"),
) -> str: ...


def choices(
    a: Literal["x", "y"],
    b: Literal[1, "one", None, True],
    c: Unit,
    d: Level,
    e: Literal["q"] = "q",
) -> str: ...


def unions(
    a: int | str,
    b: str | None,
    c: Optional[list[str]] = None,  # noqa: UP045
    d: int | float | bool | None = None,
    e: Unit | int = 3,
    f: Place | str = "here",
) -> str: ...


def lists(
    a: list,
    b: list[str],
    c: list[list[int]],
    d: Sequence[float],
    e: list[int | None],
    f: list[Any],
    g: list[Literal["x", "y"]],
) -> str: ...


def objects(
    a: dict,
    b: dict[str, int],
    c: Mapping[str, list[str]],
    d: dict[str, Any],
    e: dict[str, dict[str, float]],
) -> str: ...


def records(
    place: Place,
    person: Person,
    journey: Journey,
    loose: Loose,
    several: list[Person] | None = None,
) -> str:
    """Keeps records.

    place    where it is
    person   who is there
    """


def anything(value: Any, other: Any = None) -> str: ...


def words(
    a: Annotated[str, "what is said"],
    b: Annotated[int, Doc("how often")],
    c: Annotated[list[Annotated[str, "a word"]], "all words"],
    d: Annotated[str, "of the annotation"] = "",
) -> str:
    """d: of the docstring"""


def unicode(größe: int, 名: str = "é") -> str:
    """Mißt – mit “Anführungszeichen”.

    größe: in Metern · ≥ 0
    """


def keyword_only(a: int, *, b: str = "z", c: bool) -> str: ...


def with_task(task: Task, question: str) -> str:
    """Knows its task."""


def underscores(_hidden: int, __dunder__: str = "", schema: str = "", copy: int = 0) -> str: ...


def bounds(
    a: Annotated[int, Field(ge=1, le=5, description="stars")],
    b: Annotated[float, Field(gt=0, lt=1)],
    c: Annotated[str, Field(min_length=1, max_length=4, pattern="^[a-c]+$")],
    d: Annotated[list[int], Len(1, 2)],
    e: Annotated[int, Ge(2), Le(4)],
    f: Annotated[int, Field(multiple_of=3)] = 3,
    g: int = Field(3, ge=1, le=5, description="how high"),
    h: Annotated[int, Field(default=7)] = 7,
    i: Annotated[int, Field(default=7, ge=0)] = Field(8),
    j: Annotated[int, Field(ge=1)] | None = None,
) -> str:
    """a: of the docstring"""


def containers(
    a: tuple[int, str],
    b: tuple[float, ...] = (),
    c: set[str] = frozenset(),
    d: frozenset[int] = frozenset(),
    e: Window = Window(0),
) -> str: ...


def moments(
    a: datetime,
    b: date | None = None,
    c: time | None = None,
    d: timedelta | None = None,
    e: Path = Path("."),
    f: UUID | None = None,
    g: Decimal = Decimal("1.5"),
) -> str: ...


def models(
    ticket: Ticket, tree: Tree, more: list[Ticket] | None = None, place: Place | None = None
) -> str:
    """Sells tickets.

    Parameters
    ----------
    ticket : Ticket
        what is sold
    """


FUNCTIONS = (
    nothing,
    scalars,
    defaults,
    choices,
    unions,
    lists,
    objects,
    records,
    anything,
    words,
    unicode,
    keyword_only,
    with_task,
    underscores,
    bounds,
    containers,
    moments,
    models,
)
