"""A plan of an ablation, a file of settings, and the table of a grid, by whom it may be: what is
odd in one is said in words, before it takes time or memory."""

from __future__ import annotations

import json
import time

import pytest

from tests.ablation.quick import notebook_at
from workbench.cli import run
from workbench.extensions.ablation.grid import MOST_POINTS, axes_of
from workbench.extensions.ablation.reading import MOST_SEEDS, PLAN_SUFFIX, read_plan
from workbench.training.config import load_config
from workbench.values.errors import ConfigError, DataError

SOUND = """title = "Q"
notebook = "quick.ipynb"
seeds = 2
baseline = "lr-0.1"
[grid]
lr = [0.1, 0.2]
"""
ZEROS = "0" * 400
LONG = "0x" + "f" * 5000
MANY = ", ".join(map(str, range(200_000)))
WRONG = {
    "a trillion seeds": ("seeds = 2", f"seeds = {10**12}", "at most 10,000 seeds"),
    "a million seeds": ("seeds = 2", "seeds = 1000000", "at most 10,000 seeds"),
    "a seed of 5,000 digits": ("seeds = 2", f"seeds = [{LONG}]", "bits"),
    "a margin that no float holds": (
        "[grid]",
        f"[analysis]\nmargin = 1{ZEROS}\n[grid]",
        "bits",
    ),
    "a range that no float holds": (
        "[0.1, 0.2]",
        f"{{ from = 1, to = 1{ZEROS}, steps = 3 }}",
        "bits",
    ),
    "200,000 values": ("[0.1, 0.2]", f"[{MANY}]", "at most 10,000 values"),
    "2,000 axes": ("lr = ", "\n".join(f"a{n} = [1, 2]" for n in range(2000)) + "\nlr = ", "points"),
    "a zero byte in a name": ("quick.ipynb", "a\\u0000b", "the name of a file"),
    "a pair of numbers": ('baseline = "lr-0.1"', "compare = [[1, 2]]", "pairs of two arms"),
    "a pair of lists": ('baseline = "lr-0.1"', 'compare = [[["a"], ["b"]]]', "pairs of two arms"),
    "axes that are numbers": (
        "seeds = 2",
        "seeds = 2\ninteractions = [[1, 2]]",
        "pairs of two axes",
    ),
    "a trillion seeds of tuning": (
        "[grid]",
        f"[tuning]\nseeds = {10**12}\ngrid = {{ lr = [1, 2] }}\n[grid]",
        "at most 10,000 seeds",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    notebook_at(folder / "quick.ipynb", "1")
    return folder


@pytest.mark.parametrize("what", WRONG)
def test_an_odd_plan_is_refused_in_words(what, folder):
    old, new, words = WRONG[what]
    assert old in SOUND
    (folder / "odd.toml").write_text(SOUND.replace(old, new, 1))
    began = time.process_time()
    with pytest.raises(ConfigError) as told:
        read_plan(folder / "odd.toml")
    assert words in str(told.value) and time.process_time() - began < 10


def test_negative_control_a_sound_plan_and_the_largest_that_are_read(folder):
    (folder / "sound.toml").write_text(SOUND)
    assert len(read_plan(folder / "sound.toml").arms) == 2
    (folder / "large.toml").write_text(SOUND.replace("seeds = 2", f"seeds = {MOST_SEEDS}"))
    assert len(read_plan(folder / "large.toml").seeds) == MOST_SEEDS
    [axis] = axes_of({"lr": {"from": 1, "to": MOST_POINTS, "steps": MOST_POINTS}}, "grid")
    assert len(axis.values) == MOST_POINTS


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '{"title": ' + "9" * 5000 + "}"])
def test_a_plan_in_json_is_read_within_bounds(text, folder):
    path = folder / f"odd{PLAN_SUFFIX}"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot read an ablation"):
        read_plan(path)


@pytest.mark.parametrize("number", [LONG, "-" + LONG.replace("0x", ""), "1" + ZEROS])
def test_a_number_that_no_float_holds_is_no_setting(number, tmp_path):
    number = number if number[:1] != "-" else f"-1{ZEROS}"
    path = tmp_path / "odd.toml"
    path.write_text(f'base = "bandit"\n[train]\nsteps = {number}\n')
    with pytest.raises(ConfigError, match="bits"):
        load_config(path)
    path.write_text('base = "bandit"\n[train]\nsteps = 0x10\n')  # the negative control
    assert load_config(path).train.steps == 16


@pytest.mark.parametrize(
    "table",
    [
        "[" * 100_000,
        "5",
        "{}",
        '{"compared": 5}',
        '{"compared": [], "arms": [1]}',
        '{"compared": [{"a": NaN}]}',
    ],
)
def test_a_table_that_no_ablation_wrote_makes_no_figure(table, tmp_path, capsys):
    (tmp_path / "x.declared.json").write_text("{}")
    (tmp_path / "x.json").write_text(table)
    assert run(["figure", str(tmp_path), "-o", str(tmp_path / "x.svg")]) == 2
    assert "no table that" in capsys.readouterr().err
    assert json.dumps(table)  # what stood there is left
    assert not (tmp_path / "x.svg").exists() and DataError
