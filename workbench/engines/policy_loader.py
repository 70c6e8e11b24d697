"""Weights and tokenizer from a function of the user's own: `policy.loader = "my_module:load"` (invariant 17).

    def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        ...                                  name: what `policy.name` says, for the function to make of it what it likes

The model is a causal language model of transformers, the tokenizer has a chat template. Precision, device and evaluation
mode are set afterwards, by the settings of `policy`; the same name gives the same weights each time. The function is called
in every process that samples or trains. Whatever it raises is a PolicyError that names it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench.basics.plugins import load_named
from workbench.values.errors import ConfigError, PolicyError

WANTED = "load(name) returns (model, tokenizer): a PreTrainedModel and a PreTrainedTokenizerBase of transformers"


def loaded_by(loader: str, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Call the function that `loader` names with `name`. Raises PolicyError for what cannot be imported or called, and
    for what is no model with its tokenizer."""
    where = f"policy.loader {loader!r}"
    try:
        load = load_named(loader, "policy.loader")
    except ConfigError as error:
        raise PolicyError(str(error)) from error
    if not callable(load):
        raise PolicyError(f"{where} is {load!r:.80}, not a function; {WANTED}")
    try:
        loaded = load(name)
    except Exception as error:  # somebody else's code
        raise PolicyError(
            f"{where} raised {type(error).__name__} for policy.name = {name!r}: {error}"
        ) from error
    if not isinstance(loaded, tuple) or len(loaded) != 2:
        raise PolicyError(f"{where} returned {type(loaded).__name__}; {WANTED}")
    expected = ((PreTrainedModel, "model"), (PreTrainedTokenizerBase, "tokenizer"))
    for value, (kind, what) in zip(loaded, expected):
        if not isinstance(value, kind):
            raise PolicyError(
                f"{where} returned {type(value).__name__} as its {what}, which is no {kind.__name__}; {WANTED}"
            )
    return loaded


def files_in_memory(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """Name -> content: architecture, generation settings, tokenizer and template as a policy's folder has them; no weights."""
    with TemporaryDirectory() as scratch:
        model.config.save_pretrained(scratch)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        return {
            path.name: path.read_bytes()
            for path in sorted(Path(scratch).iterdir())
            if path.is_file()
        }
