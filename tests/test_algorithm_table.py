"""Every algorithm beside its baselines: equal budgets, what is finished is not done again, a verdict that says no."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from experiments.algorithms import __main__ as door
from experiments.algorithms import judge, plan, work
from experiments.algorithms.plan import (
    ENVIRONMENTS,
    Job,
    Terms,
    cluster_of,
    config_of,
    jobs,
    key_of,
    read_settings,
)
from experiments.algorithms.words import in_words, markdown
from workbench.extensions.ablation.schedulers import each_in_processes
from workbench.learn.algorithms import ALGORITHMS
from workbench.training.config import to_dict
from workbench.values.errors import ConfigError, LearnerError
from workbench.values.stats import clustered_difference
from workbench.worlds import tasks as env_tasks

TINY = """
[frozenlake]
"train.steps" = 1
[bandit]
"train.steps" = 2
"train.tasks_per_step" = 2
"train.group_size" = 4
"""


@pytest.fixture
def terms(tmp_path) -> Terms:
    (tmp_path / "tiny.toml").write_text(TINY)
    return Terms(tasks=8, settings=tmp_path / "tiny.toml")


# ------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_algorithm_has_settings_that_act_and_the_same_budget(environment):
    trees = {name: to_dict(config_of(Job(environment, name, 5))) for name in ALGORITHMS}
    assert all(tree["algorithm"]["kind"] == name for name, tree in trees.items())
    shared = [
        {key: value for key, value in tree.items() if key not in plan.OWN}
        for tree in trees.values()
    ]
    assert all(tree == shared[0] for tree in shared) and shared[0]["seed"] == 5


def test_an_algorithm_begins_with_its_own_defaults_not_with_the_presets(terms):
    assert config_of(Job("bandit", "grpo"), terms.settings).algorithm == ALGORITHMS["grpo"]()
    assert (
        config_of(Job("bandit")).algorithm != ALGORITHMS["grpo"]()
    )  # the preset's, on the same environment
    plain = config_of(Job("bandit", judge.PLAIN)).algorithm  # what the table uses
    assert plain.estimator.normalize_std and not plain.filter.acts


def test_the_bandits_held_out_tasks_are_unseen_draws_of_known_names():
    family = config_of(Job("bandit", "rloo")).env
    train, held_out = (env_tasks(family, split, 400) for split in ("train", "held-out"))
    names = [{cluster_of("bandit", task) for task in tasks} for tasks in (train, held_out)]
    assert names[0] == names[1] and len(names[0]) == 8
    assert not {task.task_seed for task in train} & {task.task_seed for task in held_out}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            'algorithms = ["rlo"]\nenvironments = ["bandit"]\nwhy = "x"\nset = {}',
            "names 'rlo' among its algorithms",
        ),
        (
            'algorithms = ["rloo"]\nenvironments = ["lake"]\nwhy = "x"\nset = {}',
            "names 'lake' among its environments",
        ),
        (
            'algorithms = ["rloo"]\nenvironments = ["bandit"]\nset = {}',
            "needs algorithms, environments, why and set",
        ),
        (
            'algorithms = ["rloo"]\nenvironments = ["bandit"]\nwhy = "x"\nset = { "train.steps" = 9 }',
            "the same for all",
        ),
    ],
)
def test_settings_are_refused_with_the_reason(tmp_path, entry, words):
    (tmp_path / "s.toml").write_text(f"{TINY}\n[[adjust]]\n{entry}\n")
    with pytest.raises(ConfigError, match=words):
        read_settings(tmp_path / "s.toml")


def test_settings_without_effect_or_file_are_said_before_anything_is_trained(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(
        TINY + '[[adjust]]\nalgorithms = ["rloo"]\nenvironments = ["bandit"]\nwhy = "x"\n'
        'set = { "critic.lr" = 1.0 }\n'
    )
    for settings, words in (
        ("s.toml", "critic.lr has no effect"),
        ("none.toml", "cannot read settings"),
    ):
        assert (
            door.main(["--settings", str(tmp_path / settings), "--out", str(tmp_path / "out")]) == 2
        )
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ jobs


@pytest.mark.full  # trains in a process of its own
def test_a_table_is_made_in_another_process_and_what_is_done_stays_done(terms, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = [
        "--algorithms",
        "rloo",
        "--environments",
        "bandit",
        "--seeds",
        "3",
        "--tasks",
        "8",
        "--out",
        str(out),
        "--settings",
        str(terms.settings),
    ]
    assert (
        door.main([*arguments, "--workers", "1"]) == 0
    )  # nothing of what two algorithms cannot decide
    first, said = (out / "table.json").read_bytes(), capsys.readouterr().out
    assert (
        "[2/2] bandit, rloo, seed 3: trained sampled" in said
        and "not judged bandit: at least 3 others" in said
    )
    assert door.main([*arguments, "--workers", "0"]) == 0
    assert (
        capsys.readouterr().out.count("done before") == 2
        and (out / "table.json").read_bytes() == first
    )
    table = json.loads(first)
    assert set(table) == {
        "version",
        "held",
        "checks",
        "seeds",
        "terms",
        "environments",
        "cpu_seconds",
        "code",
    }
    found = table["environments"]["bandit"]
    assert (
        set(found) == {"label", "tasks", "clusters", "start", "algorithms"} and found["tasks"] == 8
    )
    assert {(row["policy"], row["mode"]) for row in found["start"]["rows"]} == {
        ("random", "sampled"),
        ("solver", "greedy"),
        ("untrained", "sampled"),
        ("untrained", "greedy"),
    }
    entry = found["algorithms"]["rloo"]
    assert set(entry) == {
        "failed",
        "set",
        "algorithm",
        "updates",
        "cpu_seconds",
        "sampled",
        "greedy",
    }
    assert set(entry["sampled"]["over"]["untrained"]) == {"mean", "low", "high", "n"}
    assert entry["sampled"]["seeds"]["3"]["success"] == entry["sampled"]["success"]
    assert len(list((out / "runs").iterdir())) == 1


@pytest.mark.full  # trains in a process of its own
def test_a_run_that_was_cut_off_goes_on_and_ends_as_if_it_had_not_been(
    terms, tmp_path, monkeypatch
):
    job, whole = Job("bandit", "rloo", 1), None
    whole = work.do(job, terms, tmp_path / "whole")
    train = work.train_here

    def cut(config, path):
        def stop(outcome):
            raise LearnerError("cut off")

        return train(config, path, on_step=stop)

    monkeypatch.setattr(work, "train_here", cut)
    out = tmp_path / "cut"
    assert (
        work.do(job, terms, out) == {"failed": "LearnerError: cut off"}
        and work.finished(job, terms, out) is None
    )
    again = work.do(job, terms, out)
    assert (again["rows"], again["updates"]) == (whole["rows"], whole["updates"])
    assert work.finished(job, terms, out) == again


PARENT = """
import os, pathlib, sys, time
from workbench.extensions.ablation.schedulers import each_in_processes

def stay(file):
    pathlib.Path(file).write_text(str(os.getpid()))
    time.sleep(300)

if __name__ == "__main__":
    list(each_in_processes([sys.argv[1]], stay, (), 1))
"""


def test_more_items_than_processes_are_all_done():
    made = list(each_in_processes(range(3), pow, (2,), 2))
    assert sorted(made) == [(n, n**2) for n in range(3)]


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="looks at processes in /proc, which only Linux has"
)
def test_worker_processes_end_with_a_parent_that_is_killed(tmp_path):
    """A killed process cannot tell its workers; they look for themselves."""
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "pid")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    until = time.monotonic() + 60
    while (
        not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    worker = Path("/proc") / (tmp_path / "pid").read_text() / "cmdline"
    assert worker.read_bytes()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while worker.exists() and worker.read_bytes() and time.monotonic() < until:
        time.sleep(0.05)
    assert (
        not worker.exists() or not worker.read_bytes()
    )  # gone, or dead and waiting for its new parent


def test_a_result_of_other_code_tasks_or_settings_is_not_taken_for_this_one(
    terms, tmp_path, monkeypatch
):
    job = Job("bandit")
    work.do(job, terms, tmp_path)
    assert work.finished(job, terms, tmp_path) is not None
    assert work.finished(job, replace(terms, first=8), tmp_path) is None
    other = tmp_path / "other.toml"
    other.write_text(TINY.replace('"train.steps" = 2', '"train.steps" = 3'))
    assert work.finished(job, replace(terms, settings=other), tmp_path) is None
    monkeypatch.setattr(plan, "code_fingerprint", lambda: "another")
    assert work.finished(job, terms, tmp_path) is None


def test_other_held_out_tasks_are_really_others(terms, tmp_path):
    rows = [
        work.do(Job("bandit"), replace(terms, first=first), tmp_path / str(first))["clusters"]
        for first in (0, 8)
    ]
    both = [
        cluster_of("bandit", task)
        for task in env_tasks(config_of(Job("bandit")).env, "held-out", 16)
    ]
    assert rows[0] + rows[1] == both


# ------------------------------------------------------------------------------------------------ the table, made up


CLUSTERS = [f"pair {i // 50}" for i in range(400)]  # eight of fifty tasks


def row(policy, mode, wins):
    by_task = np.zeros(400)
    by_task[np.random.default_rng(0).permutation(400)[:wins]] = (
        1  # nested: who wins more wins those and others
    )
    return {
        "policy": policy,
        "mode": mode,
        "n": 400,
        "success": wins / 400,
        "success_low": 0.0,
        "success_high": 1.0,
        "by_task": by_task.tolist(),
    }


def made_up(wins, *, start=160, random=200, told=None, cost=30.0):
    """Results of one algorithm by seed, from the tasks that each seed wins (None: it failed)."""
    return {
        seed: {"failed": "LearnerError: NaN"}
        if won is None
        else {
            "rows": [row("trained", "sampled", won), row("trained", "greedy", won)],
            "set": {},
            "updates": 10,
            "algorithm": told
            or {
                "kind": "x",
                "estimator": {"normalize_std": True},
                "filter": {"keep": "all", "zero_variance": "keep"},
            },
            "cpu_seconds": {"training": cost, "measuring": 1.0},
        }
        for seed, won in enumerate(wins)
    }


def start_of(environment, start=160, random=200):
    rows = [
        row("random", "sampled", random),
        row("solver", "greedy", 400),
        row("untrained", "sampled", start),
        row("untrained", "greedy", start),
    ]
    return {
        "rows": rows,
        "clusters": CLUSTERS if environment == "bandit" else [str(i) for i in range(400)],
        "label": f"{environment}, invented",
        "cpu_seconds": {"training": 0.0, "measuring": 1.0},
    }


GOOD_LAKE = {
    "a": (200, 210, 205),
    "b": (190, 200, 195),
    "c": (220, 220, 220),
    "d": (180, 190, 200),
    "e": (200, 200, 190),
    "grpo": (160, 161, 159),
}
GOOD_BANDIT = {
    "a": (300, 300, 300),
    "b": (380, 390, 300),
    "c": (320, 330, 340),
    "d": (160, 160, 160),
    "e": (10, 20, 30),
    "grpo": (20, 160, 100),
}


def judged(lake=GOOD_LAKE, bandit=GOOD_BANDIT, wanted=tuple(GOOD_LAKE), **more):
    made = {"frozenlake": lake, "bandit": bandit}
    entries = {
        name: {
            algorithm: judge.entry(start_of(name), made_up(wins, **more))
            for algorithm, wins in by.items()
        }
        for name, by in made.items()
    }
    return judge.judge(entries, wanted)


def failed(checks):
    return [check.words for check in checks if check.held is False]


def test_a_good_table_passes_every_condition():
    checks = judged()
    assert [check.held for check in checks] == [True] * 6
    assert "5 of 6: a, b, c, d, e" in checks[3].why and "3 of 5: a, b, c" in checks[5].why


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (
            {"lake": GOOD_LAKE | {"a": (162, 161, 160)}},
            "at least 5 end above",
        ),  # a rise that is not clear
        ({"lake": GOOD_LAKE | {"grpo": (120, 125, 118)}}, "no algorithm ends below"),
        (
            {"lake": GOOD_LAKE | {"grpo": (190, 190, 120)}},
            "no algorithm ends below",
        ),  # one seed fell, all together rose
        (
            {"lake": GOOD_LAKE | {"grpo": (200, None, 200)}},
            "frozenlake: every run comes to its end",
        ),
        ({"bandit": GOOD_BANDIT | {"e": (None, None, None)}}, "bandit: every run comes to its end"),
        ({"bandit": GOOD_BANDIT | {"grpo": (20, 161, 100)}}, "rises above its start in no seed"),
        ({"bandit": GOOD_BANDIT | {"c": (201, 202, 203)}}, "at least 3 others"),
        (
            {"bandit": GOOD_BANDIT | {"c": (160, 160, 160), "grpo": (380, 380, 380)}},
            "at least 3 others",
        ),
        (
            {
                "told": {
                    "estimator": {"normalize_std": False},
                    "filter": {"keep": "all", "zero_variance": "keep"},
                }
            },
            "rises above its start",
        ),
        (
            {
                "told": {
                    "estimator": {"normalize_std": True},
                    "filter": {"keep": "band", "zero_variance": "keep"},
                }
            },
            "rises above its start",
        ),
        (
            {
                "told": {
                    "estimator": {"normalize_std": True},
                    "filter": {"keep": "all", "zero_variance": "drop"},
                }
            },
            "rises above its start",
        ),
    ],
)
def test_a_single_condition_that_does_not_hold_is_said(change, broken):
    found = failed(judged(**change))
    assert any(broken in words for words in found), found
    assert len(found) == (2 if change.get("bandit", {}).get("grpo") == (380, 380, 380) else 1)


def test_within_a_half_width_is_no_fall_and_just_outside_is_one():
    pair = {"mean": -0.02, "low": -0.04, "high": 0.0, "n": 9}
    assert not judge.fell(pair) and judge.fell(pair | {"mean": -0.0201})
    assert not judge.fell({"mean": -1.0, "low": float("-inf"), "high": float("inf"), "n": 1})


def test_few_algorithms_leave_open_what_needs_many_but_not_what_they_broke():
    checks = judged(lake={"a": (100, 100, 100)}, bandit={"a": (300, 300, 300)})
    assert [check.held for check in checks] == [True, True, False, None, None, None]
    assert [check.held for check in judged(lake={"a": (200,) * 3}, wanted=("a",))][
        3
    ] is False  # there are no more


def test_seeds_are_pooled_task_by_task_and_intervals_know_the_clusters():
    start, seeds = start_of("bandit"), made_up((300, 320, 310))
    found = judge.entry(start, seeds)["sampled"]
    before, random = (
        np.array(judge.by_policy(start)[key]["by_task"])
        for key in (("untrained", "sampled"), ("random", "sampled"))
    )
    together = np.mean([seeds[s]["rows"][0]["by_task"] for s in range(3)], axis=0)
    assert found["over"]["untrained"] == asdict(clustered_difference(before, together, CLUSTERS))
    assert found["over"]["random"] == asdict(clustered_difference(random, together, CLUSTERS))
    assert found["over"]["untrained"]["n"] == 8 and found["success"] == pytest.approx(310 / 400)
    assert (found["lowest"], found["highest"], found["deviation"]) == (
        0.75,
        0.8,
        pytest.approx(0.025),
    )
    alone = judge.entry(start_of("lake"), made_up((300, 320, 310)))["sampled"]
    assert alone["over"]["untrained"]["n"] == 400


@pytest.mark.full
def test_the_door_says_the_reasons_and_ends_with_the_verdict(tmp_path, monkeypatch, capsys):
    shares = {
        "frozenlake": dict.fromkeys(ALGORITHMS, (200, 205, 195)),
        "bandit": dict.fromkeys(ALGORITHMS, (300, 310, 305)) | {"grpo": (20, 30, 40)},
    }

    def invented(todo, terms, out, workers, say):
        return {
            job: start_of(job.environment)
            if job.algorithm is None
            else made_up(shares[job.environment][job.algorithm])[job.seed]
            for job in todo
        }

    monkeypatch.setattr(door, "run", invented)
    assert door.main(["--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (
        out.count("\nok  ") == 6
        and "FAIL" not in out
        and json.loads((tmp_path / "table.json").read_text())["held"]
    )
    shares["frozenlake"]["rloo"] = (100, 100, None)
    assert door.main(["--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "FAIL frozenlake: every run comes to its end (rloo, seed 2: LearnerError: NaN)" in out
    assert "FAIL frozenlake: no algorithm ends below" in out and "rloo, seed 0: -15.0 [" in out
    assert not json.loads((tmp_path / "table.json").read_text())["held"]


def test_the_words_hold_every_baseline_and_every_algorithm_with_its_interval():
    assert markdown([["a", "b"], ["1", "22"]]) == ["| a | b  |", "|---|----|", "| 1 | 22 |"]
    environments = {}
    for name, made in (("frozenlake", GOOD_LAKE), ("bandit", GOOD_BANDIT | {"dead": (None, None)})):
        environments[name] = {
            "label": "Invented",
            "tasks": 400,
            "clusters": len({*start_of(name)["clusters"]}),
            "start": start_of(name),
            "algorithms": {
                algorithm: judge.entry(start_of(name), made_up(wins))
                for algorithm, wins in made.items()
            },
        }
    lines = in_words(
        {
            "environments": environments,
            "checks": [asdict(check) for check in judged()],
            "seeds": [0, 1, 2],
            "cpu_seconds": 660.0,
            "code": "abc",
        }
    )
    assert "frozenlake: Invented; 400 held-out tasks" in lines
    assert "bandit: Invented; 400 held-out tasks, intervals over 8 clusters of them" in lines
    split = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    rows = {name: cells for name, *cells in split}
    assert set(rows) - {"", "-" * 11} == {"random", "untrained", "solver", *GOOD_BANDIT, "dead"}
    assert rows["untrained"] == ["40.0 [0.0, 100.0]", "", "40.0", "40.0 [0.0, 100.0]", "", "", ""]
    assert rows["solver"][2] == "100.0" and rows["solver"][0] == ""
    assert (
        rows["b"][0] == "48.8, 47.5 to 50.0"
        and rows["b"][2] == "48.8"
        and rows["b"][-1] == "10, 10"
    )
    assert rows["b"][1].startswith("+8.8 [") and rows["b"][3] == "89.2, 75.0 to 97.5"
    assert rows["b"][5].startswith("+39.2 [")
    assert rows["dead"] == ["", "", "", "failed", "failed", "failed", "-, -"]
    assert list(rows)[-len(GOOD_LAKE) - 1 :] == [*GOOD_LAKE, "dead"]  # as asked for, not ranked
    assert lines[-1] == "11 CPU-minutes, training and measuring; code abc"


def test_jobs_begin_with_what_is_there_before_training_and_go_seed_by_seed():
    made = jobs(("frozenlake", "bandit"), ("grpo", "ppo"), (0, 1))
    assert [job.algorithm for job in made[:2]] == [None, None] and len(made) == 2 + 2 * 2 * 2
    assert [job.seed for job in made[2:]] == [0] * 4 + [1] * 4
    assert len({key_of(job, Terms()) for job in made}) == len(made) and len(
        {job.name for job in made}
    ) == len(made)
    assert Path(plan.SETTINGS).is_file()
