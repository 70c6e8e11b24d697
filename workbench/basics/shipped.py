"""Where the policies lie that ship with the project. Imports the standard library only."""

from __future__ import annotations

from pathlib import Path


def shipped_folder(package: Path = Path(__file__).resolve().parents[1]) -> Path:
    """The folder of the shipped policies: inside an installed wheel (setup.py puts them there), beside the package in a
    checkout."""
    inside = package / "data" / "policies"
    return inside if inside.is_dir() else package.parent / "data" / "policies"
