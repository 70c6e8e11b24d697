"""Invariant 14 for weights: a checkpoint is whole or refused, bit for bit, and nothing in it is ever executed."""

from __future__ import annotations

import ast
import errno
import json
import os
import random
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from faulty_disk import FaultyDisk, no_waiting  # noqa: F401  (a fixture)
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as load_safetensors

from tests.faults.damage import accepted_although_damaged, same, tensors_of
from workbench.basics import canonical_json
from workbench.run import writer
from workbench.run.recording import create_run
from workbench.training import checkpoint
from workbench.values.errors import StoreError

pytestmark = pytest.mark.usefixtures("no_waiting")

ROOT = Path(__file__).resolve().parents[1]


def state_of(step: int) -> dict:
    return {
        "version": step,
        "betas": [0.9, 0.95],
        "lr": 1e-4 / 3,
        "note": "\ud83d \u2028 é",
        "none": None,
    }


def saved(path: Path, steps=(1, 2), keep: int = 2) -> Path:
    for step in steps:
        checkpoint.save(path, step, tensors_of(step), state_of(step), keep=keep)
    return path


def test_it_comes_back_bit_for_bit(tmp_path):
    saved(tmp_path)
    step, tensors, state = checkpoint.load_newest(tmp_path)
    assert step == 2 and same(tensors, tensors_of(2)) and state == state_of(2)
    assert same(checkpoint.load(tmp_path, 1).tensors, tensors_of(1))
    with pytest.raises(
        StoreError, match=r"does not exist; there are checkpoints of steps \[1, 2\]"
    ):
        checkpoint.load(tmp_path, 7)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.tuples(
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 3), max_size=3),
            st.booleans(),
            st.integers(0, 9),
        ),
        max_size=4,
    )
)
def test_our_files_are_what_safetensors_reads(described):
    """Any types, shapes (none, empty), strides; the library is the judge."""
    tensors = {}
    for name, (dtype, shape, transposed, seed) in described.items():
        tensor = (
            torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(100).to(dtype)
        )
        tensors[name] = tensor.t() if transposed and tensor.ndim == 2 else tensor
    data = b"".join(bytes(chunk) for chunk in checkpoint.safetensors_bytes(tensors))
    back = load_safetensors(data)
    assert back.keys() == tensors.keys() - {"__metadata__"} or "__metadata__" in tensors
    assert all(
        back[n].dtype == tensors[n].dtype and back[n].shape == tensors[n].shape for n in back
    )
    assert all(torch.equal(back[n], tensors[n]) for n in back)
    assert data == b"".join(
        bytes(chunk) for chunk in checkpoint.safetensors_bytes(dict(reversed(tensors.items())))
    )


def test_tied_weights_and_odd_bits_are_kept(tmp_path):
    weight = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    checkpoint.save(
        tmp_path, 1, {"model": {"a": weight, "b": weight, "half": weight.to(torch.bfloat16)}}, {}
    )
    back = checkpoint.load_newest(tmp_path).tensors["model"]
    for name in ("a", "b"):
        assert back[name].numpy().tobytes() == weight.numpy().tobytes()
    with pytest.raises(StoreError, match="has type torch.complex64"):
        checkpoint.save(tmp_path, 2, {"model": {"a": weight.to(torch.complex64)}}, {})


def test_only_the_newest_are_kept_and_never_fewer_than_two(tmp_path):
    saved(tmp_path, steps=range(1, 6), keep=3)
    assert checkpoint.steps(tmp_path) == [3, 4, 5]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        f"step-0000000{n}" for n in (3, 4, 5)
    ]
    with pytest.raises(StoreError, match="keep is at least 2"):
        checkpoint.save(tmp_path, 6, tensors_of(6), {}, keep=1)
    with pytest.raises(StoreError, match="is there already"):
        checkpoint.save(tmp_path, 5, tensors_of(6), {})


def test_what_was_just_saved_outlives_damaged_ones_that_are_newer(tmp_path):
    saved(tmp_path, steps=(4, 5, 6), keep=3)
    checkpoint.save(tmp_path, 3, tensors_of(3), state_of(3), keep=2)
    assert checkpoint.steps(tmp_path) == [3, 5, 6]
    checkpoint.prune(tmp_path, 2, spared=())
    assert checkpoint.steps(tmp_path) == [5, 6]


def test_nothing_to_load_is_none_and_a_run_writer_will_do(tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    with create_run(tmp_path / "run", {}) as run:
        assert checkpoint.load_newest(run) is None
        checkpoint.save(run, 0, tensors_of(0), state_of(0))
        assert checkpoint.load_newest(run.path).step == 0


@pytest.mark.parametrize(
    "state", [{"a": {1: 2}}, {"a": {1, 2}}, {"a": torch.zeros(1)}, {"a": object()}, {1: 2}]
)
def test_a_state_that_json_would_change_is_refused(tmp_path, state):
    with pytest.raises(StoreError, match="state"):
        checkpoint.save(tmp_path, 1, tensors_of(1), state)
    assert checkpoint.load_newest(tmp_path) is None and not list(tmp_path.rglob(".tmp-*"))


# ------------------------------------------------------------------------------------------------ damage


def test_a_damaged_one_is_named_left_alone_and_the_one_before_is_used(tmp_path):
    saved(tmp_path)
    bad = tmp_path / "checkpoints/step-00000002/model.safetensors"
    data = bytearray(bad.read_bytes())
    data[-1] ^= 1
    bad.write_bytes(data)
    said = r"going back to the checkpoint of step 1: .*model.safetensors is damaged"
    with pytest.warns(checkpoint.CheckpointWarning, match=said):
        step, tensors, state = checkpoint.load_newest(tmp_path)
    assert step == 1 and same(tensors, tensors_of(1)) and state == state_of(1)
    assert bad.read_bytes() == bytes(data), "the bad one is left for people to look at"
    checkpoint.save(tmp_path, 2, tensors_of(2), state_of(2))  # training has come here again
    assert same(checkpoint.load_newest(tmp_path).tensors, tensors_of(2))
    assert (tmp_path / "orphans/step-00000002-1/model.safetensors").read_bytes() == bytes(data)
    bad.write_bytes(data)
    shutil.rmtree(tmp_path / "checkpoints/step-00000001/")
    with pytest.raises(
        StoreError, match="no checkpoint of this run can be used: .*model.safetensors is damaged"
    ):
        checkpoint.load_newest(tmp_path)


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.full)])
def test_no_mutated_checkpoint_is_ever_accepted(tmp_path, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", checkpoint.CheckpointWarning)
        faults, refused = accepted_although_damaged(tmp_path, count, random.Random(0))
    assert not faults and refused == count


@pytest.mark.parametrize("instead", ["a link to nowhere", "a file", "an empty folder"])
def test_whatever_stands_in_its_place_is_refused_and_set_aside_when_it_is_made_again(
    tmp_path, instead
):
    saved(tmp_path)
    path = tmp_path / "checkpoints/step-00000002"
    shutil.rmtree(path)
    if instead == "a file":
        path.write_bytes(b"")
    elif instead == "an empty folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    assert str(path) in checkpoint.damage(tmp_path, 2)
    with pytest.warns(checkpoint.CheckpointWarning, match="going back to the checkpoint of step 1"):
        assert checkpoint.load_newest(tmp_path).step == 1
    checkpoint.save(tmp_path, 2, tensors_of(2), {})
    assert checkpoint.load_newest(tmp_path).step == 2
    assert [entry.name for entry in (tmp_path / "orphans").iterdir()] == ["step-00000002-1"]


@pytest.mark.parametrize("what", ["weights", "tensors", "place"])
def test_what_the_disk_will_not_read_is_damage_too(tmp_path, monkeypatch, what):
    saved(tmp_path)
    bad = tmp_path / "checkpoints/step-00000002"

    def refusing(read):
        def call(path, *args, **kwargs):
            if path == bad or path == bad / "model.safetensors" and what != "place":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(path, *args, **kwargs)

        return call

    if what == "tensors":
        monkeypatch.setattr(checkpoint, "load_file", refusing(checkpoint.load_file))
    elif what == "weights":
        monkeypatch.setattr(canonical_json, "open_regular", refusing(canonical_json.open_regular))
    else:
        monkeypatch.setattr(Path, "is_dir", refusing(Path.is_dir))
    with pytest.warns(
        checkpoint.CheckpointWarning, match="step-00000002.* cannot be read: Input/output error"
    ):
        assert checkpoint.load_newest(tmp_path).step == 1


def test_a_manifest_in_other_bytes_is_refused_even_where_it_says_the_same(tmp_path):
    saved(tmp_path, steps=(1,))
    path = tmp_path / "checkpoints/step-00000001/MANIFEST.json"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="MANIFEST.json was changed after it was written"):
        checkpoint.load(tmp_path, 1)


def test_the_mutations_would_be_noticed_as_harmful(tmp_path, monkeypatch):
    """Negative control: without the manifest, flipped weights load without a word."""
    saved(tmp_path, steps=(1,))
    path = tmp_path / "checkpoints/step-00000001/model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    monkeypatch.setattr(
        canonical_json, "verify_folder", lambda path, **_: tuple(p.name for p in path.iterdir())
    )
    assert not same(checkpoint.load(tmp_path, 1).tensors, tensors_of(1))


def test_another_steps_folder_and_a_newer_format_are_refused(tmp_path, monkeypatch):
    saved(tmp_path)
    (tmp_path / "checkpoints/step-00000002").rename(tmp_path / "checkpoints/step-00000009")
    with pytest.raises(StoreError, match="is the folder 'step-00000002' under another name"):
        checkpoint.load(tmp_path, 9)
    with monkeypatch.context() as future:
        future.setattr(checkpoint, "FORMAT", 2)
        checkpoint.save(tmp_path, 10, tensors_of(1), {}, keep=9)
    with pytest.raises(
        StoreError, match="has format 2 of 'checkpoint'; this version reads formats 1 to 1"
    ):
        checkpoint.load(tmp_path, 10)


def test_old_or_new_wherever_a_save_dies(tmp_path):
    """With pruning: at every instant at least one sound checkpoint can be loaded, and it is the old or the new one."""
    number = 0
    while True:
        number += 1
        for way in ("killed", "zeros", "both"):
            path = saved(tmp_path / f"{number}-{way}", steps=(1, 2))
            with FaultyDisk(path, crash_at=number) as disk:
                checkpoint.save(path, 3, tensors_of(3), state_of(3))
            disk.lose(way)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # nothing damaged is in sight either
                step, tensors, state = checkpoint.load_newest(path)
            assert step == 3 if not disk.dead else step in (2, 3)
            assert same(tensors, tensors_of(step)) and state == state_of(step)
            writer.sweep(path)
            assert not list(path.rglob(".*"))
            shutil.rmtree(path)
        if not disk.dead:
            break
    assert number > 15


# ------------------------------------------------------------------------------------------------ no pickle


def pickles(source: str) -> list[str]:
    """Everything in a module that could make or execute a pickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            found += [
                f"{node.lineno}: import {n}"
                for n in names
                if n.split(".")[0]
                in (
                    "pickle",
                    "cPickle",
                    "_pickle",
                    "dill",
                    "joblib",
                    "shelve",
                    "marshal",
                    "cloudpickle",
                )
            ]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            call = ast.unparse(node.func)
            if call in (
                "torch.load",
                "torch.save",
                "np.load",
                "np.save",
                "numpy.load",
                "pd.read_pickle",
                "pandas.read_pickle",
            ) or (call.endswith((".to_pickle", ".read_pickle"))):
                found.append(f"{node.lineno}: {call}")
            if any(keyword.arg in ("allow_pickle", "weights_only") for keyword in node.keywords):
                found.append(f"{node.lineno}: {call}(allow_pickle or weights_only)")
    return found


def test_there_is_no_pickle_anywhere():
    found = {
        str(path.relative_to(ROOT)): hits
        for path in sorted((ROOT / "workbench").rglob("*.py"))
        if (hits := pickles(path.read_text()))
    }
    # Checks of environments take fingerprints by `pickle.dumps`; nothing is read back.
    for name in (
        "workbench/extensions/scripted_play/sharing.py",
        "workbench/extensions/scripted_play/reachable.py",
    ):
        text = (ROOT / name).read_text()
        if "pickle.load" not in text and "Unpickler" not in text:
            found.pop(name, None)
    assert not found, f"a pickle executes what it holds; use safetensors, parquet or JSON: {found}"
    for line in (
        "import pickle",
        "from joblib import load",
        "torch.load(p)",
        "torch.load(p, weights_only=True)",
        "np.load(p, allow_pickle=True)",
        "torch.save(x, p)",
        "frame.to_pickle(p)",
    ):
        assert pickles(line), line


def test_a_pickle_in_place_of_weights_is_not_executed(tmp_path):
    """Even with a manifest that fits: the file is read as safetensors or not at all."""
    import pickle

    class Payload:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    folder = tmp_path / "checkpoints"
    folder.mkdir()
    state = json.dumps({"step": 1, "state": {}}).encode()
    writer.write_folder(
        folder / "step-00000001",
        {"model.safetensors": pickle.dumps(Payload()), "state.json": state},
        kind="checkpoint",
        version=1,
    )
    with pytest.raises(StoreError, match="model.safetensors"):
        checkpoint.load_newest(tmp_path)
    assert not (tmp_path / "executed").exists()
