"""The suite of planted bugs: its headers are valid, every edit fits, and a few go all the way through the battery.

All of them take a quarter of an hour: `make silent-bugs`; with `SHARE=1/30`, as `.ci/run` has it, a share of them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.mutants import edits
from tests.silent_bugs import battery, run
from workbench.basics.findings import Answer, Finding, LintReport
from workbench.linting import all_rules

RULES = all_rules()

BUGS = [bug.path for bug in run.choose([], run.BUGS)]
COUNTERPARTS = sorted(run.BUGS.glob("*.same.edit"))
FURTHER = [
    bug.path for folder in ("further", "worlds") for bug in run.choose([], run.HERE / folder)
]


# ------------------------------------------------------------------------------------------------ the edits


def test_headers_name_rules_that_exist_and_threads_of_other_frameworks():
    for path in BUGS:
        bug = run.read_bug(path)
        assert bug.breaks and (bug.rules or bug.guard), path.name
        assert set(bug.rules) <= set(RULES), f"{path.name} expects {bug.rules}"
        assert not bug.thread or re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", bug.thread), (
            f"{path.name}: {bug.thread!r}"
        )
        assert bug.thread or not path.name.startswith("hist-"), f"{path.name} names no thread"
        assert bug.counterpart or bug.counterpart_scene, (
            f"{path.name} has no legitimate counterpart"
        )


def test_every_rule_has_a_bug_and_two_dozen_threads_are_among_them():
    bugs = [run.read_bug(path) for path in BUGS]
    # R47 and R48 are asked of a user's own algorithm alone: tests/extensions/bias plants bugs there.
    of_ours = [rule for rule in RULES if rule not in ("R47", "R48")]
    missing = [rule for rule in of_ours if not any(rule in bug.rules for bug in bugs)]
    assert not missing, f"no planted bug for {missing}"
    assert len({bug.thread for bug in bugs if bug.thread}) >= 24


def test_a_counterpart_belongs_to_a_bug_and_touches_the_same_file():
    for counterpart in COUNTERPARTS:
        bug = counterpart.with_name(counterpart.name.replace(".same.edit", ".edit"))
        assert bug.is_file(), f"{counterpart.name} has no bug"
        files = [set(edits.files_of(path)) for path in (bug, counterpart)]
        assert files[1] <= files[0], f"{counterpart.name} touches {files[1]}, its bug {files[0]}"


def test_every_edit_fits_onto_the_code_as_it_is(repository):
    bad = {
        path.name: why
        for path in [*BUGS, *COUNTERPARTS, *FURTHER]
        if (why := edits.misfit(repository, edits.blocks_in(path)))
    }
    assert not bad  # python -m tests.mutants.reanchor finds code that has moved


# ------------------------------------------------------------------------------------------------ the harness


def test_a_header_without_a_rule_is_refused_and_none_at_all_is_welcome(tmp_path):
    path = tmp_path / "x.patch"
    path.write_text("# thread: a/b#1\n# breaks: something\n--- a/x\n# rule: R1 (too late)\n")
    with pytest.raises(ValueError, match="x.patch.*# rule"):
        run.read_bug(path)
    path.write_text("--- a/x\n+++ b/x\n")
    assert run.read_bug(path) == run.Bug(path)
    with pytest.raises(ValueError, match="no bug 'y'"):
        run.choose(["y"], tmp_path)


@pytest.mark.parametrize(
    ("rules", "guard", "said", "verdict"),
    [
        ("R6", "", run.Said({"R6": [{}], "R18": [{}]}), "named"),
        ("R6", "", run.Said({"R18": [{}]}), "caught"),
        ("R6", "", run.Said(guards=("DataError: a group is one task",)), "refused"),
        (
            "",
            "one task",
            run.Said({"R7": [{}]}, guards=("DataError: a group is one task",)),
            "refused",
        ),
        ("", "one task", run.Said(guards=("DataError: something else",)), "refused"),
        ("R6", "", run.Said(crashes=("KeyError: 1",)), "crashed"),
        ("R6", "", run.Said(), "missed"),
        ("R6", "", run.Said(stale="does not apply"), "stale"),
    ],
)
def test_each_verdict(rules, guard, said, verdict):
    bug = run.Bug(Path("x.patch"), (rules,) if rules else (), guard=guard)
    assert run.judge(bug, said) == verdict
    outcome = run.Outcome(bug, verdict, said)
    assert outcome.good == (verdict == ("named" if rules else "refused"))
    assert not run.Outcome(bug, verdict, said, counterpart="R6: a false alarm").good


def test_what_the_battery_says_counts_what_a_report_left_out():
    finding = Finding("seven tokens")
    notes = battery.Notes()
    notes.add(
        LintReport(
            (
                Answer("R3", "t", (finding,) * 5, further=2, further_errors=2, looked=9),
                Answer("R4", "t"),
            )
        )
    )
    notes.add(LintReport((Answer("R5", "t", (Finding("look", severity="note"),), looked=1),)))
    assert notes.counts == {"R3": 7} and len(notes.errors["R3"]) == battery.SHOWN
    assert notes.looked == {"R3", "R5"}


def test_summary_counts_recall_precision_and_false_alarms():
    bug = run.Bug(Path("a.patch"), ("R1", "R2"))
    outcomes = [
        run.Outcome(bug, "named", run.Said({"R1": [{}], "R9": [{}]}, cpu_seconds=2.0), "clean"),
        run.Outcome(bug, "missed", run.Said(cpu_seconds=4.0), "R4: a false alarm"),
    ]
    found = run.summary(outcomes, "clean")
    assert (found["named"], found["caught"], found["missed"], found["precision"]) == (
        1,
        1,
        ["a"],
        0.5,
    )
    assert found["counterparts called an error"] == ["a"] and found["cpu seconds a bug"] == 3.0
    assert found["untouched code"] == "clean"


# ------------------------------------------------------------------------------------------------ all the way


@pytest.mark.full
def test_bugs_are_named_and_counterparts_are_clean_end_to_end(tmp_path, capsys):
    """Three scenes of the battery only; `make silent-bugs` asks all."""
    answer = tmp_path / "answer.json"
    chosen = ["hist-skyrl-1492", "hist-skyrl-758", "rule-22", "hist-tinker-771-other"]
    assert run.main([*chosen, "--only", "rollouts: qwen3", "--json", str(answer)]) == 0, (
        capsys.readouterr().out
    )
    found = json.loads(answer.read_text())
    assert [(bug["verdict"], bug["counterpart"]) for bug in found["bugs"]] == [
        ("named", "clean")
    ] * 3 + [("refused", "clean")]
    assert found["summary"]["untouched code"] == "clean"
