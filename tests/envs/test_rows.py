"""Rows of local files: every row once an epoch, weights, splits, ids, what is refused, and what `datasets` itself wrote."""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.values.errors import ConfigError, DataError
from workbench.worlds import row_files, split_of, tasks
from workbench.worlds.row_files import files_of, read_rows
from workbench.worlds.rows import DataRow, RowFamily, RowSettings, RowTable

ROWS = [{"name": f"sum{n}", "question": f"{n} + 1?", "answer": str(n + 1)} for n in range(30)]


@dataclass(frozen=True)
class Sums(RowFamily):
    data: RowSettings = RowSettings()
    name: ClassVar[str] = "sums"
    max_turns: ClassVar[int] = 1


def lines(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def table(weights, shuffle=True, held_out=0):
    rows = [DataRow(f"r{n}", {"n": n}, "train", weight, "") for n, weight in enumerate(weights)]
    return RowTable(
        (*rows, *(DataRow(f"h{n}", {}, "held-out", 1.0, "") for n in range(held_out))), shuffle
    )


# ------------------------------------------------------------------------------------------------ epochs


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 23),
    per_step=st.integers(1, 60),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_every_row_comes_once_an_epoch_whatever_the_steps_are(count, per_step, seed, shuffle):
    made = table([1.0] * count, shuffle, held_out=2)
    drawn = [
        each
        for step in range(12)
        for each in made.task_seeds("train", step * per_step, per_step, seed)
    ]
    assert drawn == made.task_seeds("train", 0, 12 * per_step, seed) and len(set(drawn)) == len(
        drawn
    )
    for epoch in range(len(drawn) // count):
        rows = [made.row_of(each) for each in drawn[epoch * count : (epoch + 1) * count]]
        assert sorted(row.id for row, _ in rows) == sorted(f"r{n}" for n in range(count))
        assert {times for _, times in rows} == {epoch}


def test_an_epoch_has_its_own_order_by_run_seed():
    made = table([1.0] * 40)
    orders = {
        (seed, epoch): tuple(
            made.row_of(each)[0].id for each in made.task_seeds("train", 40 * epoch, 40, seed)
        )
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    still = table([1.0] * 40, shuffle=False)
    assert [still.row_of(each)[0].id for each in still.task_seeds("train", 38, 4, 7)] == [
        "r38",
        "r39",
        "r0",
        "r1",
    ]
    places = [
        made.task_seeds("train", 0, 1, seed)[0] for seed in range(600)
    ]  # of 40 rows: 15 each on average
    assert max(Counter(places).values()) < 40 and len(Counter(places)) == 40


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.7, 2.0, 5.0]), min_size=1, max_size=12
    ),
    seed=st.integers(0, 9),
    epochs=st.integers(1, 40),
    cut=st.integers(1, 30),
)
def test_weights_are_kept_to_within_one_draw(weights, seed, epochs, cut):
    made = table(weights)
    if not any(weights):
        with pytest.raises(ConfigError, match="all weigh 0"):
            made.task_seeds("train", 0, 1, seed)
        return
    total = made._drawn_before("train", epochs, seed)
    drawn = made.task_seeds("train", 0, total, seed)
    assert len(set(drawn)) == len(drawn) and drawn[cut : cut + 7] == made.task_seeds(
        "train", cut, len(drawn[cut : cut + 7]), seed
    )
    counts = Counter(made.row_of(each)[0].id for each in drawn)
    for number, weight in enumerate(weights):
        assert (
            abs(counts[f"r{number}"] - epochs * weight) < 1
            or weight % 1 == 0
            and counts[f"r{number}"] == epochs * weight
        )


def test_a_far_position_is_found_at_once():
    made = table(list(np.linspace(0.1, 3.0, 500)))
    assert len(made.task_seeds("train", 10**9, 50, 0)) == 50


# ------------------------------------------------------------------------------------------------ a family of rows


def test_tasks_of_a_family_say_which_row_they_are(tmp_path):
    family = Sums(RowSettings((lines(tmp_path / "sums.jsonl"),), id="name"))
    every = tasks(family, "train", 100) + tasks(family, "held-out", 3)
    task = every[0]
    assert task == family.task(task.task_seed) and task.id == f"sums/{task.metadata['row']}/0"
    assert task.payload in ROWS and task.metadata["from"].startswith("sums.jsonl, record ")
    assert {split_of(family, each) for each in every[:100]} == {"train"} and len(
        {each.id for each in every}
    ) == 103
    train, held = (
        {each.metadata["row"] for each in tasks(family, split, 30)}
        for split in ("train", "held-out")
    )
    assert (
        train | held == {row["name"] for row in ROWS} and not train & held and 2 <= len(held) <= 12
    )
    assert [each.id for each in tasks(family, "held-out", 40)][:3] == [
        each.id for each in every[100:]
    ]


def test_steps_follow_each_other_and_a_longer_list_begins_with_the_shorter(tmp_path):
    family = Sums(RowSettings((lines(tmp_path / "sums.jsonl"),), id="name"))
    number = len({each.metadata["row"] for each in tasks(family, "train", 60)})
    steps = [tasks(family, "train", 4, seed=3, step=step, per_step=4) for step in range(1, 20)]
    drawn = [each.metadata["row"] for step in steps for each in step]
    assert sorted(drawn[:number]) == sorted(set(drawn)) and len(set(drawn)) == number
    assert tasks(family, "train", 2, seed=3, step=5, per_step=4) == steps[4][:2]
    assert tasks(family, "train", 9, seed=3, step=5, per_step=4)[:4] == steps[4]
    crowded = tasks(family, "train", 3 * number, step=1)
    assert (
        len({each.id for each in crowded}) == 3 * number
    )  # a row may stand in a step more than once


def test_several_data_sets_with_weights(tmp_path):
    few = lines(tmp_path / "few.jsonl", [{"q": f"few {n}"} for n in range(10)])
    many = lines(tmp_path / "many.jsonl", [{"q": f"many {n}"} for n in range(40)])
    held = lines(tmp_path / "held.jsonl", [{"q": "held"}])
    family = Sums(RowSettings((few, many), (held,), weights=(3.0, 0.25)))
    drawn = Counter(each.metadata["row"].split(":")[0] for each in tasks(family, "train", 400))
    assert abs(drawn["few.jsonl"] - 300) <= 12 and abs(drawn["many.jsonl"] - 100) <= 12
    assert [each.payload["q"] for each in tasks(family, "held-out", 1)] == ["held"]


def test_splits_by_a_column_by_a_file_and_weights_by_a_column(tmp_path):
    rows = [
        {"q": str(n), "part": "test" if n % 5 == 0 else "train", "w": n % 2 * 2} for n in range(20)
    ]
    family = Sums(RowSettings((lines(tmp_path / "a.jsonl", rows),), split="part", weight="w"))
    assert {int(each.payload["q"]) % 5 for each in tasks(family, "held-out", 4)} == {0}
    drawn = Counter(each.payload["q"] for each in tasks(family, "train", 16))
    assert set(drawn.values()) == {2} and all(int(q) % 2 for q in drawn)


# ------------------------------------------------------------------------------------------------ files


def read(named, columns=()):
    return [
        (row.split, row.fields)
        for path, split in files_of(str(named))
        for row in read_rows(path, columns, split)
    ]


def test_files_of_every_kind_hold_the_same_rows(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    lines(tmp_path / "a.jsonl")
    frame.to_json(tmp_path / "b.jsonl.gz", orient="records", lines=True)
    for name in ("a.csv", "a.tsv", "a.parquet", "a.json", "a.jsonl", "b.jsonl.gz"):
        assert [fields for _, fields in read(tmp_path / name)] == ROWS, name
    assert len(read(tmp_path / "a.*")) == 5 * 30
    assert read(tmp_path / "a.parquet", ("answer",))[2] == ("", {"answer": "3"})


def test_a_folder_that_is_none_of_rows_is_not_looked_through_to_its_end(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text('{"a": 1}\n')
    assert len(files_of(tmp_path)) == 3  # negative control
    monkeypatch.setattr(row_files, "MOST_IN_FOLDER", 2)
    with pytest.raises(DataError, match="holds more than 2 files and folders: expected a folder"):
        files_of(tmp_path)

    def gone(*_):
        raise FileNotFoundError("/proc/5 is gone")

    monkeypatch.setattr(Path, "rglob", gone)
    with pytest.raises(DataError, match="cannot be looked through for files of rows: /proc/5"):
        files_of(tmp_path)


def test_folders_that_datasets_wrote(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(str(tmp_path / "plain"))
    parts = datasets.DatasetDict(
        train=whole.select(range(20)), test=whole.filter(lambda row: int(row["answer"]) > 20)
    )
    parts.save_to_disk(str(tmp_path / "parts"))
    assert [fields for _, fields in read(tmp_path / "plain")] == ROWS
    found = read(tmp_path / "parts")
    assert [fields for split, fields in found if split == "train"] == ROWS[:20]
    assert [fields for split, fields in found if split == "test"] == ROWS[20:]
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    parts["train"].to_parquet(str(hub / "train-00000-of-00001.parquet"))
    parts["test"].to_parquet(str(hub / "test-00000-of-00001.parquet"))
    family = Sums(RowSettings((str(tmp_path / "hub"),), id="name"))
    assert {each.metadata["row"] for each in tasks(family, "held-out", 10)} == {
        row["name"] for row in ROWS[20:]
    }
    assert {each.metadata["row"] for each in tasks(family, "train", 20)} == {
        row["name"] for row in ROWS[:20]
    }


def test_moments_and_decimals_become_text_and_bytes_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame([{"day": date(2026, 1, 2), "picture": b"x"}]).to_parquet(
        tmp_path / "a.parquet"
    )
    assert read(tmp_path / "a.parquet", ("day",)) == [("", {"day": "2026-01-02"})]
    with pytest.raises(DataError, match="record 1 holds b'x'.*name those that are needed"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": ', "a.jsonl, line 2: expected one JSON object a line"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "a.jsonl, record 2: expected a JSON object"),
        ("a.csv", "a,b\n1,2\n3\n", "a.csv, line 3: expected 2 values"),
        ("a.csv", "a,a\n1,2\n", "a column's name stands twice"),
        ("a.csv", 'a\n"x', "no table of UTF-8 text"),
        ("a.parquet", "PAR1", "no whole parquet file"),
        ("a.arrow", "nothing", "no whole arrow file"),
        ("a.txt", "x", "a file of rows that ends in"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("rows", "asked", "said"),
    [
        (
            [{"a": 1, "n": "x"}, {"a": 2, "n": "x"}],
            {"id": "n"},
            "record 2: the id 'x' stands at .*record 1, too",
        ),
        ([{"a": 1}], {"id": "n"}, "no value in the column 'n'; there are a"),
        ([{"a": 1, "w": -1}], {"weight": "w"}, "column 'w': a weight is a number from 0"),
        ([{"a": 1, "s": "train"}, {"a": 1, "s": "test"}], {"split": "s"}, "would be trained on"),
        ([{"a": 1, "s": "middle"}], {"split": "s"}, "the split 'middle' is not one of train"),
        ([{"a": 1, "n": "a\nb"}], {"id": "n"}, "printable"),
        ([], {}, "no row in it"),
        ([{"a": 1}], {"columns": ("b",)}, "there is no column 'b'; there are a"),
    ],
)
def test_rows_that_cannot_be_told_apart_are_named(tmp_path, rows, asked, said):
    with pytest.raises(DataError, match=said):
        tasks(Sums(RowSettings((lines(tmp_path / "a.jsonl", rows),), **asked)), "train", 1)


def test_settings_that_cannot_be_kept_are_refused(tmp_path):
    for asked, said in (
        ({}, "names no file"),
        ({"files": ("nowhere.jsonl",)}, "no rows at 'nowhere.jsonl'"),
    ):
        with pytest.raises(ConfigError, match=said):
            Sums(RowSettings(**asked)).check_files()
    for asked, said in (
        ({"weights": (1.0,)}, "one number above 0"),
        ({"heldout": ("b",), "split": "s"}, "leave one"),
        ({"columns": ("a",), "id": "b"}, "leaves out 'b'"),
    ):
        with pytest.raises(ConfigError, match=said):
            RowSettings(**asked)


def test_what_is_read_has_a_bound_and_no_link_leads_out(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "MOST_ROWS", 10)
    with pytest.raises(DataError, match="more than 2 GB or 10 rows"):
        read(lines(tmp_path / "a.jsonl"))
    monkeypatch.setattr(row_files, "MOST_ROW_BYTES", 20)
    with pytest.raises(DataError, match="record 1: .* bytes as JSON; at most 20 are taken"):
        read(lines(tmp_path / "a.jsonl"))
    (tmp_path / "inside").mkdir()
    Path(tmp_path / "inside" / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="leads out of the folder"):
        read(tmp_path / "inside")


def test_a_row_twice_among_the_held_out_counts_once(tmp_path):
    held = [{"q": "a"}, {"q": "b"}, {"q": "a"}]
    family = Sums(RowSettings((lines(tmp_path / "t.jsonl"),), (lines(tmp_path / "h.jsonl", held),)))
    assert sorted(each.payload["q"] for each in tasks(family, "held-out", 2)) == ["a", "b"]
