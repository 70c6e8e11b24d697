"""Invariant 14 at the level of bytes: old or new, never neither, whatever dies and whenever."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from faulty_disk import WAYS, FaultyDisk, no_waiting  # noqa: F401  (a fixture)
from hypothesis import given
from hypothesis import strategies as st

from workbench.basics import canonical_json
from workbench.run import writer
from workbench.values import Source, StopReason
from workbench.values.errors import StoreError

pytestmark = pytest.mark.usefixtures("no_waiting")

ROOT = Path(__file__).resolve().parents[1]
OLD, NEW = b"old " * 100, b"new " * 150


# ------------------------------------------------------------------------------------------------ crash everywhere


def crash_everywhere(tmp_path, prepare, act, check, *, ways=WAYS) -> int:
    """Run `act` again and again, dead before its 1st, 2nd ... system call, and `check` what each way of dying leaves;
    at last it finishes, and then every way of losing power must leave the whole result. Returns the number of calls."""
    number = 0
    while True:
        number += 1
        for way in ways:
            folder = tmp_path / f"{number}-{way}"
            folder.mkdir()
            prepare(folder)
            with FaultyDisk(folder, crash_at=number) as disk:
                act(folder)
            disk.lose(way)
            check(folder, done=not disk.dead)
            shutil.rmtree(folder)
        if not disk.dead:
            return number - 1


def read_old_or_new(folder, done, *, before):
    path = folder / "record"
    now = path.read_bytes() if path.exists() else None
    assert now == NEW or (not done and now == before), f"neither old nor new: {now!r}"


@pytest.mark.parametrize("before", [OLD, None], ids=["replaced", "first"])
def test_a_file_is_old_or_new_wherever_it_dies(tmp_path, before):
    calls = crash_everywhere(
        tmp_path,
        lambda folder: before is None or writer.write_file(folder / "record", before),
        lambda folder: writer.write_file(folder / "record", [NEW[:50], NEW[50:]], replace=True),
        lambda folder, done: read_old_or_new(folder, done, before=before),
    )
    assert (
        calls >= 6
    )  # open, two writes, fsync, rename, fsync of the folder: the loop really was there


def in_place(folder):
    fd = os.open(folder / "record", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, NEW)
    os.fsync(fd)
    os.close(fd)
    writer._sync_folder(folder)


def rename_before_sync(folder):
    fd = os.open(folder / "tmp", os.O_WRONLY | os.O_CREAT)
    os.write(fd, NEW)
    os.rename(folder / "tmp", folder / "record")
    os.fsync(fd)
    os.close(fd)
    writer._sync_folder(folder)


def folder_not_synced(folder):
    writer._write_new(folder / "tmp", NEW)
    os.rename(folder / "tmp", folder / "record")


@pytest.mark.parametrize("naive", [in_place, rename_before_sync, folder_not_synced])
def test_the_crash_loop_notices_a_naive_writer(tmp_path, naive):
    with pytest.raises(AssertionError, match="neither old nor new"):
        crash_everywhere(
            tmp_path,
            lambda folder: writer.write_file(folder / "record", OLD),
            naive,
            lambda folder, done: read_old_or_new(folder, done, before=OLD),
        )


FILES = {"a.bin": [b"first ", b"half" * 50], "b.json": b"{}"}


def check_folder(folder, done):
    path = folder / "whole"
    if done or path.exists():
        assert canonical_json.verify_folder(path, kind="thing", version=1) == ("a.bin", "b.json")
        assert (path / "a.bin").read_bytes() == b"first " + b"half" * 50
    writer.sweep(folder)
    assert [p.name for p in folder.iterdir()] == (["whole"] if path.exists() else [])
    if not path.exists():  # and it can be done again
        writer.write_folder(path, FILES, kind="thing", version=1)


def test_a_folder_is_whole_or_not_there_wherever_it_dies(tmp_path):
    def act(folder):
        writer.write_folder(folder / "whole", FILES, kind="thing", version=1)

    assert crash_everywhere(tmp_path, lambda folder: None, act, check_folder) >= 12


def test_the_crash_loop_notices_a_folder_that_is_filled_in_place(tmp_path):
    def act(folder):
        os.mkdir(folder / "whole")
        for name, content in (("a.bin", b"".join(FILES["a.bin"])), ("b.json", FILES["b.json"])):
            writer._write_new(folder / "whole" / name, content)

    with pytest.raises((AssertionError, StoreError)):
        crash_everywhere(tmp_path, lambda folder: None, act, check_folder)


def test_a_line_is_there_or_not_wherever_it_dies(tmp_path):
    def prepare(folder):
        writer.append_line(folder / "lines", {"n": 1})

    def check(folder, done):
        lines = canonical_json.read_lines(folder / "lines")
        assert [r["n"] for r in lines.records] in ([[1, 2]] if done else [[1], [1, 2]])
        writer.cut_lines(folder / "lines")  # what the next process does when it opens the run
        writer.append_line(folder / "lines", {"n": 3})
        after = canonical_json.read_lines(folder / "lines")
        assert after.records == (*lines.records, {"n": 3}) and not after.torn
        assert b"".join(p.read_bytes() for p in folder.glob("lines.orphan-*")) == lines.torn

    assert (
        crash_everywhere(
            tmp_path, prepare, lambda f: writer.append_line(f / "lines", {"n": 2}), check
        )
        >= 3
    )

    # and while the torn tail of an earlier death is being cut off
    def torn(folder):
        prepare(folder)
        with (folder / "lines").open("ab") as file:
            file.write(b'{"n":1.5,"cr')

    def check_torn(folder, done):
        assert [r["n"] for r in canonical_json.read_lines(folder / "lines").records] in (
            [[1, 2]] if done else [[1], [1, 2]]
        )
        if done:
            assert (folder / "lines.orphan-1").read_bytes() == b'{"n":1.5,"cr'

    crash_everywhere(
        tmp_path, torn, lambda f: writer.append_line(f / "lines", {"n": 2}), check_torn
    )


def test_removal_is_a_rename_first(tmp_path):
    def prepare(folder):
        writer.write_folder(folder / "whole", FILES, kind="thing", version=1)

    def check(folder, done):
        assert not (done and (folder / "whole").exists())
        if (folder / "whole").exists():
            canonical_json.verify_folder(folder / "whole", kind="thing", version=1)
        writer.sweep(folder)
        assert not list(folder.glob(".*"))

    crash_everywhere(
        tmp_path, prepare, lambda folder: writer.remove_folder(folder / "whole"), check
    )


# ------------------------------------------------------------------------------------------------ a disk that refuses


@pytest.mark.parametrize(
    "error, remedy",
    [
        (errno.ENOSPC, "free some space"),
        (errno.EIO, "fault"),
        (errno.EROFS, "read-only"),
        (errno.EDQUOT, "quota"),
    ],
)
def test_what_the_disk_refuses_is_said_and_leaves_nothing_behind(tmp_path, error, remedy):
    folder = tmp_path / "run"
    folder.mkdir()
    writer.write_file(folder / "record", OLD)
    writer.append_line(folder / "lines", {"n": 1})
    for act in (
        lambda: writer.write_file(folder / "record", NEW, replace=True),
        lambda: writer.write_folder(folder / "whole", FILES, kind="thing", version=1),
        lambda: writer.append_line(folder / "lines", {"n": 2}),
    ):
        number, refused = 0, 0
        while True:
            number += 1
            with FaultyDisk(
                folder,
                fail_at=number,
                error=error,
                only=("open", "write", "fsync", "rename", "mkdir"),
            ) as disk:
                try:
                    act()
                except StoreError as caught:
                    refused += 1
                    said = str(caught).lower()
                    assert (
                        str(folder).lower() in said and "bytes are free" in said and remedy in said
                    )
            shutil.rmtree(disk._spare)
            assert not list(folder.glob(".*")), "a temporary stayed behind"
            assert (folder / "record").read_bytes() in (OLD, NEW)
            assert all(
                r["n"] in (1, 2) for r in canonical_json.read_lines(folder / "lines").records
            )
            assert not canonical_json.read_lines(folder / "lines").torn
            if (folder / "whole").exists():
                canonical_json.verify_folder(folder / "whole", kind="thing", version=1)
                shutil.rmtree(folder / "whole")
            if disk.calls < number:
                break
        assert refused >= 3


def test_what_was_done_already_is_not_called_untouched(tmp_path):
    """The last call of each fails: the sync of the folder, after the new name is there."""

    def last_refused(act) -> str:
        folder = tmp_path / "dry"
        folder.mkdir()
        writer.write_file(folder / "record", OLD)
        with FaultyDisk(folder) as disk:
            act(folder)
        shutil.rmtree(folder)
        shutil.rmtree(disk._spare)
        folder.mkdir()
        writer.write_file(folder / "record", OLD)
        with (
            FaultyDisk(folder, fail_at=disk.calls, error=errno.EIO),
            pytest.raises(StoreError) as caught,
        ):
            act(folder)
        assert os.listdir(folder) != ["record"] or (folder / "record").read_bytes() != OLD
        shutil.rmtree(folder)
        shutil.rmtree(disk._spare)
        return str(caught.value)

    for act in (
        lambda f: writer.write_file(f / "record", NEW, replace=True),
        lambda f: writer.make_folder(f / "new"),
        lambda f: writer.write_folder(f / "whole", FILES, kind="thing", version=1),
        lambda f: writer.append_line(f / "lines", {"n": 1}),
        lambda f: writer.set_aside(f / "record", f),
    ):
        assert "It is done, but a power cut may still undo it" in last_refused(act)
    with (
        FaultyDisk(tmp_path, fail_at=1, error=errno.EIO),
        pytest.raises(StoreError, match="before is untouched"),
    ):
        writer.write_file(tmp_path / "record", NEW)


def test_a_full_disk_is_a_full_disk(tmp_path):
    """The real thing, without wrapping: a device on which every write fails for lack of space."""
    with pytest.raises(
        StoreError, match="No space left on device.*bytes are free.*[Ff]ree some space"
    ):
        with writer._disk_errors(tmp_path / "x", "write"):
            fd = os.open("/dev/full", os.O_WRONLY)
            try:
                writer._write_all(fd, b"x")
            finally:
                os.close(fd)


def test_a_full_disk_says_how_much_it_had_taken(tmp_path):
    """Free space is counted when the half-written thing is gone: without the size of that, it would read as enough."""

    def content():
        yield bytes(3_000_000)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said = "whole: No space left on device after 3,000,012 bytes, which were removed again; [0-9,]+ bytes are free there"
    with pytest.raises(StoreError, match=said):
        writer.write_folder(
            tmp_path / "whole", {"a": b"twelve bytes", "b": content()}, kind="thing", version=1
        )
    with pytest.raises(
        StoreError,
        match="record: No space left on device after 3,000,000 bytes, which were removed",
    ):
        writer.write_file(tmp_path / "record", content())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sizes", [[], [0], [5], [3, 4, 0, 9], [20], [2, 20, 2], [20, 30], [9, 2, 1], [4, 4, 4, 4, 40]]
)
def test_small_pieces_are_written_together_and_large_ones_as_they_are(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(writer, "PIECE", 10)
    chunks = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    pieces = list(writer._large_pieces(chunks))
    assert b"".join(pieces) == b"".join(chunks) and all(pieces)
    assert sum(len(piece) < 10 for piece in pieces) <= 1 + sum(size >= 10 for size in sizes)
    assert all(
        any(piece is view or piece == view for piece in pieces)
        for view in chunks
        if len(view) >= 10
    )
    assert writer.write_file(tmp_path / "record", iter(chunks)).bytes == sum(sizes)
    assert (tmp_path / "record").read_bytes() == b"".join(chunks)


def test_an_interrupt_leaves_no_temporary(tmp_path):
    def content():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.write_file(tmp_path / "record", content())
    with pytest.raises(KeyboardInterrupt):
        writer.write_folder(tmp_path / "whole", {"a": content()}, kind="thing", version=1)
    assert list(tmp_path.iterdir()) == []


def test_records_never_change_and_links_are_never_followed(tmp_path):
    writer.write_file(tmp_path / "record", OLD)
    with pytest.raises(StoreError, match="is there already"):
        writer.write_file(tmp_path / "record", NEW)
    writer.write_folder(tmp_path / "whole", FILES, kind="thing", version=1)
    with pytest.raises(StoreError, match="is there already"):
        writer.write_folder(tmp_path / "whole", {}, kind="thing", version=1)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for act in (
        lambda: writer.write_file(tmp_path / "link", NEW, replace=True),
        lambda: writer.append_line(tmp_path / "link", {}),
        lambda: writer.write_folder(tmp_path / "link", {}, kind="thing", version=1),
        lambda: canonical_json.read_file(tmp_path / "link"),
    ):
        with pytest.raises(StoreError, match="symbolic link|is there already"):
            act()
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "record").read_bytes() == OLD


# ------------------------------------------------------------------------------------------------ what is read back


def whole_folder(tmp_path) -> Path:
    path = tmp_path / "whole"
    writer.write_folder(path, FILES, kind="thing", version=1)
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda p: flip(p / "a.bin", 3), "a.bin is damaged: its sha256"),
        (
            lambda p: (p / "a.bin").write_bytes(b"short"),
            "a.bin is damaged: 206 bytes were written, 5 are there",
        ),
        (lambda p: (p / "b.json").unlink(), "b.json is missing"),
        (lambda p: (p / "MANIFEST.json").unlink(), "MANIFEST.json is missing"),
        (lambda p: (p / "MANIFEST.json").write_text("{"), "MANIFEST.json is damaged"),
        (lambda p: flip(p / "MANIFEST.json", -40), "MANIFEST.json"),
        (
            lambda p: ((p / "b.json").unlink(), (p / "b.json").symlink_to("a.bin")),
            "b.json cannot be read: it is a symbolic link",
        ),
        (
            lambda p: (
                shutil.move(p, p.with_name("other"))
                and p.with_name("other").rename(p.with_name("whole2"))
            ),
            None,
        ),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(tmp_path, damage, reason):
    path = whole_folder(tmp_path)
    damage(path)
    if reason is None:
        path, reason = path.with_name("whole2"), "under another name"
    with pytest.raises(StoreError, match=reason):
        canonical_json.verify_folder(path, kind="thing", version=1)


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "a..b", "x" * 101])
def test_a_manifest_cannot_point_outside(tmp_path, name):
    path = whole_folder(tmp_path)
    manifest = {"folder": "whole", "files": {name: {"bytes": 0, "sha256": "0" * 64}}}
    (path / "MANIFEST.json").write_bytes(
        canonical_json.sealed_json(manifest, kind="thing", version=1)
    )
    with pytest.raises(StoreError, match="cannot be a name"):
        canonical_json.verify_folder(path, kind="thing", version=1)


def test_a_newer_format_says_what_reads_it(tmp_path):
    (tmp_path / "x.json").write_bytes(canonical_json.sealed_json({"a": 1}, kind="thing", version=3))
    with pytest.raises(
        StoreError, match="has format 3 of 'thing'; this version reads formats 1 to 2.*Open it with"
    ):
        canonical_json.read_sealed_json(tmp_path / "x.json", kind="thing", version=2)
    with pytest.raises(StoreError, match="holds a 'thing', expected a 'config'"):
        canonical_json.read_sealed_json(tmp_path / "x.json", kind="config", version=3)
    text = (tmp_path / "x.json").read_text()
    (tmp_path / "x.json").write_text(text.replace('"a": 1', '"a": 2'))
    with pytest.raises(StoreError, match="was changed after it was written"):
        canonical_json.read_sealed_json(tmp_path / "x.json", kind="thing", version=3)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.dictionaries(
            st.text(min_size=1).filter(lambda k: k != "crc32"), json_values, max_size=4
        ),
        max_size=4,
    ),
    st.data(),
)
def test_lines_come_back_and_a_cut_at_any_byte_loses_only_the_last(tmp_path_factory, records, data):
    records = json.loads(json.dumps(records))  # what JSON itself makes of surrogate pairs
    whole = [canonical_json.line_bytes(record) for record in records]
    content = b"".join(whole)
    cut = data.draw(st.integers(0, len(content)))
    path = tmp_path_factory.mktemp("lines") / "lines"
    path.write_bytes(content[:cut])
    lines = canonical_json.read_lines(path)
    complete = sum(end <= cut for end in np.cumsum([len(line) for line in whole]))
    assert list(lines.records) == records[:complete]
    assert lines.torn == content[sum(map(len, whole[:complete])) : cut]


def test_a_flipped_bit_in_a_line_is_never_taken_for_data(tmp_path):
    path = tmp_path / "lines"
    for n in range(3):
        writer.append_line(path, {"n": n, "loss": 0.125})
    content = path.read_bytes()
    for at in range(len(content) - 1):
        path.write_bytes(content)
        flip(path, at)
        with pytest.raises(StoreError, match="line [123] is damaged"):
            canonical_json.read_lines(path)
    path.write_bytes(
        content[:-1] + b"\x0b"
    )  # the last line break: a write cut short looks the same
    assert [r["n"] for r in canonical_json.read_lines(path).records] == [
        0,
        1,
    ] and canonical_json.read_lines(path).torn


def test_plain_values_only():
    numbers = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": np.bool_(True),
        "d": np.arange(2),
        "e": (1, 2),
        "f": StopReason.MAX_TURNS,
        "g": Source.ENV,
    }
    assert json.loads(canonical_json.json_bytes(numbers, "x")) == {
        "a": 0.5,
        "b": 3,
        "c": True,
        "d": [0, 1],
        "e": [1, 2],
        "f": "max_turns",
        "g": 3,
    }
    for bad in ({1: "a"}, {"a": {2: 3}}, {"a": {1, 2}}, [object()], {"a": [{None: 1}]}, b"bytes"):
        with pytest.raises(StoreError, match="the thing (has the key|holds)"):
            canonical_json.plain(bad, "the thing")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        ".hidden",
        "-flag",
        "_x",
        "a..b",
        "a b",
        "é",
        "x" * 101,
        "a\n",
        "a\0",
        "C:",
        "~",
        "a/../b",
        "run\u202e",
        None,
        3,
    ],
)
def test_bad_names_are_refused(name):
    with pytest.raises(StoreError, match="cannot be a name"):
        canonical_json.check_name(name)


@pytest.mark.parametrize("name", ["a", "0", "run-1", "A.b_c-9", "x" * 100])
def test_good_names_are_taken(name):
    assert canonical_json.check_name(name) == name


# ------------------------------------------------------------------------------------------------ the lock


HOLD = (
    "import sys, time; from workbench.run.writer import FolderLock; lock = FolderLock(sys.argv[1]);"
    "print('held', flush=True); sys.stdin.read()"
)


def test_one_writer_per_folder_and_no_stale_lock(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            StoreError, match=rf"written by process {holder.pid} on .+ since 20\d\d-"
        ):
            writer.FolderLock(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    lock = writer.FolderLock(tmp_path)  # its file is still there, the lock is not
    with pytest.raises(StoreError, match=f"process {os.getpid()} "):
        writer.FolderLock(tmp_path)
    lock.release()
    writer.FolderLock(tmp_path).release()


FORK = (
    "import os, sys, time; from workbench.run.writer import FolderLock; lock = FolderLock(sys.argv[1])\n"
    "if child := os.fork(): print(child, flush=True)\n"
    "time.sleep(60)"
)
HAND_ON = (
    "import subprocess, sys, time; from workbench.run.writer import FolderLock; lock = FolderLock(sys.argv[1]);"
    "print(subprocess.Popen(['sleep', '60'], pass_fds=[lock._fd]).pid, flush=True); time.sleep(60)"
)


@pytest.mark.parametrize("code", [FORK, HAND_ON], ids=["forked", "handed-on"])
def test_a_killed_writer_is_not_held_up_by_what_it_started(tmp_path, code):
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(
            StoreError, match=rf"process {holder.pid} on \S+ since \S+; wait for it"
        ):
            writer.FolderLock(tmp_path)  # the child has not freed its parent's lock
        holder.kill()
        holder.wait()
        if code == FORK:
            writer.FolderLock(tmp_path).release()
        else:  # the kernel keeps the lock for it; then it is said
            with pytest.raises(
                StoreError, match="which has ended, but what it started still holds its lock; wait"
            ):
                writer.FolderLock(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        holder.kill()
        holder.communicate()


def test_a_writer_that_is_open_at_exit_says_nothing(tmp_path):
    code = (
        "import sys; from workbench.run.writer import FolderLock; lock = FolderLock(sys.argv[1]);"
        "sys.excepthook = lambda *_: None"
    )  # which keeps all of this until the modules are gone
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_only_ones_own_leftovers_are_taken_away(tmp_path):
    live, left = tmp_path / ".tmp-first-2-0123abcd", tmp_path / ".tmp-first-89abcdef"
    live.mkdir()
    left.mkdir()
    assert writer.half_made(tmp_path / "first") == [left]
    writer.create_folder(tmp_path / "first", {})
    assert live.is_dir() and not left.exists(), "another run's is being made just now"


# ------------------------------------------------------------------------------------------------ one writer


# (file, call) -> why it may touch a disk itself. Everything else goes through `writer`.
ALLOWED = {
    **{
        (
            "workbench/extensions/real_model/maker.py",
            call,
        ): "a model's folder, made in a scratch folder "
        "and renamed once it is whole; its hashes are checked whenever it is opened"
        for call in (
            "out.parent.mkdir",
            "made.mkdir",
            "(made / STATED).write_text",
            "made.rename",
            "plain.save_pretrained",
            "read(AutoTokenizer).save_pretrained",
        )
    },
    **{
        (
            "workbench/extensions/native/kernel.py",
            call,
        ): "a compiled library, made in a scratch folder and renamed once it is whole; made anew if it is lost"
        for call in ("folder.mkdir", "out.replace")
    },
    (
        "workbench/extensions/track/cursor.py",
        "open",
    ): "a lock beside the run, which holds nothing",
    (
        "workbench/extensions/track/start.py",
        "open",
    ): "what the tracker's process prints, as it comes: a log, not a record",
    (
        "workbench/extensions/track/start.py",
        "log_path.parent.mkdir",
    ): "the folder that runs lie in, before the child starts",
    (
        "workbench/extensions/track/to_wandb.py",
        "folder.rename",
    ): "a folder of wandb's own, of a session that broke off",
    (
        "workbench/extensions/doctor/plan.py",
        "Path('/proc/self/clear_refs').write_text",
    ): "a switch of the kernel: the count of this process's memory peak begins anew",
    (
        "workbench/look/cells/live_run.py",
        "open",
    ): "what a child process prints, as it comes: a log, not a record",
    (
        "workbench/look/cells/live_run.py",
        "log.truncate",
    ): "the same log, left by a try that made no run",
    (
        "workbench/look/cells/live_run.py",
        "path.parent.mkdir",
    ): "the folder that runs lie in, before the child starts",
    (
        "workbench/cli/last_resort.py",
        "folder.mkdir",
    ): "the log of what nobody expected, in the user's own folder: no run holds it",
    ("workbench/cli/last_resort.py", "open"): "the same log",
    ("workbench/cli/last_resort.py", "os.open"): "the same log",
    ("workbench/basics/regular_files.py", "os.open"): "reads: the flags are O_RDONLY",
    (
        "workbench/extensions/doctor/machine.py",
        "open",
    ): "asks whether the disk takes bytes at all, in a temporary folder",
    ("workbench/extensions/doctor/machine.py", "os.rename"): "the same question",
    (
        "workbench/extensions/servers/mcp_connection.py",
        "os.fdopen",
    ): "a pipe, for what a server prints",
    (
        "workbench/extensions/servers/mcp_lines.py",
        "os.write",
    ): "a pipe, a server's lines on their way to the client",
    (
        "workbench/extensions/sandbox/forkserver.py",
        "os.open",
    ): "/dev/null, for a program that ends a sandbox",
    (
        "workbench/extensions/sandbox/worker.py",
        "os.write",
    ): "a pipe, from a sandbox to who reads it",
    (
        "workbench/run/code.py",
        "open",
    ): "this user's key, in the user's own folder and readable by nobody else: no run holds it",
    ("workbench/run/code.py", "os.open"): "the same key",
    ("workbench/run/code.py", "os.link"): "the same key",
    ("workbench/run/code.py", "os.unlink"): "the same key",
    (
        "workbench/extensions/vllm_server/ways.py",
        "save_file",
    ): "weights on their way to a server, in shared memory: no run holds them",
    (
        "workbench/extensions/vllm_server/ways.py",
        "path.unlink",
    ): "the same, where they found no room",
    (
        "workbench/extensions/vllm_server/ways.py",
        "self._older.unlink",
    ): "the same, once newer ones have arrived",
    (
        "workbench/extensions/vllm_server/adapters.py",
        "path.mkdir",
    ): "adapters on their way to a server, in the same place",
    (
        "workbench/extensions/vllm_server/adapters.py",
        "(path / 'adapter_config.json').write_text",
    ): "the same",
    ("workbench/extensions/vllm_server/adapters.py", "save_file"): "the same",
    (
        "workbench/extensions/agents/command.py",
        "calls.to_frame().to_csv",
    ): "a table as text for the terminal: no file is named",
    (
        "workbench/extensions/vllm_server/adapters.py",
        "shutil.rmtree",
    ): "the same, once newer ones have arrived, or where they found no room",
    ("workbench/extensions/bounds/trial.py", "os.write"): "a pipe, from the child to this process",
    ("workbench/extensions/vllm_server/core.py", "shutil.rmtree"): "the folder that they lie in",
    (
        "workbench/extensions/vllm_server/keeper.py",
        "shutil.rmtree",
    ): "the same, of a run that was killed",
    (
        "workbench/extensions/vllm_server/opening.py",
        "shutil.rmtree",
    ): "the same, of a server that did not come up, or of a killed keeper",
    (
        "workbench/extensions/vllm_server/opening.py",
        "Path(folder, OWNER).open",
    ): "a lock in it: who lives holds it",
    (
        "workbench/extensions/vllm_server/opening.py",
        "(folder / OWNER).open",
    ): "the same lock, asked for",
    (
        "workbench/extensions/vllm_server/process.py",
        "hf_config.save_pretrained",
    ): "a server's own folder: what it is told of the model",
    (
        "workbench/extensions/vllm_server/process.py",
        "self._log.open",
    ): "the same folder: what it prints",
    (
        "workbench/extensions/sandbox/confine.py",
        "os.open",
    ): "folders to mount, and a sandbox's own /proc: it is becoming a sandbox",
    (
        "workbench/extensions/sandbox/users.py",
        "open",
    ): "of a sandbox: users and groups, in a root of its own that lies in memory",
    (
        "workbench/extensions/sandbox/users.py",
        "os.open",
    ): "the sandbox's user map, in its /proc, to be written",
    (
        "workbench/extensions/sandbox/users.py",
        "os.write",
    ): "the sandbox's user map, in its /proc; a pipe to who writes it",
    (
        "workbench/extensions/sandbox/users.py",
        "os.makedirs",
    ): "folders of the sandbox's own root, in memory",
    ("workbench/extensions/sandbox/confine.py", "os.makedirs"): "the sandbox's own root, in memory",
    ("workbench/extensions/sandbox/confine.py", "os.symlink"): "the same root",
    (
        "workbench/extensions/sandbox/forkserver.py",
        "os.write",
    ): "a pipe, from a sandbox that begins to who begins it",
    (
        "workbench/extensions/sandbox/forkserver.py",
        "shutil.copy2",
    ): "files of a sandbox for its fork, in the sandbox's own memory",
    ("workbench/extensions/sandbox/forkserver.py", "os.mkdir"): "their folders",
}

WRITING_CALLS = {
    "to_parquet",
    "to_csv",
    "to_json",
    "to_feather",
    "to_pickle",
    "to_excel",
    "to_hdf",
    "write_table",
    "ParquetWriter",
    "write_text",
    "write_bytes",
    "save_file",
    "serialize_file",
    "save_pretrained",
    "save_model",
    "save_state",
    "savez",
    "savetxt",
    "savefig",
    "touch",
    "mkdir",
    "makedirs",
    "mkstemp",
    "NamedTemporaryFile",
    "rmtree",
    "copyfile",
    "copytree",
    "copy2",
    "unlink",
    "symlink_to",
    "hardlink_to",
    "rmdir",
    "ftruncate",
    "truncate",
    "removedirs",
}
WRITING_OF = {
    "os": {"rename", "replace", "renames", "link", "symlink", "write", "pwrite", "remove", "open"},
    "shutil": {"move", "copy"},
    "torch": {"save"},
    "np": {"save"},
    "numpy": {"save"},
    "json": {"dump"},
    "pickle": {"dump"},
}


def writes_of(source: str) -> list[tuple[int, str]]:
    """Calls in a module that could put bytes or names on a disk: (line, what is called)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = (
            function.value.id
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
            else ""
        )
        is_path_rename = (
            name in ("rename", "replace")
            and owner not in ("os", "dataclasses")
            and (isinstance(function, ast.Attribute) and len(node.args) == 1 and not node.keywords)
        )
        if (
            name in WRITING_CALLS
            or name in WRITING_OF.get(owner, ())
            or is_path_rename
            or _opens_for_writing(node, name, owner)
        ):
            if not (owner == "os" and name == "open" and _only_reads(node)) and not _in_memory(
                node
            ):
                found.append((node.lineno, ast.unparse(function)))
    return found


def _opens_for_writing(node: ast.Call, name: str, owner: str) -> bool:
    if name not in ("open", "fdopen") or owner == "os" and name == "open":
        return False
    modes = [k.value for k in node.keywords if k.arg == "mode"]
    position = (
        1
        if owner in ("", "io", "gzip", "os")
        and not (owner == "" and isinstance(node.func, ast.Attribute))
        else 0
    )
    modes += node.args[position : position + 1]
    if isinstance(node.func, ast.Attribute) and owner not in (
        "io",
        "gzip",
        "os",
    ):  # x.open(y): a file only if y is a mode
        modes = [mode for mode in modes if isinstance(mode, ast.Constant)]
    return any(
        not isinstance(mode, ast.Constant) or set(str(mode.value)) & set("wax+") for mode in modes
    )


def _only_reads(node: ast.Call) -> bool:
    flags = ast.unparse(node.args[1]) if len(node.args) > 1 else "?"
    return "O_RDONLY" in flags and not any(
        flag in flags for flag in ("O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC")
    )


def _in_memory(node: ast.Call) -> bool:
    """By convention `buffer` and `sink` are in memory, and `scratch` is a temporary folder from which what is kept is
    copied through the writer. Nor is the null device a disk."""
    return any(
        isinstance(arg, ast.Name)
        and arg.id in ("buffer", "sink", "scratch")
        or ast.unparse(arg) == "os.devnull"
        for arg in node.args
    )


def test_all_bytes_go_through_the_one_writer():
    found = {}
    for path in sorted((ROOT / "workbench").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        writes = [
            f"{line}: {call}"
            for line, call in writes_of(path.read_text())
            if (name, call) not in ALLOWED
        ]
        if writes and name != "workbench/run/writer.py":
            found[name] = writes
    assert not found, (
        f"write through workbench.run.writer instead (or name the call and the reason in ALLOWED): {found}"
    )
    assert writes_of((ROOT / "workbench/run/writer.py").read_text()), (
        "the check must see the writer itself"
    )


@pytest.mark.parametrize(
    "line",
    [
        "open(path, 'w')",
        "open(path, mode='ab')",
        "path.open('x')",
        "open(path, mode)",
        "os.open(path, os.O_WRONLY)",
        "io.open(path, 'w')",
        "path.write_text('x')",
        "frame.to_parquet(path)",
        "pq.write_table(table, path)",
        "save_file(t, path)",
        "os.replace(a, b)",
        "path.rename(b)",
        "path.replace(b)",
        "os.mkdir(path)",
        "path.mkdir(parents=True)",
        "torch.save(x, path)",
        "np.save(path, x)",
        "json.dump(x, file)",
        "model.save_pretrained(path)",
        "figure.savefig(path)",
        "shutil.move(a, b)",
        "os.fdopen(fd, 'wb')",
        "path.open(mode='w')",
    ],
)
def test_the_check_sees_every_way_to_write(line):
    assert writes_of(line)


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open()",
        "path.open('rb')",
        "text.replace('a', 'b')",
        "dataclasses.replace(x, a=1)",
        "os.open(path, os.O_RDONLY | os.O_NOFOLLOW)",
        "figure.savefig(buffer, format='png')",
        "pq.write_table(table, sink)",
        "replace(batch, a=1)",
        "json.dumps(x)",
        "chat.open(observation)",
        "os.open(os.devnull, os.O_WRONLY)",
        "model.save_pretrained(scratch)",
        "writer.write_file(path, data)",
    ],
)
def test_the_check_lets_reading_pass(line):
    assert not writes_of(line)


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_only_a_file_is_replaced(tmp_path, kind, monkeypatch):
    """Root, who had a figure written to /dev/null, took it from the whole machine."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "there"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("there")
    else:
        path.mkdir()
    before = path.lstat().st_mode
    with pytest.raises(StoreError, match="is there already"):
        writer.write_file(path, b"x", replace=True)
    assert path.lstat().st_mode == before and os.listdir(tmp_path) == ["there"]
    (tmp_path / "file").write_bytes(b"old")  # negative control
    writer.write_file(tmp_path / "file", b"new", replace=True)
    assert (tmp_path / "file").read_bytes() == b"new"
