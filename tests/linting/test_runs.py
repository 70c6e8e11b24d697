"""R21: a run that was resumed wrongly, sampled by other weights, or trained on something twice."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from learning_data import make_groups

from workbench.basics.findings import Answer
from workbench.linting import Evidence, check
from workbench.linting.evidence import RunClaims, StepFacts
from workbench.linting.runs import RULES, facts_of_step, run_claims, step_facts
from workbench.rollouts.metrics import rollout_metrics
from workbench.run.recording import create_run
from workbench.run.store import open_run
from workbench.values import Group, Segment


def sampled_by(groups: list[Group], version: int, step: int) -> list[Group]:
    """The same trajectories as sampled by these weights, at the addresses of this step."""
    made = []
    for group in groups:
        members = []
        for t in group:
            segments = tuple(
                Segment(
                    tuple(
                        replace(span, policy_version=version) if span.sampled else span
                        for span in segment.spans
                    )
                )
                for segment in t.segments
            )
            members.append(
                replace(
                    t,
                    segments=segments,
                    dynamics_seed=1000 * step + 10 * t.task.task_seed + t.attempt,
                )
            )
        made.append(Group(tuple(members)))
    return made


@lru_cache
def run(updates: tuple[int, ...] = (1, 1, 1, 1), warmup: int = 3) -> tuple[StepFacts, ...]:
    """A run without a fault: so many updates in each step."""
    found, version, empty = [], 0, 0
    for step, made in enumerate(updates, 1):
        groups = sampled_by(make_groups(step, tasks=2, attempts=3), version, step)
        rates = [0.1 * min(1.0, (version + k + 1) / warmup) for k in range(made)]
        empty += made == 0
        version += made
        metrics = (
            rollout_metrics(groups)
            | {"updates": made, "policy_version": version, "empty_updates": empty, "bad_updates": 0}
            | ({"lr": sum(rates) / made} if made else {})
        )
        found.append(facts_of_step(step, groups, metrics, lr=0.1, warmup=warmup))
    return tuple(found)


def asked(steps, claims=RunClaims(4, (0, 4), (4,))) -> Answer:
    return check(Evidence(steps=tuple(steps), claims=claims), RULES)["R21"]


def with_metrics(steps, number: int, **metrics):
    return tuple(s._replace(metrics=s.metrics | metrics) if s.step == number else s for s in steps)


@pytest.mark.parametrize("updates", [(1, 1, 1, 1), (4, 4, 4, 4), (2, 0, 1, 3)])
def test_a_run_without_a_fault_passes(updates):
    answer = asked(run(updates))
    assert answer.status == "passed" and answer.looked == 4 and not answer.missing


def test_part_of_a_run_passes():
    assert asked(run()[2:], None).status == "partly checked"
    assert asked(run()[:0], RunClaims(4)).status == "not checked"


def first(answer: Answer) -> str:
    assert answer.errors, answer
    return " | ".join(f"step {finding.place.step}: {finding.what}" for finding in answer.errors)


def test_negative_control_the_last_batch_once_more_after_a_resume():
    """tinker-cookbook#935"""
    steps = run()
    again = steps[1]._replace(step=3, metrics=steps[2].metrics, versions=steps[2].versions)
    assert "step 3: 6 of its 6 trajectories were learned from before, in step 2" in first(
        asked((*steps[:2], again, steps[3]))
    )
    stale = steps[2]._replace(attempts=(*steps[2].attempts[:4], *steps[1].attempts[4:]))
    assert "step 3: 2 of its 6 trajectories were learned from before" in first(
        asked((*steps[:2], stale, steps[3]))
    )
    doubled = steps[2]._replace(attempts=steps[2].attempts[:1] * 2 + steps[2].attempts[2:])
    assert "1 of its 6 trajectories occur in it twice" in first(
        asked((*steps[:2], doubled, steps[3]))
    )


def test_negative_control_whole_batches_where_trajectories_are_not_known():
    steps = tuple(s._replace(attempts=()) for s in run())
    assert not asked(steps).findings
    assert "its batch" in first(
        asked((*steps[:3], steps[3]._replace(fingerprint=steps[0].fingerprint)))
    )


def test_negative_control_sampled_by_other_weights():
    """trl#5293: a queue from the base weights; trl#5312: older ones."""
    for versions, words in [
        ((0,), "the untrained weights"),
        ((1, 2), "version 1 and 2 of the weights"),
        ((3,), "exist yet"),
    ]:
        steps = tuple(s._replace(versions=versions) if s.step == 3 else s for s in run())
        assert words in first(asked(steps))


def test_negative_control_versions_that_do_not_count_the_updates():
    assert "step 2: it made 1 updates, but the version of the weights went from 1 to 3" in first(
        asked(with_metrics(run(), 2, policy_version=3))
    )


def test_negative_control_steps_without_updates():
    """verl#7401"""
    assert "nothing was trained, and nothing says why" in first(
        asked(with_metrics(with_metrics(run((1, 0, 1, 1)), 2, empty_updates=0), 3, empty_updates=0))
    )
    (note,) = asked(run((0, 0, 0, 0))).findings
    assert note.severity == "note" and "no update was ever made" in note.what
    assert "an evaluation of step 30, but only 0 steps" in first(
        check(Evidence(steps=(run()[0]._replace(step=0),), claims=RunClaims(30, (0, 30))), RULES)[
            "R21"
        ]
    )
    assert "a checkpoint of step 8, but only 4 steps" in first(
        asked(run(), RunClaims(8, (4,), (4, 8)))
    )


def test_negative_control_a_gap_and_a_step_backwards():
    steps = run()
    assert "step 4: step 4 was committed after step 2" in first(
        asked((steps[0], steps[1], steps[3]))
    )
    assert "step 2 was committed after step 3" in first(asked((*steps[:3], steps[1])))


def test_negative_control_the_warm_up_begins_again_after_a_resume():
    assert "step 3: the learning rate was 0.0333333, and after 2 updates it is 0.1" in first(
        asked(with_metrics(run(), 3, lr=0.1 / 3))
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward_mean", 0.7),
        ("unscored", 3.0),
        ("sampled_tokens", 1.0),
        ("stop_terminated", 0.5),
        ("reward_std", 0.0),
        ("turns", 9.0),
    ],
)
def test_negative_control_metrics_that_say_something_else(name, value):
    assert f"its metrics say {name} = {value:.6g}" in first(
        asked(with_metrics(run(), 2, **{name: value}))
    )


def test_unknown_versions_and_claims_are_said():
    answer = asked(tuple(s._replace(versions=()) for s in run()), None)
    assert answer.status == "partly checked" and len(answer.missing) == 2


def test_fates_keep_trajectories_apart():
    """The same few tokens, drawn by chance at another address, are no repetition."""
    groups = make_groups(tasks=1, attempts=2)
    one, other = (facts_of_step(k, sampled_by(groups, 0, k), {}) for k in (1, 2))
    assert (
        not set(one.attempts) & set(other.attempts)
        and one.attempts == facts_of_step(1, sampled_by(groups, 0, 1), {}).attempts
    )


def test_an_unscored_trajectory_is_not_zero_in_the_recomputed_mean():
    groups = make_groups(tasks=1, attempts=3, rewards=[[1.0, 3.0, None]])
    found = facts_of_step(1, groups, {}).recomputed
    assert found["reward_mean"] == 2.0 and found["unscored"] == 1.0 and found["reward_std"] == 1.0
    assert found["segments"] == 1.0 and found["stop_terminated"] == 1.0


def test_facts_and_claims_are_read_off_a_run_folder(tmp_path):
    """As a resumed run leaves it: the learning rate was changed after step 1."""
    config = {"learner": {"lr": 0.1, "warmup_updates": 0}, "train": {"steps": 5}}
    with create_run(tmp_path / "run", config) as writer:
        for step in (1, 2):
            groups = sampled_by(make_groups(step, tasks=2, attempts=3), step - 1, step)
            writer.write_step(step, groups)
            lr = 0.1 if step == 1 else 0.2
            writer.commit_step(
                step, rollout_metrics(groups) | {"updates": 1, "policy_version": step, "lr": lr}
            )
            if step == 1:
                writer.change_settings({"learner.lr": (0.1, 0.2)})
        writer.write_evaluation("step-00000002", {"step": 2})
    folder = open_run(tmp_path / "run")
    steps, claims = step_facts(folder), run_claims(folder)
    assert [s.lr for s in steps] == [0.1, 0.2] and claims == RunClaims(5, (2,), ())
    assert asked(steps, claims).status == "passed"
    assert asked(steps[:1], claims).errors


def test_the_same_fates_in_two_steps():
    """Under weights that have moved the same draws give other tokens: no trajectory comes again, but its task and chance."""
    steps = list(run())
    assert not asked(tuple(steps)).errors
    steps[2] = steps[2]._replace(seeds=steps[1].seeds)
    (found,) = asked(tuple(steps)).errors
    assert (
        found.place.step == 3 and "of step 2" in found.what and found.count == len(steps[1].seeds)
    )


def test_a_step_with_exactly_the_tasks_of_the_one_before_is_noted():
    def fates(step: int, first: int) -> tuple[str, ...]:
        return tuple(f"task-{first + k}|{100 * step + k}" for k in range(4))

    steps = run()
    same = tuple(row._replace(seeds=fates(row.step, 0)) for row in steps)
    other = tuple(row._replace(seeds=fates(row.step, 4 * row.step)) for row in steps)
    assert (
        sum("the tasks of the step before" in finding.what for finding in asked(same).findings) == 3
    )
    assert not asked(same).errors and not asked(other).findings


def test_a_step_from_which_every_group_was_taken_is_no_division_by_nothing():
    assert facts_of_step(1, [], {}).recomputed["turns"] == 0.0
