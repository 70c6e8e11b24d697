"""The loss term of a token, written out: every formula gives the stored number, and all terms the stored loss, bit for bit."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.golden_runs.make import read_record
from tests.golden_runs.record import this_machine
from workbench.look.cells.explored import Answers
from workbench.look.cells.terms import ROUNDINGS, StepTerms
from workbench.values.errors import DataError

OLD = Path(__file__).resolve().parent / "golden_runs" / "old"
# What differs from the preset, by algorithm: one of each way in which credit, loss and their sum come about.
ALGORITHMS = {
    "grpo": {},
    "dr_grpo": {},
    "dapo": {"algorithm.objective.dual_clip": 3.0, "algorithm.minibatches": 2},
    "gspo": {},
    "cispo": {},
    "rloo": {"algorithm.reference.kl_coef": 0.05},
    "reinforce": {"algorithm.estimator.gamma": 0.9},
    "reinforce_pp": {"algorithm.entropy_coef": 0.01},
    "ppo": {"algorithm.minibatches": 2},
    "turn_ppo": {},
    "gigpo": {"algorithm.sampler_cap": 2.0},
    "starpo_s": {},
}


def said(text: str) -> float:
    """The value of a formula as it is written."""
    return eval(
        text.removeprefix("= ")
        .partition(":")[0]
        .replace("−", "-")
        .replace("×", "*")
        .replace("√", "math.sqrt"),
        {"math": math},
    )


def check(run, step: int, *, same_machine: bool = True) -> set[str]:
    """Hold every row of every trajectory against what is stored; returns the rows seen. Where another processor stored it, an
    exponential or a root may be rounded otherwise."""

    def equal(one, other) -> bool:
        if same_machine:
            return np.array_equal(one, other)
        return np.allclose(one, other, rtol=1e-6, atol=0)

    updates, seen = run.updates(step), set()
    for update in updates:
        table = run.credit(step, update)
        terms = StepTerms.of(run, step, table)
        roundings = 0 if same_machine else ROUNDINGS
        assert terms.differing(roundings) == {"advantage": 0, "weight": 0, "ratio": 0}
        assert terms.stored is None or len(updates) > 1 or equal(terms.loss, terms.stored)
        beginning = (
            ("advantage, weight",) if same_machine else ("advantage, weight", "what is stored")
        )
        total = 0.0
        for number in np.unique(table["trajectory"]):
            rows, arrays = terms.written(int(number))
            texts = {row["name"]: row["text"] for row in rows}
            at = table["trajectory"] == number
            used = table["used"][at] & (table["weight"][at] != 0)
            seen |= set(texts)
            assert {len(values) for values in arrays.values()} == {int(at.sum())} and texts[
                "check"
            ].startswith(beginning)
            if not used.any():
                continue
            stored = {name: column[at][used] for name, column in table.columns.items()}
            assert equal(arrays["advantage"][used], stored["advantage"])
            assert equal(arrays["ratio"][used], stored["ratio"].astype(float))
            assert np.array_equal(arrays["clip"][used], stored["clip_state"].astype(float))
            if not texts["advantage"].startswith(("by ", "nothing", "= (that")):
                assert set(arrays["advantage"][used]) == {said(texts["advantage"])}, texts[
                    "advantage"
                ]
            if texts["advantage"].startswith("= (that"):
                before = arrays["before"][used]
                made = [
                    said(texts["advantage"].replace("that", repr(float(value)))) for value in before
                ]
                assert equal(made, stored["advantage"])
            denominator = float(texts["denominator"].partition(":")[0])
            assert np.array_equal(
                arrays["adds"][used], arrays["loss"][used] * arrays["weight"][used] / denominator
            )
            if (
                texts["loss of the token"].startswith("= −min")
                and "at most" not in texts["loss of the token"]
            ):
                low, high = (
                    np.float32(float(bound))
                    for bound in texts["loss of the token"]
                    .partition("clip(ratio, ")[2]
                    .partition(")")[0]
                    .split(",")
                )
                advantage, ratio = stored["advantage"].astype(np.float32), stored["ratio"]
                weighed = (
                    arrays["sampler"][used].astype(np.float32)
                    if "sampler" in arrays
                    else np.float32(1.0)
                )
                made = -np.minimum(ratio * advantage, ratio.clip(low, high) * advantage) * weighed
                assert np.allclose(made, arrays["loss"][used], rtol=1e-6, atol=0)
            total += sum(
                np.nansum(arrays[name])
                for name in ("adds", "entropy_adds", "kl_adds")
                if name in arrays
            )
        assert math.isclose(total, terms.loss, rel_tol=1e-9, abs_tol=1e-12), (
            "the parts make up the whole"
        )
    return seen


@pytest.mark.parametrize("name", ["small-frozenlake", "small-ppo", "search", "window"])
def test_the_terms_of_a_stored_step_are_the_stored_numbers(tmp_path, name):
    shutil.copytree(OLD / name, tmp_path / name)
    run = wb.open_run(tmp_path / name)
    same_machine = read_record(name)["machine"] == this_machine()
    seen = check(run, run.steps()[-1], same_machine=same_machine)
    assert {
        "reward",
        "advantage",
        "ratio",
        "clip",
        "denominator",
        "adds to the loss",
        "sum",
        "check",
    } <= seen
    assert ("value" in seen) == (name == "small-ppo")


@pytest.mark.full
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_terms_of_every_algorithm_are_the_stored_numbers(tmp_path, name):
    config = wb.load_config(
        "frozenlake",
        {
            "algorithm.kind": name,
            "train.steps": 1,
            "train.tasks_per_step": 3,
            "train.group_size": 4,
            "train.evaluate_every": 0,
            "evaluation.num_tasks": 2,
            "lint.start": False,
            "seed": 5,
            **ALGORITHMS[name],
        },
    )
    seen = check(wb.open_run(wb.train_here(config, tmp_path / "run").path), 1)
    assert ("KL adds" in seen) == (name == "rloo") and ("entropy adds" in seen) == (
        name in ("reinforce_pp", "starpo_s")
    )
    assert ("sampler's weight" in seen) == (name == "gigpo")


def test_a_changed_number_is_noticed(tmp_path):
    """Negative control: one advantage of the stored table is another."""
    shutil.copytree(OLD / "window", tmp_path / "window")
    run = wb.open_run(tmp_path / "window")
    table = run.credit(1, 0)
    advantage = table["advantage"].copy()
    advantage[int(np.flatnonzero(table["weight"])[0])] += 1e-9
    terms = StepTerms.of(run, 1, type(table)(1, 0, {**table.columns, "advantage": advantage}))
    assert terms.differing()["advantage"] == 1
    rows, _ = terms.written(0)
    assert rows[-1]["text"].startswith("NOT what is stored: advantage of 1 tokens")
    assert (
        not replace(terms, stored=terms.loss + 1e-12)
        .written(0)[0][-2]["text"]
        .endswith("to the last bit")
    )


def test_where_there_is_no_term_it_is_said_why(tmp_path, monkeypatch):
    shutil.copytree(OLD / "window", tmp_path / "window")
    run = wb.open_run(tmp_path / "window")
    table = run.credit(1, 0)
    with pytest.raises(DataError, match="stored no logprobs of the policy"):
        StepTerms.of(
            run,
            1,
            type(table)(
                1, 0, {name: column for name, column in table.columns.items() if name != "new_logp"}
            ),
        )
    asked = {"ask": "terms", "run": 0, "step": 1, "task": 0, "attempt": 0}
    answers = Answers([run])
    monkeypatch.setattr(
        answers,
        "_terms_of",
        lambda *_: (_ for _ in ()).throw(ImportError("No module named 'torch'")),
    )
    assert "needs torch: No module named 'torch'" in answers.of(asked).content["error"]
    monkeypatch.setattr(type(run), "updates", lambda self, step: ())
    assert "step 1 made no update" in Answers([run]).of(asked).content["error"]


def test_the_terminal_writes_the_term_out(tmp_path):
    shutil.copytree(OLD / "window", tmp_path / "window")
    run = wb.open_run(tmp_path / "window")
    token = int(np.flatnonzero(run.credit(1, 0)["weight"])[0])
    text = wb.show(run, at=f"step 1 / task 0 / attempt 0 / token {token}").text
    assert (
        "loss term of this token" in text
        and "free" in text
        and "the stored loss to the last bit" in text
    )
    assert (
        "loss term of this token"
        not in wb.show(run, at="step 1 / task 0 / attempt 0 / token 0").text
    )
