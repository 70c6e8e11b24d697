"""Ways out of a sandbox that are shut, for root and for nobody; each is open where there is no sandbox."""

from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.sandbox.escapes import ESCAPES, NOT_EVERYWHERE, ROOT
from tests.sandbox.grounds import (
    OWN_USERS,
    PROGRAMS,
    WORKING,
    grounds,
    inside,
    outside,
    pool_for,
    why_not,
)

# It has a /etc of its own, and may start programs; the image of a container has devices, too, which are no disks; the root of a sandbox may do to its own files what root may.
OF_ITS_OWN = {
    "docker": ["read /etc/passwd", "list /etc", "devices"],
    PROGRAMS: ["read /etc/passwd", "another program"],
    **dict.fromkeys(OWN_USERS, ["read /etc/passwd", "list /etc", "another program"]),
    "the root of a sandbox": [
        "read /etc/passwd",
        "list /etc",
        "another program",
        "root again",
        "an owner of root's",
    ],
}


@pytest.mark.parametrize(
    ("user", "tier"),
    reduced(
        WORKING,
        [
            ("root", "namespaces"),
            ("root", "landlock"),
            ("nobody", "landlock"),
            ("root", "the root of a sandbox"),
        ],
        several=True,
    ),
)
def test_no_way_out_is_open(user, tier):
    if reason := why_not(user, tier):
        pytest.skip(f"tier {tier} as {user}: {reason}")
    with grounds(user) as values:
        said = {name: inside(user, tier, name, values) for name in ESCAPES}
    out = [
        name for name, text in said.items() if "ESCAPED" in text.splitlines()
    ]  # not in a quoted line of the program
    assert out == OF_ITS_OWN.get(tier, [])
    assert not [name for name, text in said.items() if "SyntaxError" in text or "NameError" in text]


@pytest.mark.parametrize(
    ("user", "every"),
    reduced([("nobody", 4), ("nobody", 1), ("root", 1)], [("nobody", 4)], several=True),
)
def test_negative_control_without_a_sandbox_they_are(user, every):
    if isinstance(reason := pool_for(user), str):
        pytest.skip(reason)
    wanted = [name for name in ESCAPES if user == "root" or name not in ROOT][::every]
    with grounds(user) as values:
        shut = [name for name in wanted if not outside(user, name, values)]
    assert set(shut) <= set(NOT_EVERYWHERE)
    assert len(wanted) - len(shut) >= 28 / every
