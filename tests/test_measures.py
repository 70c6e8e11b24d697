"""No measure of the package rises without a reason: limits and reasons stand in docs/design/measures.md.

The limits stand together on purpose: a smaller number of tokens that is met by denser statements fails here, too.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import measures
from tests.test_layers import LAYERS, room_of
from tests.traced_step import traced_step

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "measures.md"
STEP = {
    "files that a training step enters": "files",
    "tokens of functions that a training step enters": "tokens",
    "frames of a training step": "frames",
}


def read_limits(text: str) -> dict[str, float]:
    """Measure -> the most that it may be, from the table of the page: | measure | before | at most | aim |."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    numbers = [row for row in rows if len(row) == 4 and re.fullmatch(r"[\d,.]+", row[2])]
    return {row[0]: float(row[2].replace(",", "")) for row in numbers}


LIMITS = read_limits(PAGE.read_text())


@pytest.fixture(scope="module", autouse=True)
def trees_of_the_package():
    """Kept for this file's tests alone: some ten million objects, over which every collection of garbage goes."""
    yield
    for kept in (measures.measured, measures.trees, measures.tokens_of, measures.sources):
        kept.cache_clear()


@pytest.mark.parametrize("measure", sorted(LIMITS.keys() - STEP.keys()))
def test_no_measure_rises(measure: str):
    number, places = measures.measured()[measure]
    assert number <= LIMITS[measure], (
        f"{measure}: {number:,}, at most {LIMITS[measure]:,} (docs/design/measures.md; a limit that rises needs a "
        "line of reason there)\n" + "\n".join(places)
    )


def test_a_training_step_enters_no_more_code():
    step = traced_step()
    over = {
        name: step.numbers[key] for name, key in STEP.items() if step.numbers[key] > LIMITS[name]
    }
    assert not over, (over, step.tokens)


def test_the_page_has_a_limit_for_every_measure_and_no_other():
    assert LIMITS.keys() == {*measures.measured(), *STEP}


def test_layers_are_whole_numbers_and_name_only_packages_that_exist():
    rooms = {room_of(module) for module in measures.imports()[1]}
    assert all(type(layer) is int for layer in LAYERS.values())
    core = {room for room in rooms if not room.startswith("extensions.")}
    assert core <= set(LAYERS) <= rooms


def counted(measure, monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    """What a measure counts in a package of one file."""
    monkeypatch.setattr(measures, "trees", lambda: {"made_up.py": ast.parse(text)})
    monkeypatch.setattr(measures, "tokens_of", lambda: {"made_up.py": measures.positions(text)})
    return len(measure())


@pytest.mark.parametrize(
    ("measure", "bad", "good"),
    [
        (measures.nested_comprehensions, "x = [a for b in c for a in b]", "x = [a for a in b]"),
        (
            measures.nested_comprehensions,
            "x = [[a for a in b] for b in c]",
            "x = [f(b) for b in c]",
        ),
        (measures.nested_conditionals, "x = 1 if a else 2 if b else 3", "x = 1 if a else 2"),
        (measures.tuple_assignments, "a, b = f(), g()", "a, b = b, a"),
        (measures.generic_names, "found = 1", "rows = found"),
        (measures.long_functions, f"def f():\n    {'x = 1;' * 80}", "def f():\n    x = 1"),
        (measures.show_functions, "def show_x(): pass", "def x(): pass"),
        (measures.modules_in_strings, 'import_module("workbench.run")', 'import_module("numpy")'),
    ],
)
def test_negative_control_each_measure_counts(measure, bad, good, monkeypatch):
    assert counted(measure, monkeypatch, bad) == 1
    assert counted(measure, monkeypatch, good) == 0


def test_layout_changes_no_token():
    packed, laid_out = (
        "x = [1, 2]; y = f(x, 2)\n",
        "x = [\n    1,  # one\n    2\n]\n\ny = f(x, 2)\n",
    )
    assert len(measures.positions(packed)) - 1 == len(measures.positions(laid_out))  # the semicolon


def test_negative_control_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    groups = sorted(map(sorted, measures.components(graph)))
    assert groups == [["a", "b", "c"], ["d"]]


def test_negative_control_a_missing_limit_is_noticed():
    assert read_limits("| a | 5 | 1,234.5 | 3 |\n| b | c | d | e |") == {"a": 1234.5}
