"""Tasks are the same in every process, and what is held out is never trained."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from tests.counts import reduced
from tests.envs.guessing import Guessing
from workbench.values import Task
from workbench.values.errors import ConfigError
from workbench.values.seeds import seed_of
from workbench.worlds import ENVS, PRESETS, FrozenLake, split_of, tasks
from workbench.worlds.splits import SPLITS

FINGERPRINT = """
import hashlib, json
from workbench.worlds import PRESETS, tasks
from workbench.rollouts.evaluate import evaluate_baselines
lines = []
for name in ("frozenlake-4x4-slip", "bandit", "sokoban-6x6", "sokoban-8x8-2"):
    family = PRESETS[name]
    chosen = [*tasks(family, "train", 12, seed=3, step=2), *tasks(family, "held-out", 12)]
    lines += [json.dumps([t.id, t.task_seed, dict(t.payload)]) for t in chosen]
    lines += map(repr, evaluate_baselines(chosen, family=family, seed=5, attempts=2))
print(hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


def in_process(code, hash_seed):
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, PYTHONHASHSEED=hash_seed),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


class Empty(Guessing):
    """What tells its tasks apart is not in their payloads."""

    def task(self, task_seed):
        return Task(f"guessing/{task_seed}", self.name, task_seed, {})


class Undivided(Guessing):
    def split_of(self, task):
        return "train"


@pytest.mark.parametrize(
    "family, words",
    [
        (
            Empty(),
            "make 1 different payloads, and it has no split_of.*belongs in Task.payload.*define split_of",
        ),
        (Undivided(), "its split_of.task. never says so"),
    ],
)
def test_a_split_without_tasks_names_what_is_missing(family, words):
    with pytest.raises(ConfigError, match=words):
        for split in SPLITS:
            tasks(family, split, 2)


@pytest.mark.full
def test_tasks_and_trajectories_are_the_same_in_every_process():
    assert in_process(FINGERPRINT, "1") == in_process(FINGERPRINT, "2")


def test_control_a_salted_hash_would_be_noticed():
    assert in_process("print(hash('level 7'))", "1") != in_process("print(hash('level 7'))", "2")


def digest(chosen):
    return hashlib.sha256(
        json.dumps([[t.task_seed, dict(t.payload)] for t in chosen]).encode()
    ).hexdigest()[:16]


@pytest.mark.full
def test_the_held_out_tasks_of_the_demo_never_change():
    """Every published number rests on these 512 maps: whoever changes them must say so here."""
    chosen = tasks(PRESETS["frozenlake-4x4"], "held-out", 512)
    assert chosen[0].payload["grid"] == ["O_PO", "____", "OO__", "__G_"]
    assert digest(chosen) == "263cf8a82b64f4de"
    assert len({tuple(t.payload["grid"]) for t in chosen}) == 512
    chosen = tasks(PRESETS["sokoban-6x6"], "held-out", 512)
    assert chosen[0].payload["level"] == [
        "######",
        "#____#",
        "#___O#",
        "#_#PX#",
        "#____#",
        "######",
    ]
    assert digest(chosen) == "aa1402865f01b655"
    assert len({tuple(t.payload["level"]) for t in chosen}) == 512


@pytest.mark.parametrize(
    "name", reduced(PRESETS, [name for name in PRESETS if not name.startswith("sokoban")])
)
def test_no_problem_is_in_both_splits(name):
    family = PRESETS[name]
    train = [t for step in range(8) for t in tasks(family, "train", 64, seed=1, step=step)]
    held_out = tasks(family, "held-out", 128)
    assert not {t.task_seed for t in train} & {t.task_seed for t in held_out}
    assert {split_of(family, t) for t in train} == {"train"} and {
        split_of(family, t) for t in held_out
    } == {"held-out"}
    if getattr(
        family, "heldout_names", True
    ):  # a bandit without held-out names shows the same prompts again
        assert not {json.dumps(dict(t.payload)) for t in train} & {
            json.dumps(dict(t.payload)) for t in held_out
        }


def test_control_splitting_by_the_seed_alone_would_repeat_maps():
    family = FrozenLake(size=2)
    one = {tuple(family.task(seed_of("train", i)).payload["grid"]) for i in range(200)}
    other = {tuple(family.task(seed_of("held-out", i)).payload["grid"]) for i in range(200)}
    assert one & other
    one = {tuple(t.payload["grid"]) for t in tasks(family, "train", 200)}
    other = {tuple(t.payload["grid"]) for t in tasks(family, "held-out", 200)}
    assert one and other and not one & other


def test_steps_and_runs_draw_different_tasks_and_lists_are_prefixes():
    family = PRESETS["frozenlake-4x4"]
    streams = [
        tuple(t.task_seed for t in tasks(family, "train", 8, seed=seed, step=step))
        for seed in (0, 1)
        for step in (0, 1)
    ]
    assert len({seed for stream in streams for seed in stream}) == 32
    assert tasks(family, "train", 8)[:3] == tasks(family, "train", 3)
    assert tasks(family, "held-out", 40)[:25] == tasks(family, "held-out", 25)
    assert len({t.id for t in tasks(family, "train", 64)}) == 64


def test_a_family_that_does_not_name_its_splits_gets_them_by_payload():
    class Bare:
        def task(self, task_seed):
            return FrozenLake().task(task_seed)

    assert {split_of(Bare(), t) for t in tasks(Bare(), "held-out", 5)} == {"held-out"}


def test_unknown_splits_are_refused():
    with pytest.raises(ConfigError, match="held-out"):
        tasks(PRESETS["bandit"], "validation", 3)


def test_presets_are_what_their_names_say():
    assert all(ENVS[kind].name == kind for kind in ENVS)
    # Files, packages, servers and programs are the user's.
    theirs = {"file_qa", "tools", "gymnasium", "reasoning_gym", "textarena", "verifiers", "openenv"}
    theirs |= {"agent"}
    assert {family.name for family in PRESETS.values()} == set(ENVS) - theirs
    demo = PRESETS["frozenlake-4x4"]
    assert (demo.size, demo.slip, demo.hole_density, demo.max_moves, demo.think) == (
        4,
        0.0,
        0.2,
        10,
        True,
    )
    assert demo.label == "FrozenLake 4x4, slip 0, holes 0.2, 10 moves, 5 per answer, 10 answers"
    assert (
        PRESETS["frozenlake-4x4-slip"].slip == 0.2
        and PRESETS["frozenlake-4x4-gymnasium"].slip == 2 / 3
    )
    sokoban = PRESETS["sokoban-6x6-coordinates"]
    assert sokoban.label == (
        "Sokoban 6x6, 1 box, solutions of 2 to 8, walls 0.15, 15 moves, 5 per answer, 10 answers, "
        "coordinates"
    )
    assert PRESETS["sokoban-6x6-symbols"].label.endswith("grid, symbols W.GCBA@")
    assert (PRESETS["sokoban-8x8-2"].size, PRESETS["sokoban-8x8-2"].boxes) == (8, 2)
    assert PRESETS["bandit-paper"].safe_payout == 0.15 and PRESETS["bandit-code"].safe_payout == 0.1


def test_environments_and_stats_need_numpy_only():
    code = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import workbench.worlds, workbench.worlds.baselines, workbench.worlds.runners, workbench.values.stats
loaded = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
print(sorted(name for name in loaded if not name.startswith("_")))
"""
    assert in_process(code, "0") == "['numpy', 'workbench']"
