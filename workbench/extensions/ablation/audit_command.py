"""The command `audit-notebook`: which numbers of an executed notebook can be made anew, and whether they are the same."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from workbench.cli.opening import print_or_save
from workbench.cli.options import AddCommand, add_html


def add_audit_notebook(command: AddCommand) -> None:
    sub = command("audit-notebook", audit_notebook_command)
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
    add_html(sub)


def audit_notebook_command(args: argparse.Namespace) -> int:
    from workbench.extensions.ablation.audited import audit_notebook

    audit = audit_notebook(args.notebook, args.runs)
    if args.json:
        print(json.dumps(audit.as_dict(), indent=1))
    else:
        print_or_save(audit.view(), args.html)
    return 1 if audit.differ else 0
