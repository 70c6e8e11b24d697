"""Train a policy on demonstrations, as the learner of training by rewards holds it, and write it as a folder.

warm = warm_start("Qwen/Qwen2.5-0.5B-Instruct", "frozenlake-real", "warm", tasks=256)
wb.train("frozenlake-real", "runs/first", {"policy.name": "warm"})
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.engines.policy import DTYPES, PRETRAINED, Policy, num_parameters
from workbench.extensions.warm_start.demonstrations import SOLVER, demonstrate
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.batch import Batch
from workbench.learn.learner import Learner
from workbench.learn.microbatch import MicroBatch, Rows, cut, fits_at_once, trained_logits
from workbench.learn.optimizer import named_tensors
from workbench.learn.pieces import scores_in_pieces
from workbench.look import text_view
from workbench.run.writer import create_folder, make_folder
from workbench.training.checkpoint import safetensors_bytes
from workbench.training.config import load_config
from workbench.training.session import MOST_ASKED, Session, open_session
from workbench.values import Group, View
from workbench.values.errors import ConfigError, LearnerError, StoreError
from workbench.values.seeds import rng_at
from workbench.values.view import HasView

LR = 2e-5  # of all weights of a pretrained model
LR_OF_ADAPTERS = 2e-4
WARMUP = 4  # updates over which the learning rate rises
LOWEST = 0.1  # of it, at the end of the second half, over which it falls
SAID_EVERY = 8  # updates


@dataclass(frozen=True, repr=False)
class WarmStart(HasView):
    """What was trained, and what it cost. `nll`: mean of each update over its tokens, in nats, before it was made."""

    folder: Path
    policy: str
    env: str
    player: str
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
            f"{self.tasks} training tasks demonstrated by {_called(self.player)}{left_out}, {self.turns} turns\n"
            f"{trained}, learning rate at most {self.lr:g}, {self.updates} updates, {self.tokens:,} trained tokens\n"
            f"negative log-likelihood of a token: {first:.3f} at first, {last:.3f} at last (nats)\n"
            f"{self.seconds:.1f} s, {self.cpu_seconds:.1f} CPU-s\n"
            f"use it: --set policy.name={self.folder}"
        )


def _called(player: str) -> str:
    return "the solver" if player == SOLVER else f"the {player} player"


def warm_start(
    policy: Any,
    env: Any,
    out: str | Path,
    settings: Mapping[str, Any] = {},
    *,
    tasks: int = 128,
    first: int = 0,
    player: str = SOLVER,
    batch: int = 8,
    epochs: int = 1,
    lr: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> WarmStart:
    """Train a policy on what a player does in `tasks` training tasks and write it into the new folder `out`.

    policy    name or folder of a policy, or a Session that is open
    env       a preset, a .toml file, a configuration, or an environment of one's own
    settings  changed before: learner.lora_rank=16 trains adapters, which are merged in the folder
    first     number of the first task: another call goes on with other tasks
    player    whose turns are shown: "solver", or another that the family has ("careful": its careful_action)
    batch     trajectories of an update; epochs: passes over all of them
    lr        the largest learning rate: it rises over 4 updates and falls to a tenth over the second half. None: 2e-5 for all
              weights of a pretrained model, 2e-4 for adapters, learner.lr for a small policy

    Held-out tasks are never shown. What the interface of the environment says (full prompt) is what is trained on. Raises
    ConfigError for a family without this player, StoreError where the folder is there already, LearnerError for a gradient
    that is not finite.
    """
    out = _new_folder(out)
    _check_counts(first, tasks, batch, epochs)
    began = (time.perf_counter(), time.process_time())
    session = _opened(policy, env, settings)
    shown = demonstrate(session, tasks, first=first, player=player)
    learner = _learner(session, lr)
    nll, tokens = _trained(learner, _dealt(session, shown.groups, batch, epochs), say)
    made = WarmStart(
        out,
        session.policy.name,
        session.config.kind_of("env"),
        player,
        len(shown.groups),
        shown.failed,
        shown.long,
        shown.turns,
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


def _check_counts(first: int, *others: int) -> None:
    if not (1 <= min(others) and max(first, *others) <= MOST_ASKED and first >= 0):
        raise ConfigError(
            f"tasks, batch and epochs are from 1 to {MOST_ASKED:,}, first from 0; "
            f"got {others}, {first}"
        )


def _learner(session: Session, lr: float | None) -> Learner:
    """That of the session's settings: it holds the weights that are trained and their optimizer. Its algorithm is not asked."""
    config = session.config
    if lr is None:
        lr = _rate(config, num_parameters(session.policy.model))
    # Rows as they come: those that are packed would be put together in another order.
    settings = replace(config.learner, lr=lr, warmup_updates=0, layout="padded")
    return Learner(session.policy.model, ALGORITHMS["reinforce"](), settings)


def _rate(config: Any, size: int) -> float:
    if size < PRETRAINED:
        return config.learner.lr
    return LR_OF_ADAPTERS if config.learner.lora_rank else LR


def rate_at(most: float, update: int, updates: int) -> float:
    """The learning rate of update number `update` of `updates`, counted from 0."""
    falling = 2 * (updates - update) / updates
    return most * min(1.0, (update + 1) / WARMUP) * max(LOWEST, min(1.0, falling))


def _dealt(session: Session, groups: Sequence[Group], batch: int, epochs: int) -> list[list[Group]]:
    """The trajectories of each update. The first pass takes them as they were drawn, later ones have orders of their own."""
    updates = []
    for epoch in range(epochs):
        order = np.arange(len(groups))
        if epoch:
            order = rng_at(session.config.seed, "warm start", "order", epoch).permutation(order)
        for at in range(0, len(groups), batch):
            updates.append([groups[number] for number in order[at : at + batch]])
    return updates


def _trained(
    learner: Learner, updates: Sequence[Sequence[Group]], say: Callable[[str], None]
) -> tuple[list[float], int]:
    """(mean negative log-likelihood of each update, trained tokens)."""
    nll: list[float] = []
    tokens = 0
    for number, groups in enumerate(updates):
        batch = Batch.from_groups(groups)
        nll.append(_update(learner, batch, rate_at(learner.config.lr, number, len(updates))))
        tokens += int(batch.eligible_T.sum())
        if len(nll) % SAID_EVERY == 0:
            say(f"warm start: {len(nll)} of {len(updates)} updates, {nll[-1]:.2f} nats a token")
    return nll, tokens


def _update(learner: Learner, batch: Batch, lr: float) -> float:
    """One update by the likelihood of all written tokens of a batch, each of which weighs the same: one count over all
    micro-batches (invariant 4). Their mean negative log-likelihood before it, in nats."""
    count = int(batch.eligible_T.sum())
    total = 0.0
    for micro in _micro_batches(learner, batch):
        loss = _loss(learner, micro, batch.token_ids_T) / count
        loss.backward()
        total += float(loss.detach())
    weights = learner.models.policy
    most = learner.config.max_grad_norm or math.inf
    norm = float(torch.nn.utils.clip_grad_norm_(weights.parameters, most))
    if not math.isfinite(norm):
        raise LearnerError(
            f"the gradient of demonstrations is not finite (loss {total}); lower lr, or set learner.precision = 'fp32'"
        )
    weights.step(lr)
    return total


def _micro_batches(learner: Learner, batch: Batch) -> Iterator[MicroBatch]:
    """Padded rows in their order, at most learner.micro_batch_tokens at once."""
    rows = Rows.of(batch, batch.eligible_T)
    budget = learner.config.micro_batch_tokens
    for segments in cut(rows.length_S, rows.trained_segments, budget, sort=False):
        yield rows.build(segments, learner.models.ranks.device)


def _loss(learner: Learner, micro: MicroBatch, token_ids_T: Tensor) -> Tensor:
    """The sum over the trained tokens of a micro-batch, with gradient, in nats."""
    model = learner.models.policy.model
    head = learner.models.head
    bf16 = learner.models.bf16
    ids_M = token_ids_T[micro.token_M].to(micro.input_ids_BL.device)
    if not fits_at_once(head, micro):
        return -scores_in_pieces(model, head, micro, ids_M, "none", bf16=bf16).logp_M.sum()
    logits_MV = trained_logits(model, head, micro, bf16=bf16)
    return torch.nn.functional.cross_entropy(logits_MV.float(), ids_M, reduction="sum")


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
