"""The command `figure`: a grid or a run as a figure for a paper."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.basics.regular_files import read_json
from workbench.cli.numbers import decimal_above_zero
from workbench.cli.options import AddCommand
from workbench.extensions.ablation.views.arms import show_arm_curves
from workbench.extensions.ablation.views.forest import show_forest
from workbench.look.cells.show import show
from workbench.values import View
from workbench.values.errors import DataError

DECLARED = ".declared.json"
MOST_TABLE_BYTES = 64 << 20
# What a table raises whose parts are missing, or of another type: it may be anybody's.
_BENT = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def add_figure(command: AddCommand) -> None:
    sub = command("figure", figure_command)
    sub.add_argument("source", type=Path, metavar="GRID_OR_RUN", help="its folder")
    sub.add_argument("-o", "--out", type=Path, required=True, help="FILE.pdf, .svg or .png")
    for name in ("--width", "--height"):
        sub.add_argument(
            name, type=decimal_above_zero, metavar="INCHES", help="(default: as on a screen)"
        )
    sub.add_argument("--dark", action="store_true", help="on dark paper")


def figure_command(args: argparse.Namespace) -> int:
    view = figure_view(args.source)
    print(view.save(args.out, width=args.width, height=args.height, dark=args.dark))
    return 0


def figure_view(source: Path) -> View:
    """Of a grid the paired differences (without any, the curves of its arms), of a run its curves. DataError where a grid
    has no report yet."""
    declared = next(source.glob(f"*{DECLARED}"), None)
    if declared is None:
        return show(source)
    table = source / f"{declared.name.removesuffix(DECLARED)}.json"
    if not table.is_file():
        raise DataError(
            f"{table} is not there: `workbench ablate` writes it once its jobs are done"
        )
    try:
        facts = read_json(table, most=MOST_TABLE_BYTES)
        return show_forest(facts) if facts["compared"] else show_arm_curves(facts)
    except _BENT as error:
        raise DataError(
            f"{table} is no table that `workbench ablate` wrote ({type(error).__name__}: {error}); "
            "the same ablation writes it again"
        ) from error
