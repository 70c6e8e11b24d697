"""A setting carries its range and its meaning: what is outside is refused in words, and all of it can be listed."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.basics.settings import (
    above,
    at_least,
    at_most,
    check_settings,
    one_of,
    probability,
    settings_of,
)
from workbench.values.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    share: Annotated[float, above(0, most=1), "of the groups"] = 0.25
    low: Annotated[float, at_most(0, why="more would pay for garbage"), "what garbage pays"] = 0.0

    def __post_init__(self) -> None:
        check_settings(self, "outer.inner")


@dataclass(frozen=True)
class Outer:
    name: str
    steps: Annotated[int, at_least(1), "collects of a run"] = 3
    slip: Annotated[float, probability(), "of a move to the side"] = 0.0
    cap: Annotated[int | None, at_least(2), "tokens; none: no cap"] = None
    mode: Annotated[str, one_of("on", "off"), "whether it acts"] = "on"
    betas: Annotated[tuple[float, float], "of the optimizer"] = (0.9, 0.95)
    inner: Inner = field(default_factory=Inner)
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"steps": 0}, "Outer.steps is at least 1; got 0"),
        ({"steps": 2.0}, "Outer.steps is a whole number, got 2.0"),
        ({"steps": True}, "Outer.steps is a whole number, got True"),
        ({"steps": None}, "Outer.steps is a whole number, got"),
        ({"slip": 1.5}, "Outer.slip is a probability, from 0 to 1; got 1.5"),
        ({"slip": math.nan}, "probability"),
        ({"slip": "0.5"}, "Outer.slip is a number, got '0.5'"),
        ({"cap": 1}, "Outer.cap is at least 2, or none; got 1"),
        ({"mode": "auto"}, "Outer.mode is on or off; got 'auto'"),
        ({"mode": ["on"]}, "on or off"),
    ],
)
def test_a_value_outside_its_range_is_refused_in_words(settings, words):
    with pytest.raises(ConfigError) as error:
        Outer("x", **settings)
    assert words in str(error.value)


def test_the_reason_of_a_range_and_the_place_of_a_part_are_told():
    with pytest.raises(
        ConfigError, match=r"outer\.inner\.low is at most 0; got 1 \(more would pay for garbage\)"
    ):
        Inner(low=1)


@given(value=st.floats())
def test_bounds_are_where_they_say_and_nothing_infinite_passes(value):
    finite = math.isfinite(value)
    assert at_least(0.5).accepts(value) == (finite and value >= 0.5)
    assert above(0.5, most=2).accepts(value) == (finite and 0.5 < value <= 2)
    assert at_most(0.5).accepts(value) == (finite and value <= 0.5)
    assert probability().accepts(value) == (0 <= value <= 1)


def test_what_is_allowed_passes_and_a_list_becomes_a_tuple():
    outer = Outer("x", steps=np.int64(1), slip=1, cap=None, betas=[0.5, 0.5])
    assert outer.betas == (0.5, 0.5) and outer.steps == 1


def test_settings_are_listed_with_those_of_their_parts():
    listed = {setting.key: setting for setting in settings_of(Outer, "outer")}
    assert list(listed) == [
        "outer.name",
        "outer.steps",
        "outer.slip",
        "outer.cap",
        "outer.mode",
        "outer.betas",
        "outer.inner.share",
        "outer.inner.low",
        "outer.flags",
    ]
    assert listed["outer.name"].default is MISSING and listed["outer.flags"].default == {}
    share, cap = listed["outer.inner.share"], listed["outer.cap"]
    assert (share.type, share.default, share.range, share.meaning) == (
        "number",
        0.25,
        "above 0 and at most 1",
        "of the groups",
    )
    assert (cap.type, cap.default, cap.range) == ("whole number or none", None, "at least 2")
    assert [listed[f"outer.{name}"].type for name in ("name", "betas", "flags")] == [
        "text",
        "list",
        "settings by name",
    ]
