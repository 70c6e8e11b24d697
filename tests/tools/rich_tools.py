"""Tools as people write them, importable by worker processes: pydantic's types and bounds, async functions, tools of other
frameworks."""

import asyncio
import time
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict
from uuid import UUID

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator, BaseModel, Field

from workbench.tools import tool


class Leg(BaseModel):
    """A part of a journey."""

    to: str = Field(min_length=1, description="a city")
    nights: int = Field(default=1, ge=0, le=14)


class Trip(BaseModel):
    title: str
    legs: list[Leg] = Field(max_length=3)


class Place(TypedDict):
    name: str
    height: NotRequired[float]


class Span(NamedTuple):
    low: int
    high: int = 9


def even(value: int) -> int:
    if value % 2:
        raise ValueError("an even number is needed")
    return value


@tool
def rate(
    n: Annotated[int, Field(ge=1, le=5, description="stars")],
    by: Annotated[str, "who rates"] = "you",
) -> str:
    """Rate it."""
    return f"{n!r} {by}"


def bounded(
    share: Annotated[float, Field(gt=0, lt=1)],
    step: Annotated[int, Field(multiple_of=3)],
    code: Annotated[str, Field(pattern="^[a-c]+$", max_length=4)],
    few: Annotated[list[int], Len(1, 2)],
    count: Annotated[int, Ge(2), Le(4)],
    level: int = Field(3, ge=1, le=5),
    pair: Annotated[int, AfterValidator(even)] = 2,
    size: Annotated[int, Field(default=7)] = 7,
) -> Any:
    """level: how high"""
    return [share, step, code, few, count, level, pair, size]


def containers(
    point: tuple[int, str],
    row: tuple[float, ...] = (),
    tags: set[str] = frozenset(),
    span: Span = Span(0),
    place: Place = None,
) -> Any:
    if place is None:
        place = {"name": "here"}
    return [point, row, tags, span, place]


def moments(
    when: datetime,
    day: date | None = None,
    where: Path = Path("."),
    who: UUID | None = None,
    cost: Decimal = Decimal("0"),
) -> Any:
    return [when, day, where, who, cost]


def plan(trip: Trip, nights: int = 1) -> Any:
    """Plan a trip."""
    return trip


@tool
async def later(n: Annotated[int, Field(ge=1)], wait: float = 0.0) -> str:
    """Answers later."""
    await asyncio.sleep(wait)
    return f"waited for {n}"


@tool(trusted=True)
async def here(n: int, wait: float = 0.0) -> str:
    """Answers later, in this process."""
    await asyncio.sleep(wait)
    if n == 13:
        raise LookupError("unlucky")
    return f"waited for {n}"


@tool(trusted=True)
async def blocks(wait: float) -> str:
    """Does not wait for what it waits for."""
    time.sleep(wait)
    return "done"


@tool(trusted=True)
class Session:
    """Keeps what belongs to an event loop."""

    def __init__(self) -> None:
        self.loop = None

    async def call(self) -> str:
        """Say whether the loop is the one of the first call."""
        self.loop = self.loop or asyncio.get_running_loop()
        return str(self.loop is asyncio.get_running_loop())


@dataclass
class LikeLangChain:
    """What a tool of LangChain looks like from outside."""

    name: str = "lookup"
    description: str = "Look a word up."
    args_schema: Any = Leg

    def invoke(self, arguments: dict) -> str:
        return f"invoked with {arguments}"


class OnlyAsync(LikeLangChain):
    invoke = None

    async def ainvoke(self, arguments: dict) -> str:
        return f"awaited with {arguments}"


lookup = LikeLangChain()
lookup_later = OnlyAsync(
    "lookup_later",
    "Look it up, later.",
    {"type": "object", "properties": {"to": {"type": "string"}}},
)

SPEC = {
    "type": "function",
    "function": {
        "name": "say",
        "description": "Say it.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string", "maxLength": 5}},
            "required": ["what"],
        },
    },
}


def say(**arguments: Any) -> str:
    return f"said {arguments['what']}"


spoken = tool(say, spec=SPEC)
