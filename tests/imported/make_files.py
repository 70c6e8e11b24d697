"""Make the files of `tests/imported/files/` again, with the real writers of the pinned packages.

    python -m tests.imported.make_files                     into tests/imported/files, environments thrown away
    python -m tests.imported.make_files OUT --venvs FOLDER  elsewhere, and keep the environments for the next time

Each package gets a virtual environment (about 6 GB for all, most of it torch twice). Our own engine samples the
trajectories (`recorded.py`), then each script of `writers/` runs where its package is installed and calls that package's
writer. Nothing is fetched from a hub.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
# verl 0.9.1 imports cachetools, uvicorn, fastapi, pyzmq and msgspec without asking for them; its newer trainer
# TransferQueue.
WRITERS = {
    "write_verifiers_traces.py": ("verifiers==0.4.0",),
    "write_verifiers_results.py": ("verifiers==0.1.14",),
    "write_trl_tables.py": ("trl==1.16.0", "transformers==5.19.0", "torch==2.13.0", "pyarrow"),
    "write_inspect_logs.py": ("inspect-ai==0.3.285",),
    "write_agentcore_rollouts.py": ("agentcore-rl-toolkit==0.2.0", "tinker"),
    "write_nemo_gym_rollouts.py": ("nemo-gym==0.4.0",),  # asks for Python 3.12
    "write_verl_generations.py": (
        "verl==0.9.1",
        "torch==2.13.0",
        "TransferQueue==0.1.11",
        "cachetools",
        "uvicorn",
        "fastapi",
        "pyzmq",
        "msgspec",
    ),
}


def make(out: Path, venvs: Path) -> None:
    """All files, into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    recorded = out / "recorded.json"
    subprocess.run(
        [sys.executable, "-m", "tests.imported.recorded", str(recorded)],
        check=True,
        cwd=HERE.parents[1],
    )
    for script, packages in WRITERS.items():
        folder = venvs / script.removesuffix(".py")
        python = folder / "bin" / "python"
        if not (folder / "installed").exists():
            venv.create(folder, clear=True, with_pip=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
            (folder / "installed").touch()
        command = [
            str(python),
            "-W",
            "ignore",
            str(HERE / "writers" / script),
            str(recorded),
            str(out),
        ]
        subprocess.run(
            command,
            check=True,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
        )
    recorded.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE / "files")
    parser.add_argument(
        "--venvs",
        type=Path,
        help="where to keep the environments (default: a folder that is removed)",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="writers-") as folder:
        make(arguments.out.absolute(), (arguments.venvs or Path(folder)).absolute())
