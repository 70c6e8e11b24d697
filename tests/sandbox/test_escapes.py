"""Ways out of a box that are shut, for root and for nobody; each is open where there is no box."""
from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.sandbox.escapes import ESCAPES, NOT_EVERYWHERE, ROOT
from tests.sandbox.grounds import PROGRAMS, WORKING, grounds, inside, outside, supply_for, why_not


@pytest.mark.parametrize(("user", "tier"), reduced(WORKING, [("root", "namespaces"), ("nobody", "landlock")], several=True))
def test_no_way_out_is_open(user, tier):
    if reason := why_not(user, tier):
        pytest.skip(f"tier {tier} as {user}: {reason}")
    with grounds(user) as values:
        said = {name: inside(user, tier, name, values) for name in ESCAPES}
    out = [name for name, text in said.items() if "ESCAPED" in text.splitlines()]  # not in a quoted line of the program
    assert out == (["read /etc/passwd", "another program"] if tier == PROGRAMS else [])  # it has one of its own, and may
    assert not [name for name, text in said.items() if "SyntaxError" in text or "NameError" in text]


@pytest.mark.parametrize(("user", "every"), reduced([("nobody", 4), ("nobody", 1), ("root", 1)], [("nobody", 4)],
                                                    several=True))
def test_negative_control_without_a_box_they_are(user, every):
    if isinstance(reason := supply_for(user), str):
        pytest.skip(reason)
    wanted = [name for name in ESCAPES if user == "root" or name not in ROOT][::every]
    with grounds(user) as values:
        shut = [name for name in wanted if not outside(user, name, values)]
    assert set(shut) <= set(NOT_EVERYWHERE)
    assert len(wanted) - len(shut) >= 28 / every
