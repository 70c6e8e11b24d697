"""Results of the instruments, of faults and of task sizes become tables that say what went wrong as plainly as what held."""

from __future__ import annotations

import json

import pytest

from docs.make import measured
from docs.make.results import KINDS
from experiments import task_sizes
from tests.faults.soak import add_piece
from workbench.values.errors import DataError


def test_every_kind_of_result_has_one_name():
    assert measured.KINDS.items() <= KINDS.items() and len(KINDS) == len(set(KINDS.values()))


def test_a_fault_that_nobody_or_another_rule_named_is_not_counted():
    planted = [
        {"rule": "R6", "named": ["R6"]},
        {"rule": "R6", "named": ["R6", "R7"]},
        {"rule": "R6", "named": []},
    ]
    result = {
        "planted": planted,
        "clean": [{"file": "a", "named": []}, {"file": "b", "named": ["R1"]}],
    }
    assert [row[1] for row in measured.imported_tables(result)["main"].rows] == ["3", "1", "2", "1"]


def audit_row(fault, named, kind="dtype", seed=10):
    return {
        "fault": fault,
        "kind": kind,
        "seed": seed,
        "named": named,
        "gap": 0.0134,
        "left": 3.2e-7,
    }


def test_an_audit_counts_what_was_named_and_what_was_wrongly_said_of_clean_states():
    clean = [
        {"preset": "lake", "settings": {}, "seed": 1, "named": [], "gap": 4e-7},
        {
            "preset": "lake",
            "settings": {"engine.dtype": "bfloat16"},
            "seed": 1,
            "named": ["dtype"],
            "gap": 0.011,
        },
    ]
    tables = measured.audit_tables(
        {
            "faults": [audit_row("head", ["dtype"]), audit_row("head", [], seed=11)],
            "clean": clean,
            "limits": {"float32": [1e-4, 0.01], "bfloat16": [0.03, 1.0]},
        }
    )
    assert tables["faults"].rows == [["head", "dtype", "0.013", "3e-7"]]
    assert [row[1] for row in tables["named"].rows] == ["1 of 2", "1 of 1", "0 of 1"]
    assert tables["alarm"].rows == [
        ["float32", "1e-4 nats", "4e-7"],
        ["half precision", "0.03 nats", "0.011"],
    ]
    unnamed = {
        "faults": [audit_row("head", [])],
        "clean": clean,
        "limits": {"float32": [1e-4, 0], "bfloat16": [0.03, 1]},
    }
    assert measured.audit_tables(unnamed)["faults"].rows[0][1] == "**nothing**"


def test_pieces_of_a_soak_are_added_up(tmp_path):
    file = tmp_path / "soak.json"
    for seed, lost in ((1, 0), (2, 3)):
        add_piece(
            file,
            {
                "seed": seed,
                "cases": ["grpo"],
                "kills": 5,
                "there": 10,
                "lost": lost,
                "resumed": 4,
                "identical": 3,
                "by_the_clock": 1,
                "damaged": 7,
                "refused": 6,
                "faults": ["x"] * lost,
            },
        )
    rows = measured.soak_tables(json.loads(file.read_text()))["main"].rows
    assert [row[1:] for row in rows] == [
        ["20", "3 lost"],
        ["6", "0"],
        ["2", "3 lost"],
        ["14", "2 accepted"],
        ["", "3"],
    ]
    assert "10 SIGKILLs" in rows[0][0]


def test_pieces_of_a_soak_of_servers_are_added_up():
    pieces = [
        {"hit": {"server": 3, "learner": 1}, "runs": 2, "steps": 16, "faults": []},
        {"hit": {"keeper": 2}, "runs": 1, "steps": 8, "faults": ["2 processes were left"]},
    ]
    rows = measured.server_soak_tables({"pieces": pieces})["main"].rows
    assert [row[1] for row in rows] == [
        "6: 1 of a learner, 3 of a server, 2 of a keeper",
        "3",
        "24",
        "1",
    ]


def test_pieces_of_a_soak_of_grids_are_added_up_by_launcher():
    piece = {
        "on": "local",
        "hit": {"worker": 2, "kernel": 1},
        "jobs": 60,
        "begun": 64,
        "faults": [],
    }
    pieces = [
        piece,
        piece | {"on": "ray", "faults": ["a was done twice"]},
        piece | {"hit": {"driver": 4}},
    ]
    rows = measured.grid_soak_tables({"pieces": pieces})["main"].rows
    assert [row[0] for row in rows] == ["local", "ray", "all"] and [row[4] for row in rows] == [
        "0",
        "1",
        "1",
    ]
    assert rows[2][1:4] == ["10: 4 of a worker, 4 of a driver, 2 of a kernel", "180", "192"]


def test_a_slot_that_was_late_is_seen():
    row = {"how": "hangs", "error": "timeout", "times": 2, "soon": 1, "seconds": [0.001, 0.75]}
    call = {"calls": 500, "median_ms": 0.31, "p99_ms": 1.2}
    tables = measured.tool_tables({"rows": [row], "goal_s": 0.5, "warm_call": call})
    assert tables["main"].rows == [["hangs", "after the deadline", "1 of 2", "0.38 s", "0.75 s"]]
    assert tables["call"].rows == [["500 calls", "0.31 ms", "1.20 ms"]]


def test_the_lint_of_runs_of_one_kind_is_one_row():
    runs = [
        {
            "env": "bandit",
            "algorithm": "grpo",
            "steps": 40,
            "attempts": 64,
            "step_cpu_ms": step,
            "lint_cpu_ms": 20.0,
            "looked": 40,
            "errors": [],
        }
        for step in (400.0, 500.0)
    ]
    tables = measured.lint_tables({"runs": runs})
    assert tables["main"].rows == [
        ["bandit, grpo", "2 x 40", "64", "400 to 500", "20", "4.0 to 5.0 %"]
    ]
    assert tables["errors"].rows == [["80", "0"]]


def test_silent_bugs_that_were_missed_and_counterparts_that_were_called_errors_are_counted():
    def bug(verdict, named_by):
        return {"verdict": verdict, "named_by": named_by, "said": {"cpu_seconds": 6.0}}

    summary = {
        "counterparts": 2,
        "counterparts called an error": ["one"],
        "untouched code": "clean",
    }
    tables = measured.silent_bug_tables(
        {
            "bugs": {"summary": summary, "bugs": [bug("named", ["R1"]), bug("refused", [])]},
            "further": {
                "summary": {},
                "bugs": [bug("named", ["R2"]), bug("caught", []), bug("missed", [])],
            },
        }
    )
    assert [row[1:] for row in tables["main"].rows] == [["1", "1", "0"], ["1", "1", "1"]]
    assert tables["false"].rows[0][1] == "1"


def test_a_training_in_which_a_bug_was_not_named_or_called_by_another_name_is_counted():
    def bug(**scenes):
        tried = {"tried": ["server: a", "server: b", "server: c"]}
        scenes = {f"server: {name}": rules for name, rules in scenes.items()}
        return {
            "breaks": "it",
            "where": "server",
            "rules": ["R34"],
            "said": tried | {"scenes": scenes},
        }

    said = {"tried": ["a", "b", "c"], "errors": {}, "guards": [], "crashes": []}
    result = {
        "bugs": [bug(a=["R34"], b=["R34", "R23"]), bug(a=["R34"], b=["R34"], c=["R34"])],
        "untouched": [said],
    }
    tables = measured.several_tables(result)
    assert tables["server"].head[1:] == ["a", "b", "c"] and not tables["ranks"].rows
    assert [row[1:] for row in tables["server"].rows] == [
        ["R34", "R34, R23", "-"],
        ["R34", "R34", "R34"],
    ]
    assert [row[1] for row in tables["sum"].rows] == ["5 of 6", "1 of 6", "0 of 3"]
    wrong = measured.several_tables(result | {"untouched": [said | {"crashes": ["KeyError"]}]})
    assert wrong["sum"].rows[-1][1] == "some of 3"


def test_levels_have_the_sizes_that_the_preset_draws(tmp_path):
    task_sizes.main(["sokoban", "--json", str(tmp_path / "levels.json")])
    result = json.loads((tmp_path / "levels.json").read_text())
    assert (
        set(result["counts"]) == set("2345678")
        and sum(result["counts"].values()) == result["tasks"] == 512
    )
    assert measured.level_tables(result)["levels"].rows == [
        ["shortest solution of the 512 held-out levels, mean", "5.0 moves"],
        ["held-out levels that need three moves or more", "85 %"],
    ]


def test_success_is_counted_by_the_size_of_each_task_and_other_tasks_are_refused():
    from workbench.training.config import load_config
    from workbench.worlds import tasks

    hops_N = [task.payload["hops"] for task in tasks(load_config("search").env, "held-out", 512)]
    facts = {
        "sampled": [float(hops == 2) for hops in hops_N],
        "rows": [{"policy": "untrained", "mode": "sampled", "by_task": [0.0] * 512}],
    }
    result = task_sizes.measure("search", {"arms": {"grpo": {"seeds": {"0": facts}}}})
    assert result["sampled"] == {
        "untrained": {"2": 0.0, "3": 0.0},
        "grpo, seed 0": {"2": 1.0, "3": 0.0},
    }
    rows = measured.hop_tables(result)["hops"].rows
    assert [row[0] for row in rows] == ["two", "three"] and [row[3] for row in rows] == [
        "100.0 %",
        "0.0 %",
    ]
    facts["sampled"] = facts["sampled"][:-1]
    with pytest.raises(DataError, match="511 tasks.*512"):
        task_sizes.measure("search", {"arms": {"grpo": {"seeds": {"0": facts}}}})
    with pytest.raises(DataError, match="no size"):
        task_sizes.measure("frozenlake")


def test_ratios_are_shown_with_their_sides_and_wall_time_only_of_an_idle_machine():
    from docs.make import speeds

    ratio = {"mean": 4.21, "low": 3.8, "high": 4.7, "n": 8}
    pair = {
        "ours": "ours, float32",
        "theirs": "TRL",
        "figures": dict.fromkeys(speeds.FIGURES, [1444.4, 231.2]),
        "ratios": dict.fromkeys(speeds.FIGURES, ratio),
        "wall_s": [11.62, 48.7],
    }
    result = {
        "pairs": [pair, pair | {"ours": "ours, bf16"}],
        "tried": {"TRL": 1.66},
        "parts": {},
        "others_took_cores": 0.01,
    }
    tables = speeds.bench_tables(result)
    assert tables["main"].rows[0] == [
        "ours, float32; TRL",
        *["1,444 and 231: **4.2** [3.8, 4.7]"] * 2,
        "1,444.4 and 231.2: **4.2** [3.8, 4.7]",
    ]
    assert [row[0] for row in tables["main"].rows] == ["ours, float32; TRL", "ours, bf16; TRL"]
    assert tables["wall"].rows == [["ours", "11.6"], ["TRL", "48.7"]] and tables["first"].rows == [
        ["TRL", "1.7"]
    ]
    assert speeds.bench_tables(result | {"others_took_cores": 0.8})["wall"].rows == [
        ["not told: other work took of a core", "0.80"]
    ]


@pytest.mark.parametrize(("what", "rows"), [("watch", 2), ("workers", 4)])
def test_small_parts_are_measured_and_become_a_table(what, rows, tmp_path):
    from experiments.bench.small import main

    main([what, "--quick", "--json", str(tmp_path / "small.json")])
    [table] = KINDS[what](json.loads((tmp_path / "small.json").read_text())).values()
    assert len(table.rows) == rows and all(cell for row in table.rows for cell in row)
    if what == "workers":
        assert table.rows[0][1] == "2" and float(table.rows[1][1].split()[0]) >= 2.0, (
            "no one is freed before the deadline"
        )


def test_the_navigators_times_become_a_table():
    from docs.make import speeds

    result = {
        "steps": 1000,
        "attempts": 128,
        "tokens": 1000,
        "long_tokens": 32_000,
        "open_ms": 61.2,
        "step_ms": [50.0, 60.0],
        "attempt_ms": [1.0] * 19 + [9.0],
        "select_ms": list(range(1, 41)),
        "heap_mb": 18.6,
        "long_first_ms": 172.4,
        "long_lane_ms": 30.0,
        "long_worst_frame_ms": 25.0,
        "editor_opened_ms": 210.0,
        "editor_edit_ms": [80.0, 90.0],
        "editor_paint_ms": 12.0,
        "spread_ms": 700.0,
    }
    tables = speeds.navigator_tables(result)
    assert [row[1:] for row in tables["main"].rows] == [
        ["61 ms", "61 ms"],
        ["55 ms", "60 ms"],
        ["1 ms", "9 ms"],
        ["210 ms", "210 ms"],
        ["85 ms", "90 ms"],
        ["700 ms", "700 ms"],
        ["12 ms", "12 ms"],
        ["20 ms", "39 ms"],
        ["172 ms", "172 ms"],
        ["30 ms", "30 ms"],
        ["25 ms", "25 ms"],
    ]
    assert tables["memory"].rows == [["browser: memory of the page", "19 MB"]]


@pytest.mark.full
@pytest.mark.debian("chromium")
def test_the_navigator_is_measured(chromium, tmp_path):
    from experiments.bench.navigator import main

    assert main(["--steps", "8", "--json", str(tmp_path / "times.json")]) == 0
    tables = KINDS["navigator"](json.loads((tmp_path / "times.json").read_text()))
    assert len(tables["main"].rows) == 11 and all(
        cell for row in tables["main"].rows for cell in row
    )


def test_searching_becomes_a_table():
    from docs.make import speeds

    indexes = [
        {
            "documents": 1000,
            "words": 8,
            "build_cpu_s": [0.014, 0.015, 0.019],
            "peak_mb": 10.4,
            "query_cpu_s": [5e-5],
        }
    ]
    tables = speeds.search_tables(
        {
            "indexes": indexes,
            "server_wall_s": [0.001] * 19 + [0.007],
            "read_bytes": 97e6,
            "read_cpu_s": 1.0,
        }
    )
    assert tables["main"].rows == [
        ["BM25, 1,000 documents of 8 words, 3 times", "15 ms, 10 MB more", "50 µs"],
        [
            "a server on the same machine, the last of these; wall time",
            "",
            "1 ms; 95th percentile 7 ms",
        ],
    ]
    assert tables["files"].rows[0][1] == "97 MB/s"


def test_simulated_statistics_stand_beside_what_they_are_of():
    cover = [
        {"seeds": 3, "tasks": 64, "times": times, "coverage": 0.951 - times / 100}
        for times in (0, 1, 4)
    ]
    false = [
        {"looks": [3, 4], "normal": True, "times": times, "false": 0.031} for times in (0, 1, 4)
    ]
    tables = measured.statistics_tables(
        {
            "coverage": cover,
            "false": false,
            "bimodal": [{"seeds": 3, "judged": False, "coverage": 0.97, "false": 0.0}],
            "power": [{"seeds": 5, "family": 5, "found": 0.49}],
            "detectable": [{"seeds": 5, "times": 0.3, "stated": 0.0403, "simulated": 0.041}],
        }
    )
    assert tables["coverage"].rows == [["3 x 64", "95.1", "94.1", "91.1"]]
    assert tables["false"].rows == [["3, 4 (normality accepted)", "3.1", "3.1", "3.1"]]
    assert tables["bimodal"].rows == [["3 (not judged)", "97.0", "0.0"]]
    assert tables["power"].rows == [["5 seeds, one true of 5", "49.0"]]
    assert tables["detectable"].rows == [["5; 0.3", "4.0", "4.1"]]


def test_starts_say_what_is_repeated():
    rows = [
        {"starts": 5, "seeds": 2, "fixed": False, "coverage": 0.951, "of_all": None},
        {"starts": 2, "seeds": 5, "fixed": True, "coverage": 0.948, "of_all": 0.66},
    ]
    assert measured.starts_tables({"starts": rows})["main"].rows == [
        ["5 x 2", "starts", "95.1", ""],
        ["2 x 5", "seeds; starts held fixed", "94.8", "66.0"],
    ]


def test_what_a_grid_costs_besides_its_jobs():
    found = {"jobs": 1000, "cpu_seconds": {"planned": 1.46, "listed": 0.5}}
    assert measured.grid_tables({"training runs": found})["main"].rows == [
        ["training runs, 1,000 jobs", "1.5", "0.5"]
    ]


def test_a_collapse_bench_tells_what_was_made_and_an_alarm_that_caught_nothing():
    from docs.make.collapses import collapse_tables

    def half(caught, false):
        return {
            "caught": caught,
            "collapses": 4,
            "caught_interval": [0.1, 0.9],
            "leads": [2] * caught,
            "lead": 2.0 if caught else None,
            "false": false,
            "healthy": 10,
            "false_interval": [0.0, 0.3],
            "by_kind": {"echo": [caught, 4]},
        }

    def rule(name, caught, threshold, **more):
        return {
            "rule": name,
            "names": "",
            "threshold": threshold,
            "chosen": half(4, 0),
            "judged": half(caught, 1),
            "area": 0.75,
        } | more

    kinds = {
        "echo": {
            "planned": 10,
            "made": 3,
            "steps": 24,
            "collapsed": 2,
            "healthy": 0,
            "neither": 1,
            "events": [12, 18],
            "cpu_seconds": 88.4,
        }
    }
    runs = [
        {
            "kind": "echo",
            "seed": 0,
            "label": "collapsed",
            "event": 12,
            "ends": {"sampled": [0.3, 0.0], "greedy": [0.9, 0.4]},
        }
    ]
    rules = [
        rule("turns fall", 3, 0.25),
        rule("replies alike", 0, None),
        rule("RAGEN: halves", 1, 1.0),
        rule("any of these pairs", 3, 1.0, named={"right": 2, "caught": 3}),
    ]
    tables = collapse_tables({"kinds": kinds, "rules": rules, "runs": runs})
    assert tables["runs"].rows == [["echo", "3 of 10", "24", "2", "0", "1", "12 to 18", "88"]]
    assert tables["ends"].rows == [["echo", "30", "0", "90", "40"]]
    assert tables["alarms"].rows[0] == [
        "turns fall",
        "0.25",
        "4/4, 0/10",
        "3 of 4 [10, 90 %]",
        "2 (2 to 2)",
        "1 of 10 [0, 30 %]",
        "0.75",
    ]
    assert tables["alarms"].rows[1][1:5] == [
        "none catches any",
        "4/4, 0/10",
        "0 of 4 [10, 90 %]",
        "",
    ]
    assert [row[1] for row in tables["alarms"].rows[2:]] == ["as published", "of each"]
    assert [row[0] for row in tables["kinds"].rows] == [
        "turns fall",
        "RAGEN: halves",
        "any of these pairs",
    ]
    assert tables["named"].rows == [
        ["collapses caught in the judged half", "3"],
        ["of these called by their kind", "2"],
    ]
