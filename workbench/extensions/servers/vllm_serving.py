"""A run's policy behind an OpenAI-compatible server of vLLM's own: `workbench serve RUN`.

    with serve("runs/first") as server:
        server.url, server.key, server.name           for `workbench chat --endpoint`, and for any client of that protocol

It is exported into a folder that goes with the server, with the template and the template's variables it was trained with. vLLM
renders that template itself, without a limit of time or memory, so one that does not ship with the project is served on
the user's word alone. The server of a training run (`engine.kind = vllm`) has no template: it is sent token ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from workbench.basics.extensions import service
from workbench.basics.regular_files import read_json
from workbench.engines.policy import MOST_JSON, SHIPPED
from workbench.engines.vllm_core import check_vllm
from workbench.look.cells.export_policy import export_policy
from workbench.run.store import Run, open_run
from workbench.training.config import Config
from workbench.training.stored import config_of_run
from workbench.values.errors import PolicyError

CACHE_BYTES = (
    1 << 30
)  # for keys and values on a CPU, where vLLM would take half of the memory there is

_NO_TEMPLATE = ("tokenizer.json", "vocab.json")  # which may be large


@dataclass(frozen=True)
class Served:
    """Where a policy is served. `url` ends in /v1. `key`: every request carries it."""

    url: str
    key: str
    name: str
    process: Any


@contextmanager
def serve(
    run: Run | str | Path,
    *,
    step: int | None = None,
    port: int = 0,
    deadline_s: float = 600.0,
    any_template: bool = False,
) -> Iterator[Served]:
    """The policy of a run's newest checkpoint (or that of `step`), served on this machine until the block ends. `port` 0: any
    that is free. `any_template`: its chat template may be one that does not ship with the project.

    Raises EngineError where vLLM is not installed, the port is taken, or the server does not start within
    `deadline_s`, PolicyError for such a template, and what exporting raises."""
    check_vllm()
    run = open_run(run)

    def write(folder: str) -> None:
        export_policy(run, folder, step=step)
        if not any_template:
            refuse_foreign_template(Path(folder))

    process = service("server_process", "workbench serve")(
        write,
        arguments_of(config_of_run(run)),
        port=port,
        name=run.name,
    )
    try:
        process.start()
        process.wait(lambda: _answers(process.url, process.key), deadline_s)
        yield Served(f"{process.url}/v1", process.key, run.name, process)
    finally:
        process.close()


def refuse_foreign_template(folder: Path) -> None:
    """Raises PolicyError where a policy's folder has a chat template that no shipped policy has."""
    known = [text for shipped in SHIPPED.iterdir() for text in _templates(shipped)]
    if all(text in known for text in _templates(folder)):
        return
    raise PolicyError(
        "the chat template of this policy does not ship with the project, and vLLM renders it without a limit of time or "
        "memory. If you know it, say so: --any-template (any_template=True); --engine embedded renders it within limits"
    )


def _templates(folder: Path) -> list[str]:
    """Every text that transformers or vLLM may take for a chat template."""
    texts = [path.read_text() for path in sorted(folder.glob("**/*.jinja"))]
    for path in sorted(folder.glob("*.json")):
        document = read_json(path, most=MOST_JSON) if path.name not in _NO_TEMPLATE else None
        if isinstance(document, dict) and document.get("chat_template"):
            texts.append(json.dumps(document["chat_template"]))
    return texts


def arguments_of(config: Config) -> dict[str, Any]:
    """What a server is told of how the run was trained, in vLLM's words."""
    arguments: dict[str, Any] = {
        "generation_config": "vllm",
        "seed": 0,
        "enable_prefix_caching": True,
        "enable_log_requests": False,
    }
    if config.policy.device == "cpu" or not _gpu():
        arguments |= {
            "dtype": config.policy.dtype,
            "enforce_eager": True,
            "kv_cache_memory_bytes": CACHE_BYTES,
        }
    if (context := config.engine.max_context) is not None:
        arguments["max_model_len"] = context
    if config.policy.template_flags:
        arguments["default_chat_template_kwargs"] = json.dumps(dict(config.policy.template_flags))
    if getattr(getattr(config.env, "calls", None), "format", None) == "hermes":
        arguments |= {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    return arguments


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _answers(url: str, key: str) -> bool:
    headers = {"Authorization": f"Bearer {key}"}
    try:
        return httpx.get(f"{url}/health", headers=headers, timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False
