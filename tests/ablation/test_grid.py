"""A grid is every value of one axis with every value of the others, and each point has a name of its own."""

from __future__ import annotations

import re
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.extensions.ablation.grid import axes_of, label_of, names_of, points_of, values_of
from workbench.extensions.ablation.plan import Job, config_of, jobs
from workbench.extensions.ablation.reading import plan_of
from workbench.values.errors import ConfigError

VALUES = st.one_of(
    st.lists(st.integers(-9, 9), min_size=1, max_size=4, unique=True),
    st.lists(st.floats(0.001, 10), min_size=1, max_size=4, unique=True),
    st.lists(st.text("ab /.é", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
    st.just([True, False]),
)
GRIDS = st.dictionaries(
    st.sampled_from(["learner.lr", "a.lr", "k", "x.size"]), VALUES, min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(GRIDS)
def test_every_combination_is_there_once_with_a_name_of_its_own(grid):
    points = points_of(axes_of(grid, "grid"))
    assert len(points) == prod(len(values) for values in grid.values())
    assert len({str(point) for point in points}) == len(points)
    assert all(point[name] in grid[name] for point in points for name in grid)
    names = names_of(points)
    assert len({*names}) == len(names) and all(
        re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in names
    ), names
    assert points[0] == {name: values[0] for name, values in grid.items()}


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-6, 10),
    st.floats(11, 1e5),
    st.integers(2, 9),
    st.sampled_from(["linear", "log"]),
    st.booleans(),
)
def test_a_range_rises_or_falls_evenly_between_its_ends(low, high, steps, scale, falling):
    ends = (high, low) if falling else (low, high)
    found = values_of({"from": ends[0], "to": ends[1], "steps": steps, "scale": scale}, "lr")
    assert (found[0], found[-1], len(found)) == (*ends, steps)
    assert found == sorted(found, reverse=falling)
    gaps = [b / a if scale == "log" else b - a for a, b in zip(found, found[1:])]
    assert all(
        abs(gap - gaps[0]) <= 2e-4 * max(abs(gaps[0]), abs(high) if scale == "linear" else 1)
        for gap in gaps
    )


def test_whole_numbers_stay_whole_and_linked_settings_vary_together():
    assert values_of({"from": 1, "to": 7, "steps": 3}, "k") == [1, 4, 7]
    points = points_of(
        axes_of({"k": [1, 2], "linked": [{"a.size": [4, 8], "b.size": [8, 4]}]}, "grid")
    )
    assert points == [
        {"k": k, "a.size": a, "b.size": b} for k in (1, 2) for a, b in ((4, 8), (8, 4))
    ]
    assert label_of(points[0]) == "k = 1, a.size = 4, b.size = 8"
    assert label_of({"learner.lr": 1e-5, "x.on": True}) == "lr = 1e-05, on = true"


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "holds settings"),
        ({"lr": 3}, "expected a list of values, or a range"),
        ({"lr": []}, "expected a list"),
        ({"lr": [1, 1]}, "every value once"),
        ({"lr": {"from": 1, "too": 3}}, "no 'too'; did you mean 'to'"),
        ({"lr": {"from": 1, "to": 3, "steps": 1}}, "at least 2"),
        ({"lr": {"from": 0, "to": 3, "steps": 2, "scale": "log"}}, "above 0"),
        ({"lr": {"from": 1, "to": 3, "steps": 2, "scale": "lg"}}, "scale is one of"),
        ({"lr": {"to": 3, "steps": 2}}, "from one number"),
        ({"linked": [{"a": [1, 2]}]}, "at least two settings"),
        ({"linked": [{"a": [1, 2], "b": [1]}]}, "one length, got a: 2, b: 1"),
        ({"a": [1], "linked": [{"a": [1, 2], "b": [1, 2]}]}, "a is in two axes"),
        ({name: [*range(50)] for name in "abc"}, "125,000 points"),
    ],
)
def test_a_wrong_grid_is_refused_in_words(grid, words):
    with pytest.raises(ConfigError, match=words):
        axes_of(grid, "grid")


def plan(folder, **tree):
    return plan_of({"title": "t", **tree}, "t", folder, "t.toml")


def test_arms_stand_at_every_point_and_pairs_are_levelled(tmp_path):
    made = plan(
        tmp_path,
        base="bandit",
        arms={"plain": {}, "std": {"set": {"algorithm.estimator.normalize_std": True}}},
        grid={"learner.lr": [1e-4, 1e-3]},
        compare=[["std", "plain"]],
    )
    assert [arm.name for arm in made.arms] == [
        "plain_lr-0.0001",
        "plain_lr-0.001",
        "std_lr-0.0001",
        "std_lr-0.001",
    ]
    assert made.compare == (
        ("std_lr-0.0001", "plain_lr-0.0001"),
        ("std_lr-0.001", "plain_lr-0.001"),
    )
    config = config_of(made, jobs(made, [4])[-1])
    assert (config.learner.lr, config.algorithm.estimator.normalize_std, config.seed) == (
        1e-3,
        True,
        4,
    )
    baseline = plan(
        tmp_path, base="bandit", grid={"learner.lr": [1e-4, 1e-3]}, baseline="lr-0.0001", seeds=2
    )
    assert baseline.compare == (("lr-0.001", "lr-0.0001"),) and baseline.seeds == (0, 1)


def test_an_arm_run_again_has_its_settings_and_other_seeds(tmp_path):
    made = plan(
        tmp_path,
        base="bandit",
        arms={"plain": {}},
        seeds=3,
        analysis={"margin": 2},
        controls={"same": "plain", "planted": 9},
    )
    first, again = (config_of(made, Job(name, 2)) for name in ("plain", "plain-again"))
    assert (first.seed, again.seed) == (2, 1002) and made.controls.planted == 9
    assert made.with_arms(["plain"]).controls is None


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "needs arms"),
        ({"grid": {"k": [1]}}, "needs base"),
        ({"base": "bandit", "arms": {"a": {}}, "baseline": "b"}, "no arm 'b'"),
        (
            {
                "base": "bandit",
                "arms": {"a": {}, "b": {}},
                "baseline": "b",
                "compare": [["a", "b"]],
            },
            "leave out it, or compare",
        ),
        (
            {"base": "bandit", "arms": {"a": {"set": {"k": 1}}}, "grid": {"k": [1]}},
            "'a' sets k, which varies",
        ),
        (
            {"base": "bandit", "arms": {"a": {}}, "controls": {"same": "a"}},
            r"declare how in \[analysis\]",
        ),
        (
            {
                "base": "bandit",
                "arms": {"a": {}},
                "seeds": 2,
                "analysis": {"margin": 1},
                "controls": {"same": "b"},
            },
            "there is no arm 'b'",
        ),
        (
            {
                "base": "bandit",
                "arms": {"a": {}},
                "seeds": 2,
                "analysis": {"margin": 1, "seeds": [1]},
            },
            "at the top of the plan already",
        ),
        ({"base": "bandit", "arms": {"a": {}}, "seeds": [-1]}, "seeds and looks are whole numbers"),
    ],
)
def test_a_wrong_plan_is_refused_in_words(tmp_path, tree, words):
    with pytest.raises(ConfigError, match=words):
        plan(tmp_path, **tree)
