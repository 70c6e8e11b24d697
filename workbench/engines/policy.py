"""Load a policy: a causal language model and its tokenizer, checked to fit each other.

    load_policy("frozenlake-tiny")           shipped with the project (data/policies in a checkout)
    load_policy("Qwen/Qwen3-0.6B")           any Hugging Face causal language model, by hub name
    load_policy("./runs/lake/policy")        ... or by folder
    load_policy("mine", loader="my:load")    whatever a function of the user's own makes of the name (policy_loader)

Shipped policies are there in a checkout, in an editable install and in a wheel (basics/shipped.py).
Weights are read from safetensors only, code and kernels that come with a model are never run, and a folder that does not
ship with the project is tried in a process of its own first (trial).
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
from workbench.basics.regular_files import read_json
from workbench.basics.shipped import shipped_folder
from workbench.engines.policy_loader import files_in_memory, loaded_by
from workbench.engines.trial import try_folder
from workbench.values.errors import PolicyError, did_you_mean
from workbench.values.tokens import GENERATION_STOPS

SHIPPED = shipped_folder()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PRETRAINED = 20_000_000  # parameters from which a model is taken for a pretrained one
ROUND_TRIP = "refuse_damaged_tokenizer"  # of an extension
# What a policy needs from a repository on the hub; subfolders and other formats of the same weights stay there.
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
UNWANTED = ["*/*", "consolidated*"]
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
        return {name: (self.folder / name).read_bytes() for name in other_files(self.folder)}


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
    folder = _find(name)
    config = _read_json(folder / "config.json", name)
    _check_files(folder, config, name)
    _try(folder, name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        with _no_loading_bar():
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=DTYPES[dtype],
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever transformers raises for what somebody else wrote
        raise PolicyError(
            f"{name}: transformers could not load this as a causal language model (model_type "
            f"{config.get('model_type')!r}): "
            f"{error}. Check that the download is complete and that this version of transformers knows the architecture"
        ) from error
    if missing := sorted(loading["missing_keys"]):
        raise PolicyError(
            f"{name}: the weight files lack {len(missing)} of the model's tensors "
            f"({', '.join(missing[:3])} ...), which "
            "would be filled with random numbers. Finish the download, or convert the checkpoint again"
        )
    _check_fit(model, tokenizer, name)
    _check_numbers(model, name)
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


def load_tokenizer(name_or_path: str | Path, loader: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer alone, to read stored tokens without loading weights (a loader of the user's own loads both). Raises
    PolicyError like `load_policy`."""
    if loader:
        model, tokenizer = loaded_by(loader, str(name_or_path))
        return _note_stops(tokenizer, getattr(model.generation_config, "eos_token_id", None))
    name = str(name_or_path)
    folder = _find(name)
    if (folder / "config.json").is_file():  # without one it is a folder of a tokenizer alone
        config = _read_json(folder / "config.json", name)
        _check_files(folder, config, name, weights=False)
        _try(folder, name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever transformers raises for what somebody else wrote
        raise PolicyError(
            f"{name_or_path}: transformers found no tokenizer in {folder}: {error}"
        ) from error
    return _note_stops(tokenizer, _generation_stops(folder, name))


def _generation_stops(folder: Path, name: str) -> Any:
    """`eos_token_id` of generation_config.json, as it stands there; None where there is none."""
    path = folder / "generation_config.json"
    return _read_json(path, name).get("eos_token_id") if path.is_file() else None


def _note_stops(tokenizer: PreTrainedTokenizerBase, stops: Any) -> PreTrainedTokenizerBase:
    """The tokenizer, which carries the ids that generation_config ends a turn by: its `ChatFormat` reads them."""
    stops = stops if isinstance(stops, (list, tuple)) else [stops]
    known = len(tokenizer)
    ids = tuple(token for token in stops if isinstance(token, int) and 0 <= token < known)
    setattr(tokenizer, GENERATION_STOPS, ids)
    return tokenizer


def _try(folder: Path, name: str) -> None:
    if not folder.resolve().is_relative_to(SHIPPED):
        try_folder(folder, name, other_files(folder))


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
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


def weights_fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over tensors by name, type, shape and bytes: for weights that are in memory only."""
    digest = sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------ finding


def _find(name: str) -> Path:
    """A folder as it stands, a shipped name, else a name on the hub: its snapshot folder, downloaded or cached."""
    path = Path(name).expanduser()
    if path.is_dir():
        present = [inside for inside in path.iterdir() if inside.exists()]
        strange = sorted(
            inside.name for inside in present if not (inside.is_file() or inside.is_dir())
        )
        if strange:
            raise PolicyError(
                f"{name}: {strange[0]} in {path} is not a regular file; a model's folder holds nothing else"
            )
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
    return _download(name)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download  # comes with transformers
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    shipped = shipped_policies()
    known = f"Shipped policies: {', '.join(shipped) or 'none found'}"
    if close := did_you_mean(name, shipped, most=3, cutoff=0.4):
        known += f"; {close}"
    try:
        return Path(snapshot_download(name, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except LocalEntryNotFoundError as error:
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


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        value = read_json(path)
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


def _check_files(
    folder: Path, config: Mapping[str, Any], name: str, *, weights: bool = True
) -> None:
    if "auto_map" in config:
        raise PolicyError(
            f"{name}: this model brings its own Python code (auto_map in config.json), and code from a "
            "model is never run here (trust_remote_code is off). Use a model whose architecture is part "
            "of transformers"
        )
    for key, value in _entries(config):
        names_kernel = key.strip("_").endswith(("attn_implementation", "experts_implementation"))
        if names_kernel and "/" in str(value):
            raise PolicyError(
                f"{name}: config.json asks for the kernel {str(value)[:80]!r} ({key}), which would be downloaded "
                f"and run; nothing of that kind is. Take {key} out of config.json"
            )
    if weights and not any(folder.glob("*.safetensors")):
        pickled = (".bin", ".pt", ".pth", ".gguf")
        others = sorted(path.name for path in folder.iterdir() if path.suffix in pickled)
        raise PolicyError(
            f"{name}: expected weights as *.safetensors in {folder}, found {', '.join(others) or 'none'}. Pickled weights can "
            "run code when they are opened, so they are refused; convert them once with save_pretrained"
        )


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every entry of a config and of those within it."""
    for key, value in config.items():
        yield key, value
        if isinstance(value, dict):
            yield from _entries(value)


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
