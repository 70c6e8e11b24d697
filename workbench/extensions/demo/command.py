"""The command `demo`."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from pathlib import Path
from typing import Any

from workbench.cli.numbers import number_from_zero
from workbench.cli.opening import config_of
from workbench.cli.options import AddCommand, add_set
from workbench.values.errors import ConfigError


def add_demo(command: AddCommand) -> None:
    sub = command("demo", demo_command)
    sub.add_argument("--task", default="search-discovery", help="a preset, or a file of settings")
    sub.add_argument("--seeds", type=number_from_zero, nargs="+", default=[0])
    sub.add_argument("--out", type=Path)
    add_set(sub)


def demo_command(args: argparse.Namespace) -> int:
    from workbench.cli.training import train_with_progress
    from workbench.extensions.demo.verdict import demo
    from workbench.look import demo_view

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "the demo runs in one process; for several, torchrun ... -m workbench.cli train"
        )
    config = config_of(args.task, args.settings)
    out = args.out or Path("runs") / f"demo-{Path(args.task).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    table: dict[str, Any] = demo(config, args.seeds, out, train_with_progress)
    print(demo_view(table).text)
    first = shlex.quote(f"{out}/seed-{args.seeds[0]}")
    print(f"\ntable: {out / 'table.json'}\nlook at a run: workbench show {first}")
    return 0 if table["learned"] else 1
