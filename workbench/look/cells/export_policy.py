"""A run's policy as a plain Hugging Face folder, for whatever reads one: transformers, vLLM, llama.cpp's converter.

    export_policy("runs/first", "exported")        then: AutoModelForCausalLM.from_pretrained("exported")

    model.safetensors     the weights of a checkpoint, tied ones once
    config.json, generation_config.json, tokenizer and chat template: the files of the policy that the run started from,
                          byte for byte but for the dtype in config.json
    README.md, provenance.json     which run, which step, which settings; how well it did, beside its baselines

The folder is there whole or not at all, and never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.engines.policy import DTYPES, Policy, load_policy, weights_fingerprint
from workbench.learn.adapters import adapted, merged, peft_files
from workbench.learn.config import LearnerConfig
from workbench.learn.optimizer import named_tensors, refuse_other
from workbench.look import text_view
from workbench.look.evaluation import report_view
from workbench.look.words import count
from workbench.run.store import Run, open_run
from workbench.run.writer import create_folder, make_folder
from workbench.training import checkpoint
from workbench.training.checkpoint import safetensors_bytes
from workbench.training.stored import config_of_run
from workbench.values import View
from workbench.values.errors import ConfigError, StoreError


def export_policy(
    run: Run | str | Path,
    folder: str | Path,
    *,
    step: int | None = None,
    dtype: str | None = None,
    merge: bool = True,
) -> View:
    """Write the policy of a run's newest checkpoint (or that of `step`) into a new folder; says what is in it.

    `merge` False: the adapter alone, of a run with `learner.lora_rank`, as `peft.PeftModel.from_pretrained` and vLLM's
    `--lora-modules` read it. `dtype`: float32, bfloat16 or float16 (default: the one it was trained in, and then not a bit is lost). A critic is
    not part of it. Raises StoreError where the folder is there already or the run has no checkpoint, ConfigError for an
    unknown dtype, and what loading the policy raises.
    """
    run = open_run(run)
    config = config_of_run(run, needs=("policy",))
    if not (merge or config.learner.lora_rank):
        raise ConfigError(
            f"{run.name} trained all weights of its policy, so there is no adapter to export by itself; leave out "
            "merge=False (--adapter)"
        )
    dtype = dtype or config.policy.dtype
    if dtype not in DTYPES:
        raise ConfigError(f"the weights can be written as {', '.join(DTYPES)}; got {dtype!r}")
    folder = Path(folder)
    if run.path.absolute() in (folder.absolute(), *folder.absolute().parents):
        raise StoreError(
            f"{folder} is inside the run folder, which holds what the run was and nothing else; choose "
            "another one"
        )
    if (
        folder.exists() or folder.is_symlink()
    ):  # the writer would say so, but only after everything has been read
        raise StoreError(
            f"{folder} is there already, and an export is never written over one; choose another name"
        )
    saved = checkpoint.load_newest(run.path) if step is None else checkpoint.load(run.path, step)
    if saved is None:
        raise StoreError(
            f"{run.path} has no checkpoint yet; train at least one step. What it started from is the "
            f"policy {config.policy.name}"
        )
    policy = load_policy(
        config.policy.name,
        dtype=config.policy.dtype,
        loader=config.policy.loader,
        base_bits=config.policy.base_bits,
    )
    weights = _weights(policy, config.learner, saved, dtype)
    facts = _facts(run, saved.step, policy, dtype, weights, config.policy.template_flags)
    make_folder(folder.absolute().parent)
    create_folder(
        folder,
        {
            **(
                _whole(policy, weights, dtype)
                if merge
                else _adapter(config.learner, saved.tensors["model"], dtype, policy.name)
            ),
            "provenance.json": (json.dumps(facts, indent=1) + "\n").encode(),
            "README.md": _readme(run, facts).encode("utf-8", "replace"),
        },
    )
    numbers = count(
        sum(tensor.numel() for tensor in (weights if merge else saved.tensors["model"]).values()),
        "weight",
    )
    message = (
        f"{numbers} in {dtype}, tokenizer and chat template are in {folder}\nuse it: AutoModelForCausalLM.from_pretrained("
        f"{str(folder)!r}), or policy.name={folder} in a config"
    )
    if not merge:
        message = f"{numbers} of an adapter in {dtype} are in {folder}\nuse it: PeftModel.from_pretrained(model, {str(folder)!r})"
    return text_view(message, title=f"{run.name}, after step {saved.step}")


def _weights(
    policy: Policy, config: LearnerConfig, found: checkpoint.Checkpoint, dtype: str
) -> dict[str, Any]:
    """A checkpoint's policy, adapters merged. Raises LearnerError where it is of another policy."""
    saved = found.tensors["model"]
    model = adapted(policy.model, config) if config.lora_rank else policy.model
    refuse_other(model, saved, list(found.state["learner"]["trainable"]), "model")
    whole = merged(model, {**model.state_dict(), **saved}) if config.lora_rank else saved
    return {
        name: whole[name].to(DTYPES[dtype]) if tensor.is_floating_point() else whole[name]
        for name, tensor in named_tensors(policy.model).items()
    }


def _whole(policy: Policy, weights: Mapping[str, Any], dtype: str) -> dict[str, bytes]:
    contents = policy.contents()
    return {
        **contents,
        "config.json": _config_bytes(contents["config.json"], dtype),
        "model.safetensors": safetensors_bytes(weights, {"format": "pt"}),
    }


def _adapter(
    config: LearnerConfig, saved: Mapping[str, Any], dtype: str, base: str
) -> dict[str, bytes]:
    stated, tensors = peft_files(
        config, {name: tensor.to(DTYPES[dtype]) for name, tensor in saved.items()}, base
    )
    return {
        "adapter_config.json": (json.dumps(stated, indent=2, sort_keys=True) + "\n").encode(),
        "adapter_model.safetensors": safetensors_bytes(tensors, {"format": "pt"}),
    }


def _config_bytes(content: bytes, dtype: str) -> bytes:
    config = json.loads(content)
    config.pop("torch_dtype", None)  # its older name
    return (json.dumps(config | {"dtype": dtype}, indent=2, ensure_ascii=False) + "\n").encode()


def _facts(
    run: Run, step: int, policy: Policy, dtype: str, weights: Mapping[str, Any], flags: Any
) -> dict[str, Any]:
    return {
        "run": run.name,
        "run_digest": run.digest(),
        "step": step,
        "steps_committed": len(run.steps()),
        "dtype": dtype,
        "weights_sha256": weights_fingerprint(weights),
        "started_from": policy.name,
        "started_from_sha256": policy.fingerprint,
        "template_flags": dict(flags),
        "config": run.config,
        "workbench": __version__,
    }


def _readme(run: Run, facts: Mapping[str, Any]) -> str:
    """A page for whoever finds the folder: what it is, how to load it, how well it did."""
    lines = [
        f"# {run.name}, after step {facts['step']}",
        "",
        f"A policy trained by reinforcement learning with the Agent RL Workbench {facts['workbench']}, from "
        f"`{facts['started_from']}`; weights in {facts['dtype']}. Settings and checksums: `provenance.json`.",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")',
        "```",
        "",
    ]
    if facts["template_flags"]:
        lines += [
            f"It was trained with these variables of the chat template: `{json.dumps(facts['template_flags'])}`; "
            "hand them to `apply_chat_template`.",
            "",
        ]
    reports = [
        report for report in run.evaluations().values() if report.get("step") == facts["step"]
    ]
    for report in reports[-1:]:
        table = report_view(report).text
        lines += ["On its held-out tasks:", "", "```text", table, "```", ""]
    if not reports:
        lines += ["It was not evaluated at this step.", ""]
    return "\n".join(lines)
