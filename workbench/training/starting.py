"""Whether a configuration can be started by so many processes, and what to change where it cannot.

    obstacles(load_config("experiments/hotpotqa-qwen2.5-3b.toml"), processes=8)        [] where nothing stands in the way

Asked when a configuration is loaded (for the number of processes that it names), when training starts (for the number
that were started, before anything is loaded), and by `workbench doctor --plan` (with the GPUs of this machine). And which device "auto" is.
"""

from __future__ import annotations

import os

from workbench.training.sections import Config
from workbench.values.errors import ConfigError


def obstacles(config: Config, processes: int, *, gpus: int | None = None) -> list[str]:
    """What stands in the way, each with what to change. `gpus`: that each machine has (None: not known)."""
    reasons = []
    device = config.policy.device
    named = config.learner.num_processes
    why = "" if config.layout.has_server else getattr(config.engine, "one_process", "")
    if processes > 1 and why:
        reasons.append(
            f"engine.kind = {config.kind_of('engine')!r} and {processes} processes: {why}; set "
            "learner.num_processes = 1 and start one process, or layout.kind = 'one_node' (a server for all), or "
            "engine.kind = 'transformers'"
        )
    if processes != named:
        reasons.append(
            f"learner.num_processes = {named}: asked for {named} processes, but this is a world of {processes}. "
            f"Start it with `torchrun --nproc_per_node {named} ...` (`accelerate launch --cpu` quietly starts one "
            "only), or set learner.num_processes to what you start"
        )
    if processes > 1 and device.startswith("cuda:"):
        reasons.append(
            f"policy.device = {device!r} and {processes} processes: all of them would take that one device; set "
            "policy.device = 'cuda', and each takes its own"
        )
    if gpus is not None and (device == "cuda" or device == "auto" and gpus) and processes > gpus:
        reasons.append(
            f"{processes} processes need a GPU each, and there are {gpus} here; start as many as there are GPUs "
            "(learner.num_processes), or set policy.device = 'cpu'"
        )
    return reasons


def refuse_unstartable(config: Config) -> None:
    """Raises ConfigError where the processes that were started cannot train this, before anything is loaded."""
    import torch

    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if local == world and torch.cuda.is_available() else None
    if reasons := obstacles(config, world, gpus=gpus):
        raise ConfigError(". ".join(reasons))


def device_of(name: str) -> str:
    """The device itself: "auto" is a GPU where there is one, and each process of a machine has its own. Raises ConfigError where
    this torch cannot compute on it."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"policy.device = {name!r}, and torch {torch.__version__} sees no CUDA device here; "
            "policy.device = 'cpu' works everywhere, `workbench doctor` says what torch was built for"
        )
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    _refuse_unusable(name)
    return name


def _refuse_unusable(device: str) -> None:
    """Raises ConfigError for a name that is no device, and for one that torch knows and cannot compute on here: each kind says so
    with an error of its own."""
    import torch

    try:
        torch.zeros(1, device=device).item()
    except Exception as error:
        raise ConfigError(
            f"policy.device = {device!r}, and torch {torch.__version__} cannot compute on it here ({type(error).__name__}); "
            "expected auto, cpu, cuda or cuda:0 ...; `workbench doctor` says what torch was built for"
        ) from error
