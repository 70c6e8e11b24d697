"""The trials behind `workbench doctor`, each in a process of its own: python -m workbench.extensions.doctor.probes NAME.

Prints one line of JSON, a list of findings (see `report.MachineFact`), after whatever the libraries print. An exception
is left to end the process: `trials` makes a finding of it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from workbench.basics.beside import VARIABLE
from workbench.basics.extensions import has_service, service
from workbench.extensions.doctor.report import MachineFact

# Of float32 logprobs, sampled with kept keys and values against one plain forward pass, in nats.
LOGPROB_TOLERANCE = 1e-4
# A GPU adds up in another order, and its matrix products may run in TF32.
LOGPROB_TOLERANCE_GPU = 1e-2
END = 5

device_found = partial(MachineFact, "Devices and processes")
engine_found = partial(MachineFact, "Engines")


def devices() -> list[MachineFact]:
    """Multiply on every device that torch sees."""
    import torch

    def multiplies(device: str) -> str:
        ones = torch.ones(8, 8, device=device)
        return "ok" if bool((ones @ ones == 8).all()) else "broken"

    fact = f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)"
    findings = [device_found("cpu", multiplies("cpu"), fact)]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        bf16 = "with" if torch.cuda.is_bf16_supported() else "without"
        fact = f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, {bf16} bf16"
        try:
            findings.append(device_found(f"cuda:{index}", multiplies(f"cuda:{index}"), fact))
        except RuntimeError as error:
            advice = "driver and torch do not fit together: nvidia-smi names the CUDA version that the driver can do"
            findings.append(
                device_found(
                    f"cuda:{index}", "broken", f"{fact}: {str(error).splitlines()[0]}", advice
                )
            )
    if not torch.cuda.device_count():
        built = f"CUDA {torch.version.cuda}"
        advice = "nvidia-smi says whether there is a GPU and its driver works"
        if not torch.version.cuda:
            built = "CPU"
            advice = (
                "nothing, unless this machine has an NVIDIA GPU: then install a CUDA build of torch"
            )
        findings.append(
            device_found("cuda", "absent", f"no device; torch built for {built}", advice)
        )
    if torch.backends.mps.is_available():
        findings.append(
            device_found("mps", "ok", "seen; the workbench is tested on cpu and cuda only")
        )
    return findings


def sample_on(model: Any, device: str) -> tuple[float, str]:
    """Two turns of one session by the embedded engine: (largest difference of its logprobs to a plain forward pass, in
    nats; what it says about its cache)."""
    import numpy as np

    from workbench.engines.base import Request
    from workbench.engines.config import TransformersEngineConfig
    from workbench.engines.transformers_engine import TransformersEngine

    config = TransformersEngineConfig(device=device, max_rows=4, cache_tokens=512)
    engine = TransformersEngine(model, config)
    model = model.to(device)
    ids = np.array([1, 2, 3], dtype=np.int32)
    stops = frozenset({END})
    worst = 0.0
    for turn in range(2):
        engine.submit(Request(turn, "doctor", ids, seed=turn, max_new_tokens=4, stop_ids=stops))
        done = []
        while not done:
            done = engine.poll()
        whole = np.concatenate([ids, done[0].token_ids]).astype(np.int64)
        plain = _plain_logprobs(model, whole, device)[len(ids) - 1 :]
        worst = max(worst, float(np.abs(plain - done[0].logprobs).max()))
        ids = np.concatenate([whole, [4]]).astype(np.int32)
    kept = "kept" if engine.keeps_cache else "not kept, so that each turn is prefilled again"
    return worst, f"keys and values {kept}: {engine.cache_reason}"


def _plain_logprobs(model: Any, ids: Any, device: str) -> Any:
    """Logprobs of every token but the first, by one forward pass: float32 [T - 1]."""
    import numpy as np
    import torch

    with torch.inference_mode():
        logits_TV = model(torch.tensor(ids[None], device=device)).logits[0]
        logp_TV = logits_TV.float().log_softmax(-1).cpu().numpy()
    # Logits before a token describe it.
    return logp_TV[np.arange(len(ids) - 1), ids[1:]]


def engine_verdict(name: str, model: Any, device: str) -> MachineFact:
    worst, cache = sample_on(model, device)
    good = worst <= (LOGPROB_TOLERANCE if device == "cpu" else LOGPROB_TOLERANCE_GPU)
    advice = "do not train with it: what is trained is not what was sampled; please report versions and device"
    fact = f"logprobs differ from a plain forward pass by {worst:.0e}; {cache}"
    return engine_found(name, "ok" if good else "broken", fact, advice)


def engines() -> list[MachineFact]:
    """Both engines sample: the scripted one a script, the embedded one a random toy model, on cpu and the first GPU."""
    import numpy as np
    import torch

    from workbench.engines.base import Request
    from workbench.engines.scripted import ScriptedEngine

    engine = ScriptedEngine(lambda request: [4, END])
    engine.submit(
        Request(
            0,
            "doctor",
            np.array([1], np.int32),
            seed=0,
            max_new_tokens=4,
            stop_ids=frozenset({END}),
        )
    )
    sampled = [list(completion.token_ids) for completion in engine.poll()]
    findings = [
        engine_found("scripted", "ok" if sampled == [[4, END]] else "broken", "follows its script")
    ]
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return findings + [
        engine_verdict(f"transformers on {device}", _toy(), device) for device in devices
    ]


def _toy(head_dim: int = 8, seed: int = 0) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=head_dim,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def policy(name: str) -> list[MachineFact]:
    """The embedded engine on a policy of the user's choice."""
    from workbench.engines.policy import load_policy

    return [engine_verdict(f"policy {name}", load_policy(name).model.eval(), "cpu")]


def accelerate() -> list[MachineFact]:
    """One optimizer update through accelerate, in one process."""
    import torch
    from accelerate import Accelerator, __version__

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    layer = torch.nn.Linear(2, 1)
    before = layer.weight.detach().clone()
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    accelerator.backward(model(torch.ones(1, 2, device=accelerator.device)).sum())
    optimizer.step()
    moved = not torch.equal(before, accelerator.unwrap_model(model).weight.detach().cpu())
    good = moved and accelerator.num_processes == 1
    fact = f"{__version__}: one update on {accelerator.device}, {accelerator.num_processes} process"
    return [
        device_found(
            "accelerate",
            "ok" if good else "broken",
            fact,
            "variables that begin with ACCELERATE_ or "
            "WORLD_SIZE in the environment change what accelerate does",
        )
    ]


def loopback_error() -> str | None:
    """None where a program can call itself on 127.0.0.1, else why not; torchrun would try for minutes."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
    except OSError as error:
        return str(error)
    return None


def two_processes() -> list[MachineFact]:
    """Two processes on the CPU add up a number, started the way the workbench starts ranks."""
    advice = "one process works without it; more need the loopback network (127.0.0.1)"
    if error := loopback_error():
        return [
            device_found(
                "two processes", "warning", f"nobody answers on 127.0.0.1: {error}", advice
            )
        ]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-m",
        "workbench.extensions.doctor.probes",
        "rank",
    ]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", VARIABLE: "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=variables)
    if done.returncode == 0 and "sum 3" in done.stdout:
        return [device_found("two processes", "ok", "torchrun, gloo: the sum over both is right")]
    last = (done.stderr.strip() or done.stdout.strip() or "nothing printed").splitlines()[-1]
    return [
        device_found(
            "two processes",
            "warning",
            f"torchrun ended with {done.returncode}: {last[:160]}",
            advice,
        )
    ]


def rank() -> None:
    """Add up a number in each of the two processes."""
    import torch
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    total = torch.tensor([distributed.get_rank() + 1])
    distributed.all_reduce(total)
    if distributed.get_rank() == 0:
        print(f"sum {int(total)}")
    distributed.destroy_process_group()


def vllm() -> list[MachineFact]:
    """The vllm engine samples from a toy model, before and after other weights were synced: opening and `sync` compare.

    A GPU build on a machine without one, or a torchvision that does not fit, ends at the import.
    """
    import vllm as installed
    from vllm.platforms import current_platform

    from workbench.engines import VllmEngineConfig, open_engine
    from workbench.values.errors import EngineError

    kind = getattr(current_platform, "device_type", "") or "no device"
    if kind not in ("cuda", "cpu"):
        return [
            engine_found(
                "vllm",
                "warning",
                f"{installed.__version__} imports, for {kind}",
                "vLLM finds no device that it can use: the transformers engine works without it",
            )
        ]
    try:
        # Its attention on CPU knows no heads narrower than 32.
        engine = open_engine(
            VllmEngineConfig(device=kind, cache_tokens=1024, max_rows=8), _toy(head_dim=32)
        )
        engine.sync(_toy(head_dim=32, seed=1).state_dict(), 1)
    except EngineError as error:
        return [
            engine_found(
                "vllm",
                "broken",
                f"{installed.__version__} for {kind}: {error}",
                "the transformers engine works without it",
            )
        ]
    fact = (
        f"after a sync logprobs differ from a plain forward pass by {engine.stats()['gap_max']:.0e}"
    )
    return [
        engine_found(
            "vllm", "ok", f"{installed.__version__} for {kind}: {fact}; {engine.cache_reason}"
        )
    ]


def sandboxes() -> list[MachineFact]:
    """Which sandboxes for code of an agent's work here: a sandbox of each tier is begun."""
    if not has_service("sandbox_tiers"):
        return [MachineFact("Sandboxes", "all", "absent", "the extension sandbox is not there")]
    reasons, by_command, advice = service("sandbox_tiers", "the doctor")()
    carries = {
        "namespaces": "files, children and network of its own; can be forked",
        "landlock": "no files, no children, no network; names, sizes and times of the machine's files are seen",
    }
    tier_fact = partial(MachineFact, "Sandboxes")
    findings = [
        tier_fact(
            tier,
            "absent" if why else "ok",
            why or carries[tier],
            "programs of agents are run in the other tier" if not all(reasons.values()) else "",
        )
        for tier, why in reasons.items()
    ]
    findings += [
        tier_fact(
            tier,
            "absent" if why else "ok",
            why or f"files, no children; where it is named: sandbox.tier = {tier!r}",
            f"needed only for sandbox.tier = {tier!r}: install it, and start its service if it has one"
            if why
            else "",
        )
        for tier, why in by_command.items()
    ]
    if all(reasons.values()):
        named = [tier for tier, why in by_command.items() if not why]
        findings.append(
            tier_fact(
                "programs of agents",
                "warning",
                f"are refused unless sandbox.tier names {' or '.join(named)}"
                if named
                else "are refused: no tier works",
                advice,
            )
        )
    return findings


PROBES = {
    probe.__name__: probe
    for probe in (devices, engines, accelerate, two_processes, vllm, policy, sandboxes)
}


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank()
    else:
        print(json.dumps([asdict(finding) for finding in PROBES[sys.argv[1]](*sys.argv[2:])]))
