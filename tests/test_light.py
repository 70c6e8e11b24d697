"""The light install: without torch, pandas and pyarrow runs and rollouts are read, linted, shown and compared, and every
other command and public name says which extra it needs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

from workbench.basics.extras import BRINGS
from workbench.cli.parser import make_parser
from workbench.extensions.parquet.files import ParquetFile
from workbench.extensions.parquet.pages import Unreadable

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "tests/golden_runs/old/window"
OTHER = ROOT / "tests/golden_runs/old/search"
DUMPS = ROOT / "tests/imported/files"
HEAVY = ("torch", "transformers", "tokenizers", "accelerate", "peft", "vllm", "safetensors")
LIGHT = {"numpy", "cramjam", "jsonschema", "psutil", "tqdm", "bm25s"}
# As if nothing of these were installed: Python's own finder does not see them.
HIDING = """
import sys
from importlib.machinery import PathFinder
class Hiding:
    find_distributions = PathFinder.find_distributions
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
COMMANDS = """
import contextlib, io, json
from workbench import cli
answers = []
for words in {commands!r}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(list(words))
        except SystemExit as end:
            status = end.code
    answers.append([status, out.getvalue()[-20_000:], err.getvalue()[-2000:]])
print(json.dumps([answers, sorted(set({heavy!r}) & set(sys.modules))]))
"""
HIDDEN = sorted({*" ".join(BRINGS.values()).split(), "huggingface_hub"} - {"openai"})


def ask(code: str, folder: Path) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done


def ask_commands(
    commands: list[list[str]], folder: Path, *, hidden: bool
) -> tuple[list[list], list[str]]:
    """[status, stdout, stderr] of each command of one process, and which heavy packages it then had imported."""
    prelude = HIDING.format(hidden=HIDDEN) if hidden else "import sys\n"
    done = ask(prelude + COMMANDS.format(commands=commands, heavy=HEAVY), folder)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


LOOKING = [
    ["show", str(RUN), "1"],
    ["diff", str(RUN), str(OTHER)],
    ["settings", "train.steps"],
    ["lint", str(DUMPS / "trl_completions_with_ids.parquet")],
    ["show", str(DUMPS / "verifiers_traces.jsonl")],
]


def test_what_looks_at_runs_and_rollouts_imports_nothing_that_trains(tmp_path):
    answers, imported = ask_commands(LOOKING, tmp_path, hidden=False)
    assert [status for status, _, _ in answers] == [0, 1, 0, 0, 0], answers
    assert imported == []


def test_negative_control_a_heavy_import_is_noticed(tmp_path):
    code = "import sys, safetensors\n" + COMMANDS.format(commands=[["--help"]], heavy=HEAVY)
    assert json.loads(ask(code, tmp_path).stdout.splitlines()[-1])[1] == ["safetensors"]


def test_a_stored_run_is_linted_without_torch_and_without_pyarrow(tmp_path):
    commands = [["lint", str(RUN)], ["train", "frozenlake"]]
    [linted, trained], imported = ask_commands(commands, tmp_path, hidden=True)
    assert linted[0] == 0 and "needs the extra train" in linted[1] and linted[2] == ""
    assert "the rule itself failed" not in linted[1] and "0 errors" in linted[1]
    assert trained[0] == 2 and "pip install 'agent-rl-workbench[train]'" in trained[2]
    assert imported == []


def test_only_our_own_imports_are_answered_with_an_extra(tmp_path):
    code = HIDING.format(hidden=["torch"]) + (
        "import importlib.util\nimport workbench as wb\n"
        "try: import torch\nexcept ModuleNotFoundError as error: print(type(error).__name__)\n"
        "print(importlib.util.find_spec('torch'))\n"
        "try: wb.open_session\nexcept wb.errors.MissingPackageError as error: print(error.name, error)\n"
    )
    lines = ask(code, tmp_path).stdout.splitlines()
    assert lines[:2] == ["ModuleNotFoundError", "None"]
    assert lines[2].startswith("torch this needs torch") and "[train]" in lines[2]


def test_the_extras_bring_what_is_said():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {Requirement(line).name for line in project["dependencies"]} == LIGHT
    distributions = {"PIL": "pillow", "faiss": "faiss-cpu", "reasoning_gym": "reasoning-gym"}
    implied = {"IPython", "huggingface_hub"}
    for extra, modules in BRINGS.items():
        brought = {Requirement(line).name for line in project["optional-dependencies"][extra]}
        named = {distributions.get(name, name) for name in set(modules.split()) - implied}
        assert named <= brought, extra


# ------------------------------------------------------------------------------------------------ parquet


def same(one: object, other: object) -> bool:
    return json.dumps(one, default=repr) == json.dumps(other, default=repr)


def read_by_both(data: bytes) -> tuple[pa.Table, object]:
    table = pq.ParquetFile(pa.BufferReader(data)).read()
    return table, ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()


@pytest.mark.parametrize(
    "path",
    sorted(RUN.glob("steps/*1/*.parquet")) + sorted(DUMPS.glob("*.parquet")),
    ids=lambda path: path.name,
)
def test_stored_columns_are_read_as_pyarrow_reads_them(path):
    table, own = read_by_both(path.read_bytes())
    assert table.column_names == own.column_names
    for name in table.column_names:
        theirs = table[name].combine_chunks()
        assert same(theirs.to_pylist(), own[name].to_pylist()), name
        if pa.types.is_floating(theirs.type) or pa.types.is_integer(theirs.type):
            expected = theirs.to_numpy(zero_copy_only=False)
            read = own[name].to_numpy(zero_copy_only=False)
            assert expected.dtype == read.dtype and expected.tobytes() == read.tobytes(), name


def rows_of_all_kinds() -> pa.Table:
    rows = [
        {
            "text": f"é{i}" if i % 5 else None,
            "said": [{"role": "user", "content": "x" * i, "n": i if i % 2 else None}],
            "ids": list(range(i)) if i % 4 else None,
            "nested": [[1, 2], [], None, [None, i]] if i % 2 else [],
            "inside": {"a": {"b": i, "c": None if i % 2 else "t"}} if i % 3 else None,
            "yes": bool(i % 2) if i % 3 else None,
            "part": i / 7 if i % 6 else None,
        }
        for i in range(120)
    ]
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("compression", ["snappy", "gzip", "zstd", "none", "brotli", "lz4"])
def test_tables_of_other_writers_are_read_as_pyarrow_reads_them(compression):
    for version, dictionary in (("1.0", True), ("1.0", False), ("2.0", True)):
        sink = pa.BufferOutputStream()
        pq.write_table(
            rows_of_all_kinds(),
            sink,
            compression=compression,
            data_page_version=version,
            use_dictionary=dictionary,
            row_group_size=50,
            data_page_size=300,
        )
        table, own = read_by_both(sink.getvalue().to_pybytes())
        assert same(table.to_pylist(), own.to_pylist())


def test_damage_is_an_error_and_not_another_number():
    data = next(RUN.glob("steps/*1/trajectories.parquet")).read_bytes()
    rng = np.random.default_rng(0)
    whole = ParquetFile(io.BytesIO(data)).read().to_pylist()
    refused = 0
    for place in rng.integers(4, len(data) - 9_000, 40):
        changed = bytearray(data)
        changed[place] ^= 0x55
        try:
            own = ParquetFile(io.BytesIO(bytes(changed)), page_checksum_verification=True)
            assert same(own.read().to_pylist(), whole)  # a byte that no column reads
        except (Unreadable, ValueError):
            refused += 1
    assert refused > 30


def test_an_encoding_that_is_not_read_names_what_reads_it():
    sink = pa.BufferOutputStream()
    table = pa.table({"n": list(range(9))})
    pq.write_table(table, sink, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")
    with pytest.raises(Unreadable, match=r"agent-rl-workbench\[frames\]"):
        read_by_both(sink.getvalue().to_pybytes())


# ------------------------------------------------------------------------------------------------ all of it

# Command -> what it is called with; of some, several calls. RUN and OUT stand for a run and a folder.
CALLS = """
show RUN | show RUN 1 --tokens --attempt 0 | show RUN --html OUT/a.html | show RUN 1 --html OUT/b.html
lint RUN | lint RUN --json | lint RUN --html OUT/c.html | lint frozenlake
diff RUN OTHER | diff RUN OTHER --html OUT/d.html
replay RUN 1 | settings | settings train | evaluate RUN | rollout frozenlake | train frozenlake | resume RUN
new-env my_env --in OUT | new-tool my_tool --in OUT | new-algorithm my_alg --in OUT
pretrain frozenlake-tiny | demo | ablate OUT/none.toml | audit-notebook OUT/none.ipynb
figure RUN -o OUT/f.pdf | conversations RUN | bias | audit RUN | check-env frozenlake
export RUN --to trl-sft OUT/e.jsonl | export RUN --to dataset OUT/ds | export RUN OUT/policy
get-model smollm2 | demo-model smollm2 | serve RUN | retriever --corpus OUT/none | chat frozenlake --ask hi
play frozenlake | track RUN --to trackio | tune-in frozenlake-tiny frozenlake
warm-start frozenlake-tiny frozenlake --out OUT/w | doctor
"""
NO_ANSWER = ("pretrain", "resume", "track", "get-model")  # they refuse for a reason of their own


@pytest.mark.full
def test_every_command_works_or_names_its_extra(tmp_path):
    calls = [call.split() for line in CALLS.strip().splitlines() for call in line.split(" | ")]
    [commands] = [
        action.choices for action in make_parser()._subparsers._group_actions if action.choices
    ]
    assert {call[0] for call in calls} == set(commands)
    places = {"RUN": str(RUN), "OTHER": str(OTHER)}
    words = [
        [places.get(word, word.replace("OUT", str(tmp_path))) for word in call] for call in calls
    ]
    answers, imported = ask_commands(words, tmp_path, hidden=True)
    assert imported == []
    for call, (status, _, error) in zip(calls, answers, strict=True):
        assert status in (0, 1, 2), (call, error)
        assert "Traceback" not in error, call
        if status == 2 and call[0] not in NO_ANSWER:
            assert "pip install 'agent-rl-workbench[" in error, (call, error)
    statuses = [status for status, _, _ in answers]
    assert statuses[:4] == [0] * 4 and statuses[4:7] == [0] * 3 and statuses[8:10] == [1, 1]


@pytest.mark.full
def test_every_public_name_is_there_or_names_its_extra(tmp_path):
    code = HIDING.format(hidden=HIDDEN) + (
        "import workbench as wb\n"
        "for name in dir(wb):\n"
        "    try: getattr(wb, name)\n"
        "    except wb.errors.MissingPackageError as error: print(name, error)\n"
    )
    missing = dict(line.split(" ", 1) for line in ask(code, tmp_path).stdout.splitlines())
    assert all("pip install 'agent-rl-workbench[" in words for words in missing.values())
    reading = {"open_run", "show", "lint", "explore", "compare_runs", "read_rollouts", "export_run"}
    assert not reading & missing.keys() and {"open_session", "rollout"} <= missing.keys()
