"""The command `audit-notebook`: which numbers of an executed notebook can be made anew, and whether they are the same."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from workbench.cli.opening import put


def add_audit_notebook(command: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    sub = command(
        "audit-notebook",
        audit_notebook_command,
        "by which code, data, seeds and versions the numbers of an executed notebook came; each is recomputed from "
        "run folders, taken on trust, or different; exit 1 if one is different",
    )
    sub.add_argument(
        "notebook",
        type=Path,
        metavar="FILE.ipynb",
        help="of a job of a grid, its report, or any that was saved with its outputs",
    )
    sub.add_argument(
        "--run",
        dest="runs",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a run that it speaks of, where its parameters do not say where it lies; may be repeated",
    )
    sub.add_argument("--json", action="store_true", help="print every number with its mark as JSON")
    return sub


def audit_notebook_command(args: argparse.Namespace) -> int:
    from workbench.ablation.audited import audit_notebook

    found = audit_notebook(args.notebook, args.runs)
    if args.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        put(found.view(), args.html)
    return 1 if found.differ else 0
