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
QUICK = ["Shares", "Rounds", "Steps", "Draws", "Plane", "Crops"]


def errors_of(family):
    report = check_family(family, tasks=12, budget_s=0.5).findings
    return [(check, each.what) for check, each in report.errors]


@pytest.mark.parametrize("name", reduced(list(RIGHT), QUICK))
def test_a_right_environment_has_no_error(name):
    assert errors_of(RIGHT[name]()) == []
