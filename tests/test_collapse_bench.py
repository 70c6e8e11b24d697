"""The collapse bench: what a rule may see, how thresholds are chosen, what counts as caught; and that a wrong rule shows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments.collapse import published
from experiments.collapse.__main__ import in_words, main, tabled
from experiments.collapse.judge import Course, choose, judged, named, table
from experiments.collapse.plan import HEALTHY, ILL, SEEDS, Job, config_of, jobs
from experiments.collapse.rules import SINGLE
from workbench.extensions.collapse.alarms import PAIRS, AlarmRule, level, paired_rule
from workbench.extensions.collapse.probes import ProbeRecord
from workbench.extensions.collapse.signals import SIGNALS, RunSignals
from workbench.extensions.collapse.step_signals import StepSignals

STEPS = 12


def run_of(collapses_at=None, **series):
    """A run of so many steps with these signals, the rest at 1; its probe set falls at a step, or never."""

    def at(step, name):
        given = series.get(name)
        return 1.0 if given is None else given[step - 1]

    steps = tuple(
        StepSignals(step, **{name: at(step, name) for name in SIGNALS})
        for step in range(1, STEPS + 1)
    )
    probes = tuple(
        ProbeRecord(step, "sampled", 0.1, -0.5, -0.6, -0.4)
        if collapses_at and step >= collapses_at
        else ProbeRecord(step, "sampled", 0.7, 0.1, 0.0, 0.2)
        for step in range(2, STEPS + 1, 2)
    )
    return RunSignals("made", steps, probes, STEPS)


def falling(start, low=0.1):
    return [1.0 if step < start else low for step in range(1, STEPS + 1)]


def bench(lead=4, healthy_turns=None):
    """Ten retreats whose turns fall before the probe set does, and ten healthy runs."""
    courses = [
        Course.of(
            Job("retreat", seed), run_of(8, turns=falling(8 - lead), success=falling(8 - lead))
        )
        for seed in range(10)
    ]
    return courses + [
        Course.of(Job("healthy-lake", seed), run_of(turns=healthy_turns)) for seed in range(10)
    ]


def test_a_score_knows_no_later_step():
    whole = run_of(
        turns=falling(6), entropy=[0.5 + 0.1 * step for step in range(STEPS)], valid=falling(4)
    ).steps
    for rule in (*SINGLE, paired_rule("retreat", (0.5, 0.5))):
        scores = rule.scores(whole)
        for end in range(1, STEPS + 1):
            assert rule.scores(whole[:end]) == scores[:end], rule.name


def test_a_signal_that_was_not_computed_says_nothing():
    steps = tuple(replace_none(each) for each in run_of().steps)
    assert all(score is None for rule in SINGLE for score in rule.scores(steps))


def replace_none(step):
    return step._replace(**dict.fromkeys(SIGNALS))


def test_what_became_of_a_run_is_told_by_the_probe_set_alone():
    assert (
        Course.of(Job("echo", 0), run_of(6)).label,
        Course.of(Job("echo", 0), run_of(6)).event,
    ) == ("collapsed", 6)
    assert Course.of(Job("echo", 0), run_of()).label == "healthy", (
        "a run that was meant to collapse and did not is healthy"
    )
    worse = run_of()
    worse = replace(
        worse, probes=(*worse.probes[:-1], ProbeRecord(STEPS, "greedy", 0.7, -0.2, -0.3, -0.1))
    )
    assert Course.of(Job("healthy-lake", 0), worse).label == "neither"
    assert Course.of(Job("healthy-lake", 0), replace(worse, probes=())).label == "neither", (
        "nobody looked"
    )


def test_an_alarm_after_the_event_is_a_miss_and_one_before_it_has_its_lead():
    rule = AlarmRule("turns", lambda steps: [1 - each.turns for each in steps])
    early = Course.of(Job("retreat", 1), run_of(8, turns=falling(5)))
    late = Course.of(Job("retreat", 3), run_of(8, turns=falling(8)))
    row = judged(rule, 0.5, [early, late])["judged"]
    assert (row["caught"], row["collapses"], row["leads"]) == (1, 2, [3])


def test_thresholds_are_chosen_on_half_of_the_seeds_and_never_on_the_other():
    courses = bench()
    other = [
        Course.of(each.job, run_of(8))
        if not each.job.chooses and each.label == "collapsed"
        else each
        for each in courses
    ]
    ours, theirs = ({row["rule"]: row for row in table(some)} for some in (courses, other))
    for name in ours:
        assert (
            ours[name]["threshold"] == theirs[name]["threshold"]
            and ours[name]["chosen"] == theirs[name]["chosen"]
        )
    assert (
        ours["turns fall"]["judged"]["caught"] == 5
        and theirs["turns fall"]["judged"]["caught"] == 0
    )


def test_a_sign_that_healthy_runs_show_as_much_is_worth_nothing():
    courses = bench(healthy_turns=falling(4))
    row = next(row for row in table(courses) if row["rule"] == "turns fall")
    assert row["threshold"] is None and row["judged"]["caught"] == 0 and row["judged"]["false"] == 0
    assert row["area"] == pytest.approx(0.5, abs=0.01)
    clear = next(row for row in table(bench()) if row["rule"] == "turns fall")
    assert clear["area"] == 1.0 and clear["roc"][-1] == [5, 5] and [0, 5] in clear["roc"]


def test_a_threshold_lies_between_the_healthy_and_the_ill():
    rule = AlarmRule("turns", level("turns"))
    ill = [Course.of(Job("echo", 0), run_of(8, turns=[5.0] * STEPS))]
    well = [Course.of(Job("healthy-lake", 0), run_of(turns=[3.0] * STEPS))]
    assert choose(rule, ill, well) == 4.0
    assert (
        choose(rule, ill, [Course.of(Job("healthy-lake", 0), run_of(turns=[6.0] * STEPS))]) is None
    )


def test_pairs_need_both_signs_and_name_the_kind():
    rule = paired_rule("retreat", (0.5, 0.5))
    alone = Course.of(Job("retreat", 1), run_of(10, turns=falling(4)))
    both = Course.of(Job("retreat", 1), run_of(10, turns=falling(4), success=falling(4)))
    assert alone.alarm(rule, 1.0) is None and both.alarm(rule, 1.0) is not None
    assert named([rule, paired_rule("risk-aversion", (0.5, 0.5))], [both]) == {
        "right": 1,
        "caught": 1,
    }
    assert named(
        [paired_rule("risk-aversion", (0.5, 0.5))],
        [Course.of(Job("retreat", 1), run_of(10, entropy=falling(4), success=falling(4)))],
    ) == {"right": 0, "caught": 1}
    assert set(PAIRS) == set(ILL) and {rule.name for pair in PAIRS.values() for rule in pair} <= {
        rule.name for rule in SINGLE
    }


@pytest.mark.parametrize(
    "name, fires, silent",
    [
        ("ragen", {"reward_spread": [1.0] * 6 + [0.4]}, {"reward_spread": [1.0] * 6 + [0.6]}),
        (
            "ragen_2",
            {"reward_spread": [1.0] * 10 + [0.05] * 10},
            {"reward_spread": [1.0] * 10 + [0.05] * 9 + [0.2]},
        ),
        ("rlwatch", {"entropy": [0.5] * 44}, {"entropy": [0.5] * 43}),
        ("rlwatch", {"gradient": [1.0, 1.2] * 12 + [9.0]}, {"gradient": [1.0, 1.2] * 12 + [1.3]}),
        ("rlprobe", {"flat_lost": [0.0] * 15 + [0.5] * 15}, {"flat_lost": [0.0] * 15 + [0.5] * 14}),
        (
            "rlprobe",
            {"repetition": [0.0] * 20 + [0.4] * 12},
            {"repetition": [0.2] * 20 + [0.4] * 12},
        ),
        ("rldoctor", {"flat_won": [0.5] * 8}, {"flat_won": [0.5] * 7}),
        ("rldoctor", {"entropy": [1.0] * 8 + [0.05] * 3}, {"entropy": [1.0] * 8 + [0.2] * 3}),
    ],
)
def test_published_alarms_fire_as_they_say_and_wait_as_they_say(name, fires, silent):
    quiet = {
        "entropy": 2.0,
        "gradient": 1.0,
        "reward_spread": 0.5,
        "flat_won": 0.0,
        "flat_lost": 0.0,
        "flat_same": 0.0,
        "clipped": 0.0,
        "repetition": 0.0,
    }

    def steps(series):
        length = len(next(iter(series.values())))
        return [
            StepSignals(
                at + 1,
                **dict.fromkeys(SIGNALS)
                | quiet
                | {key: values[at] for key, values in series.items()},
            )
            for at in range(length)
        ]

    alarm = getattr(published, name)
    assert alarm(steps(fires)) and not alarm(steps(silent))


def test_the_plan_has_what_it_claims_and_every_file_can_be_run():
    assert sum(SEEDS[kind] for kind in ILL) >= 30 and sum(SEEDS[kind] for kind in HEALTHY) >= 20
    assert len({job.name for job in jobs()}) == sum(SEEDS.values())
    for kind in SEEDS:
        config = config_of(Job(kind, 3))
        assert (
            config.seed == 3
            and (kind in ILL or config.train.steps >= 40)
            and config.train.evaluate_every
        )


def test_the_command_makes_a_table_goes_on_and_trains_nothing_twice(tmp_path):
    said = []
    asked = [
        "--quick",
        "--workers",
        "0",
        "--kinds",
        "risk-aversion",
        "healthy-bandit",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert main([*asked, "--runs", "1"], said.append) == 0 and "1 are trained now" in said[0]
    made = json.loads((tmp_path / "quick/table.json").read_text())
    assert (
        made["kinds"]["risk-aversion"]["made"] == 1 and made["kinds"]["healthy-bandit"]["made"] == 0
    )
    assert main(asked, said.append) == 0
    made = json.loads((tmp_path / "quick/table.json").read_text())
    assert [row["kind"] for row in made["runs"]] == ["risk-aversion", "healthy-bandit"]
    said.clear()
    assert main(asked, said.append) == 0 and "2 of them there; 0 are trained now" in said[0]
    assert {row["rule"] for row in made["rules"]} >= {*published.PUBLISHED}


def test_a_table_counts_what_was_made_of_what_was_planned():
    made = tabled(
        {Job("echo", 0): run_of(6), Job("echo", 1): run_of(8), Job("healthy-lake", 0): run_of()},
        jobs(),
        {Job("echo", 0): 60.0, Job("echo", 1): 80.0},
    )
    assert made["kinds"]["echo"] | {"events": []} == {
        "planned": 10,
        "made": 2,
        "steps": STEPS,
        "collapsed": 2,
        "healthy": 0,
        "neither": 0,
        "events": [],
        "cpu_seconds": 70.0,
        "most_cpu_seconds": 80.0,
    }
    assert made["kinds"]["retreat"]["made"] == 0 and made["runs"][0] == {
        "kind": "echo",
        "seed": 0,
        "label": "collapsed",
        "event": 6,
        "ends": {"sampled": [0.6, 0.1]},
    }


def test_what_is_printed_has_intervals_and_says_whether_any_alarm_meets_the_goal():
    half = {
        "caught": 12,
        "collapses": 15,
        "caught_interval": (0.548, 0.93),
        "lead": 1.5,
        "false": 0,
        "healthy": 20,
        "false_interval": (0.0, 0.16),
    }
    made = {
        "kinds": {},
        "rules": [
            {"rule": "good", "area": 0.9, "judged": half},
            {"rule": "late", "area": None, "judged": half | {"caught": 11}},
            {"rule": "noisy", "area": 0.8, "judged": half | {"false": 2}},
        ],
    }
    lines = in_words(made)
    assert any(
        "12 of 15 [55, 93 %]" in line and "0 of 20 [0, 16 %]" in line and line.endswith("good")
        for line in lines
    )
    assert lines[-1].endswith(": good")
    assert in_words(made | {"rules": made["rules"][1:]})[-1].endswith(": no alarm")
