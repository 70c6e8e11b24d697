"""Words known to be paid, played in a real GRPOTrainer before its first step: its tokenizer, template, stops and readers."""

from __future__ import annotations

import os
import re

import pytest

if os.environ.get("WORKBENCH_TRL"):
    import trl  # noqa: F401
else:
    pytest.importorskip("trl", reason="needs the package trl (make test-trl)")

import workbench as wb
from tests.counts import reduced
from tests.extensions.trl_live.trl_trainers import rows, trainer_of
from workbench.values.errors import LintError

TAGGED = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


def tagged(completions, answer, **columns):
    answers = [TAGGED.search(completion[0]["content"]) for completion in completions]
    return [float(m is not None and m[1] == a) for m, a in zip(answers, answer)]


def thought_first(completions, **columns):
    return [float(c[0]["content"].startswith("<think>")) for c in completions]


def thought_apart(completions, answer, **columns):
    return [
        right * float(bool(c[0].get("reasoning_content")) or "<think>" in c[0]["content"])
        for right, c in zip(tagged(completions, answer), completions)
    ]


def as_text(completions, answer, **columns):
    return [float(a in completion) for completion, a in zip(completions, answer)]


def as_plain_text(completions, answer, **columns):
    return [float(a in completion) for completion, a in zip(completions, answer)]


def plain_rows():
    return [row | {"prompt": row["prompt"][0]["content"]} for row in rows(16)]


def with_thought(row):
    return f"<think>\nI know.\n</think>\n\n<answer>{row['answer']}</answer>"


# name -> (step, what is said, settings of the bug, settings of its twin, words)
MISTAKES = {
    "too-short": ("stop", "at most 4 tokens", {"max_completion_length": 4}, {}, "answer"),
    "columns-removed": (
        "scorer",
        "the row has the columns prompt",
        {"remove_unused_columns": True},
        {},
        lambda row: "<answer>Oslo</answer>",
    ),
    "stop-text-opens-the-answer": (
        "stop",
        "'<answer>' ends the completion",
        {"generation_kwargs": {"stop_strings": ["<answer>"]}},
        {"generation_kwargs": {"stop_strings": ["</answer>"]}},
        "answer",
    ),
    "thought-is-read-apart": (
        "parser",
        "pays 0",
        {"reward": [tagged, thought_first]},
        {"reward": [tagged]},
        with_thought,
    ),
    "messages-read-as-text": (
        "scorer",
        "reads the completion itself",
        {"reward": as_text},
        {"reward": as_plain_text, "data": plain_rows()},
        "answer",
    ),
    "weights-turn-it-round": (
        "scorer",
        "weighted and summed",
        {"reward": [tagged], "reward_weights": [-1.0]},
        {"reward": [tagged], "reward_weights": [0.5]},
        "answer",
    ),
}


@pytest.mark.parametrize("name", reduced(list(MISTAKES), ["too-short"]))
def test_a_mistake_is_named_before_the_first_step(name, tmp_path):
    step, words, bug, twin, known = MISTAKES[name]
    outcome = wb.check_rewards(trainer_of(tmp_path, **({"reward": tagged} | bug)), known)
    assert any(step == which and words in finding.what for which, finding in outcome.errors), (
        outcome.text
    )
    known = "answer" if name == "columns-removed" else known
    healthy = wb.check_rewards(trainer_of(tmp_path, **({"reward": tagged} | twin)), known)
    assert healthy.ok and healthy.report[step].looked, healthy.text


@pytest.mark.full
def test_it_stops_before_the_first_step_and_else_leaves_the_trainer_as_it_was(tmp_path):
    trainer = trainer_of(tmp_path, reward=tagged, max_completion_length=4)
    with pytest.raises(LintError, match="no step was begun"):
        wb.check_rewards(trainer, "answer", on_error="stop")
    assert trainer.state.global_step == 0 and not trainer.state.log_history
