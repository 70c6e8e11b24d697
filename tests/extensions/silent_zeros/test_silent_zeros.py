"""Silent zeros in somebody else's trainer: planted mistakes are named by step and row, their legitimate twins are clean."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("transformers")

import workbench as wb
from tests.counts import reduced
from tests.extensions.silent_zeros import planted_rewards as planted
from tests.extensions.silent_zeros.planted_rewards import PLANTED, Scene
from workbench.basics.findings import LintReport
from workbench.values.errors import ConfigError, DataError, LintError

BY_NAME = {mistake.name: mistake for mistake in PLANTED}
FEW = [
    "messages-read-as-text",
    "tags-are-special-tokens",
    "prompt-opens-the-thought",
    "completion-too-short",
    "parser-finds-nothing",
    "one-row-is-never-paid",
]


def checked(scene: Scene, **further):
    options = {"budget_s": 60.0} | dict(scene.options) | further
    return wb.check_rewards(
        scene.tokenizer(), scene.words, rewards=scene.rewards, rows=scene.rows, **options
    )


@pytest.mark.parametrize("name", reduced(list(BY_NAME), FEW))
def test_a_planted_mistake_is_named_and_its_twin_is_clean(name):
    mistake = BY_NAME[name]
    outcome = checked(mistake.bug)
    findings = [finding for step, finding in outcome.errors if step == mistake.step]
    assert any(mistake.says in finding.what for finding in findings), outcome.text
    assert all(str(finding.place).startswith("row ") for finding in findings)
    twin = checked(mistake.twin)
    assert twin.ok and twin.report["scorer"].looked, twin.text
    assert twin.report[mistake.step].looked


def test_the_place_is_a_row_of_their_data_and_a_line_of_their_function():
    outcome = checked(BY_NAME["one-row-is-never-paid"].bug)
    (step, finding) = outcome.errors[0]
    assert (step, str(finding.place)) == ("scorer", "row 7, column 'answer'")
    line = planted.first_number.__code__.co_firstlineno
    assert f"planted_rewards.py:{line} (first_number) pays 0" in finding.what
    read = LintReport.from_dict(json.loads(json.dumps(outcome.report.as_dict())))
    assert read.errors[0][1].what == finding.what


def test_an_error_stops_where_asked_and_says_what_was_found():
    bug = BY_NAME["completion-too-short"].bug
    with pytest.raises(LintError, match="no step was begun") as raised:
        checked(bug, on_error="stop")
    assert raised.value.report.named == ("stop",)
    assert checked(BY_NAME["completion-too-short"].twin, on_error="stop").ok


def test_a_trajectory_known_to_be_paid_is_played_as_messages():
    """Its last answer is scored; what tools say in it goes through as it is."""

    def trajectory(row):
        call = {"role": "assistant", "content": "<tool_call>add</tool_call>"}
        result = {"role": "tool", "content": row["answer"]}
        return [call, result, {"role": "assistant", "content": f"<answer>{row['answer']}</answer>"}]

    def paid(completions, answer, **columns):
        last = [completion[-1]["content"] for completion in completions]
        known = [completion[1:2] for completion in completions]
        return [
            float(text == f"<answer>{a}</answer>" and here[0].get("role") == "tool" if here else 0)
            for text, here, a in zip(last, known, answer)
        ]

    scene = Scene(paid, trajectory)
    assert checked(scene).ok
    short = checked(scene, max_completion_length=3)
    assert short.named == ("stop",)


def test_the_form_of_an_answer_is_that_which_more_functions_pay():
    outcome = checked(Scene([planted.tagged, planted.whole_form]))
    assert outcome.ok and outcome.words.startswith("<think>") and "in the form" in outcome.text
    assert checked(Scene(planted.exact)).words == "3"


def test_variations_are_notes_and_errors_where_they_were_declared_harmless():
    scene = Scene(planted.exact)
    asked = checked(scene)
    assert asked.ok and "spaces around" in asked.report["variations"].notes[0].what
    declared = checked(scene, may_vary=("spaces",))
    assert declared.named == ("variations",)
    assert checked(Scene(planted.stripped), may_vary=("spaces", "line breaks")).ok


def test_words_of_a_few_rows_that_are_too_long_are_a_note():
    rows = planted.rows()
    rows[3]["answer"] = "1 2 3 4 5 6 7 8 9"
    outcome = checked(Scene(planted.exact, rows=rows), max_completion_length=6)
    assert outcome.ok and "row 3" in str(outcome.report["stop"].notes[0].place)


def test_a_function_that_is_drawn_by_chance_is_not_checked_and_chance_stays_as_it_was():
    def by_chance(completions, **columns):
        return [random.random() for _ in completions]

    random.seed(5)
    before = random.getstate()
    outcome = checked(Scene(by_chance))
    assert random.getstate() == before
    assert outcome.ok and "when asked twice" in outcome.report["scorer"].gaps


def test_rows_of_a_function_that_alters_them_stay_as_they_were():
    def altering(completions, answer, meta, **columns):
        for own in meta:
            own.clear()
        return planted.exact(completions, answer)

    rows = planted.rows(meta={"kept": 1})
    assert checked(Scene(altering, rows=rows)).ok and rows[0]["meta"] == {"kept": 1}


def test_what_cannot_be_asked_is_refused_with_what_to_do():
    tokenizer = planted.tokenizer()
    rows = planted.rows()
    with pytest.raises(DataError, match=r"takes a trl\.GRPOTrainer or a tokenizer"):
        wb.check_rewards("a path", "answer", rewards=planted.exact, rows=rows)
    with pytest.raises(ConfigError, match="needs rewards and rows"):
        wb.check_rewards(tokenizer, "answer")
    with pytest.raises(DataError, match="no row has words known to be paid: words='solution'"):
        wb.check_rewards(tokenizer, "solution", rewards=planted.exact, rows=rows)
    with pytest.raises(DataError, match="there are no rows"):
        wb.check_rewards(tokenizer, "answer", rewards=planted.exact, rows=[])
    with pytest.raises(DataError, match="rewards is a function, a list of functions"):
        wb.check_rewards(tokenizer, "answer", rewards=3, rows=rows)
    with pytest.raises(ConfigError, match="on_error is one of say, stop"):
        wb.check_rewards(tokenizer, "answer", rewards=planted.exact, rows=rows, on_error="end")


def test_it_shows_itself():
    outcome = checked(BY_NAME["completion-too-short"].bug)
    assert "at most 8 tokens" in outcome.view().html
