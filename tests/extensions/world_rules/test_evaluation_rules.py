"""R25 and R26: an evaluation is played as its table says, and its figures are those of its trajectories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.extensions.world_rules.evaluations import held_out
from workbench.extensions.world_rules.figures import (
    difference,
    interval,
    of_returns,
    passes,
    quantile,
)
from workbench.linting import Evidence, all_rules, check
from workbench.linting.runs import evaluation_facts, step_facts
from workbench.look.cells.lint import lint
from workbench.look.cells.train import train_here
from workbench.rollouts import evaluate
from workbench.run.store import Run
from workbench.training.config import load_config
from workbench.values import Sampling
from workbench.values.stats import clustered_difference, paired_difference, pass_at_k, share, t95
from workbench.worlds import FrozenLake, tasks

RULES = all_rules()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return train_here(
        load_config(
            "frozenlake",
            {
                "lint.mode": "off",
                "train.tasks_per_step": 2,
                "train.group_size": 2,
                "train.steps": 1,
                "env.max_moves": 3,
                "env.slip": 0.2,
                "evaluation.num_tasks": 6,
                "evaluation.attempts": 2,
            },
        ),
        tmp_path_factory.mktemp("run") / "run",
    )


def asked(run: Run, rule: str, change=lambda each: each, **more):
    facts = tuple(change(each) for each in evaluation_facts(run))
    family = FrozenLake(slip=0.2, max_moves=3)
    return check(
        Evidence(evaluations=facts, steps=step_facts(run), family=family, **more), [RULES[rule]]
    )[rule]


def rows_changed(name, value, row=-1):
    """Evaluations in whose table one figure is another."""

    def change(each):
        rows = [dict(one) for one in each.report["rows"]]
        rows[row][name] = value
        return each._replace(report=dict(each.report) | {"rows": rows})

    return change


def attempts_changed(change, side="-sampled"):
    return lambda each: each._replace(
        sides={
            name: tuple(tuple(change(t) for t in group) for group in groups)
            if name.endswith(side)
            else groups
            for name, groups in each.sides.items()
        }
    )


def spans_changed(**values):
    def change(t):
        return replace(
            t,
            segments=tuple(
                replace(
                    segment,
                    spans=tuple(
                        replace(span, **values) if span.sampled else span for span in segment.spans
                    ),
                )
                for segment in t.segments
            ),
        )

    return change


def test_a_run_is_clean_and_its_trajectorys_are_few_bytes(run):
    report = lint(run).report
    assert report.ok and {"R25", "R26"} <= {answer.rule for answer in report if answer.looked}
    stored = list((run.path / "evaluations" / "attempts").glob("*/*.parquet"))
    assert len(stored) == 4  # untrained and trained, sampled and greedy: nothing twice
    assert sum(path.stat().st_size for path in stored) < 80_000
    for facts in evaluation_facts(run):
        assert all(len(side) == 6 for side in facts.sides.values())


def test_a_run_of_before_has_no_trajectories_and_is_not_checked(run):
    answer = asked(run, "R25", lambda each: each._replace(sides={}))
    assert not answer.errors and any(
        "trajectories of evaluation" in words for words in answer.missing
    )
    figures = asked(run, "R26", lambda each: each._replace(sides={}))
    assert figures.status == "partly checked"
    assert (
        "trained sampled, compared with its trajectories (missing: the trajectories)"
        in figures.missing
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (
            attempts_changed(lambda t: replace(t, dynamics_seed=t.dynamics_seed + 1)),
            "another chance",
        ),
        (attempts_changed(spans_changed(sampling=Sampling(0.7))), "temperature 0.7"),
        (attempts_changed(spans_changed(sampling=Sampling(1.0, 0.9)), "-greedy"), "top-p 0.9"),
        (attempts_changed(spans_changed(policy_version=7)), "version 7"),
        (lambda each: each._replace(num_tasks=12), "the settings ask for 12"),
        (lambda each: each._replace(attempts=4), "4 were to be made"),
        (
            lambda each: each._replace(
                sides={name: groups[::-1] for name, groups in each.sides.items()}
            ),
            "at its address",
        ),
    ],
)
def test_an_evaluation_that_was_played_otherwise_is_named(run, change, words):
    found = asked(run, "R25", change).errors
    assert any(words in finding.what for finding in found), found


def test_held_out_problems_that_were_met_in_training_are_named_by_content(run):
    facts = evaluation_facts(run)
    family = FrozenLake(slip=0.2, max_moves=3)
    from workbench.linting.facts import problem_of

    mine = problem_of(next(iter(facts[0].sides.values()))[0][0])
    steps = (step_facts(run)[0]._replace(problems=(mine, *map(str, range(20)))),)
    answer = check(Evidence(evaluations=facts, steps=steps, family=family), [RULES["R25"]])["R25"]
    assert any("were met in training" in finding.what for finding in answer.errors)


def test_greedy_play_that_is_not_greedy_and_sampled_play_that_is(run):
    def swapped(each):
        names = {
            name: name.replace("sampled", "x").replace("greedy", "sampled").replace("x", "greedy")
            for name in each.sides
        }
        return each._replace(
            sides={
                names[name]: tuple(group[:1] for group in side) for name, side in each.sides.items()
            }
        )

    assert any(
        "it is not greedy" in finding.what or "temperature" in finding.what
        for finding in asked(run, "R25", swapped).errors
    )


def first_turn_changed(other_prompt: bool):
    """In greedy play the first token is another, and unlikely; with `other_prompt`, so is the token before it."""

    def changed(trajectory):
        segment = trajectory.segments[0]
        spans = list(segment.spans)
        at = next(number for number, span in enumerate(spans) if span.sampled)
        ids = spans[at].token_ids.copy()
        ids[0] += 1
        logp = spans[at].logprobs.copy()
        logp[0] = -9.0
        spans[at] = replace(spans[at], token_ids=ids, logprobs=logp, plain_logprobs=logp)
        if other_prompt:
            ids = spans[at - 1].token_ids.copy()
            ids[-1] += 1
            spans[at - 1] = replace(spans[at - 1], token_ids=ids)
        first = replace(segment, spans=tuple(spans))
        return replace(trajectory, segments=(first, *trajectory.segments[1:]))

    return attempts_changed(changed, "-greedy")


def test_first_turns_behind_other_tokens_are_not_compared(run):
    """Programs that ask side by side: which of their calls comes first is the wall clock's."""

    def not_greedy(other_prompt):
        found = asked(run, "R25", first_turn_changed(other_prompt)).errors
        return [finding for finding in found if "it is not greedy" in finding.what]

    assert not not_greedy(other_prompt=True)
    assert not_greedy(other_prompt=False)  # negative control


@pytest.mark.parametrize(
    "name, value",
    [
        ("success", 0.9),
        ("success_low", 0.4),
        ("reward", 3.0),
        ("turns", 9.0),
        ("pass_at_2", 0.99),
        ("faults", 3),
        ("n", 5),
        ("tokens", 1.0),
    ],
)
def test_a_figure_that_is_not_of_the_trajectories_is_named(run, name, value):
    row = -2  # the newest side that was sampled
    assert any(
        name in finding.what for finding in asked(run, "R26", rows_changed(name, value, row)).errors
    )


def test_a_difference_that_is_turned_or_left_out_is_named(run):
    def turned(each):
        return each._replace(
            report=dict(each.report)
            | {
                "paired": [
                    pair | {"difference": pair["difference"] + 0.1}
                    for pair in each.report["paired"]
                ]
            }
        )

    assert any("task by task" in finding.what for finding in asked(run, "R26", turned).errors)
    assert any(
        "without their difference" in finding.what
        for finding in asked(
            run, "R26", lambda each: each._replace(report=dict(each.report) | {"paired": []})
        ).errors
    )


@given(st.integers(1, 8), st.lists(st.integers(0, 8), min_size=2, max_size=30))
def test_the_figures_of_the_lint_are_those_of_the_package(attempts, counts):
    values = [min(count, attempts) / attempts for count in counts]
    known = share(values, attempts)
    assert np.allclose(interval(values, attempts), (known.mean, known.low, known.high), atol=1e-9)
    for k in range(1, attempts + 1):
        assert np.allclose(
            passes(values, attempts, k),
            pass_at_k(np.rint(np.array(values) * attempts).astype(int), attempts, k),
        )
    other = values[::-1]
    a, b = ({"by_task": each, "attempts": attempts, "success": 0.0} for each in (values, other))
    wanted = (
        paired_difference(np.array(values), np.array(other))
        if attempts == 1
        else clustered_difference(values, other, np.arange(len(values)))
    )
    assert np.allclose(
        list(difference(a, b, None).values()),
        (wanted.mean, wanted.low, wanted.high, wanted.n),
        atol=1e-3,
    )


@pytest.mark.parametrize(
    "paid", [[-0.8] * 5, [0.5, None, 0.5], [1.0], [None, None], [-0.8, 0.2, None, 1.0]]
)
def test_intervals_of_returns_are_those_of_the_package(paid):
    """A return that never varies has no interval, in the table and in the lint."""
    row = evaluate._score("trained", "sampled", None, paid, [1] * len(paid), None, None, 0, 1).row()
    found = of_returns(row)
    assert [found[name] is None for name in found] == [row[name] is None for name in found]
    known = [name for name in found if found[name] is not None]
    assert np.allclose([found[name] for name in known], [row[name] for name in known], atol=1e-3)
    assert ("reward_low" in known) == (len({each for each in paid if each is not None}) > 1)


def test_quantiles_and_tasks_are_those_of_the_package():
    assert all(abs(quantile(f) - t95(f)) < 1e-12 * t95(f) for f in (1, 2, 7, 11, 60, 511))
    assert held_out(FrozenLake(), 12) == tasks(FrozenLake(), "held-out", 12)
