"""`workbench train --profile`: seconds go to the part that took them, once; a run computes the same with it; without it nothing is
touched; and its table says what its clock says."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from workbench.basics.replacing import replaced
from workbench.cli import main
from workbench.extensions.profile import training
from workbench.extensions.profile.sections import Sections
from workbench.extensions.profile.table import profile_table
from workbench.extensions.profile.training import profiled_training
from workbench.learn.learner import Learner
from workbench.look.cells.train import train_here
from workbench.training import loop
from workbench.training.config import load_config
from workbench.worlds.runners import InlineRunner

TINY = {
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "train.evaluate_every": 0,
    "lint.start": False,
    "evaluation.num_tasks": 2,
}
TOUCHED = [(loop, "train_step"), (InlineRunner, "step"), (Learner, "update")]


def functions():
    return [getattr(owner, name) for owner, name in TOUCHED]


def spin(seconds):
    """Keep this thread's CPU busy."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


# ------------------------------------------------------------------------------------------------ sections


def test_a_section_is_without_what_is_within_it():
    sections = Sections()
    with sections.within("outer"):
        spin(0.01)
        with sections.within("inner"):
            spin(0.03)
    taken = sections.taken()
    assert 0.009 < taken["outer_cpu"] < 0.025 and 0.029 < taken["inner_cpu"] < 0.05
    assert taken["inner"] >= taken["inner_cpu"] * 0.99
    assert sections.taken() == {}


def test_waiting_is_wall_and_not_cpu_and_other_threads_have_their_own():
    sections = Sections()
    other = threading.Thread(target=spin, args=(0.05,))
    with sections.within("wait"):
        other.start()
        other.join()
    taken = sections.taken()
    assert taken["wait"] > 0.045 and taken["wait_cpu"] < 0.02
    assert not sections.is_within("wait")


def test_what_is_replaced_comes_back_also_after_an_error():
    class Base:
        def ask(self):
            return 1

    class Thing(Base):
        pass

    with pytest.raises(ZeroDivisionError), replaced(Thing, "ask", lambda ask: lambda self: 2):
        assert Thing().ask() == 2 and Base().ask() == 1
        1 / 0
    assert Thing().ask() == 1 and "ask" not in vars(Thing)


# ------------------------------------------------------------------------------------------------ a run


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """(the run, what stood where it is measured while it lasted)."""
    seen = []

    def train(config, path):
        seen.extend(functions())
        return train_here(config, path, on_note=None)

    before = functions()
    run = profiled_training(train)(
        load_config("bandit", TINY), tmp_path_factory.mktemp("runs") / "profiled"
    )
    assert functions() == before, "nothing of it stays"
    return run, seen


def test_a_run_computes_the_same_with_it(profiled, tmp_path):
    plain = train_here(load_config("bandit", TINY), tmp_path / "plain", on_note=None)
    assert plain.digest() == profiled[0].digest()
    assert not any(
        name.startswith("profile/") for line in plain.clock_rows().values() for name in line
    )
    assert profile_table(plain.clock_rows(), [], {}) == "no step of this run was profiled"


def test_every_part_of_a_step_is_there_and_parts_are_no_more_than_the_whole(profiled):
    run, _ = profiled
    for line in run.clock_rows().values():
        seconds = {name.removeprefix("profile/"): value for name, value in line.items()}
        parts = {name for name in seconds if f"{name}_cpu" in seconds}
        assert parts >= {"collect", "prefill", "decode", "engine", "environment"}
        assert parts >= {"update", "forward", "backward", "optimizer"}
        rollout = sum(
            seconds[name] for name in ("collect", "prefill", "decode", "engine", "environment")
        )
        update = sum(seconds[name] for name in ("update", "forward", "backward", "optimizer"))
        assert 0.5 * seconds["collect_s"] < rollout <= seconds["collect_s"] * 1.01
        assert 0.5 * seconds["update_s"] < update <= seconds["update_s"] * 1.01


def test_tokens_and_operations_are_those_that_went_through(profiled):
    run, _ = profiled
    line = run.clock_rows()[1]
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
    model.get_output_embeddings = lambda: model[1]
    assert training._layers(model) == (24, 18)
    sampled = run.metrics_rows()[0]["sampled_tokens"] * 8
    # Each row's newest token passes alone but for the first of a turn, which comes with the prompt's pass.
    assert 0 < line["profile/decode_tokens"] <= sampled
    assert line["profile/backward_gflop"] == pytest.approx(2 * line["profile/forward_gflop"])
    assert line["profile/learner_product_gflops"] > 0.5


@pytest.mark.full
def test_control_what_is_slow_is_found_where_it_is(tmp_path, monkeypatch):
    step = InlineRunner.step

    def slow(runner, key, text):
        time.sleep(0.05)
        return step(runner, key, text)

    monkeypatch.setattr(InlineRunner, "step", slow)
    run = profiled_training(lambda config, path: train_here(config, path, on_note=None))(
        load_config("bandit", TINY), tmp_path / "slow"
    )
    line = run.clock_rows()[2]
    assert line["profile/environment"] > 8 * 0.05 > 0.3 > line["profile/environment_cpu"]


def test_the_lint_is_not_the_update(profiled):
    """R19 and others ask a learner of their own: that is theirs."""
    recorded = Sections()
    profile = training._Profile()
    profile.sections = recorded
    with recorded.within("lint"):
        assert not profile._counts("") and not profile._counts("update")
        with recorded.within("update"):
            assert not profile._counts("update")
    with recorded.within("update"):
        assert profile._counts("update")


# ------------------------------------------------------------------------------------------------ the table


def a_line(**others):
    seconds = {"collect_s": 4.0, "collect_cpu_s": 3.0, "update_s": 5.0, "update_cpu_s": 5.0}
    profile = dict(decode=2.0, decode_cpu=2.0, decode_tokens=300, decode_gflop=60.0, steps=1)
    profile |= dict(engine_product_gflops=100.0, learner_product_gflops=50.0)
    return seconds | {f"profile/{name}": value for name, value in (profile | others).items()}


def test_the_table_adds_up_steps():
    text = profile_table({1: a_line(), 2: a_line(), 3: {"collect_s": 99.0}}, [], {})
    rows = {
        line.split("  ")[0].strip() or line.strip().split("  ")[0]: line
        for line in text.splitlines()
    }
    assert "profile of 2 steps" in text
    assert rows["collect"].split()[1:] == ["8.00", "44.4%", "6.00"]
    assert rows["passes of one new token a row"].split()[-5:] == [
        "4.00",
        "22.2%",
        "4.00",
        "150",
        "30%",
    ]
    assert rows["of all, without CPU time: waiting"].split()[-3:] == ["2.00", "11.1%", "0.00"]
    assert "engine computes: 100 GFLOP/s" in text and "learner computes: 50 GFLOP/s" in text


def test_the_command_prints_it_and_without_the_word_nothing_is_loaded(
    tmp_path, capsys, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        "workbench.cli.training.service",
        lambda name, why: asked.append(name) or (lambda train: lambda *a: asked.append("trained")),
    )
    monkeypatch.setattr("workbench.cli.training._print_summary", lambda run: None)
    monkeypatch.setattr("workbench.cli.training.train_with_progress", lambda *args: None)
    assert main(["train", "bandit", "--out", str(tmp_path / "a")]) == 0 and asked == []
    assert main(["train", "bandit", "--out", str(tmp_path / "a"), "--profile"]) == 0
    assert asked == ["profiled_training", "trained"]
