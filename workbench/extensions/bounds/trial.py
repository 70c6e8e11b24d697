"""A model folder that somebody else made is tried in a process of its own before this one loads it (invariant 16).

    try_folder(folder, "mine", files, AutoModelForCausalLM)      raises PolicyError for what would hang, take all memory, or bring down the loader

`config.json`, tokenizer and chat template decide how much work loading is: layers without end, a vocabulary of any size, a
template whose loops never stop. So a child of this process builds the model without memory for its weights, loads the
tokenizer and writes a conversation, with SECONDS and MEMORY to do it in; weights are not read. The child is forked: it has
what it needs imported already. Where processes cannot be forked (Windows) nothing is tried. What a template does with
other conversations shows when it is called: under limits each time (templates).
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from workbench.extensions.bounds.tokenizers import check_growth
from workbench.values.errors import PolicyError

SECONDS = 15.0
MEMORY = (1 << 30, 2 << 30, 1 << 29)  # bytes beyond what this process has, for each of _WHAT
WEIGHTS_A_BYTE = 4  # of a weight file: with four bits each there are two
FEW_WEIGHTS = 10_000_000  # are made whatever the files hold
BYTES_A_WEIGHT = 16  # there are at most: two copies with four bytes each, and what is left out of a model of several parts
FEW_BYTES = 1 << 30  # are read whatever the config says
_MOST_WORDS = 600  # of what a library says
_TALK = [
    {"role": "user", "content": "Say yes."},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "Again."},
]
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}},
                "required": ["at"],
            },
        },
    }
]
_WHAT = ("config.json", "the tokenizer", "the chat template")


def try_folder(folder: Path, name: str, files: dict[str, str], reader: Any) -> None:
    """Raises PolicyError for a folder whose config, tokenizer or template does not come through the trial, and for a config
    of far more weights than the files hold: those would be made up. `files`: name -> SHA-256 of what decides; a folder
    with the same ones is not tried again in this process. `reader`: the class that will read the model; None: nothing but the
    tokenizer is read."""
    if not hasattr(os, "fork"):
        return
    weights = _try(str(folder), name, tuple(sorted(files.items())), reader, SECONDS)
    held = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if reader is not None and held > FEW_BYTES + BYTES_A_WEIGHT * weights:
        raise PolicyError(
            f"{name}: config.json describes {weights:,} weights, but the weight files have {held:,} bytes together, all of which "
            "would be read. Move files that are none of this model's out of the folder"
        )
    if held and weights > FEW_WEIGHTS + WEIGHTS_A_BYTE * held:
        raise PolicyError(
            f"{name}: config.json describes {weights:,} weights, but the weight files have {held:,} bytes together. Finish "
            "the download, or take the model from where it was first published"
        )


@lru_cache(maxsize=64)  # nothing is kept of a trial that raised
def _try(
    folder: str, name: str, files: tuple[tuple[str, str], ...], reader: Any, seconds: float
) -> int:
    """How many weights the model has."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_parts(folder, reader, writing)
    os.close(writing)
    try:
        reports, ended = _reports(reading, seconds)
    finally:
        os.close(reading)
        if os.waitpid(child, os.WNOHANG)[0] != child:  # it goes on
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    tried = f"{name}: {_WHAT[min(len(reports), 2)]} was tried in a process of its own"
    if reports and isinstance(reports[-1], dict):
        if "refused" in reports[-1]:
            raise PolicyError(f"{name}: {reports[-1]['refused']}")
        raise PolicyError(
            f"{name}: {_WHAT[len(reports) - 1]} cannot be used: {reports[-1]['error']}. Check that the folder is whole, and "
            "that this version of transformers knows its architecture"
        )
    if not ended:
        raise PolicyError(
            f"{tried} and was not done after {seconds:g} seconds. A folder whose loading has no end is refused; "
            "take the model from where it was first published"
        )
    if len(reports) < len(_WHAT):
        raise PolicyError(
            f"{tried} and took more than {MEMORY[len(reports)] >> 20:,} MB, or brought its loader down. It is refused; take "
            "the model from where it was first published"
        )
    return reports[0]


def _reports(reading: int, seconds: float) -> tuple[list[Any], bool]:
    """The child's reports, a line for each part, and whether it came to its end in time."""
    until = time.monotonic() + seconds
    text = b""
    while (left := until - time.monotonic()) > 0 and len(text) < 1 << 16:
        if not select.select([reading], [], [], left)[0]:
            break
        if not (piece := os.read(reading, 4096)):
            return [json.loads(line) for line in text.splitlines()], True
        text += piece
    return [json.loads(line) for line in text.split(b"\n")[:-1]], False


def _run_parts(folder: str, reader: Any, writing: int) -> None:
    """In the child: a line for each part that was done; the last one says what was wrong. Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)  # the others of this process were not forked
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in range(3):  # nothing that is loaded asks the user, or takes what is typed
            os.dup2(quiet, number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        made: Any = (folder, reader)
        for part, memory in zip((_build, _tokenize, _write), MEMORY, strict=True):
            limit_memory(memory)
            count, made = part(made)
            os.write(writing, b"%d\n" % count)
        status = 0
    except MemoryError:
        pass
    except PolicyError as error:
        os.write(writing, json.dumps({"refused": str(error)}).encode() + b"\n")
    except BaseException as error:  # whatever a library raises is said in words
        words = f"{type(error).__name__}: {error}"[:_MOST_WORDS]
        os.write(writing, json.dumps({"error": words}).encode() + b"\n")
    finally:
        os._exit(status)


def limit_memory(more: int) -> None:
    """This process gets at most so many bytes beyond what it has (Linux tells how many)."""
    with open("/proc/self/statm") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (own + more, most))


def _build(named: tuple[str, Any]) -> tuple[int, str]:
    folder, reader = named
    if reader is None:
        return 0, folder
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    with torch.device("meta"):
        model = reader.from_config(config, trust_remote_code=False)
    return sum(weight.numel() for weight in model.parameters()), folder


def _tokenize(folder: str) -> tuple[int, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    check_growth(tokenizer)
    tokenizer.decode(tokenizer.encode("Say yes.")[:8])
    return 1, tokenizer


def _write(tokenizer: Any) -> tuple[int, None]:
    if tokenizer.chat_template:  # that there is none is said elsewhere
        for tools in (None, _TOOLS):
            try:
                tokenizer.apply_chat_template(
                    _TALK, tools=tools, tokenize=False, add_generation_prompt=True
                )
            except MemoryError:
                raise
            except Exception:  # a template that takes other messages or no tools is proven, or refused, by the chat format
                continue
    return 1, None
