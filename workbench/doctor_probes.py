"""The trials behind `workbench doctor`, each in a process of its own: python -m workbench.doctor_probes NAME.

Prints one line of JSON, a list of findings (see `doctor.Finding`), after whatever the libraries print. An exception is
left to end the process: `doctor` makes a finding of it.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

# Of float32 logprobs, sampled with kept keys and values against one plain forward pass, in nats.
LOGPROB_TOLERANCE = 1e-4
END = 5


def finding(area: str, name: str, state: str, fact: str, advice: str = "") -> dict[str, str]:
    return {"area": area, "name": name, "state": state, "fact": fact, "advice": advice}


def devices() -> list[dict[str, str]]:
    """Multiply on every device that torch sees."""
    import torch

    area = "Devices and processes"
    product = torch.ones(8, 8) @ torch.ones(8, 8)
    found = [finding(area, "cpu", "ok" if bool((product == 8).all()) else "broken", f"torch {torch.__version__}, {torch.get_num_threads()} threads")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        fact = f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, bf16 {'yes' if torch.cuda.is_bf16_supported() else 'no'}"
        try:
            ones = torch.ones(8, 8, device=f"cuda:{index}")
            works = bool((ones @ ones == 8).all())
            found.append(finding(area, f"cuda:{index}", "ok" if works else "broken", fact))
        except RuntimeError as error:
            found.append(finding(area, f"cuda:{index}", "broken", f"{fact}: {str(error).splitlines()[0]}",
                                 "the driver and this build of torch do not fit together; nvidia-smi names the CUDA version"))
    if not torch.cuda.device_count():
        built = torch.version.cuda
        found.append(finding(area, "cuda", "absent", f"no device; torch built for {f'CUDA {built}' if built else 'CPU'}",
                             "with an NVIDIA GPU: install a CUDA build of torch" if not built else "nvidia-smi says whether the driver works"))
    if torch.backends.mps.is_available():
        found.append(finding(area, "mps", "ok", "seen; the workbench is tested on cpu and cuda only"))
    return found


def sample_on(model: Any, device: str) -> tuple[float, str]:
    """Two turns by the embedded engine; (largest difference of its logprobs to a plain forward pass, about its cache)."""
    import numpy as np
    import torch

    from workbench.engines.base import Request
    from workbench.engines.config import TransformersEngineConfig
    from workbench.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine(model, TransformersEngineConfig(device=device, max_rows=4, cache_tokens=512))
    model = model.to(device)
    ids, worst = np.array([1, 2, 3], dtype=np.int32), 0.0
    for turn in range(2):
        engine.submit(Request(turn, "doctor", ids, seed=turn, max_new_tokens=4, stop_ids=frozenset({END})))
        done = []
        while not done:
            done = engine.poll()
        whole = np.concatenate([ids, done[0].token_ids]).astype(np.int32)
        with torch.inference_mode():
            logits = model(torch.tensor(whole[None].astype(np.int64), device=device)).logits[0].float()
        plain = logits.log_softmax(-1)[np.arange(len(ids) - 1, len(whole) - 1), whole[len(ids):].astype(np.int64)].cpu().numpy()
        worst = max(worst, float(np.abs(plain - done[0].logprobs).max()))
        ids = np.concatenate([whole, [4]]).astype(np.int32)
    return worst, f"keys and values {'kept' if engine.keeps_cache else 'not kept, each turn is prefilled again'}: {engine.cache_reason}"


def engines() -> list[dict[str, str]]:
    """Both engines sample: the scripted one a script, the embedded one a random toy model, on cpu and the first GPU."""
    import numpy as np
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from workbench.engines.base import Request
    from workbench.engines.scripted import ScriptedEngine

    scripted = ScriptedEngine(lambda request: [4, END])
    scripted.submit(Request(0, "doctor", np.array([1], dtype=np.int32), seed=0, max_new_tokens=4, stop_ids=frozenset({END})))
    said = scripted.poll()
    found = [finding("Engines", "scripted", "ok" if said and list(said[0].token_ids) == [4, END] else "broken", "follows its script")]
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, head_dim=8, max_position_embeddings=64)
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        worst, cache = sample_on(Qwen3ForCausalLM(config).eval(), device)
        # A GPU adds up in another order; its matrix products may also run in TF32.
        good = worst <= (LOGPROB_TOLERANCE if device == "cpu" else 1e-2)
        found.append(finding("Engines", f"transformers on {device}", "ok" if good else "broken",
                             f"logprobs differ from a plain forward pass by {worst:.0e}; {cache}",
                             "do not train with it: what is sampled is not what is trained; please report versions and device"))
    return found


def policy(name: str) -> list[dict[str, str]]:
    """The embedded engine on a policy of the user's choice."""
    from workbench.policy import load_policy

    worst, cache = sample_on(load_policy(name).model.eval(), "cpu")
    return [finding("Engines", f"policy {name}", "ok" if worst <= LOGPROB_TOLERANCE else "broken",
                    f"logprobs differ from a plain forward pass by {worst:.0e}; {cache}", "do not train with it")]


def accelerate() -> list[dict[str, str]]:
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
    return [finding("Devices and processes", "accelerate", "ok" if moved and accelerator.num_processes == 1 else "broken",
                    f"{__version__}: one update on {accelerator.device}, {accelerator.num_processes} process")]


def two_processes() -> list[dict[str, str]]:
    """Two processes on the CPU add up a number, started the way the workbench starts ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "workbench.doctor_probes", "rank"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    works = done.returncode == 0 and "sum 3" in done.stdout
    last = (done.stderr.strip() or done.stdout.strip() or "nothing printed").splitlines()[-1]
    return [finding("Devices and processes", "two processes", "ok" if works else "warning",
                    "torchrun, gloo: the sum over both is right" if works else f"torchrun ended with {done.returncode}: {last[:160]}",
                    "one process works without it; more need the loopback network (127.0.0.1)")]


def rank() -> None:
    import torch
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    total = torch.tensor([distributed.get_rank() + 1])
    distributed.all_reduce(total)
    if distributed.get_rank() == 0:
        print(f"sum {int(total)}")
    distributed.destroy_process_group()


def vllm() -> list[dict[str, str]]:
    """Does vLLM import? A GPU build on a machine without one, or the wrong torchvision, ends here."""
    import vllm as installed
    from vllm.platforms import current_platform

    kind = getattr(current_platform, "device_type", "") or "no device"
    return [finding("Engines", "vllm", "ok" if kind in ("cuda", "cpu") else "warning", f"{installed.__version__} imports, for {kind}")]


PROBES = {"devices": devices, "engines": engines, "accelerate": accelerate, "two_processes": two_processes, "vllm": vllm, "policy": policy}


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank()
    else:
        print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])))
