"""The lint live in TRL: silent bugs are named by row and token, legitimate settings are clean, training stays as it was.

`make test-trl` runs all of it; `make test` one bug and one twin.
"""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("WORKBENCH_TRL"):
    import trl  # noqa: F401
else:
    pytest.importorskip("trl", reason="needs the package trl (make test-trl)")

from tests.counts import reduced
from tests.extensions.trl_live.trl_bugs import BUGS, GAME, TWINS, AllTokensTrained, OthersRewards
from tests.extensions.trl_live.trl_trainers import trainer_of
from workbench.extensions.trl_live import attach_trl
from workbench.values.errors import ConfigError, DataError, LintError

BY_NAME = {planted.name: planted for planted in (*BUGS, *TWINS)}


def trained(folder, name, **given):
    """(the lint, what it said) of a run with this bug, or this twin."""
    planted = BY_NAME[name]
    trainer = trainer_of(folder, **({"max_steps": 1} | dict(planted.options)))
    if planted.after is not None:
        planted.after(trainer)
    said = []
    lint = attach_trl(trainer, say=said.append, **given)
    trainer.train()
    assert not lint.failures
    return lint, "\n".join(said)


@pytest.mark.parametrize("name", reduced([bug.name for bug in BUGS], ["tool-tokens-trained"]))
def test_a_silent_bug_is_named(name, tmp_path):
    bug = BY_NAME[name]
    lint, said = trained(tmp_path, name)
    found = [
        (rule, finding)
        for rule, finding in lint.report.errors
        if rule in bug.rules and bug.says in finding.what
    ]
    assert found, f"{name}: expected {bug.rules}, with {bug.says!r}; named {lint.named}\n{said}"
    rule, finding = found[0]
    assert finding.place.step == 1 and f"workbench lint: {rule} error" in said


@pytest.mark.parametrize("name", reduced([twin.name for twin in TWINS], ["tools"]))
def test_what_is_legitimate_has_no_error(name, tmp_path):
    lint, said = trained(tmp_path, name)
    assert lint.ok, said
    assert lint.report["R4"].status == "passed" and lint.report["R1"].looked


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("optimizer-of-a-copy", "R17"),
        ("updates-undone", "R17"),
        ("sampler-keeps-first-weights", "R17"),
        ("reference-is-the-policy", "R13"),
        ("evaluated-on-training-rows", "R24"),
        ("prompt-cut-in-training", "R1"),
    ],
)
def test_a_bug_of_the_league_is_named(name, rule):
    from experiments.league.corpus import BUGS
    from experiments.league.work import Job, done

    bug = next(bug for bug in BUGS if bug.name == name)
    ours = ("workbench",)
    run, twin = (done(Job(which, 0, 5, ours)) for which in (name, bug.twin))
    assert [alarm["kind"] for alarm in run["alarms"]["workbench"]] == [rule]
    assert not twin["alarms"]["workbench"] and not run["failed"] and not run["error"]


@pytest.mark.full
def test_a_place_is_a_row_and_a_token_of_their_arrays(tmp_path):
    lint, said = trained(tmp_path, "tool-tokens-trained")
    finding = dict(lint.report.errors)["R3"]
    row = int(finding.place.trajectory.split("(row ")[1].rstrip(")"))
    generated = lint.look.generated
    token = finding.place.position
    assert not lint.look.authors[row].sampled[token] and generated.trained(row)[token]
    assert f"prompt {row // 4}, generation {row % 4} (row {row}), token {token}" in said


@pytest.mark.full
def test_an_error_stops_the_run_before_the_update_where_asked(tmp_path):
    trainer = trainer_of(tmp_path, policy=GAME, kind=OthersRewards, max_steps=3)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    attach_trl(trainer, "stop", say=lambda text: None)
    with pytest.raises(LintError, match="R16") as raised:
        trainer.train()
    assert trainer.state.global_step == 0 and "R16" in raised.value.report.named
    assert all(map(torch.equal, before, trainer.model.parameters()))


@pytest.mark.full
@pytest.mark.parametrize("tools", [False, True])
def test_training_is_the_same_to_the_bit(tools, tmp_path):
    """With the lint and without; and taken away again, nothing of it is left."""

    def weights(watched):
        options = {"tools": True, "max_completion_length": 120} if tools else {"policy": GAME}
        trainer = trainer_of(tmp_path, max_steps=2, **options)
        lint = attach_trl(trainer, say=lambda text: None) if watched else None
        trainer.train()
        if watched:
            assert lint.report.answers and not lint.failures
            lint.detach()
            assert not [
                n for n in ("_generate", "compute_loss", "workbench_lint") if n in vars(trainer)
            ]
            assert "generate" not in vars(trainer.model)
        return [weight.detach().clone() for weight in trainer.model.parameters()]

    assert all(map(torch.equal, weights(True), weights(False)))


@pytest.mark.full
def test_a_failure_of_the_lint_itself_ends_no_run(tmp_path, monkeypatch):
    from workbench.extensions.trl_live import attach

    def broken(*args):
        raise RuntimeError("broken")

    monkeypatch.setattr(attach, "authorship", broken)
    trainer = trainer_of(tmp_path, policy=GAME, max_steps=1)
    said = []
    lint = attach_trl(trainer, say=said.append)
    trainer.train()
    assert trainer.state.global_step == 1 and lint.failures
    assert "it failed itself" in said[0]


@pytest.mark.full
def test_what_is_no_trainer_is_refused_and_a_second_time_is_the_first(tmp_path):
    with pytest.raises(DataError, match=r"GRPOTrainer that is made already, got str"):
        attach_trl("a path")
    trainer = trainer_of(tmp_path, policy=GAME, kind=AllTokensTrained)
    with pytest.raises(ConfigError, match="on_error is one of say, stop; got 'ignore'"):
        attach_trl(trainer, "ignore")
    with pytest.raises(ConfigError, match="every is a whole number"):
        attach_trl(trainer, every=0)
    lint = attach_trl(trainer)
    assert attach_trl(trainer, "stop") is lint and lint.options.stops
