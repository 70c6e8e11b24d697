"""How the run folders in `old/` were made. They are what commit bca8911 wrote, and stay as they are: this file says
what is in them, and makes them only where none are.

    python -m tests.golden_runs.make_old OUT          with the code of bca8911: the run folders, into OUT
    python -m tests.golden_runs.make_old --texts      with any: what is shown of them now, as old/NAME.txt

    small-frozenlake   GRPO, 4 trajectories of 4 tasks, of a policy with 34,368 weights (old/policy), linted. Two steps to
                       their end, with checkpoint and evaluation; resumed with train.steps=4, stopped after step 3
    small-ppo          the same policy with a critic, four updates a step; stopped after step 2, with a checkpoint
    search             the golden run of that name, with tools; stopped after step 2, its checkpoint taken away
    window             the golden run of that name, with rewritten histories; the same

What each would have become is recorded in `recorded/NAME.json`. `old/SHA256SUMS` says that nobody touched them.

`old/policy` is the recipe of frozenlake-tiny with hidden 32, 2 layers, 2 heads, 1 key/value head, head_dim 16,
intermediate 64, and lessons of 500 and 150 steps (its provenance.json has it all). It succeeds in a fifth of its
trajectories, so that groups differ.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import workbench as wb
from tests.golden_runs.runs import ALL, OLD

ROOT = Path(__file__).resolve().parents[2]
HOST = "a-machine"  # what the clock of a run says instead of the name of the one that made it


def stopped_after(step: int) -> Callable[[Any], None]:
    """An `on_step` that interrupts when that step is committed."""

    def on_step(outcome: Any) -> None:
        if outcome.step == step:
            raise KeyboardInterrupt

    return on_step


def start(name: str, out: Path, stop: int | None, overrides: Mapping[str, Any] = {}) -> None:
    preset, settings = ALL[name]
    config = wb.load_config(preset, {**settings, **overrides})
    try:
        wb.train_here(config, out / name, on_step=stopped_after(stop) if stop else None)
    except KeyboardInterrupt:
        pass


def go_on(name: str, out: Path, stop: int, settings: Mapping[str, Any]) -> None:
    try:
        wb.resume_here(out / name, settings, on_step=stopped_after(stop))
    except KeyboardInterrupt:
        pass


def make(out: Path) -> None:
    with (
        mock.patch("socket.gethostname", return_value=HOST),
        mock.patch("platform.platform", return_value="Linux"),
    ):
        start("small-frozenlake", out, None, {"train.steps": 2})
        go_on("small-frozenlake", out, 3, {"train.steps": 4})
        start("small-ppo", out, 2)
        for name in ("search", "window"):
            start(name, out, 2)
            shutil.rmtree(
                out / name / "checkpoints"
            )  # 8 MB each: such a run goes on from its first step
    for lock in out.glob(
        "*/.lock"
    ):  # names a process and a boot of that machine; whoever writes makes it anew
        lock.unlink()


# ------------------------------------------------------------------------------------------------ what is shown


def shown(run: Any) -> str:
    """The texts of the views of a run, one below the other."""
    groups, last = run.groups(1), run.steps()[-1]
    views = {
        "show_run": wb.show(run),
        "show_evaluations": wb.show(run, evaluation="last"),
        f"show_step {last}, task 0": wb.show(run, step=last, task=0),
        f"show_step {last}, task 1, attempt 2": wb.show(run, step=last, task=1, attempt=2),
        "show_step 1, tokens of task 0, attempt 0": wb.show(run, step=1, tokens=True),
        "show_trajectory, step 1, task 3, attempt 3": wb.show(groups[3][3]),
        "show_masks, step 1": wb.show_masks(groups),
    }
    return "\n".join(f"== {name}\n{view.text}" for name, view in views.items()) + "\n"


def write_texts() -> None:
    for path in old_runs():
        (OLD / f"{path.name}.txt").write_text(shown(wb.open_run(path)), encoding="utf-8")


def old_runs() -> list[Path]:
    """The stored run folders."""
    return sorted(path.parent for path in OLD.glob("*/run.json"))


def sums() -> str:
    """What `sha256sum` says of every file that is not to change for good: run folders and their policy."""
    files = sorted(path for path in OLD.glob("*/**/*") if path.is_file())
    return "".join(
        f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(OLD).as_posix()}\n"
        for path in files
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden_runs.make_old", description=__doc__.split("\n\n")[0]
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("out", nargs="?", type=Path, help="a folder without runs of these names")
    chosen.add_argument(
        "--texts", action="store_true", help="write what is shown of the stored runs"
    )
    args = parser.parse_args(arguments)
    out = args.out and args.out.absolute()
    os.chdir(ROOT)  # the policy's name is relative to it
    if args.texts:
        write_texts()
    else:
        make(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
