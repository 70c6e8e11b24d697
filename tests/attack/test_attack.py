"""The attack that makes itself up: what it makes, what it notices, how it makes a find small."""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.attack import drive, victims
from tests.attack.drive import SHARES, Attack, run_case
from tests.attack.grammar import LONGEST, TEXTS, made, made_table, shape_of, text
from tests.attack.victims import Case, Ground

CASE = Case("run", 1, (2,))
MUCH = 400 << 20


@pytest.fixture
def ground(tmp_path, monkeypatch):
    """One where nothing is, but for a folder to work in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "passing"))
    for name in ("run", "model", "work", "passing"):
        (tmp_path / name).mkdir()
    made_here = Ground(tmp_path / "run", (), tmp_path / "model", tmp_path / "work")
    # Measured as a case is: what other tests left behind is collected in a child, and not in this process.
    gc.freeze()  # a child that collects would look at every object of this process, for seconds
    own = run_case(CASE, made_here, nothing).megabytes
    monkeypatch.setattr("tests.attack.drive.MEGABYTES", own + 200)
    yield made_here
    gc.unfreeze()


def nothing(case, ground, begin):
    begin()
    return 0, ""


def in_case(ground: Ground) -> Path:
    case = ground.folder / "case"
    (case / "outside").mkdir(parents=True, exist_ok=True)
    return case


def fine(case, ground, begin):
    """Lays out much and writes where it may."""
    work = in_case(ground)
    much = b"x" * MUCH
    del much
    begin()
    (work / "out").write_text("x")
    (work.parent.parent / "passing" / "x").mkdir()
    Path(os.devnull).write_text("x")
    with pytest.raises(FileExistsError):
        os.mkdir(os.devnull)
    subprocess.run([sys.executable, "-c", ""], check=True)
    return 2, "workbench: ConfigError: expected this, got that\n"


def test_what_is_in_order_is_not_wrong(ground):
    ended = run_case(CASE, ground, fine)
    assert ended.wrong() == "" and ended.status == 2


def raises(case, ground, begin):
    begin()
    return 70, 'Traceback\n  File "/x/workbench/values/a.py", line 3\nKeyError: 3'


def unexpected(case, ground, begin):
    begin()
    return 3, "unexpected"


def dies(case, ground, begin):
    begin()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(9)


def takes_memory(case, ground, begin):
    begin()
    much = b"x" * MUCH
    return 0, str(len(much))


def writes_outside(case, ground, begin):
    work = in_case(ground)
    begin()
    (work / "outside" / "x").write_text("x")
    return 0, ""


def changes_what_is_sound(case, ground, begin):
    begin()
    os.mkdir(ground.run / "x")
    return 0, ""


def writes_elsewhere(case, ground, begin):
    begin()
    Path(os.environ["XDG_STATE_HOME"]).parent.joinpath("elsewhere").write_text("x")
    return 0, ""


def runs_what_lies_there(case, ground, begin):
    work = in_case(ground)
    (work / "evil.py").write_text("x = 3")
    begin()
    sys.path.insert(0, str(work))
    importlib.import_module("evil")
    return 0, ""


def starts_a_program(case, ground, begin):
    begin()
    subprocess.run(["true"], check=True)
    return 0, ""


def starts_by_a_shell(case, ground, begin):
    begin()
    os.system("true")
    return 0, ""


def connects(case, ground, begin):
    begin()
    with socket.socket() as made_here:
        made_here.setblocking(False)
        made_here.connect_ex(("192.0.2.1", 9))
    return 0, ""


def replaces_a_pipe(case, ground, begin):
    """What a command that writes a file anew would do to /dev/null."""
    work = in_case(ground)
    os.mkfifo(work / "pipe")
    (work / "new").write_text("x")
    begin()
    os.rename(work / "new", work / "pipe")
    return 0, ""


def takes_away_a_device(case, ground, begin):
    begin()
    folder = os.open("/dev", os.O_RDONLY)
    os.remove("no-such-device", dir_fd=folder)
    return 0, ""


def loses_a_step(case, ground, begin):
    begin()
    return 71, "LOST b'step 17'"


@pytest.mark.parametrize(
    ("attacking", "words"),
    [
        (raises, "KeyError"),
        (unexpected, "status 3"),
        (dies, "status -15"),
        (takes_memory, "large"),
        (writes_outside, "wrote 'CASE/outside/x'"),
        (changes_what_is_sound, "wrote"),
        (writes_elsewhere, "wrote"),
        (runs_what_lies_there, "ran 'CASE/evil.py'"),
        (starts_a_program, "started 'true'"),
        (starts_by_a_shell, "started 'true'"),
        (connects, "connected to '192.0.2.1'"),
        (replaces_a_pipe, "replaced 'CASE/pipe'"),
        (takes_away_a_device, "wrote '/dev/no-such-device'"),
        (loses_a_step, "LOST b'step N'"),
    ],
)
def test_whatever_is_wrong_is_noticed(ground, attacking, words):
    assert words in run_case(CASE, ground, attacking).wrong()


def test_what_is_forbidden_is_not_done(ground):
    run_case(CASE, ground, writes_outside)
    run_case(CASE, ground, changes_what_is_sound)
    run_case(CASE, ground, replaces_a_pipe)
    assert not (ground.folder / "case" / "outside" / "x").exists()
    assert not (ground.run / "x").exists()
    assert (ground.folder / "case" / "pipe").is_fifo()


def test_what_computes_too_long_is_noticed(ground, monkeypatch):
    monkeypatch.setattr("tests.attack.drive.SECONDS", 0.05)

    def computes(case, ground, begin):
        begin()
        sum(range(20_000_000))
        return 0, ""

    assert run_case(CASE, ground, computes).wrong() == "slow"


def test_what_is_late_once_is_tried_by_itself_and_counted_apart(ground, monkeypatch, tmp_path):
    """A hook is what makes it late here; without one it is quick, unless it is late by itself."""
    monkeypatch.setattr("tests.attack.drive.SECONDS", 0.2)
    monkeypatch.setattr("tests.attack.drive.MEGABYTES", 1 << 20)

    def late(always):
        def computes(case, ground, begin):
            begin()
            until = time.process_time() + 0.3
            while (always or sys.getprofile()) and time.process_time() < until:
                pass
            return 0, ""

        return computes

    once, real = (Attack(ground, 3, late(always)) for always in (False, True))
    assert once.step(1) == "" and real.step(1) == "slow"
    [(case, (first, again))] = once.passed
    assert (first.wrong(), again.wrong()) == ("slow", "") and not once.finds
    assert real.passed == [] and list(real.finds) == ["slow"]
    drive.write_finds(once, tmp_path / "out")
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())
    [passed] = counts["late or large once, and not by itself"]
    assert passed["tries"][0].startswith("slow: ") and passed["tries"][1].startswith("fine: ")


def test_waiting_for_ever_is_late_and_waiting_for_a_core_is_not(ground, monkeypatch):
    monkeypatch.setattr("tests.attack.drive.SECONDS", 0.05)

    def waits(case, ground, begin):
        begin()
        time.sleep(60)
        return 0, ""

    assert run_case(CASE, ground, waits).wrong() == "slow"
    assert drive._can_run(os.getpid())


def keeps_what_it_was_laid_out_with(case, ground, begin):
    """As the pool of a library does."""
    sys.modules["kept"] = b"x" * MUCH
    begin()
    return 0, ""


def test_what_a_library_keeps_of_the_laying_out_is_not_counted(ground):
    assert run_case(CASE, ground, keeps_what_it_was_laid_out_with).wrong() == ""


def test_a_find_is_made_small_and_the_same_seed_tries_the_same(ground):
    def wrong_of_one(case, ground, begin):
        begin()
        return (70 if 17 in case.operations else 0), "Traceback"

    attack = Attack(ground, 3, wrong_of_one)
    large = Case("run", 1, (5, 17, 6, 7))
    ended = run_case(large, ground, wrong_of_one)
    small, again = attack.smaller(large, ended, ended.wrong())
    assert small.operations == (17,) and again.wrong() == ended.wrong()
    drawn = [Attack(ground, seed).draw(number) for seed in (3, 3, 4) for number in range(30)]
    assert drawn[:30] == drawn[30:60] != drawn[60:]
    assert {case.kind for case in drawn} == set(SHARES) == set(victims.KINDS)


def test_what_makes_a_rare_call_is_changed_more_often(ground):
    attack = Attack(ground, 0)
    rare, frequent = Case("run", 1, (1,)), Case("run", 2, (2,))
    attack.kept = [(rare, frozenset({"a"})), (frequent, frozenset({"b"}))]
    attack.entered.update({"a": 1, "b": 50})
    drawn = [attack.draw(number).operations[0] for number in range(2_000)]
    assert drawn.count(1) > 10 * max(drawn.count(2), 1)


# ------------------------------------------------------------------------------------------------ grammars


@pytest.mark.parametrize("symbol", sorted(TEXTS))
def test_every_rule_ends_and_makes_the_same_of_the_same_numbers(symbol):
    for seed in range(30):
        made_here = text(symbol, random.Random(seed))
        assert made_here == text(symbol, random.Random(seed))
        assert "<<" not in made_here.replace("<<<", "") and len(made_here) < 3 * LONGEST


def test_documents_are_made_by_what_was_seen():
    seen = [{"a": 1, "b": [{"c": "x"}, {"c": None}]}, {"a": 2.5, "d": True}]
    documents = [made(shape_of(seen), random.Random(seed)) for seed in range(300)]
    objects = [document for document in documents if isinstance(document, dict)]
    assert len(objects) > 250 and any(document not in seen for document in objects)
    assert all(set(document) <= {"a", "b", "d", ""} for document in objects)
    assert len({json.dumps(document) for document in objects}) > 50
    assert len(documents) > len(objects)  # some are of another kind


def test_tables_are_made_of_their_types():
    schema = pa.schema(
        {"n": pa.int16(), "x": pa.list_(pa.float32()), "s": pa.struct({"t": pa.string()})}
    )
    for seed in range(40):
        columns = made_table(schema, random.Random(seed))
        assert {name: column.type for name, column in columns.items()} == {
            field.name: field.type for field in schema
        }


def test_a_pipe_that_an_earlier_operation_left_is_not_waited_for(tmp_path):
    """Every other number reads what is there before it writes: with a pipe in its place that would be for ever."""
    name = "events.jsonl"
    (tmp_path / "sound").mkdir()
    (tmp_path / "sound" / name).write_bytes(b"")
    laid = Ground(tmp_path / "sound", (), tmp_path, tmp_path, {name: shape_of([{"a": 1}])})
    bent = tmp_path / "bent"
    bent.mkdir()
    os.mkfifo(bent / name)
    for seed in range(8):
        victims._make_part(bent, random.Random(seed), laid)
    assert (bent / name).is_fifo()
    (bent / name).unlink()
    (bent / name).write_bytes(b"")  # control: a file is made anew
    victims._make_part(bent, random.Random(0), laid)
    assert (bent / name).read_bytes()


# ------------------------------------------------------------------------------------------------ the whole


@pytest.mark.full
def test_cases_of_every_kind_are_tried(tmp_path, monkeypatch):
    """Twice the same in the same place; a line of a committed step that was taken out afterwards is noticed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    here_mb = psutil.Process().memory_info().rss / 2**20  # of other tests, and a child's, too
    monkeypatch.setattr(drive, "MEGABYTES", drive.MEGABYTES + here_mb)
    ground = victims.lay_ground(tmp_path)
    assert len(ground.rollouts) > 8 and len(ground.shapes) > 20
    attack = Attack(ground, 0)
    for kind in victims.KINDS:
        case = Case(kind, 5, (1, 2))
        assert run_case(case, ground).wrong() == ""
        assert run_case(case, ground).entered == run_case(case, ground).entered != set()
    assert attack.step(1) == "" and attack.kept
    for name in ("QUICK", "HEAVY"):
        monkeypatch.setattr(victims, name, (["resume", "RUN"],))
    monkeypatch.setattr(victims, "called", _loses)
    assert run_case(Case("run", 1, ()), ground).wrong().startswith("LOST")


def _loses(words):
    (Path(words[1]) / "metrics.jsonl").write_bytes(b"")
    return 0, ""
