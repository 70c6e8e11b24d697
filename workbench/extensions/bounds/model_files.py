"""The folder of a model that somebody else made, looked at before anything of it is loaded.

    check_model(folder, name, config, reader)       raises PolicyError; else a loader may read the folder

Nothing is read that lies outside it, since another model would have its fingerprint; no file has names without end, and
what decides how much work loading is, is tried in a process of its own (trial).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.basics.regular_files import is_hole, parse_json
from workbench.engines.policy import DECIDING, INDEX, other_files, read_object
from workbench.extensions.bounds.trial import try_folder
from workbench.values.errors import PolicyError

LONGEST_HEADER = 8 << 20  # bytes that say what a weight file holds; 100,000 of the largest models
TIMES_PACKED = 8  # so much less of a file of weights may a disk hold that packs files
METADATA = "__metadata__"  # of a weight file: no tensor
LARGEST_OTHER = 256 << 20  # bytes of a file that holds no weights; tokenizers have up to 40 million
LARGEST_OTHERS = 512 << 20  # bytes of all of them


def check_model(
    folder: Path, name: str, config: Mapping[str, Any] | None, reader: Any, *, weights: bool = True
) -> None:
    """Raises PolicyError for a folder that is not to be loaded.

    config   its config.json; None for a folder of a tokenizer alone
    reader   the class of transformers that will read it
    weights  False: its tokenizer is all that will be read"""
    _check_kinds(folder, name)
    _check_links(folder, name)
    _check_sizes(folder, name)
    if config is not None:
        _check_code(config, name)
        _check_named(folder, config, name)
    if weights:
        _check_weights(folder, name)
    try_folder(folder, name, other_files(folder), None if config is None else reader)


def _check_kinds(folder: Path, name: str) -> None:
    for inside in sorted((*folder.iterdir(), *folder.glob("additional_chat_templates/*"))):
        if inside.exists() and not (inside.is_file() or inside.is_dir()):
            raise PolicyError(
                f"{name}: {inside.name} in {folder} is not a regular file; a model's folder holds nothing else"
            )


def _check_links(folder: Path, name: str) -> None:
    """The hub's cache is one folder a model, whose snapshots are links into it."""
    home = folder.resolve()
    if home.parent.name == "snapshots":
        home = home.parents[1]
    for path in (*folder.iterdir(), *folder.glob("additional_chat_templates/*")):
        if path.is_file() and not path.resolve().is_relative_to(home):
            raise PolicyError(
                f"{name}: {path.name} is a link that leads out of {folder}; copy what it leads to into the folder"
            )


def _check_sizes(folder: Path, name: str) -> None:
    paths = {path for pattern in DECIDING for path in folder.glob(pattern) if path.is_file()}
    total = 0
    for path in sorted(paths):
        size = path.stat().st_size
        total += size
        if size > LARGEST_OTHER:
            raise PolicyError(
                f"{name}: {path.name} has {size:,} bytes, and {LARGEST_OTHER:,} are read at most of a file that holds no "
                "weights; it is damaged, or was made to do harm"
            )
    if total > LARGEST_OTHERS:
        raise PolicyError(
            f"{name}: its {len(paths):,} files that hold no weights have {total:,} bytes together, and {LARGEST_OTHERS:,} are "
            "read at most. Take those that are none of this model's out of the folder"
        )
    for path in folder.glob("*.safetensors"):
        _check_weight_file(path, name)


def _check_weight_file(path: Path, name: str) -> None:
    """Every file of weights is read to its end, for the fingerprint: so it is no longer than it says, and really there."""
    with open(path, "rb") as weight_file:
        length = int.from_bytes(weight_file.read(8), "little")
        header = weight_file.read(length) if length <= LONGEST_HEADER else b""
        state = os.fstat(weight_file.fileno())
        hole = is_hole(weight_file, state, times=TIMES_PACKED)
    if length > LONGEST_HEADER:
        raise PolicyError(
            f"{name}: {path.name} says that it has {length:,} bytes of names, and {LONGEST_HEADER:,} are read at most; "
            "it is damaged, or no file of weights"
        )
    end = 8 + length + _end_of_tensors(header)
    if state.st_size > end:
        raise PolicyError(
            f"{name}: {path.name} has {state.st_size:,} bytes, and its tensors end at {end:,}; it is damaged, or no file of "
            "weights"
        )
    if hole:
        raise PolicyError(
            f"{name}: {path.name} has {state.st_size:,} bytes, of which the disk holds {512 * state.st_blocks:,}: the rest "
            "is a hole, and reads as zeros. Finish the download, or take the model from where it was first published"
        )


def _end_of_tensors(header: bytes) -> int:
    """Bytes of what stands behind the header; 0 where it cannot be read, which the loader says in its own words."""
    try:
        entries = parse_json(header)
        ends = [entry["data_offsets"][1] for key, entry in entries.items() if key != METADATA]
        return max(map(int, ends), default=0)
    except (ValueError, TypeError, LookupError, AttributeError):
        return 0


def _check_code(config: Mapping[str, Any], name: str) -> None:
    """Nothing that a model brings along is run."""
    if "auto_map" in config:
        raise PolicyError(
            f"{name}: this model brings its own Python code (auto_map in config.json), and code from a "
            "model is never run here (trust_remote_code is off). Use a model whose architecture is part "
            "of transformers"
        )
    for key, value in _entries(config):
        names_kernel = key.strip("_").endswith(("attn_implementation", "experts_implementation"))
        if names_kernel and "/" in str(value):
            raise PolicyError(
                f"{name}: config.json asks for the kernel {str(value)[:80]!r} ({key}), which would be downloaded "
                f"and run; nothing of that kind is. Take {key} out of config.json"
            )


def _check_weights(folder: Path, name: str) -> None:
    if not any(folder.glob("*.safetensors")):
        pickled = (".bin", ".pt", ".pth", ".gguf")
        others = sorted(path.name for path in folder.iterdir() if path.suffix in pickled)
        raise PolicyError(
            f"{name}: expected weights as *.safetensors in {folder}, found {', '.join(others) or 'none'}. Pickled weights can "
            "run code when they are opened, so they are refused; convert them once with save_pretrained"
        )


def _check_named(folder: Path, config: Mapping[str, Any], name: str) -> None:
    """Raises PolicyError for an adapter, and for a file outside the folder."""
    if (folder / "adapter_config.json").exists():
        raise PolicyError(
            f"{name}: {folder} holds an adapter (adapter_config.json), which is not loaded; merge it into its model "
            "first (workbench export merges)"
        )
    for file, named in _named_files(folder, config, name):
        if Path(str(named)).name != named:
            raise PolicyError(
                f"{name}: {file} names {str(named)[:80]!r}, expected the name of a file in {folder}: nothing outside "
                "of it is read. Take the model from where it was first published"
            )


def _named_files(folder: Path, config: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """(which file says it, the name of another that is to be read)."""
    if "transformers_weights" in config:
        yield "config.json", config["transformers_weights"]
    for index in folder.glob(f"*{INDEX}"):
        shards = read_object(index, name).get("weight_map")
        if not isinstance(shards, dict):
            raise PolicyError(
                f"{name}: {index} has no weight_map; take the index that came with it"
            )
        yield from ((index.name, shard) for shard in {*map(str, shards.values())})
    path = folder / "tokenizer_config.json"
    settings = read_object(path, name) if path.is_file() else {}
    for key, value in _entries(settings):
        # Many name a file of the machine that they were made on, which is not there and is not read.
        if key.endswith("_file") and isinstance(value, str) and (folder / value).is_file():
            yield path.name, value


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every entry of a config and of those within it."""
    for key, value in config.items():
        yield key, value
        if isinstance(value, dict):
            yield from _entries(value)
