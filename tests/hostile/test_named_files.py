"""A file that the user names may be a stranger's, too: a pipe or a device in its place is refused, not waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.basics import regular_files
from workbench.basics.regular_files import SMALL_HOLE, FileError, read_regular
from workbench.run.store import Run
from workbench.values.errors import StoreError

ROOT = Path(__file__).resolve().parents[2]
READERS = {  # what reads, as code with the file as `path`
    "a notebook that is audited": "from workbench.extensions.ablation.audited import audit_notebook as read",
    "a corpus": "from workbench.worlds.qa.files import read_corpus\nread = lambda path: list(read_corpus(path))",
    "a table of rows": "from workbench.worlds.row_files import read_rows\nread = lambda path: list(read_rows(path))",
    "an index": "from workbench.tools.retrieval.base import Corpus\nfrom workbench.extensions.servers.dense import Dense\n"
    "read = lambda path: Dense.load(path, Corpus(()), None)",
    "a policy's settings": "from workbench.engines.policy import load_tokenizer\nread = lambda path: load_tokenizer(path.parent)",
}
ENDINGS = {"a table of rows": ".csv", "a policy's settings": ".json"}
TOLD = """
import json, resource, sys
from pathlib import Path
from workbench.values.errors import WorkbenchError
{imported}
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
for path in sys.argv[1:]:
    try:
        read(Path(path))
        print("read")
    except WorkbenchError as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("what", READERS)
def test_what_is_no_regular_file_is_refused_in_words(what, tmp_path):
    if what == "an index":
        pytest.importorskip("faiss")
    name = f"config{ENDINGS.get(what, '.json')}"
    for kind in ("pipe", "device", "deep"):
        (tmp_path / kind).mkdir()
    os.mkfifo(tmp_path / "pipe" / name)
    (tmp_path / "device" / name).symlink_to("/dev/zero")
    (tmp_path / "deep" / name).write_text("[" * 100_000 + "]" * 100_000)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            TOLD.format(imported=READERS[what]),
            *(str(tmp_path / kind / name) for kind in ("pipe", "device", "deep")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    said = [json.loads(line) if line != "read" else line for line in done.stdout.splitlines()]
    assert len(said) == 3, done.stderr[-2000:]
    assert "not a regular file" in said[0] and "not a regular file" in said[1], said
    assert said[2] != "read" or what == "a table of rows"


def test_a_compressed_corpus_that_lies_behind_a_link_is_read(tmp_path):
    """Negative control: what the user named by a link is still read, and so is .gz."""
    import gzip

    from workbench.worlds.qa.files import read_corpus

    with gzip.open(tmp_path / "real.gz", "wt") as file:
        file.write('{"_id": "a", "title": "t", "text": "x"}\n')
    (tmp_path / "corpus.jsonl.gz").symlink_to(tmp_path / "real.gz")
    assert [document.id for document in read_corpus(tmp_path / "corpus.jsonl.gz")] == ["a"]


def test_a_hole_is_not_read_however_small_it_is_said_to_be(tmp_path):
    """A file of a run may have gigabytes, so what it says of its size bounds nothing."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"{}\n")
    os.truncate(path, SMALL_HOLE + 4096)
    with pytest.raises(FileError, match="the rest is a hole"):
        read_regular(path, most=1 << 40)
    os.truncate(path, SMALL_HOLE)  # negative control: so much may be missing
    assert len(read_regular(path, most=1 << 40)) == SMALL_HOLE
    whole = b"x" * (SMALL_HOLE + 4096)
    path.write_bytes(whole)
    os.sync()
    assert read_regular(path, most=1 << 40) == whole


def test_an_evaluation_of_a_name_that_is_never_written_is_none(tmp_path):
    """Half a surrogate pair, as the name of a file may be, has no UTF-8 form: `diff` and `digest` ended raw."""
    folder = tmp_path / "evaluations"
    folder.mkdir()
    for name in ("D\udcff.json", "E\x1b]0;x.json", "F..x.json"):
        (folder / name).write_bytes(b"{}")
    run = object.__new__(Run)
    run.path = tmp_path
    assert run.evaluations() == {}
    (folder / "step-00000002.json").write_bytes(b"{}")  # negative control
    with pytest.raises(StoreError):
        run.evaluations()


def test_what_the_disk_packs_or_has_not_written_is_no_hole(tmp_path, monkeypatch):
    """Such a disk says that it holds less, and knows all of it as data; of a hole it knows none."""
    packed = tmp_path / "packed"
    packed.write_bytes(b"x" * (1 << 20))
    sparse = tmp_path / "sparse"
    with open(sparse, "wb") as file:
        file.truncate(1 << 20)
        file.write(b"x")
    for path, expected in ((packed, False), (sparse, True)):
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            little = SimpleNamespace(st_size=state.st_size, st_blocks=8)
            assert regular_files.is_hole(file, little, most=1 << 16) is expected
            monkeypatch.delattr(os, "SEEK_DATA")
            assert not regular_files.is_hole(file, little, most=1 << 16)  # nobody can say
            monkeypatch.undo()
