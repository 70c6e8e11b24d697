"""Checkpoints: weights and optimizer as safetensors, the rest as JSON, each folder committed by one rename. No pickle.

    checkpoints/step-00000010/   NAME.safetensors …   state.json   MANIFEST.json (written last: size and sha256 of each)

`load_newest` reads every byte against the manifest before a tensor is made of it. A damaged checkpoint is refused with
the reason, the one before it is used, and the bad one is left where it is for people to look at.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from workbench.basics import canonical_json
from workbench.basics.regular_files import parse_json
from workbench.run import writer
from workbench.run.equality import first_difference
from workbench.run.recording import RunWriter
from workbench.run.shapes import STATE, shaped
from workbench.run.store import step_folders, step_name
from workbench.values.errors import StoreError

FORMAT = 1
_SUFFIX = ".safetensors"
_STATE = "state.json"

# safetensors' names of types; the header is JSON, the data little-endian, end to end.
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class _Held(dict):
    """What a checkpoint holds. Anybody can make a seal, and leave a part out: StoreError says which."""

    def __missing__(self, name: str) -> Any:
        raise StoreError(f"this checkpoint holds no {name!r}; restore it from a copy")


class Checkpoint(NamedTuple):
    """What was saved: unpacks as (step, tensors, state)."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


class CheckpointWarning(UserWarning):
    """A checkpoint was refused and an older one used."""


def save(
    run: RunWriter | str | os.PathLike,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    spared: Collection[int] = (),
) -> Path:
    """Commit a checkpoint, then remove all but the newest `keep` and those of the steps `spared`. Raises StoreError; what was there before stays, and
    so a step is saved once; only a damaged checkpoint of it (training went back behind it) is moved to `orphans/`.

    `tensors`: file name -> tensor name -> tensor, such as {"model": {...}, "optimizer": {...}}.
    `state`: JSON values that come back exactly (StoreError otherwise: an optimizer's integer keys are to be spelled
    out by whoever owns them). `keep` is at least 2: if the newest is damaged, the one before it is used.
    """
    if keep < 2:
        raise StoreError(
            f"keep is at least 2, got {keep}: if the newest checkpoint is damaged, the one before is used"
        )
    files: dict[str, writer.Chunks] = {
        f"{name}{_SUFFIX}": safetensors_bytes(part) for name, part in tensors.items()
    }
    content = {"step": step, "state": canonical_json.plain(state, "a checkpoint's state")}
    read_again = json.loads(canonical_json.json_bytes(content, "state"))["state"]
    if (lost := first_difference(read_again, state, "state")) is not None:
        raise StoreError(
            f"a checkpoint's state must be JSON values, or it would come back as something else: {lost}"
        )
    files[_STATE] = json.dumps(content, indent=1).encode("ascii")
    folder = _folder(run)
    writer.make_folder(folder)
    path = folder / step_name(step)
    if os.path.lexists(path) and damage(run, step) is not None:  # a link to nowhere is damage too
        writer.set_aside(path, folder.parent / "orphans")
    writer.write_folder(path, files, kind="checkpoint", version=FORMAT)
    prune(run, keep, spared={step, *spared})
    return path


def prune(run: RunWriter | str | os.PathLike, keep: int, *, spared: Collection[int]) -> None:
    """Remove all but the newest `keep` and those of the steps `spared`: the second half of a save, done again by who
    goes on after a kill between. Damaged ones count too, so `spared` holds what the run goes on from."""
    for old in steps(run)[:-keep]:
        if old not in spared:
            writer.remove_folder(_folder(run) / step_name(old))


def steps(run: RunWriter | str | os.PathLike) -> list[int]:
    """The steps that have a checkpoint, oldest first; whether it is sound shows when it is loaded."""
    return step_folders(_folder(run))


def load(run: RunWriter | str | os.PathLike, step: int) -> Checkpoint:
    """One checkpoint, verified byte by byte. Raises StoreError naming file and reason."""
    path = _folder(run) / step_name(step)
    with canonical_json.readable(path):
        missing = not path.exists()
    if missing:
        raise StoreError(f"{path} does not exist; there are checkpoints of steps {steps(run)}")
    root = path.parent.parent
    names = canonical_json.verify_folder(path, kind="checkpoint", version=FORMAT, below=root)
    try:
        content = parse_json(
            canonical_json.read_file(path / _STATE, below=root, most=canonical_json.MOST_DOCUMENT)
        )
        held = content["step"]
        state = shaped(content["state"], STATE, path / _STATE, "a state")
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path / _STATE} is damaged: {error!r}") from error
    if held != step:
        raise StoreError(f"{path} holds step {held!r}, not {step}; give the folder its name back")
    tensors = {
        name.removesuffix(_SUFFIX): _tensors(path / name)
        for name in names
        if name.endswith(_SUFFIX)
    }
    return Checkpoint(step, _Held(tensors), _Held(state))


def damage(run: RunWriter | str | os.PathLike, step: int) -> str | None:
    """Why the checkpoint of `step` cannot be used, after reading every byte of it; None where it is sound."""
    try:
        load(run, step)
    except StoreError as error:
        return str(error)
    return None


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        with canonical_json.readable(path):
            return load_file(path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise StoreError(f"{path} is not a safetensors file: {error}") from error


def load_newest(run: RunWriter | str | os.PathLike) -> Checkpoint | None:
    """The newest sound checkpoint; None where there is none at all. A damaged one is named in a CheckpointWarning and
    the one before is taken; StoreError lists every reason if none is left."""
    reasons = []
    for step in reversed(steps(run)):
        try:
            checkpoint = load(run, step)
        except StoreError as error:
            reasons.append(str(error))
            continue
        if reasons:
            words = f"going back to the checkpoint of step {step}: {'; '.join(reasons)}"
            warnings.warn(words, CheckpointWarning, 2)
        return checkpoint
    if reasons:
        raise StoreError("no checkpoint of this run can be used: " + "; ".join(reasons))
    return None


def _folder(run: RunWriter | str | os.PathLike) -> Path:
    folder = (run.path if isinstance(run, RunWriter) else Path(run)) / "checkpoints"
    if isinstance(run, RunWriter):
        run.check_place()
    if folder.is_symlink():  # what is written or removed through it is another run's
        raise StoreError(f"{folder} is a symbolic link, and {writer.NO_LINKS}")
    return folder


def safetensors_bytes(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] = {}
) -> Iterator[bytes | memoryview]:
    """The file that `safetensors` would read, piece by piece, so that a large model is never in memory twice.

    Tensors that share memory (tied weights) are written once each. Layout: 8 bytes of header length, JSON header with
    type, shape and place of each tensor, data; largest element first, so that every tensor is aligned.
    Source: the format's description, github.com/huggingface/safetensors.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _TYPES:
            raise StoreError(
                f"tensor {name!r} has type {tensor.dtype}; a checkpoint holds {sorted(_TYPES.values())}"
            )
        start = end
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            yield memoryview(np.ascontiguousarray(flat.view(torch.uint8).numpy()))
