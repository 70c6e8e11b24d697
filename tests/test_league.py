"""The league counts by one rule for every tool: what the twin has too is no find, a clean run with an alarm is a false alarm.

The whole path is gone with a stub of a tool on two bugs; the tools themselves need `make league`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import ModuleType

import pytest

from docs.make.leagues import league_tables
from experiments.league.counting import (
    agree,
    by_chance,
    counted,
    false_alarms,
    judged,
    only_here,
    verdict,
)


@dataclass(frozen=True)
class MadeUp:
    name: str
    kind: str = "masks"
    twin: str = "clean"
    words: str = "mask|did not sample"
    planted_at: str = "tests/test_league.py:1"
    thread: str = ""


def run_of(name, seed=0, **alarms):
    """A run in which each tool raised alarms of these (kind, words)."""
    return {
        "name": name,
        "seed": seed,
        "error": "",
        "alarms": {
            tool: [{"kind": kind, "words": words} for kind, words in pairs]
            for tool, pairs in alarms.items()
        },
    }


# ------------------------------------------------------------------------------------------------ the rule


@pytest.mark.parametrize(
    ("alarms", "of_the_twin", "expected"),
    [
        ([("R3", "it did not sample them")], [], "named"),
        ([("entropy", "it fell")], [], "noticed"),
        ([], [], ""),
        # negative controls: what the twin has as well is no find, whatever it says
        ([("R3", "it did not sample them")], [("R3", "other words")], ""),
        ([("entropy", "it fell")], [("entropy", "it fell")], ""),
        # the words count in the alarm that is only here
        ([("R3", "the mask"), ("entropy", "it fell")], [("R3", "the mask")], "noticed"),
        # an alarm of the twin alone is nothing of the bug's
        ([], [("R3", "the mask")], ""),
    ],
)
def test_an_alarm_counts_where_the_twin_has_none_of_its_kind(alarms, of_the_twin, expected):
    run, twin = run_of("bug", a=alarms), run_of("clean", a=of_the_twin)
    assert verdict(run, twin, "a", "mask|did not sample")[0] == expected


def test_tools_are_counted_alike_and_apart():
    alarm = [("K", "a mask is wrong")]
    runs = [
        run_of("bug", a=alarm, b=alarm),
        run_of("clean", b=alarm),
        run_of("bug", 1, a=alarm),
        run_of("clean", 1),
    ]
    rows = judged(runs, [MadeUp("bug")], ["a", "b"])
    assert [row["seed"] for row in rows] == [0, 1]
    assert counted(rows, "a") == (2, 2, 2) and counted(rows, "b") == (0, 0, 2)
    assert counted(rows, "a", "masks") == (2, 2, 2) and counted(rows, "a", "loss") == (0, 0, 0)
    assert false_alarms(runs, ["clean"], "b") == (1, 2)
    assert false_alarms(runs, ["clean"], "a") == (0, 2)
    assert by_chance(runs, ["clean"], "b") == (1, 2) and by_chance(runs, ["clean"], "a") == (0, 2)


def test_a_bug_without_its_twin_is_not_judged():
    assert judged([run_of("bug", a=[("K", "mask")])], [MadeUp("bug")], ["a"]) == []


def test_seeds_agree_within_their_intervals_or_not():
    assert agree((50, 55), (52, 55)) and agree((0, 55), (2, 55))
    assert not agree((50, 55), (30, 55))


def test_only_the_kind_decides_what_is_only_here():
    run, twin = run_of("bug", a=[("K", "x"), ("L", "y")]), run_of("clean", a=[("K", "z")])
    assert [alarm["kind"] for alarm in only_here(run, twin, "a")] == ["L"]


def test_the_tables_say_what_was_counted():
    alarm = [("K", "a mask | is *wrong*")]
    runs = [
        run_of(name, seed, workbench=[], b=alarm if name == "bug" else [])
        for name in ("bug", "clean")
        for seed in (0, 1)
    ]
    cost = {"run": "game", "bare_s": 0.1, "extra_s": 0.004, "extras": [0.003, 0.004, 0.005]}
    tables = league_tables(
        {
            "versions": {"workbench": "1", "b": "2"},
            "runs": runs,
            "twins": ["clean"],
            "rows": judged(runs, [MadeUp("bug")], ["workbench", "b"]),
            "costs": [cost | {"tool": "workbench"}, cost | {"tool": "b"}],
        }
    )
    assert [row[:3] for row in tables["main"].rows] == [
        ["workbench 1", "0 % [0, 79]", "0 % [0, 79]"],
        ["b 2", "100 % [21, 100]", "100 % [21, 100]"],
    ]
    assert tables["seeds"].rows[1] == ["b", "1, 1 of 1", "1, 1 of 1", "yes"]
    assert tables["rows"].rows[0][-2:] == ["-", "**named** K"]
    assert "[test_league.py:1](../../tests/test_league.py#L1)" in tables["rows"].rows[0]
    assert tables["words"].rows == [["bug", "b", "K", r"a mask | is \*wrong\*"]]
    assert tables["theirs"].rows[0][0] == "bug" and not tables["nobody"].rows
    assert tables["cost"].rows[0] == ["workbench", "4 ms [3, 5]"]
    for table in tables.values():
        table.markdown()


# ------------------------------------------------------------------------------------------------ the corpus, with TRL


@pytest.fixture(scope="module")
def league() -> ModuleType:
    pytest.importorskip("trl", reason="needs the package trl")
    from experiments.league import work

    return work


def test_every_bug_has_a_class_a_twin_and_a_line(league):
    from experiments.league.corpus import BUGS, CLASSES, ROOT, TWINS, pattern

    assert len(BUGS) >= 40 and len({bug.name for bug in BUGS} | set(TWINS)) == len(BUGS) + len(
        TWINS
    )
    assert {bug.kind for bug in BUGS} == set(CLASSES) and {bug.twin for bug in BUGS} <= set(TWINS)
    for bug in BUGS:
        path, line = bug.planted_at.split(":")
        assert (ROOT / path).read_text().splitlines()[int(line) - 1].strip()
        assert pattern(bug).pattern and not pattern(bug).search("")


def test_the_page_links_to_the_lines_where_bugs_are_planted_now(league):
    from experiments.league.corpus import BUGS, ROOT

    data = json.loads((ROOT / "docs/evidence/data/league.json").read_text())
    now = {bug.name: bug.planted_at for bug in BUGS}
    stored = {row["bug"]: row["planted_at"] for row in data["result"]["rows"]}
    moved = {name: now.get(name) for name, place in stored.items() if place != now.get(name)}
    assert not moved, (
        f"{moved}: join docs/evidence/data/league.json anew (python -m experiments.league join)"
    )


class Stub:
    """A tool that raises an alarm, twice, where the trainer is not of TRL's own class."""

    name = "stub"
    module = "stub"

    def __init__(self, folder):
        self.folder = folder

    def kind(self, base, tokenizer):
        return base

    def attach(self, trainer):
        self.seen = type(trainer).__name__

    def alarms(self):
        from experiments.league.tools import Alarm

        if self.seen == "GRPOTrainer":
            return []
        return [Alarm("class", "error", 1, f"it is a {self.seen}"), Alarm("class", "e", 2, "")]


def test_the_whole_path_with_a_stub(league):
    from experiments.league.corpus import BUGS

    names = ("stop-token-not-trained", "advantages-not-centred", "game")
    runs = [league.done(league.Job(name, 0, 1, ("stub",)), {"stub": Stub}) for name in names]
    assert not any(run["error"] or run["failed"] for run in runs)
    assert [len(run["alarms"]["stub"]) for run in runs] == [1, 1, 0]
    assert runs[0]["alarms"]["stub"][0]["times"] == 2
    rows = judged(runs, BUGS, ["stub"])
    assert {row["bug"]: row["verdicts"]["stub"]["verdict"] for row in rows} == {
        "stop-token-not-trained": "noticed",
        "advantages-not-centred": "named",
    }
    assert false_alarms(runs, ["game"], "stub") == (0, 1)


def test_a_tool_that_ends_a_run_has_raised_an_alarm_and_the_others_go_on(league):
    class Breaks(Stub):
        name = "breaks"
        module = __name__.split(".")[0]

        def attach(self, trainer):
            raise ValueError("masks are no prefix")

    known = {"stub": Stub, "breaks": Breaks}
    run = league.done(league.Job("game", 0, 1, ("breaks", "stub")), known)
    assert run["alarms"]["stub"] == [] and not run["error"]
    assert [alarm["words"] for alarm in run["alarms"]["breaks"]] == [
        "ValueError: masks are no prefix"
    ]
    Breaks.module = "elsewhere"  # an error that is not a tool's own is the run's
    run = league.done(league.Job("game", 0, 1, ("breaks", "stub")), known)
    assert run["error"] == "ValueError: masks are no prefix" and not run["alarms"]
