"""The terminal door: every command at tiny size, what it prints, and the three exit statuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.command_kit import status_of
from workbench import cli
from workbench.cli import training
from workbench.cli.opening import overrides
from workbench.extensions.demo import verdict as demo_cell
from workbench.look.cells import stored as show_cell
from workbench.run.recording import create_run
from workbench.run.store import open_run
from workbench.training import checkpoint
from workbench.training.config import load_config, to_dict
from workbench.values import CreditTable
from workbench.values.errors import LearnerError

TINY = [
    "train.steps=2",
    "train.tasks_per_step=3",
    "train.group_size=4",
    "train.evaluate_every=0",
    "evaluation.num_tasks=8",
    "lint.start=false",
]
SETTINGS = [word for setting in TINY for word in ("--set", setting)]


@pytest.fixture
def workbench(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; gives (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        status = status_of(words)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, made by the command itself."""
    path = tmp_path_factory.mktemp("runs") / "first"
    assert cli.main(["train", "frozenlake", "--out", str(path), *SETTINGS]) == 0
    return path


# ------------------------------------------------------------------------------------------------ train


def test_train_says_what_it_measured_and_where_the_run_is(workbench):
    status, out, err = workbench("train", "frozenlake", *SETTINGS, "--set", "train.steps=1")
    assert status == 0
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("frozenlake-seed0-") and f"workbench show runs/{path.name}" in out
    for baseline in ("random", "solver", "untrained", "trained"):  # invariant 12
        assert baseline in out
    assert "trained sampled - untrained sampled" in out and "1/1" in err and "Loading" not in err


@pytest.mark.full
def test_a_run_is_trained_again_from_its_own_config_and_from_a_plain_one(workbench, trained):
    plain = Path("plain.json")
    plain.write_text(
        json.dumps(to_dict(load_config("frozenlake", dict(s.split("=") for s in TINY))))
    )
    for source in (trained / "config.json", plain):
        status, _, err = workbench("train", source, "--out", f"runs/{Path(source).stem}")
        assert status == 0, err
        assert open_run(Path("runs") / Path(source).stem).digest() == open_run(trained).digest()


@pytest.mark.parametrize(
    "words, message",
    [
        (["frozenlak"], "did you mean 'frozenlake'"),
        (["nowhere.toml"], "cannot read nowhere.toml"),
        (["nowhere.json"], "cannot read nowhere.json"),
        (["frozenlake", "--set", "train.steps"], "--set takes KEY=VALUE"),
        (["frozenlake", "--set", "train.step=3"], "did you mean 'train.steps'"),
        (["frozenlake", "--set", "collect.window=3"], "collect.window has no effect"),
        (["frozenlake", "--set", "policy.name=./nowhere"], "no folder './nowhere'"),
        (
            ["frozenlake", "--set", "learner.num_processes=2"],
            "asked for 2 processes, but this is a world of 1",
        ),
        (["frozenlake", "--out", "taken"], "never overwritten"),
    ],
)
def test_what_cannot_be_trained_ends_with_2_and_a_sentence(workbench, words, message):
    Path("taken").mkdir()
    status, _, err = workbench("train", *words)
    assert status == 2 and message in err and "Traceback" not in err
    assert not list(Path("runs").glob("*")) if Path("runs").exists() else True


def test_training_says_that_its_trajectorys_broke_and_of_what(workbench):
    Path("broken_env.py").write_text("""
from dataclasses import dataclass
from typing import ClassVar

from workbench.values import Message, Observation, Task


class Env:
    def reset(self, task, dynamics_seed):
        return Observation((Message("user", "Go on."),))

    def step(self, action_text):
        raise OSError("the line is dead")


@dataclass(frozen=True)
class Broken:
    max_turns: int = 2
    name: ClassVar[str] = "broken"

    def task(self, task_seed):
        return Task(f"broken/{task_seed}", "broken", task_seed, {"number": task_seed})

    def make(self):
        return Env()
""")
    status, out, _ = workbench(
        "train",
        "broken_env:Broken",
        "--set",
        "policy.name=frozenlake-tiny",
        *SETTINGS[:6],
        "--set",
        "evaluation.num_tasks=2",
        "--set",
        "collect.max_turn_tokens=4",
        "--set",
        "lint.start=false",
    )
    assert status == 0
    assert (
        "! in 2 steps trajectories were ended by a fault and are unscored, 100% of those of step 1; the first says: OSError: the "
        "line is dead" in out
    )


def test_several_settings_behind_one_set_are_told_apart_from_a_wrong_option(workbench):
    status, _, err = workbench("train", "frozenlake", "--set", "train.steps=1", "learner.lr=1e-4")
    assert (
        status == 2
        and "unrecognized arguments: learner.lr=1e-4; each setting has a --set of its own" in err
    )
    status, _, err = workbench("train", "frozenlake", "--sett", "train.steps=1")
    assert status == 2 and "--sett" in err and "of its own" not in err


@pytest.mark.full
def test_a_damaged_stored_config_is_refused(workbench, trained):
    for name, text in {"text.json": "no json", "list.json": "[1]", "bytes.json": "\udcff"}.items():
        Path(name).write_bytes(text.encode("utf-8", "surrogateescape"))
        status, _, err = workbench("train", name)
        assert status == 2 and "ConfigError" in err
    status, _, err = workbench("train", trained / "config.json", "--set", "seed=1")
    assert status == 2 and "taken as it is" in err


def test_flags_of_the_template_keep_their_type():
    assert overrides(
        ["policy.template_flags.enable_thinking=false", "policy.template_flags.word=low", "seed=3"]
    ) == {
        "policy.template_flags.enable_thinking": False,
        "policy.template_flags.word": "low",
        "seed": "3",
    }


# ------------------------------------------------------------------------------------------------ evaluate, rollout


@pytest.mark.full
def test_evaluate_shows_a_run_beside_the_policy_it_started_from(workbench, trained):
    status, out, _ = workbench("evaluate", trained, "--tasks", 8, "--json")
    rows = {(row["policy"], row["mode"]): row for row in json.loads(out)["rows"]}
    assert status == 0 and {policy for policy, _ in rows} == {
        "random",
        "solver",
        "untrained",
        "trained",
    }
    stored = {
        (row["policy"], row["mode"]): row
        for row in open_run(trained).evaluations()["step-00000002"]["rows"]
    }
    assert rows == stored  # invariant 13: the same function, on the same tasks
    assert (
        "attempts" not in rows["trained", "sampled"]
    )  # of one trajectory each: the row is what it always was
    status, out, _ = workbench("evaluate", "frozenlake", "--tasks", 2, "--attempts", 3)
    assert (
        status == 0
        and "untrained" in out
        and "trained  sampled" not in out.replace("untrained", "")
    )
    assert "pass@2" in out and "pass@4" not in out and "2 x 3" in out


def test_rollout_shows_every_trajectory_turn_by_turn_or_token_by_token(workbench, trained):
    status, turns, _ = workbench("rollout", trained, "--tasks", 2, "--group", 2)
    assert status == 0 and turns.count("2 trajectories") == 2 and turns.count("attempt 1 ·") == 2
    status, tokens, _ = workbench("rollout", "frozenlake", "--group", 1, "--tokens", *SETTINGS)
    assert status == 0 and "<|im_start|>" in tokens and "[TRAIN turn 0" in tokens
    status, many, _ = workbench("rollout", "frozenlake", "--tasks", 5, "--group", 1, *SETTINGS)
    assert many.count("1 trajectory ·") == 5  # more than a training step has


def test_a_preset_is_a_preset_whatever_folders_there_are(workbench):
    Path("frozenlake").mkdir()
    assert workbench("rollout", "frozenlake", "--group", 1)[0] == 0
    status, _, err = workbench("rollout", "./frozenlake")
    assert status == 2 and "not a run folder" in err


@pytest.mark.parametrize(
    "words, message",
    [
        (["evaluate", "RUN", "--step", "9"], "no committed step 9"),
        (
            ["evaluate", "frozenlake", "--step", "1", "--tasks", "2"],
            "'frozenlake' is no run folder",
        ),
        (["evaluate", "RUN", "--set", "seed=1"], "a run's config is fixed"),
        (["evaluate", "frozenlake", "--tasks", "0"], "at least 1"),
        (["evaluate", "frozenlake", "--attempts", "0"], "at least 1"),
        (["rollout", "frozenlake", "--group", "none"], "at least 1"),
        (["rollout", "frozenlake", "--tasks", "-1"], "at least 1"),
        (["show", "nowhere"], "no run folder nowhere"),
        (["show", "."], "not a run folder"),
        (["show", "RUN", "9"], "no committed step 9"),
        (["show", "RUN", "1", "--task", "3"], "no task 3; they are counted from 0 to 2"),
        (["show", "RUN", "1", "--task", "-1"], "a whole number, at least 0, is expected; got '-1'"),
        (["show", "RUN", "1", "--attempt", "4"], "no trajectory 4; they are counted from 0 to 3"),
        (["show", "RUN", "--tokens"], "workbench show RUN STEP"),
        (["show", "RUN", "1", "--signals"], "leave the step and --at out"),
        (["replay", "RUN", "3"], "no committed step 3"),
        (["play", "frozenlak"], "did you mean 'frozenlake-4x4'"),
        (["play", "frozenlake-4x4", "--tokenizer", "./nowhere"], "no folder './nowhere'"),
        (["pretrain", "nobody"], "nobody"),
        (["demo", "--seeds", "1", "1"], "occurs twice"),
        (["demo", "--task", "frozenlak"], "did you mean 'frozenlake'"),
        (["dance"], "invalid choice"),
    ],
)
def test_a_wrong_question_ends_with_2_and_a_sentence(workbench, trained, words, message):
    status, _, err = workbench(*(str(trained) if word == "RUN" else word for word in words))
    assert status == 2 and message in err and "Traceback" not in err


# ------------------------------------------------------------------------------------------------ show, replay


def test_show_goes_from_the_run_to_the_token(workbench, trained):
    for words, found in (
        ([], "steps 1 to 2"),
        (["--signals"], "commonest"),
        ([1], "4 trajectories"),
        ([1, "--attempt", 3], "attempt 3"),
        ([2, "--task", 2, "--tokens"], "<|im_start|>"),
    ):
        status, out, _ = workbench("show", trained, *words)
        assert status == 0 and found in out
    for _ in range(2):  # a picture is not a record: it may be drawn again
        status, out, _ = workbench("show", trained, 1, "--html", "pictures/step.html")
        assert status == 0 and "<table" in Path("pictures/step.html").read_text()


def test_a_run_is_shown_where_its_policy_cannot_be_found(trained, monkeypatch):
    """Ids instead of texts; everything else is in the run folder."""
    run = open_run(trained)
    run.first_config["policy"]["name"] = "./on-another-machine"
    text = show_cell.step_view(run, 1, tokens=True).text
    assert "[" + str(int(run.groups(1)[0][0].segments[0].token_ids[0])) + "]" in text


def test_replay_says_yes_with_0_and_no_with_1(workbench, trained):
    """The run on the right was written by the very same writer; one bit of one advantage is another."""
    assert workbench("replay", trained, 1)[0] == 0
    run = open_run(trained)
    table = run.credit(1)
    advantage = table["advantage"].copy()
    token = int(np.flatnonzero(advantage)[0])
    advantage[token] = np.nextafter(advantage[token], 9)
    with create_run("tampered", run.config) as tampered:
        tampered.write_step(1, run.groups(1))
        tampered.write_credit(CreditTable(1, 0, {**table.columns, "advantage": advantage}))
        tampered.commit_step(1, {})
    status, out, _ = workbench("replay", "tampered", 1)
    assert status == 1 and "advantage" in out
    file = Path("tampered/steps/step-00000001/credit-0000.parquet")
    file.write_bytes(
        file.read_bytes()[:-1] + b"?"
    )  # another thing than a wrong number: a damaged file
    status, _, err = workbench("replay", "tampered", 1)
    assert status == 2 and "credit-0000.parquet" in err


# ------------------------------------------------------------------------------------------------ play, demo, the rest


def test_play_takes_what_is_piped_in_and_ends_with_it(workbench, monkeypatch):
    lines = iter(["Right", "<think>by hand</think><answer>Down</answer>", "nonsense"])

    def typed(question):
        print(question, end="")
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin", open(os.devnull))
    status, out, _ = workbench("play", "frozenlake-4x4", "--seed", 3)
    assert (
        status == 0 and "you> Right\n" in out and "you> nonsense\n" in out
    )  # what is not typed is echoed
    told, summary = out.split("· attempt 0 ·")
    assert told.count("you>") == 4 and "The answer holds something that is not on offer" in told
    assert (
        "<think></think><answer>Right</answer>" in summary
        and "by hand" in summary
        and "the player left" in summary
    )
    assert "reward not scored" in summary  # invariant 5


@pytest.mark.parametrize(
    ("task", "rivals"),
    [
        ("frozenlake", 0),
        pytest.param("search", 3, marks=pytest.mark.full),
        pytest.param("search-discovery", 0, marks=pytest.mark.full),
    ],
)
def test_demo_writes_its_table_and_exits_with_the_answer(workbench, task, rivals):
    task = ("--task", task)
    status, out, _ = workbench(
        "demo", *task, "--seeds", 0, "--out", "runs/demo", *SETTINGS, "--set", "learner.lr=0"
    )
    assert (
        status == 1
        and "NOT learned" in out
        and "FAIL sampled success rises by at least 8 points" in out
    )
    table = json.loads(Path("runs/demo/table.json").read_text())
    assert (
        table["learned"] is False and table["seeds"][0]["rise"]["difference"] == 0
    )  # nothing moved: exactly nothing rose
    assert table["seeds"][0]["training_cpu_seconds"] > 0
    assert len(table["seeds"][0]["rivals"]) == rivals
    status, _, err = workbench("demo", *task, "--out", "runs/demo", *SETTINGS)
    assert status == 2 and "is there already" in err


def pretend(runs):
    """Stands for training: gives the run of each seed, or raises what lies there instead."""

    def train(config, path):
        if isinstance(runs[config.seed], Exception):
            Path(path).mkdir(parents=True)
            raise runs[config.seed]
        Path(path).mkdir(parents=True)
        return runs[config.seed]

    return train


@pytest.mark.parametrize("answers, status", [({0: True, 1: True}, 0), ({0: True, 1: False}, 1)])
def test_one_seed_that_did_not_learn_makes_it_1(workbench, trained, monkeypatch, answers, status):
    judged = demo_cell.verdict(open_run(trained).evaluations()["step-00000002"])
    verdicts = iter(answers.values())
    monkeypatch.setattr(
        demo_cell, "verdict", lambda report, goal: judged | {"learned": next(verdicts)}
    )
    monkeypatch.setattr(
        training, "train_with_progress", pretend(dict.fromkeys(answers, open_run(trained)))
    )
    found, out, _ = workbench(
        "demo", "--task", "frozenlake", "--seeds", *answers, "--out", "runs/demo"
    )
    assert found == status and ("NOT learned: seed 1" in out) == (status == 1)


def test_a_seed_in_which_nothing_could_be_learned_has_failed_and_the_others_count(
    workbench, trained, monkeypatch
):
    run = open_run(trained)
    monkeypatch.setattr(demo_cell, "open_run", lambda path: run)
    monkeypatch.setattr(
        training,
        "train_with_progress",
        pretend({0: LearnerError("5 steps in a row taught nothing"), 1: run}),
    )
    status, out, _ = workbench(
        "demo", "--task", "frozenlake", "--seeds", 0, 1, "--out", "runs/demo"
    )
    assert status == 1 and "5 steps in a row taught nothing" in out
    seeds = json.loads(Path("runs/demo/table.json").read_text())["seeds"]
    assert [seed["rise"] is None for seed in seeds] == [True, False]


def test_doctor_and_pretrain_hand_on_their_answer(workbench, monkeypatch):
    class Report:
        text, ok, passed = "all well", True, False

        def as_dict(self):
            return {"ok": self.ok}

    monkeypatch.setattr("workbench.extensions.doctor.doctor", lambda policy: Report())
    assert workbench("doctor")[:2] == (0, "all well\n")
    assert json.loads(workbench("doctor", "--json")[1]) == {"ok": True}
    monkeypatch.setattr("data.make.pretrain.check", lambda name, quick: Report())
    assert workbench("pretrain", "frozenlake-tiny", "--check", "--quick")[:2] == (1, "all well\n")
    monkeypatch.setattr("data.make.pretrain.pretrain", lambda name, out, seed: None)
    assert workbench("pretrain", "frozenlake-tiny")[:2] == (0, "runs/policies/frozenlake-tiny\n")


def test_an_interrupt_is_130_and_not_a_traceback(workbench, trained, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.look.cells.place.learning_curves_view", interrupted)
    status, _, err = workbench("show", trained)
    assert status == 130 and "committed steps are kept" in err


# ------------------------------------------------------------------------------------------------ two processes


def torchrun(folder, *words, script=("-m", "workbench.cli")):
    root = Path(__file__).resolve().parents[1]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(root),
    }
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        *script,
        *words,
    ]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.full
def test_two_processes_sample_the_same_first_step_and_only_one_speaks(trained, tmp_path):
    done = torchrun(tmp_path, "train", "frozenlake", *SETTINGS, "--set", "learner.num_processes=2")
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (tmp_path / "runs").iterdir()  # one folder, though its name holds a time
    assert (
        done.stdout.count("steps committed") == 1 and done.stdout.count("untrained sampled ") >= 1
    )
    drawn = [
        line for line in done.stderr.splitlines() if "2/2" in line
    ]  # again every 10 s, where the end takes long
    assert drawn and len(drawn) == len(set(drawn)) and "Warning" not in done.stderr
    one, two = open_run(trained), open_run(path)
    for mine, theirs in zip(one.groups(1), two.groups(1), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a.task, a.reward, a.dynamics_seed) == (b.task, b.reward, b.dynamics_seed)
            for x, y in zip(a.segments, b.segments, strict=True):
                np.testing.assert_array_equal(x.token_ids, y.token_ids)
                np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-4)
    assert one.metrics()["loss"][1] == pytest.approx(two.metrics()["loss"][1], abs=1e-4)
    mine, theirs = (checkpoint.load(run.path, 2)[1]["model"] for run in (one, two))
    assert np.mean([(mine[name] - theirs[name]).abs().mean().item() for name in mine]) < 1e-5


FAULTY = """
import os, sys
from workbench import cli
from workbench.run.recording import RunWriter
from workbench.values.errors import StoreError

def full(*args):
    raise StoreError("the disk is full")

RunWriter.write_step = full  # only the first process writes
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.full
def test_a_fault_of_one_process_ends_both_with_its_message(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    done = torchrun(
        tmp_path,
        "train",
        "frozenlake",
        *SETTINGS,
        "--set",
        "learner.num_processes=2",
        script=("faulty.py",),
    )
    assert done.returncode != 0
    assert "workbench (process 0 of 2): StoreError: the disk is full" in done.stderr
