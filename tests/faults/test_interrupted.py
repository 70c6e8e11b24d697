"""A few of the interruptions that `python -m tests.faults.interrupted` does by the score."""

from __future__ import annotations

import random

import pytest

from tests.counts import reduced
from tests.faults import interrupted
from workbench.look.run_diff import compare_runs


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return interrupted.Ground.of(tmp_path_factory.mktemp("ground"))


@pytest.mark.parametrize(
    "way", reduced(["stopped", "memory", "clock", "kernel"], ["stopped", "memory"])
)
def test_what_was_committed_stays_and_the_run_ends_as_the_one_that_was_not_interrupted(ground, way):
    times = 1
    found = interrupted.WAYS[way](ground, times, random.Random(f"{way} test"))
    assert not found.faults and found.lost == 0
    assert found.tried == times and found.identical == times


@pytest.mark.full
@pytest.mark.parametrize("way", ["disk", "full"])
def test_after_a_disk_that_filled_up_it_goes_on(ground, way):
    found = interrupted.WAYS[way](ground, 1, random.Random(0), stride=19)
    assert not found.faults and found.lost == 0 and found.hit > 4 and found.identical == found.tried


def test_after_the_kernels_own_killer_it_goes_on(ground):
    if reason := interrupted.why_no_killer():
        pytest.skip(f"no control group can be made here: {reason}")
    found = interrupted.killer(ground, 2, random.Random("killer test"))
    assert not found.faults and found.lost == 0 and found.identical == 2 and found.hit


def test_negative_control_a_step_that_is_lost_and_another_end_are_noticed(
    ground, tmp_path, monkeypatch
):
    """A resume that forgets what was committed, and one that ends as another run."""
    found, path = interrupted.Interrupted(), tmp_path / "run"
    assert ground.child(path).status == 0
    monkeypatch.setattr(
        interrupted.Ground,
        "child",
        lambda self, path: (
            (path / "metrics.jsonl").write_bytes(b""),
            interrupted.killing.Ending(0, "", 0.0, 0),
        )[1],
    )
    ground.finish(path, found, "forgets")
    assert found.lost == 2 and len(found.faults) == 1 and not found.identical
    assert compare_runs(ground.whole, ground.whole).equal
