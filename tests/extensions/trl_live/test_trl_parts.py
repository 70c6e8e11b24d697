"""Parts of the lint for TRL that need no TRL: who wrote a token, and what rewards come to."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.extensions.trl_live.credit import CreditSettings, expected_credit
from workbench.extensions.trl_live.journal import SampledAnswer, authorship
from workbench.extensions.trl_live.rows import SampledRows, StepSettings
from workbench.extensions.trl_live.tokens import answers_kept

PROMPT = [1, 2, 3]
STOP = 9


def ids(*values):
    return np.array(values, np.int64)


def generated_of(*completions, longest=50):
    settings = StepSettings(2, longest, False, frozenset({STOP}), False)
    return SampledRows(
        1,
        settings,
        (),
        tuple(ids(*PROMPT) for _ in completions),
        tuple(ids(*completion) for completion in completions),
        None,
        None,
        {},
    )


def findings_of(generated, exchanges):
    authors = authorship(generated, exchanges)
    results = answers_kept(generated, authors, lambda tokens: " ".join(map(str, tokens)))
    return authors, [result for result in results if hasattr(result, "what")]


def test_answers_are_laid_to_the_rows_that_go_on_so():
    generated = generated_of([4, STOP, 7, 7, 5, STOP], [6, STOP])
    exchanges = [
        SampledAnswer(ids(*PROMPT), ids(6, STOP), True),  # in another order than the rows
        SampledAnswer(ids(*PROMPT), ids(4, STOP), True),
        SampledAnswer(ids(*PROMPT, 4, STOP, 7, 7), ids(5, STOP), True),
        SampledAnswer(ids(8, 8), ids(8), True),  # of no row
    ]
    authors, findings = findings_of(generated, exchanges)
    assert not findings
    assert authors[0].sampled.tolist() == [True, True, False, False, True, True]
    assert list(authors[0].stretches()) == [(0, 2), (4, 6)]
    assert authors[1].sampled.all() and authors[1].ended


def test_rows_that_nobody_was_heard_to_make_are_not_judged():
    authors, findings = findings_of(generated_of([4, STOP]), [])
    assert not authors[0].known and not findings


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([4, 5], "never learns to stop"),  # the stop token is gone
        ([4, 6, STOP], "never sampled"),  # another token
        ([4], "end of an answer was cut off"),
    ],
)
def test_a_row_that_departs_from_its_answer_is_named(row, words):
    exchanges = [SampledAnswer(ids(*PROMPT), ids(4, 5, STOP), True)]
    _, findings = findings_of(generated_of(row), exchanges)
    assert [words in finding.what for finding in findings] == [True]
    assert findings[0].place.position == (1 if row[:2] != [4, 5] else 2)


def test_a_row_at_the_longest_length_may_end_in_an_answer():
    exchanges = [SampledAnswer(ids(*PROMPT), ids(4, 5, STOP), True)]
    assert not findings_of(generated_of([4, 5], longest=2), exchanges)[1]


REWARDS = np.array([[1.0, 0.0], [0.0, 2.0], [np.nan, np.nan], [3.0, np.nan]])


@pytest.mark.parametrize("scale", ["none", "group"])
def test_advantages_by_hand(scale):
    """Weighted sums 0.5, 4 in the first group (mean 2.25), unscored and 1.5 in the second (mean 1.5, no spread)."""
    expected = expected_credit(REWARDS, CreditSettings(2, scale, "sum_then_normalize", (0.5, 2.0)))
    assert np.array_equal(expected.earned, [0.5, 4.0, np.nan, 1.5], equal_nan=True)
    spread = 1.0 if scale == "none" else 3.5 / np.sqrt(2) + 1e-4
    assert np.allclose(expected.advantages, [-1.75 / spread, 1.75 / spread, 0, 0])


def test_settings_that_are_not_known_give_no_advantages():
    assert (
        expected_credit(REWARDS, CreditSettings(2, "new", "sum_then_normalize", (1, 1))).advantages
        is None
    )
    assert (
        expected_credit(
            REWARDS, CreditSettings(3, "group", "sum_then_normalize", (1, 1))
        ).advantages
        is None
    )
