"""What the notebooks of an ablation call: train one arm wherever it was left, and read the table of all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.extensions.ablation import table as tables
from workbench.extensions.ablation.contrasts import axes_in, places_in
from workbench.extensions.ablation.declared import held_against
from workbench.extensions.ablation.plan import read_settings  # noqa: F401  (part of this surface)
from workbench.extensions.ablation.reading import read_plan
from workbench.extensions.ablation.views.arms import (
    arms_markdown,
    check_lines,
    show_arm_curves,
    show_arms,
)
from workbench.extensions.ablation.views.doses import dose_view, heat_view
from workbench.extensions.ablation.views.forest import show_forest
from workbench.extensions.ablation.views.interactions import interaction_view
from workbench.extensions.ablation.views.power import show_power
from workbench.look.records import text_view
from workbench.run.store import Run, open_run
from workbench.run.writer import make_folder, write_file
from workbench.training.config import Config, to_dict
from workbench.values import View
from workbench.values.errors import ConfigError, StoreError
from workbench.values.view import HasView


def train_or_go_on(config: Config, path: str | Path) -> Run:
    """Train in this process and return the finished run; a run that was begun with this configuration goes on, a
    finished one is returned as it is. StoreError for a run of another configuration."""
    from workbench.look.cells.train import resume_here, train_here  # reading a table needs no torch

    path = Path(path)
    if not path.is_dir():
        return train_here(config, path)
    if open_run(path).config != json.loads(json.dumps(to_dict(config))):
        raise StoreError(f"{path} is a run with another configuration; name another folder")
    return resume_here(path)


@dataclass(frozen=True, eq=False, repr=False)
class ArmTable(HasView):
    """A finished table (see `ablation.table`), and what can be made of it. Shows itself."""

    values: Mapping[str, Any]

    def show(self) -> View:
        return show_arms(self.values)

    view = show

    def curves(self) -> View:
        """Learning curves, a line an arm."""
        return show_arm_curves(self.values)

    def forest(self) -> View:
        """The paired differences with their intervals, every seed a dot, and the controls."""
        return show_forest(self.values)

    def checks(self) -> View:
        """What must hold before a verdict is worth anything, the controls among it: ok, FAIL or not judged, and why."""
        return text_view("\n".join(check_lines(self.values)))

    def dose(self, axis: str | None = None) -> View:
        """Success along a numeric axis of the grid."""
        return dose_view(self.values, axis)

    def heat(self, x: str | None = None, y: str | None = None) -> View:
        """Success over two numeric axes of the grid."""
        return heat_view(self.values, x, y)

    def interaction(self, a: str | None = None, b: str | None = None) -> View:
        """Whether one axis of the grid matters more where another is higher."""
        return interaction_view(self.values, a, b)

    def power(self) -> View:
        """The chance of a verdict by the number of seeds and tasks, from the variances at hand."""
        return show_power(self.values)

    def write(self, out: str | Path) -> View:
        """NAME.json, NAME.md, NAME.html and NAME.png in `out`; returns what was written, in words."""
        name = self.values["name"]
        folder = Path(out)
        curves = self.curves()
        pages = [self.show().html]
        if self.values["compared"]:
            pages.append(self.forest().html)
            if len(axes_in(places_in(self.values["arms"]))) > 1:
                pages.append(self.interaction().html)
            pages.append(self.power().html)
        pages.append(curves.html)
        page = f'<!doctype html><meta charset="utf-8"><title>{name}</title>{"".join(pages)}'
        files = {
            "json": (json.dumps(self.values, indent=1) + "\n").encode(),
            "md": arms_markdown(self.values).encode(),
            "html": page.encode(),
            "png": curves.png or b"",
        }
        make_folder(folder)
        for ending, content in files.items():
            write_file(folder / f"{name}.{ending}", content, replace=True)
        sizes = [f"{name}.{ending}: {len(content):,} bytes" for ending, content in files.items()]
        return text_view("\n".join(sizes))


def read_table(
    plan: str | Path, out: str | Path, *, seeds: str = "0 1 2", arms: str = "", settings: str = ""
) -> ArmTable:
    """The table of the runs in `out`, as the plan (a TOML file) wants it. Parameters as a notebook hands them over:
    numbers, names and KEY=VALUE separated by blanks."""
    wanted = read_plan(Path(plan)).with_settings(read_settings(settings))
    held_against(wanted, Path(out))
    if arms.split():
        wanted = wanted.with_arms(arms.split())
    if not seeds.split() or not all(seed.isdecimal() for seed in seeds.split()):
        raise ConfigError(f"seeds are whole numbers separated by blanks, got {seeds!r}")
    return ArmTable(tables.tabled(wanted, [int(seed) for seed in seeds.split()], Path(out)))
