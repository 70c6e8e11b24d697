"""R1 R3 R4 R5 R9 R22 on clean rollouts with one thing changed: each names it, and where it is."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.composed import of_class
from tests.linting.clean_rollouts import Recipe, collected
from tests.linting.damaged import (
    at,
    changed_id,
    clean,
    exchange_of,
    found,
    other_id,
    rolled,
    sampled,
    says,
    start_of,
    with_batch,
    with_exchange,
    with_spans,
    with_trajectory,
)
from workbench.learn.algorithms import GRPO, Algorithm
from workbench.learn.algorithms.parts import Masks
from workbench.linting import Evidence, check
from workbench.linting.table import RULES
from workbench.values import Segment, Source, Span

LAKE = dict(preset="sokoban-6x6", tasks=2, group_size=4, seed=3)
IDS = ("R1", "R3", "R4", "R5", "R9", "R22")


def appended() -> Evidence:
    return clean(template="qwen3", **LAKE)


def windowed() -> Evidence:
    return clean(template="llama3.1", history="window", window=1, **LAKE)


def long_turn(evidence: Evidence, least: int = 3) -> tuple[int, int, int, Span]:
    """A sampled span of a later turn, of some tokens."""
    return next(each for each in sampled(evidence) if each[3].turn >= 1 and len(each[3]) >= least)


def test_clean_evidence_passes_every_rule():
    """Negative control of this file: whatever is found below comes from what was changed."""
    for evidence in (appended(), windowed()):
        report = check(evidence, [RULES[name] for name in IDS])
        assert [answer.status for answer in report] == ["passed"] * len(IDS), report.text


# ------------------------------------------------------------------------------------------------ R1


@settings(max_examples=25)
@given(data=st.data())
def test_r1_any_token_of_a_prompt_that_the_engine_did_not_see(data):
    evidence = data.draw(st.sampled_from([appended(), windowed()]))
    index = data.draw(st.sampled_from(range(len(evidence.journal))))
    prompt = evidence.journal[index].request.prompt_ids
    place = data.draw(st.integers(0, len(prompt) - 1))
    new = other_id(evidence, int(prompt[place]))
    broken = with_exchange(evidence, index, request={"prompt_ids": changed_id(prompt, place, new)})
    key, _, number = evidence.journal[index].request.session.rpartition("/")
    finding = says("R1", broken, f"as token {place} of", segment=int(number), position=place)
    assert f"(id {new})" in finding.what and f"(id {int(prompt[place])})" in finding.what
    assert finding.place.trajectory == key.replace("#", "/")


@pytest.mark.parametrize("change", ["longer", "shorter", "dropped", "twice"])
def test_r1_a_prompt_of_other_length(change):
    evidence = appended()
    n, segment, _, span = long_turn(evidence)
    index = exchange_of(evidence, n, span.turn)
    ids = evidence.journal[index].request.prompt_ids
    middle = len(ids) // 2
    made = {
        "longer": [*ids, 5],
        "shorter": ids[:-1],
        "dropped": np.delete(ids, middle),
        "twice": np.insert(ids, middle, ids[middle] + 1),
    }[change]
    broken = with_exchange(evidence, index, request={"prompt_ids": np.array(made, np.int32)})
    assert any(error.place.index == n for rule in ("R1", "R3") for error in found(rule, broken))


def test_r1_a_prompt_that_ends_too_early():
    """Everything that the engine saw is there, and something more that it did not see."""
    evidence = appended()
    n, segment, k, span = long_turn(evidence)
    index = exchange_of(evidence, n, span.turn)
    ids = evidence.journal[index].request.prompt_ids
    says(
        "R1",
        with_exchange(evidence, index, request={"prompt_ids": ids[:-3]}),
        f"sampled turn {span.turn} after a prompt of {len(ids) - 3} tokens",
        index=n,
        segment=segment,
        position=start_of(evidence, n, segment, k),
    )


def test_r1_a_session_that_the_trajectory_does_not_have():
    evidence = appended()
    index = exchange_of(evidence, 1, 0)
    request = evidence.journal[index].request
    says(
        "R1",
        with_exchange(evidence, index, request={"session": request.session[:-1] + "7"}),
        "in segment 7",
        index=1,
    )


def test_r1_a_trajectory_that_is_lost():
    evidence = appended()
    groups = ((*evidence.groups[0][:-1],), *evidence.groups[1:])
    lost = evidence.groups[0][-1]
    says(
        "R1",
        replace(evidence, groups=groups, batch=None, credit=None),
        f"{lost.task.id}#{lost.attempt}",
    )


def test_r1_a_whole_task_that_was_not_handed_in_is_a_note():
    evidence = appended()
    part = replace(evidence, groups=evidence.groups[:1], batch=None, credit=None)
    assert check(part, [RULES["R1"]])["R1"].notes and not found("R1", part)


@pytest.mark.parametrize(
    "declared, window", [("append", 1), ("fresh", 1), ("window", 2), ("window", 3)]
)
def test_r1_segments_of_another_history_than_declared(declared, window):
    evidence = windowed()
    wrong = replace(evidence, collect=replace(evidence.collect, history=declared, window=window))
    says("R1", wrong, f"history={declared!r}")


def test_r1_a_template_that_needed_no_new_segment():
    """slime#2288: every turn a sequence of its own, though nothing was edited."""
    evidence = appended()
    n, _, k, _ = long_turn(evidence)

    def forked(trajectory):
        spans = trajectory.segments[0].spans
        again = [
            replace(
                span,
                sampled=False,
                logprobs=None,
                plain_logprobs=None,
                policy_version=None,
                sampling=None,
            )
            for span in spans[:k]
        ]
        return replace(trajectory, segments=(Segment(spans[:k]), Segment((*again, *spans[k:]))))

    broken = with_trajectory(evidence, n, forked)
    says(
        "R1",
        replace(broken, journal=None, collect=replace(evidence.collect, history="template")),
        "nothing was edited",
        index=n,
        segment=1,
    )
    says("R1", replace(broken, journal=None), "belongs into segment 0", index=n, segment=1)


def test_r1_a_turn_shown_again_in_other_tokens():
    evidence = windowed()
    n, segment, k, span = next(
        (n, s, k, span)
        for n, t in enumerate(evidence.trajectories)
        for s, seg in enumerate(t.segments)
        for k, span in enumerate(seg.spans)
        if span.source is Source.POLICY and span.logprobs is None and len(span) > 2
    )
    for ids in (
        changed_id(span.token_ids, 1, other_id(evidence, int(span.token_ids[1]))),
        span.token_ids[:-1],
        np.delete(span.token_ids, 1),
    ):
        broken = with_spans(
            evidence, n, segment, at(k, lambda s, ids=ids: replace(s, token_ids=ids))
        )
        says("R1", replace(broken, journal=None), "encoded anew", index=n, segment=segment)
    says(
        "R1",
        with_spans(evidence, n, segment, at(k, lambda s: replace(s, turn=9))),
        "as sampled",
        index=n,
    )


def test_r1_the_first_observation_is_the_same_in_every_segment():
    evidence = windowed()
    n = next(n for n, t in enumerate(evidence.trajectories) if len(t.segments) > 1)
    broken = with_spans(evidence, n, 1, at(1, lambda s: replace(s, token_ids=s.token_ids[1:])))
    says("R1", replace(broken, journal=None), "first observation", index=n, segment=1)


# ------------------------------------------------------------------------------------------------ R3


def lose_logprobs(span):
    return replace(span, sampled=False, logprobs=None, plain_logprobs=None)


def supplied_stop(span):
    """SkyRL#758: the stop token that was sampled is cut off and supplied by hand."""
    return [
        replace(span, token_ids=span.token_ids[:-1], logprobs=span.logprobs[:-1]),
        Span(Source.SCAFFOLD, span.turn, span.token_ids[-1:]),
    ]


def one_more(span):
    """SkyRL#710: a token of the template behind the turn is trained with it."""
    return replace(span, token_ids=[*span.token_ids, 3], logprobs=[*span.logprobs, -0.1])


def written(span):
    return replace(span, source=Source.ENV, sampled=False, logprobs=None)


SPAN_BUGS = {
    "mask lost": (lose_logprobs, "is not trained"),
    "stop supplied": (supplied_stop, ""),
    "one more": (one_more, ""),
    "another author": (written, "ENV span"),
    "logprobs shifted": (lambda s: replace(s, logprobs=np.roll(s.logprobs, 1)), "logprob recorded"),
    "logprobs reversed": (lambda s: replace(s, logprobs=s.logprobs[::-1]), "logprob recorded"),
    "last bit": (
        lambda s: replace(s, logprobs=np.nextafter(s.logprobs, np.float32(-9))),
        "logprob recorded",
    ),
    "zeros": (lambda s: replace(s, logprobs=np.zeros(len(s))), "logprob recorded"),
    "rounded": (lambda s: replace(s, logprobs=s.logprobs.astype(np.float16)), "logprob recorded"),
    "plain from nowhere": (lambda s: replace(s, plain_logprobs=s.logprobs), "plain logprobs"),
    "stale version": (lambda s: replace(s, policy_version=s.policy_version - 1), "version"),
    "no version": (lambda s: replace(s, policy_version=None), "version"),
    "temperature": (
        lambda s: replace(s, sampling=replace(s.sampling, temperature=0.5)),
        "settings",
    ),
    "another turn": (lambda s: replace(s, turn=s.turn - 1), "turn"),
    "ids swapped": (
        lambda s: replace(s, token_ids=s.token_ids[[1, 0, *range(2, len(s))]]),
        "id recorded",
    ),
    "trained twice": (lambda s: [s, s], ""),
    "split": (
        lambda s: [
            replace(s, token_ids=s.token_ids[:1], logprobs=s.logprobs[:1]),
            replace(s, token_ids=s.token_ids[1:], logprobs=s.logprobs[1:]),
        ],
        "",
    ),
}


@pytest.mark.parametrize("bug", SPAN_BUGS)
@pytest.mark.parametrize("make", [appended, windowed])
def test_r3_a_sampled_span_that_is_not_what_the_engine_answered(bug, make):
    evidence = make()
    change, words = SPAN_BUGS[bug]
    n, segment, k, span = long_turn(evidence)
    broken = with_spans(evidence, n, segment, at(k, change))
    finding = says("R3", broken, words, index=n)
    assert finding.place.segment in (segment, None)


@pytest.mark.parametrize(
    "bug", ["mask lost", "stop supplied", "one more", "another author", "trained twice", "split"]
)
def test_r3_is_seen_without_a_journal_too(bug):
    evidence = appended()
    n, segment, k, _ = long_turn(evidence)
    broken = with_spans(evidence, n, segment, at(k, SPAN_BUGS[bug][0]))
    says("R3", replace(broken, journal=None), index=n)


def test_r3_a_reply_that_is_marked_as_sampled():
    evidence = appended()
    n, segment, k = next(
        (n, s, k)
        for n, t in enumerate(evidence.trajectories)
        for s, seg in enumerate(t.segments)
        for k, span in enumerate(seg.spans)
        if span.source is Source.ENV
    )
    trained = with_spans(
        evidence,
        n,
        segment,
        at(
            k,
            lambda s: replace(
                s, source=Source.POLICY, sampled=True, logprobs=np.full(len(s), -1.0)
            ),
        ),
        batch=False,
    )
    says(
        "R3",
        trained,
        "the engine answered nothing that stands here",
        index=n,
        segment=segment,
        position=start_of(evidence, n, segment, k),
    )


def test_r3_names_the_first_token_that_differs():
    evidence = appended()
    n, segment, k, span = long_turn(evidence)
    wrong = np.array(span.logprobs)
    wrong[2] += 0.25
    broken = with_spans(evidence, n, segment, at(k, lambda s: replace(s, logprobs=wrong)))
    finding = says(
        "R3",
        broken,
        "logprob recorded",
        index=n,
        turn=span.turn,
        segment=segment,
        position=start_of(evidence, n, segment, k) + 2,
    )
    assert (
        str(wrong[2]) in finding.what
        and str(span.logprobs[2]) in finding.what
        and finding.count == 1
    )


def test_r3_what_the_environment_was_given_is_what_was_sampled():
    evidence = appended()
    n, _, _, span = long_turn(evidence)

    def said(trajectory):
        turns = list(trajectory.turns)
        turns[span.turn] = replace(turns[span.turn], text=turns[span.turn].text + " ")
        return replace(trajectory, turns=tuple(turns))

    says(
        "R3",
        with_trajectory(evidence, n, said),
        "the environment was given",
        index=n,
        turn=span.turn,
    )


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_r3_how_a_turn_ended(finish):
    evidence = clean(template="qwen3", max_turn_tokens=24, **LAKE)
    n, turn = next(
        (n, turn)
        for n, t in enumerate(evidence.trajectories)
        for turn in t.turns
        if turn.finish == finish
    )
    other = {"stop": "length", "length": "stop"}[finish]

    def ended(trajectory):
        turns = [
            replace(each, finish=other) if each.index == turn.index else each
            for each in trajectory.turns
        ]
        return replace(trajectory, turns=tuple(turns))

    broken = with_trajectory(evidence, n, ended)
    says("R3", broken, "way the turn ended", index=n, turn=turn.index)
    says("R3", replace(broken, journal=None), "the turn ended by", index=n, turn=turn.index)


def test_r3_an_engine_that_was_told_other_stop_tokens():
    evidence = appended()
    index = exchange_of(evidence, 0, 0)
    says(
        "R3",
        with_exchange(evidence, index, request={"stop_ids": frozenset({1})}),
        "end a turn",
        index=0,
    )


def test_r3_sampling_that_goes_on_after_the_end_of_the_turn():
    evidence = appended()
    n, _, _, span = long_turn(evidence)
    index = exchange_of(evidence, n, span.turn)
    stop = min(evidence.chat.stop_ids)
    ids = changed_id(span.token_ids, 1, stop)
    says(
        "R3",
        with_exchange(evidence, index, completion={"token_ids": ids}),
        "the turn goes on after",
        index=n,
    )


def test_r3_limits_that_were_not_kept():
    evidence = appended()
    n, _, _, span = long_turn(evidence)
    index = exchange_of(evidence, n, span.turn)
    says(
        "R3",
        with_exchange(evidence, index, request={"max_new_tokens": len(span) - 1}),
        "at most",
        index=n,
    )
    says(
        "R3",
        with_exchange(evidence, index, request={"max_new_tokens": 1000}),
        "up to 1000 tokens",
        index=n,
    )
    full = replace(evidence, collect=replace(evidence.collect, max_context=200))
    says("R3", full, "200 in a sequence")


@pytest.mark.parametrize(
    "request_, words",
    [
        ({"max_new_tokens": 24}, "up to 24 tokens"),
        ({"temperature": 0.5}, "temperature 0.5"),
        ({"top_p": 0.9}, "top_p 0.9"),
    ],
    ids=str,
)
def test_r3_an_engine_that_is_asked_for_something_else_than_was_declared(request_, words):
    evidence = replace(appended(), context_length=4096)
    assert not found("R3", evidence)
    says("R3", with_exchange(evidence, 0, request=request_), words, index=0)


@pytest.mark.parametrize(
    "where, old, new",
    [
        (
            "ask",
            "room = self.context - len(prompt_ids)",
            "room = self.context - 2 * len(prompt_ids)",
        ),
        (
            "on_step",
            "if following.length >= self.context:",
            "if following.length >= self.context - 150:",
        ),
    ],
)
def test_r3_context_full_with_room_left(monkeypatch, where, old, new):
    """Negative control: the two lines of collecting that say when the room is used up, changed."""
    import inspect
    import textwrap

    from workbench.rollouts import collect as module

    recipe = Recipe(room=260, **LAKE | {"group_size": 6})
    assert not found("R3", collected(recipe))
    source = textwrap.dedent(inspect.getsource(getattr(module.Collector, where)))
    assert old in source
    space: dict = {}
    exec(compile(source.replace(old, new), "changed", "exec"), vars(module), space)
    monkeypatch.setattr(module.Collector, where, space[where])
    says("R3", collected(recipe), "ended by context_full")


def test_r3_a_stop_token_that_nobody_knows_of():
    evidence = clean(template="llama3.1", **LAKE)
    chat = copy(evidence.chat)
    chat.stop_ids = frozenset({5})
    says("R3", replace(evidence, chat=chat), "ends no turn")


@settings(max_examples=30)
@given(data=st.data())
def test_r3_any_token_that_the_batch_marks_otherwise(data):
    evidence = data.draw(st.sampled_from([appended(), windowed()]))
    t = data.draw(st.integers(0, evidence.batch.num_tokens - 1))
    eligible_T = evidence.batch.eligible_T.clone()
    eligible_T[t] = ~eligible_T[t]
    finding = says("R3", with_batch(evidence, eligible_T=eligible_T))
    assert finding.place.position == int(evidence.batch.position_T[t])
    assert finding.place.index == int(evidence.batch.trajectory_of_token_T[t])


def test_weight_beside_the_mask_unless_it_was_declared():
    evidence = appended()
    t = int((~evidence.batch.eligible_T & evidence.batch.response_T).nonzero()[0])
    weight_T = evidence.credit.weight_T.clone()
    weight_T[t] = 1.0
    wide = replace(evidence, credit=replace(evidence.credit, weight_T=weight_T))
    says("R10", wide, "counts in the policy term")
    declared = replace(wide, algorithm=GRPO(masks=Masks(loss_mask=False)))
    assert not found("R10", declared)


# ------------------------------------------------------------------------------------------------ R4


TENSORS = (
    "token_ids_T",
    "source_T",
    "turn_T",
    "eligible_T",
    "response_T",
    "rollout_logp_T",
    "plain_logp_T",
    "trajectory_of_segment_S",
    "group_of_trajectory_N",
    "reward_N",
    "terminated_N",
    "truncated_N",
    "turn_reward_K",
    "state_of_turn_K",
)


def mixed() -> Evidence:
    """Evidence in which no tensor is constant."""
    return clean(
        template="tiny", preset="frozenlake-4x4", history="window", tasks=3, seed=1, faults=True
    )


@pytest.mark.parametrize("name", TENSORS)
def test_r4_any_tensor_that_is_shifted_by_one(name):
    evidence = mixed()
    shifted = rolled(getattr(evidence.batch, name))
    says("R4", with_batch(evidence, **{name: shifted}), f"{name}[")


@settings(max_examples=40)
@given(data=st.data())
def test_r4_any_single_value_that_is_changed(data):
    evidence = mixed()
    name = data.draw(st.sampled_from(TENSORS))
    values = getattr(evidence.batch, name).clone()
    index = data.draw(st.integers(0, len(values) - 1))
    if values.dtype == torch.bool:
        values[index] = ~values[index]
    elif values.dtype.is_floating_point:
        values[index] = torch.nan if torch.isfinite(values[index]) else 0.5
    else:
        values[index] += 1 if name != "trajectory_of_segment_S" or index == 0 else -1
    if name == "trajectory_of_segment_S" and torch.equal(values, getattr(evidence.batch, name)):
        return
    says("R4", with_batch(evidence, **{name: values}), name)


def test_r4_a_place_is_that_of_the_token():
    evidence = mixed()
    ids_T = evidence.batch.token_ids_T.clone()
    ids_T[100] += 1
    finding = says("R4", with_batch(evidence, token_ids_T=ids_T), "token_ids_T[100]")
    assert finding.place.position == int(evidence.batch.position_T[100]) and finding.count == 1


@pytest.mark.parametrize("name", ["advantage_T", "weight_T"])
def test_r4_credit_of_another_length(name):
    evidence = mixed()
    credit = replace(evidence.credit, **{name: getattr(evidence.credit, name)[:-1]})
    says("R4", replace(evidence, credit=credit), f"credit.{name} has")


def test_r4_facts_and_offsets_of_another_length():
    evidence = mixed()
    says("R4", with_batch(evidence, ref_logp_T=torch.zeros(3)), "ref_logp_T has 3")
    says(
        "R4",
        with_batch(evidence, segment_offsets=evidence.batch.segment_offsets + 1),
        "segment_offsets run from 1",
    )


def test_r4_trajectories_in_another_order():
    evidence = mixed()
    order = list(range(evidence.batch.num_trajectories))
    order[0], order[1] = 1, 0
    says(
        "R4",
        replace(evidence, batch=evidence.batch.select(order), credit=None),
        "trajectory 0 of the batch",
    )
    group = evidence.groups[0]
    says(
        "R4",
        replace(evidence, groups=((group[1], group[0], *group[2:]), *evidence.groups[1:])),
        "in the order",
    )


def test_r4_a_batch_of_a_part():
    evidence = mixed()
    says(
        "R4",
        replace(evidence, batch=evidence.batch.select([0, 1]), credit=None),
        "tokens, its trajectories have",
    )


def test_r4_a_mask_made_by_comparing_ids_with_pad():
    """trl#4974, rllm#517: where pad is eos, the end of every turn is taken for padding."""
    evidence = appended()
    eos = evidence.chat.template.tokenizer.eos_token_id
    weight_T = torch.where(evidence.batch.token_ids_T == eos, 0.0, evidence.credit.weight_T)
    says("R4", replace(evidence, credit=replace(evidence.credit, weight_T=weight_T)), "eos token")


# ------------------------------------------------------------------------------------------------ R5


def with_weights(evidence: Evidence, weight_T) -> Evidence:
    return replace(evidence, credit=replace(evidence.credit, weight_T=weight_T))


def test_r5_rows_without_a_token():
    """ART#127, rllm#352: the mask is empty, training goes on."""
    evidence = appended()
    mine_T = evidence.batch.trajectory_of_token_T == 2
    empty = with_batch(evidence, eligible_T=evidence.batch.eligible_T & ~mine_T)
    says("R5", empty, "not one token", index=2)
    says(
        "R5",
        with_weights(evidence, torch.where(mine_T, 0.0, evidence.credit.weight_T)),
        "not one trained",
        index=2,
    )
    says("R5", with_weights(evidence, torch.zeros_like(evidence.credit.weight_T)), "has a weight")


def test_r5_a_part_of_a_row_or_more_than_it():
    evidence = appended()
    first = (
        evidence.batch.eligible_T
        & (evidence.batch.trajectory_of_token_T == 1)
        & (evidence.batch.turn_T == 0)
    )
    says(
        "R5",
        with_weights(evidence, torch.where(first, 0.0, evidence.credit.weight_T)),
        "a row weighs as a whole",
        index=1,
    )
    says(
        "R5",
        with_weights(evidence, torch.ones_like(evidence.credit.weight_T)),
        "were sampled",
        index=0,
    )


class LeavesOut(Algorithm):
    """An algorithm of somebody's own: trajectories that were cut short are not trained, nor are first turns."""

    def credit(self, batch):
        credit = super().credit(batch)
        out_T = (batch.trajectory_of_token_T == 1) | (batch.turn_T == 0)
        return replace(
            credit,
            weight_T=torch.where(out_T, 0.0, credit.weight_T),
            advantage_T=torch.where(out_T, 0.0, credit.advantage_T),
        )


def test_an_algorithm_of_ones_own_may_leave_tokens_out():
    """R5, R6 and R11 say so, and do not end the run."""
    evidence = appended()
    algorithm = of_class(LeavesOut)
    mine = replace(evidence, algorithm=algorithm, credit=algorithm.credit(evidence.batch))
    report = check(mine, [RULES[name] for name in ("R5", "R6", "R11")])
    assert report.ok, report.text
    assert {"R5", "R6", "R11"} <= {rule for rule, _ in report.notes}, report.text
    ours = check(replace(mine, algorithm=GRPO()), [RULES[name] for name in ("R5", "R6", "R11")])
    assert ours.named == ("R5", "R6", "R11")


def test_r5_an_unscored_row_that_is_trained():
    evidence = mixed()
    n = next(
        int(n)
        for n in (~evidence.batch.scored_N).nonzero()[:, 0]
        if evidence.batch.eligible_T[evidence.batch.trajectory_of_token_T == n].any()
    )
    mine_T = evidence.batch.eligible_T & (evidence.batch.trajectory_of_token_T == n)
    says(
        "R5",
        with_weights(evidence, torch.where(mine_T, 1.0, evidence.credit.weight_T)),
        "unscored",
        index=n,
    )


def test_r5_a_filter_may_leave_rows_out_and_a_declared_mask_may_be_wide():
    for variant in ("filtered", "widest", "all masks wide"):
        assert not found("R5", collected(Recipe(variant=variant, preset="frozenlake-4x4", seed=5)))


# ------------------------------------------------------------------------------------------------ R9


@pytest.mark.parametrize(
    "turn_of",
    [
        lambda turn_T: turn_T * 0,
        lambda turn_T: turn_T + 1,
        lambda turn_T: turn_T * 2,
        lambda turn_T: turn_T.max() - turn_T,
    ],
    ids=["zero", "late", "double", "reversed"],
)
def test_r9_turn_ids_of_a_batch(turn_of):
    """AReaL#1666: all turn ids 0, and rewards discounted across unrelated turns."""
    evidence = appended()
    broken = with_batch(evidence, turn_T=turn_of(evidence.batch.turn_T))
    says("R9", broken, "the turn ids")
    says("R9", replace(broken, groups=()), "the turn ids")  # of the batch alone, too


def test_r9_turn_ids_of_spans():
    evidence = appended()
    n, segment, k, span = long_turn(evidence)
    says(
        "R9",
        with_spans(evidence, n, segment, at(k, lambda s: replace(s, turn=0))),
        "has the turn id 0",
        index=n,
    )
    says(
        "R9",
        with_spans(
            evidence, n, segment, at(k - 1, lambda s: replace(s, turn=s.turn + 1)), batch=False
        ),
        "belongs",
        index=n,
    )
    prompt = next(
        i
        for i, s in enumerate(evidence.trajectories[n].segments[0].spans)
        if s.source is Source.PROMPT
    )
    says(
        "R9",
        with_spans(evidence, n, 0, at(prompt, lambda s: replace(s, turn=1)), batch=False),
        "turn 0 belongs",
        index=n,
    )


def test_r9_a_reply_that_belongs_to_no_turn_before():
    evidence = clean(template="qwen3", history="fresh", **LAKE)
    n, segment, k = next(
        (n, s, k)
        for n, t in enumerate(evidence.trajectories)
        for s, seg in enumerate(t.segments)
        for k, span in enumerate(seg.spans)
        if span.source is Source.ENV
    )
    says(
        "R9",
        with_spans(evidence, n, segment, at(k, lambda s: replace(s, turn=s.turn + 1)), batch=False),
        index=n,
        segment=segment,
    )


def test_r9_turns_that_are_numbered_otherwise():
    evidence = appended()
    broken = with_trajectory(
        evidence, 0, lambda t: replace(t, turns=tuple(replace(x, index=0) for x in t.turns))
    )
    says("R9", broken, "the turns are numbered", index=0)


# ------------------------------------------------------------------------------------------------ R22


def copied(evidence: Evidence) -> Evidence:
    """Attempt 1 says what attempt 0 says: what the more talkative of the two says."""

    def unlikely(trajectory) -> float:
        return -sum(
            float(s.logprobs.sum())
            for x in trajectory.segments
            for s in x.spans
            if s.logprobs is not None
        )

    one = max(evidence.groups[0][:2], key=unlikely)
    for n in (0, 1):
        evidence = with_trajectory(
            evidence, n, lambda t: replace(t, turns=one.turns, segments=one.segments)
        )
    return evidence


def test_r22_trajectories_that_are_copies():
    evidence = replace(copied(appended()), journal=None)
    finding = says("R22", evidence, "are those of attempt 0", index=1)
    assert finding.count == sum(map(len, evidence.trajectories[0].segments))


def test_r22_greedy_and_scripted_trajectories_may_be_copies():
    for change in ({"temperature": 0.0}, {"engine": "scripted"}):
        made = replace(copied(appended()), journal=None)
        for n in (0, 1):
            made = with_trajectory(
                made,
                n,
                lambda t: replace(
                    t,
                    segments=tuple(
                        Segment(
                            tuple(
                                s
                                if s.sampling is None
                                else replace(s, sampling=replace(s.sampling, **change))
                                for s in segment.spans
                            )
                        )
                        for segment in t.segments
                    ),
                ),
            )
        assert not found("R22", made)


def test_r22_a_short_likely_answer_may_come_twice():
    """A trained policy says the same again and again: only what chance cannot explain is an error."""
    made = replace(copied(appended()), journal=None)
    for n in (0, 1):
        made = with_trajectory(
            made,
            n,
            lambda t: replace(
                t,
                segments=tuple(
                    Segment(
                        tuple(
                            s if s.logprobs is None else replace(s, logprobs=s.logprobs * 0.001)
                            for s in segment.spans
                        )
                    )
                    for segment in t.segments
                ),
            ),
        )
    assert not found("R22", made)


def test_r22_one_noise_for_all(monkeypatch):
    """Each answer alone is short and likely; that all trajectories give it is not."""
    import tests.linting.clean_rollouts as corpus

    real = corpus.rng_at
    monkeypatch.setattr(
        corpus, "rng_at", lambda *address: real(7) if len(address) == 1 else real(*address)
    )
    recipe = Recipe(
        template="qwen3",
        preset="frozenlake-4x4-nothink",
        tasks=4,
        group_size=8,
        max_turn_tokens=6,
        seed=3,
    )
    evidence = replace(collected(recipe), journal=None)
    says("R22", evidence, "all of it together")
    monkeypatch.undo()
    assert not found("R22", replace(collected(recipe), journal=None))


def test_r22_seeds_of_turns_that_had_none_are_not_checked():
    evidence = appended()
    exchanges = tuple(
        e._replace(
            completion=replace(
                e.completion, sampling=replace(e.completion.sampling, addressed=False)
            )
        )
        for e in evidence.journal
    )
    drawn = replace(evidence, journal=exchanges)
    assert "engine.seeded" in str(check(drawn, [RULES["R22"]])["R22"].missing)
    assert "engine.seeded" not in str(check(evidence, [RULES["R22"]])["R22"].missing), "control"


def test_r22_two_turns_with_one_seed():
    evidence = appended()
    one, two = exchange_of(evidence, 0, 0), exchange_of(evidence, 1, 0)
    seed = evidence.journal[one].request.seed
    says(
        "R22",
        with_exchange(evidence, two, request={"seed": seed}),
        "with the seed of turn 0",
        index=1,
        turn=0,
    )


# ------------------------------------------------------------------------------------------------ anything at all


@settings(max_examples=25)
@given(data=st.data())
def test_whatever_is_damaged_no_rule_breaks(data):
    """A rule that raises names nothing. Several spans, exchanges and tensors are damaged at once."""
    evidence = data.draw(st.sampled_from([appended(), windowed(), mixed()]))
    for _ in range(data.draw(st.integers(1, 3))):
        n, segment, k, span = data.draw(st.sampled_from(sampled(evidence)))
        change = data.draw(
            st.sampled_from(
                [
                    lambda s: [],
                    lambda s: [s, s],
                    lambda s: replace(s, turn=s.turn + 3),
                    lose_logprobs,
                    written,
                    lambda s: replace(
                        s, token_ids=s.token_ids[:0], logprobs=s.logprobs[:0], plain_logprobs=None
                    ),
                    lambda s: replace(s, token_ids=s.token_ids + 100_000),
                ]
            )
        )
        if data.draw(st.booleans()):
            evidence = with_spans(evidence, n, segment, at(k, change), batch=False)
        drop = data.draw(st.sampled_from(["", "turns", "segments", "spans"]))
        if drop:
            smaller = {
                "turns": lambda t: replace(t, turns=t.turns[:-1]),
                "segments": lambda t: replace(t, segments=()),
                "spans": lambda t: replace(
                    t, segments=tuple(Segment(s.spans[:1]) for s in t.segments)
                ),
            }[drop]
            evidence = with_trajectory(evidence, n, smaller, batch=False)
        if not sampled(evidence):
            break
    name = data.draw(st.sampled_from(TENSORS))
    values = getattr(evidence.batch, name)
    damaged = data.draw(
        st.sampled_from([lambda v: v[:-1], lambda v: torch.flip(v, [0]), lambda v: v * 0])
    )
    if not (name == "trajectory_of_segment_S" and len(damaged(values)) != len(values)):
        evidence = with_batch(evidence, **{name: damaged(values)})
    evidence = replace(evidence, journal=evidence.journal[data.draw(st.integers(0, 3)) :])
    report = check(evidence, [RULES[each] for each in (*IDS, "R2", "R15")])
    assert isinstance(report.text, str)


# ------------------------------------------------------------------------------------------------ what is missing


def test_each_rule_says_what_it_could_not_check():
    evidence = appended()
    alone = Evidence(evidence.groups)
    report = check(alone, [RULES[name] for name in IDS])
    assert {answer.rule for answer in report if answer.status == "not checked"} == {
        "R1",
        "R4",
        "R5",
    }
    for rule, words in (
        ("R1", "what the engine was asked"),
        ("R1", "which history"),
        ("R3", "what the engine"),
        ("R3", "chat format"),
        ("R4", "the batch"),
        ("R22", "what the engine"),
    ):
        assert any(words in missing for missing in report[rule].missing), (rule, words)
    of_batch = check(Evidence(batch=evidence.batch), [RULES[name] for name in IDS])
    assert of_batch.ok and {a.rule: a.status for a in of_batch if a.looked} == {
        "R3": "passed",
        "R4": "partly checked",
        "R5": "partly checked",
        "R9": "passed",
    }
    nothing = check(Evidence(), [RULES[name] for name in IDS])
    assert all(answer.status == "not checked" and answer.missing for answer in nothing), (
        nothing.text
    )
