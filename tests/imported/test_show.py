"""Rollouts of other frameworks as pictures: trained tokens marked, what does not fit said, foreign text only text."""

from __future__ import annotations

import json

import pytest

import workbench as wb
from tests.imported.planted import (
    FILES,
    RESULTS,
    TRACES,
    mask_is_longer,
    reply_is_trained,
    rows_of,
    write,
)
from workbench import cli
from workbench.extensions.interop.importers import read_rollouts
from workbench.extensions.interop.view import imported_view
from workbench.values.errors import DataError


def test_trained_tokens_are_marked_and_read():
    view = wb.show(wb.read_rollouts(FILES / RESULTS), attempt=1, tokenizer="frozenlake-tiny")
    assert "example 0, line 2: group 0, reward +1.00, advantage +0.33" in view.text
    assert (
        "[TRAIN turn 0, 10, +0.33|<think>down : down G</think><answer>Down</answer><|im_end|>]"
        in view.text
    )
    assert "3 segments" in view.text and "[TRAIN turn 2" in view.text


def test_of_a_trace_replies_are_told_from_what_was_sampled():
    view = wb.show(wb.read_rollouts(FILES / TRACES), attempt=3, tokenizer="frozenlake-tiny")
    assert "234 tokens (92 prompt, 120 env, 22 TRAIN)" in view.text and "-0.73" in view.text


def test_texts_alone_are_shown_as_texts_and_what_is_missing_is_said():
    view = wb.show(wb.read_rollouts(FILES / "verl_generations.jsonl"))
    assert "not in the file: token ids: verl writes the texts" in view.text
    assert (
        "[completion, text alone|<think>guess" in view.text
        and "first 4 trajectories shown, 2 hidden" in view.text
    )


def test_arrays_that_do_not_fit_are_drawn_as_far_as_they_go(tmp_path):
    rows = rows_of(RESULTS)
    mask_is_longer(rows)
    view = wb.show(wb.read_rollouts(write(rows, tmp_path / "results.jsonl")), attempt=0)
    assert "⚠ sequence 0: mask has" in view.text and "drawn as far as they go" in view.html


def test_a_reply_that_is_trained_is_widened(tmp_path):
    rows = rows_of(TRACES)
    reply_is_trained(rows)
    assert (
        "[widened turn 0"
        in wb.show(wb.read_rollouts(write(rows, tmp_path / "traces.jsonl")), attempt=0).text
    )


def test_foreign_text_acts_nowhere(tmp_path):
    bad = "\x1b[31m<script>alert(1)</script>\u202e"
    rows = rows_of(RESULTS)[:2]
    rows[0] |= {"example_id": bad, "error": {"error": bad}}
    rows[1] |= {"example_id": bad, "trajectory": None, "prompt": bad, "completion": bad}
    path = write(rows, tmp_path / "results.jsonl")
    path.write_text(path.read_text() + json.dumps({bad: 1}) + "\n")
    view, linted = wb.show(wb.read_rollouts(path)), wb.lint(path)
    for text in (view.text, view.html, linted.text, linted.view().html, read_rollouts(path).about):
        assert "\x1b" not in text and "\u202e" not in text
    assert "<script>" not in view.html + linted.view().html and "line 3" in view.text


def test_a_trajectory_that_is_not_there_is_refused():
    with pytest.raises(DataError, match="counted from 0 to 5"):
        imported_view(read_rollouts(FILES / RESULTS), attempt=6)


def test_the_terminal_shows_and_lints_them(tmp_path, capsys):
    path = str(FILES / RESULTS)
    assert cli.main(["show", path, "--attempt", "0"]) == 0
    assert "verifiers (results) 0.1.14: 6 trajectories" in capsys.readouterr().out
    assert cli.main(["show", path, "1"]) == 2 and "--attempt 0" in capsys.readouterr().err
    assert cli.main(["lint", path]) == 0 and "0 errors" in capsys.readouterr().out
    rows = rows_of(RESULTS)
    mask_is_longer(rows)
    bad = str(write(rows, tmp_path / "results.jsonl"))
    assert cli.main(["lint", bad, "--json"]) == 1
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [a["rule"] for a in answers if any(f["severity"] == "error" for f in a["findings"])] == [
        "R4"
    ]


@pytest.mark.parametrize("command", ["show", "lint"])
def test_a_file_that_is_no_rollouts_is_told_what_would_be(command, tmp_path, capsys):
    """It exists, so that "there is no run folder" would be no answer."""
    other = tmp_path / "dump.parquet"
    other.write_bytes(b"no table")
    assert cli.main([command, str(other)]) != 0
    assert "holds no rollouts that can be read here; known are" in capsys.readouterr().err
    assert cli.main([command, str(tmp_path / "missing.parquet")]) != 0
    assert "there is no run folder" in capsys.readouterr().err
