"""Parts of the lint for TRL that need no TRL: who wrote a token, and what rewards come to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from workbench.extensions.trl_live.credit import CreditSettings, expected_credit
from workbench.extensions.trl_live.journal import SampledAnswer, authorship
from workbench.extensions.trl_live.rows import SampledRows, StepSettings
from workbench.extensions.trl_live.tokens import answers_kept, prompts_kept
from workbench.extensions.trl_live.weights import (
    WeightHistory,
    evaluated_apart,
    marks_of,
    reference_is_apart,
    sampled_by_the_policy,
    updates_move_weights,
)

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


# ------------------------------------------------------------------------------------------------ weights, rows


def words_of(results):
    return [result.what for result in results if hasattr(result, "what")]


@pytest.mark.parametrize(
    ("prompt", "asked", "is_named"),
    [
        (PROMPT[-2:], PROMPT, True),  # the beginning was cut off
        (PROMPT[:2], PROMPT, True),
        ([8, 8], PROMPT, False),  # another row's answer, by chance the same
        (PROMPT, PROMPT, False),  # it was laid to the row
    ],
)
def test_a_prompt_that_was_cut_after_sampling_is_named(prompt, asked, is_named):
    generated = generated_of([4, STOP])
    generated = SampledRows(
        1, generated.settings, (), (ids(*prompt),), generated.completion_ids, None, None, {}
    )
    exchanges = [SampledAnswer(ids(*asked), ids(4, STOP), True)]
    authors = authorship(generated, exchanges)
    found = words_of(prompts_kept(generated, authors, exchanges))
    assert [f"a prompt of {len(asked)} tokens" in words for words in found] == [True] * is_named


def with_advantages(*advantages):
    """A generation whose rows have these advantages; every token is trained."""
    rows = np.full((len(advantages), 2), 4)
    padded = {
        "prompt_ids": np.array([PROMPT] * len(advantages)),
        "completion_ids": rows,
        "completion_mask": np.ones_like(rows),
        "advantages": np.array(advantages),
    }
    plain = generated_of(*rows)
    return SampledRows(
        1, plain.settings, (), plain.prompt_ids, plain.completion_ids, None, None, padded
    )


@pytest.mark.parametrize(
    ("advantage", "rate", "moves", "named_at"),
    [
        (1.0, 1e-3, 0.0, [3, 4]),  # two generations moved nothing
        (1.0, 1e-3, 1e-3, []),
        (0.0, 1e-3, 0.0, []),  # nothing to learn
        (1.0, 0.0, 0.0, []),  # the first step of a warm-up
    ],
)
def test_updates_that_move_nothing_are_named(advantage, rate, moves, named_at):
    history = WeightHistory()
    named = []
    for step in range(1, 5):
        now = np.ones(3, np.float32) + np.float32(step * moves)
        results = updates_move_weights(
            with_advantages(advantage, -advantage), history, now, step - 1, rate
        )
        if any("same bit for bit" in words for words in words_of(results)):
            named.append(step)
    assert named == named_at


def test_weights_that_sample_are_the_policys():
    now = np.array([1.0, 2.0], np.float32)
    assert not words_of(sampled_by_the_policy(1, [now.copy()], now))
    assert not words_of(sampled_by_the_policy(1, [now[:1]], now))  # spread over processes
    [words] = words_of(sampled_by_the_policy(1, [now, np.array([1.0, 3.0], np.float32)], now))
    assert "50% of the numbers" in words


def test_marks_are_of_trainable_parameters_and_see_a_change():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(3, 1))
    before = marks_of(model)
    assert len(before) == 64 + 40 + 3 + 1
    with torch.no_grad():
        model[1].bias += 1
    assert (marks_of(model) != before).sum() == 1
    model.requires_grad_(False)
    assert len(marks_of(model)) == 0


def test_a_reference_that_is_the_policy_is_named_and_a_copy_is_not():
    import copy

    import torch

    model = torch.nn.Linear(2, 2)
    trainer = SimpleNamespace(args=SimpleNamespace(beta=0.1), model=model, ref_model=model)
    assert "2 trainable parameters" in words_of(reference_is_apart(1, trainer))[0]
    trainer.ref_model = copy.deepcopy(model)
    assert not words_of(reference_is_apart(1, trainer))
    trainer.ref_model, trainer.args.beta = model, 0.0
    assert not words_of(reference_is_apart(1, trainer))


class Rows(list):
    @property
    def num_rows(self):
        return len(self)


def test_evaluated_rows_that_are_trained_on_are_named_and_a_shared_prompt_is_not():
    trained = Rows({"prompt": "go", "seed": seed} for seed in range(4))
    trainer = SimpleNamespace(train_dataset=trained, eval_dataset=Rows(trained[1:2]))
    assert "1 of 1 rows" in words_of(evaluated_apart(1, trainer))[0]
    trainer.eval_dataset = Rows([{"prompt": "go", "seed": 9}])
    assert not words_of(evaluated_apart(1, trainer))
    trainer.eval_dataset = iter(trained)  # it is not read
    assert not words_of(evaluated_apart(1, trainer))
