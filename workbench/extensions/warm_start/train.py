"""Train a policy on demonstrations, with the learner that training by rewards uses, and write it as a folder.

warm = warm_start("Qwen/Qwen2.5-0.5B-Instruct", "frozenlake-real", "warm", tasks=256)
wb.train("frozenlake-real", "runs/first", {"policy.name": "warm"})
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.engines.policy import DTYPES, PRETRAINED, Policy, num_parameters
from workbench.extensions.warm_start.demonstrations import demonstrate
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.batch import Batch
from workbench.learn.learner import Learner
from workbench.learn.optimizer import named_tensors
from workbench.look import text_view
from workbench.run.writer import create_folder, make_folder
from workbench.training.checkpoint import safetensors_bytes
from workbench.training.config import load_config
from workbench.training.session import Session, open_session
from workbench.values import Group, View
from workbench.values.errors import ConfigError, StoreError
from workbench.values.seeds import rng_at, seed_of
from workbench.values.view import HasView

LR = 2e-5  # of all weights of a pretrained model
LR_OF_ADAPTERS = 2e-4


@dataclass(frozen=True, repr=False)
class WarmStart(HasView):
    """What was trained, and what it cost. `nll`: mean of each update over its tokens, in nats, before it was made."""

    folder: Path
    policy: str
    env: str
    tasks: int
    failed: int  # tasks that the solver did not solve
    long: int  # ... that took turns longer than the limit
    turns: int
    tokens: int  # trained, all passes together
    updates: int
    lr: float
    lora_rank: int
    nll: tuple[float, ...]
    seconds: float
    cpu_seconds: float

    @property
    def view(self) -> View:
        return text_view(self.words, title=f"{self.policy}, warm start for {self.env}")

    @property
    def words(self) -> str:
        left_out = ""
        if self.failed or self.long:
            left_out = (
                f" ({self.failed} more were not solved, {self.long} had turns beyond the limit)"
            )
        trained = f"adapters of rank {self.lora_rank}, merged" if self.lora_rank else "all weights"
        first = float(np.mean(self.nll[:4]))
        last = float(np.mean(self.nll[-4:]))
        return (
            f"{self.tasks} training tasks demonstrated by the solver{left_out}, {self.turns} turns\n"
            f"{trained}, learning rate {self.lr:g}, {self.updates} updates, {self.tokens:,} trained tokens\n"
            f"negative log-likelihood of a token: {first:.3f} at first, {last:.3f} at last (nats)\n"
            f"{self.seconds:.1f} s, {self.cpu_seconds:.1f} CPU-s\n"
            f"use it: --set policy.name={self.folder}"
        )


def warm_start(
    policy: Any,
    env: Any,
    out: str | Path,
    settings: Mapping[str, Any] = {},
    *,
    tasks: int = 128,
    batch: int = 8,
    epochs: int = 1,
    lr: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> WarmStart:
    """Train a policy on the solver's turns in `tasks` training tasks and write it into the new folder `out`.

    policy    name or folder of a policy, or a Session that is open
    env       a preset, a .toml file, or an environment of one's own, with a solver
    settings  changed before: learner.lora_rank=16 trains adapters, which are merged in the folder
    batch     trajectories of an update; epochs: passes over all of them
    lr        learning rate; None: 2e-5 for all weights of a pretrained model, 2e-4 for adapters, learner.lr for a small policy

    Held-out tasks are never shown. What the interface of the environment says (full prompt) is what is trained on. Raises
    ConfigError for a family without a solver, StoreError where the folder is there already.
    """
    out = _new_folder(out)
    if min(tasks, batch, epochs) < 1:
        raise ConfigError(f"tasks, batch and epochs are at least 1; got {tasks}, {batch}, {epochs}")
    began = (time.perf_counter(), time.process_time())
    session = _opened(policy, env, settings)
    shown = demonstrate(session, tasks)
    say(f"{len(shown.groups)} tasks demonstrated, {time.perf_counter() - began[0]:.0f} s")
    learner = _learner(session, lr)
    nll, tokens = _trained(learner, shown.groups, batch, epochs, say)
    made = WarmStart(
        out,
        session.policy.name,
        session.config.kind_of("env"),
        len(shown.groups),
        shown.failed,
        shown.long,
        sum(len(group[0].turns) for group in shown.groups),
        tokens,
        len(nll),
        learner.config.lr,
        learner.config.lora_rank,
        tuple(nll),
        round(time.perf_counter() - began[0], 1),
        round(time.process_time() - began[1], 1),
    )
    _write(made, session.policy, learner.weights())
    return made


def _opened(policy: Any, env: Any, settings: Mapping[str, Any]) -> Session:
    if isinstance(policy, Session):
        return policy
    return open_session(load_config(env, {"policy.name": str(policy), **settings}), quiet=True)


def _new_folder(out: str | Path) -> Path:
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise StoreError(
            f"{out} is there already, and nothing is written over; choose another name"
        )
    return out


def _learner(session: Session, lr: float | None) -> Learner:
    """That of the session's settings, with the gradient of the likelihood: every token weighs the same."""
    config = session.config
    if lr is None:
        size = num_parameters(session.policy.model)
        lr = _rate(config, size)
    address = seed_of(config.seed, "warm-start", "learner")
    likelihood = ALGORITHMS["reinforce"](estimator={"baseline": "none"})
    settings = replace(config.learner, lr=lr, seed=address, warmup_updates=0)
    return Learner(session.policy.model, likelihood, settings)


def _rate(config: Any, size: int) -> float:
    if size < PRETRAINED:
        return config.learner.lr
    return LR_OF_ADAPTERS if config.learner.lora_rank else LR


def _trained(
    learner: Learner,
    groups: Sequence[Group],
    batch: int,
    epochs: int,
    say: Callable[[str], None],
) -> tuple[list[float], int]:
    """(mean negative log-likelihood of each update, trained tokens). Every pass has an order of its own."""
    nll: list[float] = []
    tokens = 0
    for epoch in range(epochs):
        order = rng_at(learner.config.seed, "order", epoch).permutation(len(groups))
        for first in range(0, len(groups), batch):
            chosen = [groups[number] for number in order[first : first + batch]]
            whole = Batch.from_groups(chosen)
            (report,) = learner.update(whole, learner.algorithm.credit(whole), step=len(nll) + 1)
            used = report.table["used"]
            nll.append(-float(np.mean(report.table["new_logp"][used])))
            tokens += int(used.sum())
            say(f"update {len(nll)}: {nll[-1]:.3f} nats a token")
    return nll, tokens


def _write(made: WarmStart, policy: Policy, weights: Mapping[str, Any]) -> None:
    """The folder, whole or not at all: the policy's own files, the weights in their own precision, what it was made from."""
    contents = policy.contents()
    config = json.loads(contents["config.json"])
    dtype = next(iter(policy.model.parameters())).dtype
    config.pop("torch_dtype", None)  # its older name
    config["dtype"] = next(name for name, kind in DTYPES.items() if kind == dtype)
    tensors = {name: weights[name] for name in named_tensors(policy.model)}
    facts = {**asdict(made), "folder": made.folder.name, "started_from": policy.fingerprint}
    make_folder(made.folder.absolute().parent)
    create_folder(
        made.folder,
        {
            **contents,
            "config.json": (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(),
            "model.safetensors": safetensors_bytes(tensors, {"format": "pt"}),
            "provenance.json": (json.dumps(facts, indent=1) + "\n").encode(),
        },
    )
