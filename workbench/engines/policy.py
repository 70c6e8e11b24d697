"""Load a policy: a causal language model and its tokenizer, checked to fit each other.

    load_policy("frozenlake-tiny")           shipped with the project (data/policies in a checkout)
    load_policy("Qwen/Qwen3-0.6B")           any Hugging Face causal language model, by hub name
    load_policy("./runs/lake/policy")        ... or by folder
    load_policy("mine", loader="my:load")    whatever a function of the user's own makes of the name (policy_loader)

Shipped policies are there in a checkout, in an editable install and in a wheel (basics/shipped.py).
Weights are read from safetensors only, code and kernels that come with a model are never run, nothing is read that lies
outside its folder, and a folder that does not ship with the project is looked at and tried first (`extensions/bounds`). Other
loaders of the package (`extensions/servers/encoder.py`) come through the same two functions: `open_folder`, which looks at
the files, and `read_pretrained`, which reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from workbench.basics.extensions import has_service, service
from workbench.basics.panics import panics_as
from workbench.basics.regular_files import read_json
from workbench.basics.shipped import shipped_folder
from workbench.engines.policy_loader import files_in_memory, loaded_by
from workbench.values.errors import PolicyError, did_you_mean
from workbench.values.tokens import GENERATION_STOPS

SHIPPED = shipped_folder()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PRETRAINED = 20_000_000  # parameters from which a model is taken for a pretrained one
ROUND_TRIP = "refuse_damaged_tokenizer"  # of an extension
BOUND_TEMPLATE = "bound_template"  # likewise
CHECK_MODEL = "check_model"  # likewise
# What a policy needs from a repository on the hub; subfolders and other formats of the same weights stay there.
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
UNWANTED = ["*/*", "consolidated*"]
MOST_JSON = 32 << 20  # bytes of a file: the index of a large model has ten million
INDEX = ".safetensors.index.json"
# What decides what a policy does, beside its weights: the names that transformers reads.
DECIDING = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "*.jinja",
    "vocab*",
    "merges.txt",
    "*.model",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    f"*{INDEX}",
]


@dataclass(frozen=True, eq=False)
class Policy:
    """`name` as asked for; `fingerprint` is the SHA-256 of the weight files: the same weights have the same one.
    `files`: name -> SHA-256 of all other files that decide what the policy does (`other_files`). `folder`: None for one that
    a loader of the user's own made."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str
    folder: Path | None
    files: Mapping[str, str]

    def contents(self) -> dict[str, bytes]:
        """Name -> content of `files`."""
        if self.folder is None:
            return files_in_memory(self.model, self.tokenizer)
        names = [name for name in other_files(self.folder) if "/" not in name]
        return {
            name: (self.folder / name).read_bytes() for name in names if not name.endswith(INDEX)
        }


def num_parameters(model: torch.nn.Module) -> int:
    """How many weights a model has; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def shipped_policies() -> list[str]:
    """Names of the shipped policies, sorted; empty where they were taken away."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


def load_policy(
    name_or_path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    loader: str | None = None,
    base_bits: int = 0,
) -> Policy:
    """Find, load and check a policy. `loader`: a function by name that does it instead (policy_loader). `base_bits` 4: its
    linear layers are held in four bits and not trained (adapters are). Raises PolicyError saying what is wrong and what to do
    about it."""
    if dtype not in DTYPES:
        raise PolicyError(f"dtype is one of {', '.join(DTYPES)}, got {dtype!r}")
    name = str(name_or_path)
    if base_bits:
        whole = load_policy(name, dtype=dtype, loader=loader)
        four_bit_base = service("four_bit_base", "policy.base_bits = 4")
        return replace(whole, model=four_bit_base(whole.model, name).to(device))
    if loader:
        return _by_loader(loader, name, DTYPES[dtype], device)
    folder = open_folder(name)
    tokenizer = _tokenizer_in(folder, name)
    model = load_weights(AutoModelForCausalLM, folder, name, dtype=DTYPES[dtype])
    _check_fit(model, tokenizer, name)
    _note_stops(tokenizer, _generation_stops(folder, name))
    model = model.to(device).eval()
    return Policy(name, model, tokenizer, fingerprint(folder), folder, other_files(folder))


def _by_loader(loader: str, name: str, dtype: torch.dtype, device: str) -> Policy:
    model, tokenizer = loaded_by(loader, name)
    _check_fit(model, tokenizer, f"policy.loader {loader!r}, {name!r}")
    _note_stops(tokenizer, getattr(model.generation_config, "eos_token_id", None))
    contents = files_in_memory(model, tokenizer)
    files = {file: sha256(content).hexdigest() for file, content in contents.items()}
    made = weights_fingerprint(model.state_dict())
    return Policy(name, model.to(dtype).to(device).eval(), tokenizer, made, None, files)


def load_tokenizer(
    name_or_path: str | Path, loader: str | None = None, *, download: bool = True
) -> PreTrainedTokenizerBase:
    """The tokenizer alone, to read stored tokens without loading weights (a loader of the user's own loads both).
    `download`: whether a name on the hub may be fetched. Raises PolicyError like `load_policy`."""
    if loader:
        model, tokenizer = loaded_by(loader, str(name_or_path))
        return _note_stops(tokenizer, getattr(model.generation_config, "eos_token_id", None))
    name = str(name_or_path)
    folder = open_folder(name, weights=False, download=download)
    return _note_stops(_tokenizer_in(folder, name), _generation_stops(folder, name))


def open_folder(
    name: str, *, weights: bool = True, reader: Any = AutoModelForCausalLM, download: bool = True
) -> Path:
    """The folder of a model, after a look at its files and a trial: before anything of it is read.

    weights   False: its tokenizer is all that will be read
    reader    the class of transformers that will read it
    download  whether a name on the hub may be fetched; else it must be in the local cache

    Raises PolicyError."""
    folder = _find(name, download)
    config = None
    if weights or (folder / "config.json").is_file():  # without one it is of a tokenizer alone
        config = read_object(folder / "config.json", name)
    if not _is_shipped(folder):
        check_model = service(CHECK_MODEL, f"{name}, which does not ship with the project,")
        check_model(folder, name, config, reader, weights=weights)
    return folder


def read_pretrained(reader: Any, folder: Path, name: str, **options: Any) -> Any:
    """What `reader`, a class of transformers, makes of a folder that `open_folder` gave. Raises PolicyError."""
    # Transformers loads in threads. In a forked process the first user of torch's thread pool replaces it, and two
    # threads that do so at once fail ("Invalid thread pool!"): this one does it for them.
    torch.set_num_threads(torch.get_num_threads())
    try:
        with _no_loading_bar(), panics_as(RuntimeError):
            return reader.from_pretrained(folder, trust_remote_code=False, **options)
    except Exception as error:  # whatever transformers raises for what somebody else wrote
        raise PolicyError(
            f"{name}: transformers could not load {folder} as {reader.__name__}: {error}. Check that the download is "
            "complete and that this version of transformers knows the architecture"
        ) from error


def load_weights(
    reader: Any, folder: Path, name: str, *, spare: str = "\0", **options: Any
) -> PreTrainedModel:
    """A model with all its weights, which are numbers. `spare`: how the names of those begin that may be missing."""
    model, loading = read_pretrained(
        reader, folder, name, use_safetensors=True, output_loading_info=True, **options
    )
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith(spare))
    if missing:
        raise PolicyError(
            f"{name}: the weight files lack {len(missing)} of the model's tensors "
            f"({', '.join(missing[:3])} ...), which "
            "would be filled with random numbers. Finish the download, or convert the checkpoint again"
        )
    _check_numbers(model, name)
    return model


def _tokenizer_in(folder: Path, name: str) -> PreTrainedTokenizerBase:
    """Its template is called under limits from now on, unless it ships with the project."""
    tokenizer = read_pretrained(AutoTokenizer, folder, name)
    if not _is_shipped(folder) and has_service(BOUND_TEMPLATE):
        service(BOUND_TEMPLATE, "loading a tokenizer")(tokenizer)
    return tokenizer


def _generation_stops(folder: Path, name: str) -> Any:
    """`eos_token_id` of generation_config.json, as it stands there; None where there is none."""
    path = folder / "generation_config.json"
    return read_object(path, name).get("eos_token_id") if path.is_file() else None


def _note_stops(tokenizer: PreTrainedTokenizerBase, stops: Any) -> PreTrainedTokenizerBase:
    """The tokenizer, which carries the ids that generation_config ends a turn by: its `ChatFormat` reads them."""
    stops = stops if isinstance(stops, (list, tuple)) else [stops]
    known = len(tokenizer)
    ids = tuple(token for token in stops if isinstance(token, int) and 0 <= token < known)
    setattr(tokenizer, GENERATION_STOPS, ids)
    return tokenizer


def _is_shipped(folder: Path) -> bool:
    return folder.resolve().is_relative_to(SHIPPED.resolve())


@contextmanager
def _no_loading_bar() -> Iterator[None]:
    """The files are here by now: a bar over tensors says nothing, and in a notebook it is saved for ever at 0 %."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def fingerprint(folder: str | Path) -> str:
    """SHA-256 over the weight files of a policy's folder, names included, in name order."""
    digest = sha256()
    for path in sorted(Path(folder).glob("*.safetensors")):
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def other_files(folder: str | Path) -> dict[str, str]:
    """Name -> SHA-256 of the files of a policy's folder that its numbers and its tokens also depend on: architecture,
    generation, tokenizer, templates. The statement of where it comes from is none of them."""
    paths: set[Path] = set()
    for pattern in DECIDING:
        paths |= {path for path in Path(folder).glob(pattern) if path.is_file()}
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
    }


def weights_fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over tensors by name, type, shape and bytes: for weights that are in memory only."""
    digest = sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------ finding


def is_folder(name: str) -> bool:
    """Raises PolicyError for what nothing can be called."""
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise PolicyError(f"no policy can be called {name[:80]!r}: {error!s:.80}") from error


def _find(name: str, download: bool) -> Path:
    """A folder as it stands, a shipped name, else a name on the hub: its snapshot folder, downloaded or cached."""
    there = is_folder(name)
    path = Path(name).expanduser()
    if there:
        return path
    if (SHIPPED / name / "config.json").is_file():
        return SHIPPED / name
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or not name:
        close = did_you_mean(path.name, _folders(path.parent), most=3, cutoff=0.4)
        hint = f"; {close}" if close else "."
        raise PolicyError(
            f"no folder {name!r}{hint} Give the folder that holds "
            f"config.json, a shipped policy ({', '.join(shipped_policies()) or 'none found'}) or a name "
            "on the hub"
        )
    return _download(name, download)


def _download(name: str, download: bool) -> Path:
    from huggingface_hub import snapshot_download  # comes with transformers
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    shipped = shipped_policies()
    known = f"Shipped policies: {', '.join(shipped) or 'none found'}"
    if close := did_you_mean(name, shipped, most=3, cutoff=0.4):
        known += f"; {close}"
    try:
        return Path(
            snapshot_download(
                name,
                allow_patterns=WANTED,
                ignore_patterns=UNWANTED,
                local_files_only=not download,
            )
        )
    except LocalEntryNotFoundError as error:
        if not download:
            raise PolicyError(
                f"{name!r} is no folder and not in the local cache; what a configuration names here is not fetched "
                f"unasked. Fetch it once: hf download {name}"
            ) from error
        offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
        why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        raise PolicyError(
            f"{name!r} is no shipped policy and not in the local cache, and {why}, so it cannot be "
            "downloaded. Connect (or unset HF_HUB_OFFLINE), or copy the model here and give its folder. "
            f"{known}"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise PolicyError(
            f"{name!r} is no shipped policy, and the hub does not hand it out ({type(error).__name__}): "
            f"check the spelling (owner/name); a gated model needs `hf auth login`. {known}"
        ) from error
    except OSError as error:
        raise PolicyError(
            f"{name!r} is no shipped policy and could not be downloaded ({error}): check network and "
            f"disk. {known}"
        ) from error


def _folders(parent: Path) -> list[str]:
    return sorted(p.name for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []


# ------------------------------------------------------------------------------------------------ checking


def read_object(path: Path, name: str) -> dict[str, Any]:
    try:
        value = read_json(path, most=MOST_JSON)
        if not isinstance(value, dict):
            raise ValueError(f"it holds {type(value).__name__}, not an object")
        return value
    except FileNotFoundError as error:
        raise PolicyError(
            f"{name}: {path.parent} holds no config.json, so it is not a model folder; "
            "give the folder that `save_pretrained` wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"{name}: {path} is not valid JSON ({error}); the download or copy is damaged"
        ) from error


def _check_numbers(model: PreTrainedModel, name: str) -> None:
    bad = [
        key
        for key, weight in model.state_dict().items()
        if weight.is_floating_point() and not weight.isfinite().all()
    ]
    if bad:
        shown = ", ".join(bad[:3]) + (" ..." if len(bad) > 3 else "")
        raise PolicyError(
            f"{name}: {len(bad)} of its tensors hold numbers that are not finite ({shown}), and so would everything that is computed with them. The training that "
            "made it diverged, or the file is damaged; take an earlier checkpoint, or download it again"
        )


def _check_fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= rows:
        raise PolicyError(
            f"{name}: the tokenizer knows ids up to {highest}, but the model has {rows} embeddings "
            f"(0..{rows - 1}): "
            "they do not belong together, or tokens were added without model.resize_token_embeddings"
        )
    if not tokenizer.chat_template:
        raise PolicyError(
            f"{name}: the tokenizer has no chat template, so turns cannot be told apart. Use an "
            "instruction-tuned "
            "model, or put a chat_template.jinja into the folder"
        )
    if has_service(ROUND_TRIP):
        service(ROUND_TRIP, "loading a policy")(tokenizer, name)
