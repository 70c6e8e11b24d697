"""Pickles are recognised, so that they can be refused in words: reading one runs what it holds.

verl saves whole batches that way: `DataProto.save_to_disk`, and what its rollout skip keeps.
"""

from __future__ import annotations

from pathlib import Path

from workbench.basics.regular_files import open_stream
from workbench.extensions.interop.importers import zips
from workbench.values.errors import DataError

PROTOCOL = 0x80  # the first byte of a pickle, from protocol 2 on
REFUSED = (
    "is a pickle (verl's DataProto.save_to_disk and torch.save make such files); reading one runs whatever it holds, so it "
    "is not read. Write its rows as lines of JSON in the environment that made it: docs/guides/import.md has the lines"
)


def is_pickle(path: Path) -> bool:
    """Whether a file is a pickle, or a zip of torch.save with one in it."""
    if not path.is_file():
        return False
    with open_stream(path) as stream:
        beginning = stream.read(4)
    if beginning[:1] == bytes([PROTOCOL]):
        return True
    if beginning != b"PK\x03\x04":
        return False
    try:
        with zips.opened(path) as file:
            return any(info.filename.endswith("data.pkl") for info in file.members)
    except DataError:
        return False
