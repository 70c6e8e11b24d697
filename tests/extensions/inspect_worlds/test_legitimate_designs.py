"""No check calls a right environment wrong, whatever its design."""

from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import designs, signposts
from workbench.extensions.inspect_worlds.checks import check_family

RIGHT = {
    **{kind.__name__: kind for kind in designs.DESIGNS},
    **{
        name: getattr(signposts, name)
        for name in (
            "Debts",
            "Sums",
            "Spelled",
            "Pairs",
            "Explained",
            "Exam",
            "Field",
            "Guess",
            "Lamp",
            "Visits",
        )
    },
}
QUICK = ["Late", "Shares", "Plane"]


def errors_of(family):
    report = check_family(family, tasks=12, budget_s=0.5).findings
    return [(check, each.what) for check, each in report.errors]


@pytest.mark.parametrize("name", reduced(list(RIGHT), QUICK))
def test_a_right_environment_has_no_error(name):
    assert errors_of(RIGHT[name]()) == []


class Places(designs.Late):
    """A bug, unlike Late: a row and a column are compared as a set."""

    def problem(self, rng, seed):
        row, column = (int(place) for place in rng.choice(8, 2, replace=False))
        lines = ["." * 8] * 8
        lines[row] = "." * column + "x" + "." * (7 - column)
        board = "\n".join(lines)
        return {
            "text": f"{board}\nRow and column of the x, from 0, in tags.",
            "gold": f"{row}, {column}",
        }


def test_control_places_that_are_compared_as_a_set_are_named():
    assert any("numbers exchanged" in what for check, what in errors_of(Places()) if check == "E27")
