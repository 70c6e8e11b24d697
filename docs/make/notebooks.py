"""The committed notebooks, copied to where the builder looks for pages. The copies are never committed."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_notebooks(source: Path, folder: Path) -> list[Path]:
    """Copy every notebook of `source` into `folder`, which holds nothing else afterwards; returns the copies.

    A copy that already is the same is left alone, so that the builder does not read it again.
    """
    folder.mkdir(exist_ok=True)
    wanted = {path.name: path for path in sorted(source.glob("*.ipynb"))}
    for old in folder.glob("*.ipynb"):
        if old.name not in wanted:
            old.unlink()
    for name, path in wanted.items():
        copy = folder / name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copyfile(path, copy)
    return [folder / name for name in wanted]
