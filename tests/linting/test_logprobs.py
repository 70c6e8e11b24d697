"""R12, R17, R23: each way in which a stored logprob is not what it is taken for is found at its token; clean ones pass."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.counts import reduced
from workbench.basics.findings import NOTE
from workbench.engines.gap import Gap
from workbench.engines.recorder import Journal
from workbench.learn.batch import Batch
from workbench.linting import Evidence
from workbench.linting.evidence import Update
from workbench.linting.logprobs import RULES
from workbench.linting.rule import check
from workbench.linting.table import RULES as ALL
from workbench.training.config import load_config
from workbench.training.session import open_session, rollout
from workbench.values import Sampling, Segment

BY_ID = {rule.id: rule for rule in RULES}


def evidence_of(**settings) -> Evidence:
    """A small step before its first update, with everything that training hands over; and its update."""
    session = open_session(
        load_config("frozenlake", {"train.tasks_per_step": 2, "train.group_size": 4} | settings),
        quiet=True,
    )
    journal = Journal(session.engine)
    groups = rollout(session, 2, group_size=4, step=1, engine=journal)
    batch = session.learner.facts(Batch.from_groups(groups))
    batch = replace(batch, old_logp_T=session.learner.logprobs(batch, batch.eligible_T))
    credit = session.config.algorithm.credit(batch)
    version = session.learner.version
    reports = session.learner.update(batch, credit, step=1)
    return Evidence(
        tuple(map(tuple, groups)),
        batch=batch,
        collect=session.config.collect,
        journal=journal.exchanges,
        policy_version=version,
        precision=session.config.learner.precision,
        updates=tuple(Update(r.table, r.metrics, r.skipped) for r in reports),
    )


SETTINGS = [
    {},
    {"collect.temperature": 0.7},
    {"collect.top_p": 0.8},
    {"collect.temperature": 1.3, "collect.top_p": 0.9},
    {"engine.dtype": "bfloat16"},
    {"learner.precision": "bf16"},
    {"collect.history": "window"},
]
_made: dict[str, Evidence] = {}


def made(settings=None) -> Evidence:
    if settings is None:
        settings = {}
    return _made.setdefault(str(settings), evidence_of(**settings))


def ask(evidence: Evidence, rule: str):
    return check(evidence, [BY_ID[rule]])[rule]


def changed(evidence: Evidence, change, which=lambda n, s: n == 1) -> Evidence:
    """The sampled spans that `which(trajectory, span)` names, replaced by `change(span)`; the batch is of the new ones."""
    groups, number = [], 0
    for group in evidence.groups:
        row = []
        for trajectory in group:
            segments = tuple(
                Segment(
                    tuple(
                        change(span) if span.logprobs is not None and which(number, place) else span
                        for place, span in enumerate(segment.spans)
                    )
                )
                for segment in trajectory.segments
            )
            row.append(replace(trajectory, segments=segments))
            number += 1
        groups.append(tuple(row))
    from workbench.values import Group

    batch = Batch.from_groups([Group(group) for group in groups])
    batch = replace(batch, old_logp_T=evidence.batch.old_logp_T)
    return replace(evidence, groups=tuple(groups), batch=batch)


@pytest.mark.parametrize("settings", reduced(SETTINGS, SETTINGS[::3]), ids=str)
def test_clean_steps_pass(settings):
    evidence = made(settings)
    for rule in BY_ID:
        answer = ask(evidence, rule)
        assert answer.status == "passed" and not answer.missing, answer


def test_without_evidence_nothing_is_passed():
    bare = Evidence(made().groups)
    assert ask(bare, "R12").missing and ask(bare, "R23").status == "not checked"
    assert ask(Evidence(), "R17").status == "not checked"


def test_settings_other_than_asked_for():
    evidence = changed(
        made(), lambda span: replace(span, sampling=replace(span.sampling, temperature=0.9))
    )
    said = ask(evidence, "R12").errors
    assert any("0.9" in f.what and "settings say 1" in f.what and f.place.index == 1 for f in said)


@pytest.mark.parametrize(
    "settings", [{"collect.temperature": 0.7}, {"collect.top_p": 0.8}], ids=str
)
def test_bent_without_the_plain_ones(settings):
    evidence = replace(
        changed(made(settings), lambda span: replace(span, plain_logprobs=None)), journal=None
    )
    assert "without the plain logprobs" in ask(evidence, "R12").errors[0].what


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"collect.temperature": 0.7}, "copy of the other"),
        ({"collect.temperature": 1.3, "collect.top_p": 0.9}, "copy of the other"),
        ({"collect.top_p": 0.8}, "left every one"),
    ],
    ids=str,
)
def test_one_logprob_passed_off_as_the_other(settings, words):
    def everywhere(n, s):
        return True

    as_plain = replace(
        changed(
            made(settings), lambda span: replace(span, plain_logprobs=span.logprobs), everywhere
        ),
        journal=None,
    )
    as_bent = replace(
        changed(
            made(settings), lambda span: replace(span, logprobs=span.plain_logprobs), everywhere
        ),
        journal=None,
    )
    assert [words in f.what for e in (as_plain, as_bent) for f in ask(e, "R12").errors].count(
        True
    ) == 2


def test_a_policy_torn_between_two_tokens_is_never_cut():
    """Half and half under top-p 0.8: nothing was left out, so both logprobs are the same and right."""

    def torn(span):
        half = np.full(len(span), np.log(0.5), np.float32)
        return replace(span, logprobs=half, plain_logprobs=half)

    evidence = changed(made({"collect.top_p": 0.8}), torn, lambda n, s: True)
    evidence = replace(evidence, journal=None)
    answer = ask(evidence, "R12")
    assert not answer.errors and any("nothing to cut" in f.what for f in answer.notes)
    rare = changed(
        evidence,
        lambda span: replace(
            span,
            logprobs=np.full(len(span), -6.0, np.float32),
            plain_logprobs=np.full(len(span), -6.0, np.float32),
        ),
    )
    assert any("must have been cut" in f.what for f in ask(rare, "R12").errors)


def test_top_p_gains_no_more_than_was_cut():
    settings = {"collect.top_p": 0.8}
    wrong = changed(
        made(settings),
        lambda span: replace(span, logprobs=np.minimum(span.plain_logprobs + 0.5, 0)),
    )
    assert "can raise a logprob" in ask(replace(wrong, journal=None), "R12").errors[0].what


def test_bent_numbers_under_settings_that_bend_nothing():
    lying = {"collect.temperature": 0.7}
    evidence = changed(
        made(lying),
        lambda span: replace(span, sampling=Sampling(1.0, 1.0, "transformers", "float32")),
    )
    evidence = replace(evidence, journal=None, collect=replace(evidence.collect, temperature=1.0))
    assert any("leave the distribution as it is" in f.what for f in ask(evidence, "R12").errors)


def test_logprobs_that_are_none():
    evidence = changed(made(), lambda span: replace(span, logprobs=span.logprobs + 9))
    assert any("which is no log probability" in f.what for f in ask(evidence, "R12").errors)


def test_logprobs_other_than_the_engine_answered():
    evidence = changed(made(), lambda span: replace(span, logprobs=np.roll(span.logprobs, 1)))
    said = check(evidence, [ALL["R3"]])["R3"].errors
    assert any("the engine answered" in f.what and f.place.position is not None for f in said)


@pytest.mark.parametrize("name", ["rollout_logp_T", "plain_logp_T"])
def test_batch_columns_shifted_by_one(name):
    evidence = made()
    shifted = replace(evidence.batch, **{name: getattr(evidence.batch, name).roll(1)})
    assert any(name[:-2] in f.what for f in ask(replace(evidence, batch=shifted), "R12").errors)


@pytest.mark.parametrize("settings", [{}, {"collect.temperature": 0.7}], ids=str)
def test_old_logp_of_the_sampler(settings):
    evidence = made(settings)
    for name in ("rollout_logp_T", "plain_logp_T"):
        wrong = replace(evidence.batch, old_logp_T=getattr(evidence.batch, name))
        assert any(
            "sampler's number" in f.what for f in ask(replace(evidence, batch=wrong), "R12").errors
        )
    table = evidence.updates[0].table
    columns = dict(table.columns) | {"old_logp": table["rollout_logp"]}
    wrong = Update(replace(table, columns=columns), {}, None)
    assert any(
        "sampler's number" in f.what for f in ask(replace(evidence, updates=(wrong,)), "R23").errors
    )


@pytest.mark.full
def test_stale_spans():
    evidence = changed(made(), lambda span: replace(span, policy_version=span.policy_version - 1))
    (found,) = ask(evidence, "R17").errors
    assert "version -1" in found.what and "version 0" in found.what and found.place.index == 1
    unknown = changed(made(), lambda span: replace(span, policy_version=None))
    assert ask(unknown, "R17").missing and not ask(unknown, "R17").errors
    mixed = replace(evidence, policy_version=None)
    assert [f.severity for f in ask(mixed, "R17").findings] == [NOTE]


def test_engine_gap_beyond_its_alarm():
    evidence = changed(
        made(), lambda span: replace(span, logprobs=span.logprobs - 0.05), lambda n, s: True
    )
    assert "rounding explains" in ask(evidence, "R23").errors[0].what
    half = replace(evidence, precision="bf16")
    assert ask(half, "R23").errors, "a mean of 0.05 is beyond what half precision explains, too"
    small = changed(
        made(), lambda span: replace(span, logprobs=span.logprobs - 0.002), lambda n, s: True
    )
    assert ask(small, "R23").errors and not ask(replace(small, precision="bf16"), "R23").errors
    assert not ask(replace(small, precision=None), "R23").errors, "not known: no error"


def test_what_was_handed_over_otherwise_than_it_learns_is_left_to_another_rule():
    """R35 says what is wrong then; R23 would call it by its own name."""
    off = changed(
        made(), lambda span: replace(span, logprobs=span.logprobs - 0.05), lambda n, s: True
    )
    evidence = replace(off, handed=SimpleNamespace(gap=Gap(0.3, 0.9, 60), allowed=(1e-3, 1e-2)))
    answer = ask(evidence, "R23")
    assert answer.status == "not checked" and "R35" in answer.missing[0]
    sound = replace(evidence, handed=SimpleNamespace(gap=Gap(1e-6, 1e-5, 60), allowed=(1e-3, 1e-2)))
    assert ask(sound, "R23").errors


def test_one_token_far_off():
    evidence = made()
    table = evidence.updates[0].table
    at = int(np.flatnonzero(table["used"] & table["eligible"])[5])
    new = table["new_logp"].copy()
    new[at] -= 0.3
    wrong = Update(replace(table, columns=dict(table.columns) | {"new_logp": new}), {}, None)
    answer = ask(replace(evidence, updates=(wrong,)), "R23")
    (found,) = answer.notes
    assert not answer.errors, "one by itself"
    assert found.place.position == int(table["position"][at]) and found.place.turn == int(
        table["turn"][at]
    )


@pytest.mark.full
def test_a_scripted_engine_has_no_distribution():
    def scripted(span):
        return replace(
            span, sampling=Sampling(0.7, 1.0, "scripted", "float32"), plain_logprobs=span.logprobs
        )

    evidence = replace(
        changed(made(), scripted, lambda n, s: True),
        journal=None,
        collect=replace(made().collect, temperature=0.7),
    )
    assert not ask(evidence, "R12").errors and ask(evidence, "R23").status == "not checked"
    assert torch.is_tensor(evidence.batch.rollout_logp_T)
