"""Every whole number that may be set has an upper bound: a stranger's run cannot ask for a trillion of anything."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest
from store_values import ordinary_step

from workbench.basics.canonical_json import MOST_RECORDS, line_bytes
from workbench.basics.extensions import provided
from workbench.basics.plugins import load_named
from workbench.basics.settings import MOST_WHOLE, Declared, declarations
from workbench.cli.numbers import whole_number
from workbench.extensions.interop.command import step_numbers
from workbench.run.code import origins_of
from workbench.run.recording import create_run
from workbench.run.store import open_run
from workbench.training.config import PRESETS, load_config, to_dict
from workbench.training.schedule import schedule
from workbench.values.errors import ConfigError, StoreError
from workbench.worlds import PRESETS as WORLDS

SEEDS = {"seed", "catalogue_seed"}  # any whole number of 63 bits


def whole_numbers() -> Iterator[tuple[str, Declared]]:
    """(where, setting) of every whole number that a configuration may hold."""
    parts = [*PRESETS.values(), *WORLDS.values()]
    parts += [load_named(place, "kind") for place in provided("environments").values()]
    seen: set[type] = set()
    while parts:
        part = parts.pop()
        kind = part if isinstance(part, type) else type(part)
        if kind in seen or not dataclasses.is_dataclass(kind):
            continue
        seen.add(kind)
        if not isinstance(part, type):
            parts += [getattr(part, field.name) for field in dataclasses.fields(part)]
        for setting in declarations(part):
            if (inner := setting.inner()) is not None:
                parts.append(inner)
            elif int in setting.kinds:
                yield f"{kind.__name__}.{setting.name}", setting


def test_every_whole_number_has_an_upper_bound():
    found = dict(whole_numbers())
    assert len(found) > 60
    unbounded = [
        where
        for where, setting in found.items()
        if setting.name not in SEEDS
        and not any(math.isfinite(allowed.most) or allowed.choices for allowed in setting.ranges)
    ]
    assert unbounded == []
    for where, setting in found.items():
        with pytest.raises(ConfigError, match="got"):
            setting.checked(MOST_WHOLE + 1, where)
        assert setting.default is dataclasses.MISSING or (
            setting.checked(setting.default, where) == setting.default
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env.size", 10**6),
        ("train.group_size", 1 << 62),
        ("evaluation.num_tasks", 10**12),
        ("evaluation.attempts", 10**30),
        ("collect.max_turn_tokens", 10**9),
        ("train.steps", 10**9),
        ("seed", 10**40),
        ("train.steps", "\u0661"),
        ("train.steps", "\uff11\uff10"),
        ("learner.lr", "\u0661"),
    ],
)
def test_what_a_stranger_may_ask_for_is_bounded(key, value):
    with pytest.raises(ConfigError, match=key.rpartition(".")[2]):
        load_config("frozenlake", {key: value})


def test_negative_control_what_people_ask_for_is_not():
    asked = {"env.size": 12, "train.group_size": 512, "evaluation.num_tasks": 10_000}
    assert load_config("frozenlake", {**asked, "train.steps": "100000"}).train.steps == 100_000


@pytest.mark.parametrize("text", ["\u0661", "1" * 5_000, "0", "-1", "1e3", "²"])
def test_numbers_of_a_command_line_are_plain_digits(text):
    with pytest.raises(Exception, match="expected"):
        whole_number(text)


def test_a_list_of_steps_has_an_end():
    assert step_numbers("1-3,7") == [1, 2, 3, 7]
    for text in ("1-999999999999", "\u0661-\u0669", "1-" + "9" * 400):
        with pytest.raises(Exception, match="taken|expected"):
            step_numbers(text)


# ------------------------------------------------------------------------------------------------ events


@pytest.fixture
def run(tmp_path):
    with create_run(tmp_path / "run", to_dict(PRESETS["frozenlake"])) as writer:
        writer.write_step(1, ordinary_step())
        writer.commit_step(1, {"reward": 1.0})
    return tmp_path / "run"


MALFORMED = (
    {"kind": "code"},
    {"kind": "code", "after": 0, "origins": {"env.kind": 3}},
    {"kind": "code", "after": 0, "origins": {"env.kind": {"name": "x", "odd": 1}}},
    {"kind": "settings"},
    {"kind": "settings", "after": "0", "changed": {}},
    {"kind": "skipped_update", "step": 1},
    {"kind": "alarm", "step": None, "named": "x"},
    {"kind": 3},
    {"step": 1},
    {"kind": "note", "step": "1"},
)


@pytest.mark.parametrize("event", MALFORMED)
def test_a_malformed_event_is_refused_where_it_is_read(run, event):
    with (run / "events.jsonl").open("ab") as file:
        file.write(line_bytes(event))
    opened = open_run(run)
    for read in (opened.events, lambda: opened.config, lambda: origins_of(opened)):
        with pytest.raises(StoreError, match="events.jsonl: line 1 is not what"):
            read()
    with pytest.raises(StoreError):
        schedule(opened, PRESETS["frozenlake"])


def test_events_are_read_once_and_again_when_there_are_more(run, monkeypatch):
    opened = open_run(run)
    read = []
    lines = type(opened)._lines
    monkeypatch.setattr(
        type(opened), "_lines", lambda run, name: read.append(name) or lines(run, name)
    )
    assert opened.events() == opened.events() == [] and read == ["events.jsonl"]
    with (run / "events.jsonl").open("ab") as file:
        file.write(line_bytes({"kind": "settings", "after": 0, "changed": {"seed": [0, 7]}}))
    assert opened.config["seed"] == 7 and len(read) == 2
    opened.config["seed"] = 8  # a copy
    assert opened.config["seed"] == 7


def test_more_lines_than_are_read_are_refused(run, monkeypatch):
    monkeypatch.setattr("workbench.basics.canonical_json.MOST_RECORDS", 5)
    (run / "events.jsonl").write_bytes(line_bytes({"kind": "note"}) * 6)
    with pytest.raises(StoreError, match="more than 5 lines"):
        open_run(run).events()
    (run / "events.jsonl").write_bytes(line_bytes({"kind": "note"}) * 5)
    assert len(open_run(run).events()) == 5 and MOST_RECORDS >= 300_000
