"""The doors of the lint: in a training step, over a run folder, over a session, in the terminal."""

from __future__ import annotations

import json

import pytest
import torch

import workbench as wb
from workbench import cli
from workbench.basics.findings import NOTE, Checked, Finding, NotChecked
from workbench.linting import Rule, all_rules
from workbench.look.cells.stored import lint_words
from workbench.run.store import open_run
from workbench.training.config import load_config
from workbench.training.session import open_session
from workbench.values.errors import ConfigError, DataError, LintError, StoreError

RULES = all_rules()

TINY = {
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "train.evaluate_every": 0,
    "evaluation.num_tasks": 4,
    "lint.start": False,
}


@pytest.fixture
def only():
    """Puts one rule of the test's own in the place of all rules; returns what it was asked with."""
    every = dict(RULES)

    def put(*said, when="step", needs=()):
        asked = []

        def answer(evidence):
            asked.append(evidence)
            return [s(evidence) if callable(s) else s for s in said]

        RULES.clear()
        RULES["R99"] = Rule("R99", "a rule", "it means this.", "do that.", needs, answer, when)
        return asked

    yield put
    RULES.clear()
    RULES.update(every)  # in their order


@pytest.fixture
def session():
    return open_session(load_config("frozenlake", TINY), quiet=True)


def trained(tmp_path, name="run", **settings):
    return wb.train_here(load_config("frozenlake", TINY | settings), tmp_path / name)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One that every rule has looked at."""
    return trained(tmp_path_factory.mktemp("runs"))


def weights(session):
    return {name: tensor.clone() for name, tensor in session.learner.weights().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_an_error_ends_the_step_before_anything_is_updated(only, session):
    before = weights(session)
    only(lambda e: Finding("a zero", e.place(1, segment=0, turn=0, position=3)))
    with pytest.raises(LintError) as stopped:
        wb.train_step(session, 1)
    name = next(iter(stopped.value.report.errors))[1].place.trajectory
    assert all(
        word in str(stopped.value)
        for word in ("R99", "a zero", name, "token 3", "it means this", "do that")
    )
    assert session.learner.version == 0 and same(before, weights(session))


def test_a_finding_after_the_updates_ends_the_run_as_well(only, session):
    only(Finding("wrong loss"), when="update")
    with pytest.raises(LintError, match="wrong loss"):
        wb.train_step(session, 1)
    assert session.learner.version == 1


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_it_goes_on_where_it_is_told_to(only, mode):
    session = open_session(load_config("frozenlake", TINY | {"lint.mode": mode}), quiet=True)
    asked = only(Finding("x"))
    outcome = wb.train_step(session, 1)
    assert outcome.updates == 1 and session.learner.version == 1
    assert bool(asked) == (mode == "warn") and (outcome.lint is None) == (mode == "off")


def test_a_note_is_kept_and_ends_nothing(only, session):
    only(Finding("look", severity=NOTE))
    assert wb.train_step(session, 1).lint.counts()["notes"] == 1


def test_the_evidence_of_a_step_is_all_there(only, session):
    asked = only(Checked(1))
    wb.train_step(session, 1)
    [evidence] = asked
    for name in (
        "groups",
        "batch",
        "credit",
        "algorithm",
        "collect",
        "chat",
        "journal",
        "family",
        "policy_version",
    ):
        assert evidence.has(name), name
    assert evidence.step == 1 and evidence.samples == session.config.lint.samples
    sampled = sum(t.num_sampled for t in evidence.trajectories)
    assert (
        sum(len(x.completion.token_ids) for x in evidence.journal)
        == sampled
        == int(evidence.batch.eligible_T.sum())
    )


@pytest.mark.full
def test_linting_changes_nothing_of_what_is_trained(run, tmp_path):
    linted = run
    plain = trained(tmp_path, "plain", **{"lint.mode": "off"})
    for step in linted.steps():
        assert wb.groups_equal(linted.groups(step), plain.groups(step))
        assert linted.metrics_line(step) == plain.metrics_line(step)
    assert plain.lint(1) is None and linted.lint(1).ok


@pytest.mark.full
def test_the_summary_is_sealed_with_the_step(only, tmp_path):
    only(Finding("look", severity=NOTE), NotChecked("more"))
    run = trained(tmp_path)
    report = run.lint(2)
    assert report["R99"].notes[0].what == "look" and report["R99"].missing == ("more",)
    assert lint_words(run) == "lint: 2 steps clean; notes: R99 in 2; partly checked: R99 [more]"
    path = run.path / "steps/step-00000002/lint.json"
    path.write_text(path.read_text().replace("look", "lock"))
    with pytest.raises(StoreError, match="damaged"):
        open_run(run.path).lint(2)


@pytest.mark.full
def test_two_equal_runs_have_equal_summaries(run, tmp_path):
    assert trained(tmp_path, "again").digest() == run.digest()


def test_what_the_lint_stopped_can_be_looked_at_and_gone_on_with(only, tmp_path):
    only(Finding("x"))
    with pytest.raises(LintError):
        trained(tmp_path)
    folder = tmp_path / "run/steps/step-00000001"
    assert {path.name for path in folder.iterdir()} == {"trajectories.parquet", "lint.json"}
    found = wb.lint(tmp_path / "run")
    assert found.named == ("R99",) and "the lint ended step 1" in found.text
    assert cli.main(["lint", str(tmp_path / "run"), "--step", "1"]) == 1
    assert "errors in 1 of 1 step" in lint_words(open_run(tmp_path / "run"))
    del RULES["R99"]
    assert wb.resume_here(tmp_path / "run").steps() == [1, 2]


def test_a_run_is_looked_at_step_by_step(only, run):
    asked = only(lambda e: Finding("x", e.place(2, position=1)), needs=("updates",))
    found = wb.lint(run.path)
    assert [evidence.step for evidence in asked] == [1, 2] and found.report.counts()["errors"] == 2
    assert not found.ok and "▶" in found.view().text
    assert len(wb.lint(run, step=2).report.errors) == 1
    with pytest.raises(LintError, match="step 1"):
        wb.assert_clean(run)


@pytest.mark.full
def test_start_rules_are_asked_once_in_a_run(only, tmp_path):
    asked = only(Checked(1), when="start")
    trained(tmp_path, **{"lint.start": True})
    assert [evidence.step for evidence in asked] == [1] and asked[0].probe is not None


@pytest.mark.full
def test_what_was_said_at_the_start_is_still_said_of_the_run(only, tmp_path, capsys):
    """Under "warn" training goes on: the log names the step, and a lint of the run repeats what only training asked."""
    only(Finding("the wrong way"), when="start")
    settings = TINY | {"lint.start": True, "lint.mode": "warn"}
    words = [
        word for name, value in settings.items() for word in ("--set", f"{name}={value}".lower())
    ]
    assert cli.main(["train", "frozenlake", "--out", str(tmp_path / "run"), *words]) == 0
    said = "".join(capsys.readouterr())
    assert (
        f"step 1: the lint found errors by R99; `workbench lint {tmp_path / 'run'} --step 1`"
        in said
    )
    for step in (None, 1):
        assert wb.lint(tmp_path / "run", step=step).named == ("R99",)
    assert wb.lint(tmp_path / "run", step=2).ok


def test_groups_a_batch_and_a_session_are_looked_at(only, session):
    asked = only(Checked(1))
    groups = wb.rollout(session, 1, group_size=2)
    for what in (groups, groups[0], groups[0][0], session):
        assert wb.lint(what, session=session).ok
    assert asked[0].batch is not None and asked[-1].journal
    assert wb.lint(wb.lint(groups, session=session).trajectories[0]).ok
    with pytest.raises(DataError, match="groups, a Batch, a run"):
        wb.lint(3)


def test_the_terminal_says_so_and_exits_1(only, run, tmp_path, capsys):
    only(Finding("one thing"))
    assert cli.main(["lint", str(run.path)]) == 1
    assert "one thing" in capsys.readouterr().out
    assert cli.main(["lint", str(run.path), "--step", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["errors"] == 1
    page = tmp_path / "lint.html"
    assert (
        cli.main(["lint", str(run.path), "--html", str(page)]) == 1
        and "one thing" in page.read_text()
    )
    only(Checked(1))
    assert cli.main(["lint", str(run.path)]) == 0
    assert cli.main(["lint", str(tmp_path / "nothing")]) == 2
    assert cli.main(["lint", "frozenlake", "--step", "1"]) == 2
    capsys.readouterr()


def test_settings_are_checked():
    for settings in ({"lint.mode": "sometimes"}, {"lint.samples": 0}, {"lint.sample": 3}):
        with pytest.raises(ConfigError, match="lint"):
            load_config("frozenlake", settings)


def test_planted_bugs_are_named():
    with pytest.raises(ConfigError, match="credit-on-the-last-turn"), wb.planted("nothing"):
        pass
    assert "SkyRL#1492" in wb.show_planted().text


def test_what_was_not_checked_stands_wherever_a_run_is_summed_up(only, tmp_path, capsys):
    """At the end of the command, in the picture of the run and under the live view of one that has ended, with why."""
    lacking = NotChecked("a smaller policy", "the learner's gradient")
    only(Checked(1, "the objective"), lacking)
    words = [w for name, value in TINY.items() for w in ("--set", f"{name}={value}".lower())]
    path = tmp_path / "run"
    assert cli.main(["train", "frozenlake", "--out", str(path), *words]) == 0
    gap = "partly checked: R99 [the learner's gradient (missing: a smaller policy)]"
    assert f"lint: 2 steps clean; {gap}" in capsys.readouterr().out
    assert gap in wb.show(path).text and gap in wb.attach(path).status.view().text
    assert wb.lint(path).report["R99"].status == "partly checked"
    assert cli.main(["lint", str(path)]) == 0  # no error: exit 1 is for these
    # Negative control: what was checked in whole is not listed.
    only(Checked(1, "the objective"))
    whole = trained(tmp_path, "whole")
    assert lint_words(whole) == "lint: 2 steps clean"
    assert wb.lint(whole).report["R99"].status == "passed"


def test_what_a_stand_in_cannot_say_of_a_large_policy_is_named_in_the_summary(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("workbench.linting.probe.MAX_PARAMETERS", 1000)
    settings = {"lint.start": True, "train.steps": 1, "algorithm.reference.kl_coef": 0.05}
    asked = trained(tmp_path, "asked", **settings)
    assert not {answer.rule for answer in asked.lint(1) if answer.missing} & {"R12", "R13", "R19"}
    # Where the policy itself cannot be asked, either.
    monkeypatch.setattr("workbench.linting.probe.OWN_TOKENS", 0)
    monkeypatch.setattr("workbench.linting.probe.OWN_GRADIENT", "none")
    run = trained(tmp_path, **settings)
    gaps = {answer.rule: answer for answer in run.lint(1) if answer.missing}
    for rule, part in (
        ("R12", "tokens compared with the model's own distribution"),
        ("R19", "the gradient through this policy's own weights"),
    ):
        assert gaps[rule].status == "partly checked"
        assert f"{part} (missing: a policy that is small enough" in gaps[rule].gaps
        assert f"{rule} [{part}" in lint_words(run) and "of at most 1,000" in lint_words(run)
    assert "R13" not in gaps and run.lint(1)["R13"].status == "passed"


def test_what_training_checked_with_the_journal_is_not_missed_in_the_run(run):
    """The journal is not kept, and the stored answer had it; evaluations have none, and say so."""
    report = wb.lint(run).report
    assert "what is trained is what was drawn" in report.text
    for rule in ("R1", "R3", "R22", "R37", "R38"):
        assert all(words.endswith(", in evaluations") for words in report[rule].missing), rule
        assert wb.lint(run, step=1).report[rule].status == "passed", rule


def test_what_training_found_with_the_journal_is_still_said_of_the_run(only, tmp_path):
    """Under "warn": a finding that needs the journal is made again by nobody, and not lost."""

    def answer(evidence):
        if evidence.journal is None:
            return NotChecked("the journal", "prompts")
        return Finding("another prompt was sent", evidence.place(0))

    only(Checked(1), answer)
    run = trained(tmp_path, **{"lint.mode": "warn"})
    report = wb.lint(run).report
    assert len(report.errors) == 2 and not report["R99"].missing


@pytest.mark.full
def test_the_curves_say_what_the_lint_said(only, tmp_path):
    only(Finding("look", severity=NOTE))
    assert lint_words(trained(tmp_path)) == "lint: 2 steps clean; notes: R99 in 2"
    only(Finding("x"))
    bad = trained(tmp_path, "bad", **{"lint.mode": "warn"})
    assert lint_words(bad).startswith(
        "lint: errors in 2 of 2 steps; errors: R99 in 2 (workbench lint "
    )
    assert lint_words(trained(tmp_path, "off", **{"lint.mode": "off"})) == ""
