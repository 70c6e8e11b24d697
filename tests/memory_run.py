"""A real step of training in this process; prints the most memory it ever had (bytes), and what it was planned to have.

    python -m tests.memory_run PRESET KEY=VALUE ...
"""
import re
import sys
import tempfile
from pathlib import Path


def main(preset: str, *settings: str) -> None:
    from workbench.notebook.train import train_here
    from workbench.training.config import load_config

    config = load_config(preset, dict(setting.split("=", 1) for setting in settings))
    with tempfile.TemporaryDirectory() as folder:
        train_here(config, Path(folder) / "run")
    # Not ru_maxrss: a process that was forked from a large one starts with that one's.
    print(1024 * int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
