"""Tokenizing sampled text once more, on purpose: what is counted is what really breaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from workbench.extensions.what_if.retokenize import retokenize
from workbench.look.cells.credit import facts
from workbench.training.config import load_config
from workbench.training.session import open_session, rollout
from workbench.values import Group, Segment
from workbench.values.errors import DataError


@pytest.fixture(scope="module")
def session():
    return open_session(load_config("frozenlake"), quiet=True)


@pytest.fixture(scope="module")
def groups(session):
    return rollout(session, 1, group_size=2)


def cut_otherwise(session, groups):
    """The first answer of the first trajectory with its first tag spelled in single characters: the same text, other ids."""
    backend, trajectory = session.chat.encoder.backend, groups[0][0]
    segment = trajectory.segments[0]
    at = next(i for i, span in enumerate(segment.spans) if span.sampled)
    span = segment.spans[at]
    letters = [
        backend.token_to_id(letter) for letter in backend.id_to_token(int(span.token_ids[0]))
    ]
    ids, logprobs = (
        [*letters, *span.token_ids[1:]],
        [*np.full(len(letters), -2.0), *span.logprobs[1:]],
    )
    spans = [
        *segment.spans[:at],
        replace(span, token_ids=ids, logprobs=logprobs),
        *segment.spans[at + 1 :],
    ]
    trajectories = [
        replace(trajectory, segments=(Segment(tuple(spans)), *trajectory.segments[1:])),
        *groups[0][1:],
    ]
    return [Group(tuple(trajectories))], len(letters) - 1


def test_a_session_without_critic_and_reference_says_so(session, groups):
    with pytest.raises(
        DataError, match="grpo as it is set asks neither a critic nor a reference.*frozenlake-ppo"
    ):
        facts(session, groups)


def test_what_the_tokenizer_would_have_said_comes_back_as_it_is(session, groups):
    again = retokenize(session, groups)
    assert again.changed == 0 and len(again.turns) == sum(len(t.turns) for t in groups[0])
    assert again.damage.others == again.damage.missed == 0 and "still fits" in str(again)


def test_other_ids_of_the_same_text_move_every_position_after_them(session, groups):
    other, shift = cut_otherwise(session, groups)
    again = retokenize(session, other)
    turn = again.turns[0]
    assert (
        again.changed == 1 and turn.differs and len(turn.sampled) - len(turn.encoded) == shift > 0
    )
    assert session.chat.decode(turn.sampled) == session.chat.decode(turn.encoded), (
        "nobody sees it in the text"
    )
    assert again.damage.missed > 0 and again.damage.others > 0, (
        "the recorded mask lies `shift` tokens too far from there on"
    )
    assert again.damage.right + again.damage.missed == sum(t.num_sampled for t in again.groups[0])


def test_what_is_not_trained_is_not_trained_afterwards(session, groups):
    for untrained in ("conversation 'judge' is not trained", ""):
        members = []
        for trajectory in groups[0]:
            segments = tuple(replace(s, untrained=untrained) for s in trajectory.segments)
            members.append(replace(trajectory, segments=segments))
        again = retokenize(session, [Group(tuple(members))])
        segments = [segment for trajectory in again.groups[0] for segment in trajectory.segments]
        assert {segment.untrained for segment in segments} == {untrained}
        assert any(segment.eligible.any() for segment in segments) is (untrained == "")


def test_the_logprob_of_what_came_back_is_the_policys_own(session, groups):
    """Asked of the policy at the ids that came back: here those are the ids that were really sampled."""
    other, _ = cut_otherwise(session, groups)
    turn = retokenize(session, other).turns[0]
    sampled = next(span for span in groups[0][0].segments[0].spans if span.sampled)
    assert turn.logp_again == pytest.approx(float(sampled.logprobs.sum()), abs=1e-3)
    assert turn.logp < turn.logp_again - 2, "what was recorded for the other ids stays what it was"
    assert all(t.logp_again is None for t in retokenize(session, other).turns[1:])
