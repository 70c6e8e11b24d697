"""A session small enough to be audited in a second, and engines that do one thing wrong, in silence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from workbench.look.cells.train import train_step
from workbench.training.config import load_config
from workbench.training.session import Session, open_session
from workbench.values import Sampling

SMALL = {
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "evaluation.num_tasks": 4,
    "lint.mode": "off",
}


def session_after(updates: int, seed: int = 0, **settings) -> Session:
    """A session whose learner made so many updates, its engine in step with it."""
    session = open_session(load_config("frozenlake", SMALL | {"seed": seed} | settings), quiet=True)
    step = 0
    while session.learner.version < updates:
        step += 1
        train_step(session, step)
    return session


def lie_about_sampling(session: Session) -> None:
    """Completions say temperature 1 and top-p 1, whatever was asked for; so their logprobs pass for plain ones."""
    engine = session.engine
    complete = engine._complete

    def lying(row, finish, error=None):
        said = complete(row, finish, error)
        return replace(
            said,
            sampling=Sampling(1.0, 1.0, said.sampling.engine, said.sampling.dtype),
            plain_logprobs=None,
        )

    engine._complete = lying


def ignore_settings(session: Session) -> None:
    """The engine samples from its own softmax and says that it did as it was asked."""
    engine = session.engine
    sample = engine._sample

    def ignoring(rows, logits):
        asked = [row.request for row in rows]
        for row in rows:
            row.request = replace(row.request, temperature=1.0, top_p=1.0)
        done = sample(rows, logits)
        for row, request in zip(rows, asked):
            row.request = request
        named = {request.id: request for request in asked}
        return [
            replace(
                c,
                sampling=Sampling(
                    named[c.request_id].temperature,
                    named[c.request_id].top_p,
                    "transformers",
                    "float32",
                ),
                plain_logprobs=c.logprobs,
            )
            for c in done
        ]

    engine._sample = ignoring


def sync_one_behind(session: Session) -> None:
    """Each sync loads the weights of the sync before."""
    engine, held = session.engine, []
    sync = engine.sync

    def behind(weights, version):
        held.append({name: tensor.clone() for name, tensor in weights.items()})
        sync(held[-2] if len(held) > 1 else session.policy.model.state_dict(), version)

    engine.sync = behind


def keep_back(session: Session, part: Callable[[str], bool]) -> None:
    """A sync passes over these tensors: they stay what they were."""
    engine = session.engine
    sync = engine.sync
    model = engine._model
    # No longer one tensor with the embedding, as where a head was packed.
    if part("lm_head.weight") or part("model.embed_tokens.weight"):
        model.lm_head.weight = torch.nn.Parameter(
            model.lm_head.weight.detach().clone(), requires_grad=False
        )

    def partly(weights, version):
        old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        sync(
            {name: old[name] if part(name) else tensor for name, tensor in weights.items()}, version
        )

    engine.sync = partly


def never_sync(session: Session) -> None:
    """A sync only counts."""
    engine = session.engine

    def counting(weights, version):
        engine._policy_version = version
        engine._runner.drop()

    engine.sync = counting


def half_precision(session: Session, head_only: bool = False, declared: str = "float32") -> None:
    """It computes in bfloat16 and says otherwise."""
    engine = session.engine
    engine.config = replace(engine.config, dtype=declared)
    model = engine._model
    if not head_only:
        raise ValueError("open the engine in bfloat16 and lie about it with `declare`")
    model.lm_head.weight = torch.nn.Parameter(
        model.lm_head.weight.detach().bfloat16(), requires_grad=False
    )
    model.lm_head.register_forward_pre_hook(lambda module, args: (args[0].bfloat16(), *args[1:]))
    engine._runner.drop()


def shift_positions(session: Session, by: int = 1) -> None:
    """Position ids of everything that is decoded are off; what is cached stays where it is."""
    engine = session.engine
    forward, active = engine._runner._forward, [0]

    def counting(step, ids, keep):
        active[0] = step.active
        return forward(step, ids, keep)

    def shift(module, args, kwargs):
        positions = kwargs["position_ids"].clone()
        positions[:, : active[0]] += by
        return args, kwargs | {"position_ids": positions}

    engine._runner._forward = counting
    engine._model.register_forward_pre_hook(shift, with_kwargs=True)


def shift_logprobs(session: Session, by: int = 1) -> None:
    """Logprobs stand at the token before (after) theirs."""
    engine = session.engine
    complete = engine._complete

    def shifted(row, finish, error=None):
        said = complete(row, finish, error)
        return replace(said, logprobs=np.roll(said.logprobs, -by))

    engine._complete = shifted


def add_adapter(session: Session, rank: int = 2, size: float = 0.3) -> None:
    """The learner's weights get a low-rank delta that the engine is not told of."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in session.learner.weights().items():
            if name.endswith(("q_proj.weight", "v_proj.weight", "o_proj.weight")):
                a, b = (torch.randn(side, rank, generator=generator) for side in tensor.shape)
                tensor += size * tensor.std() * (a @ b.T)
    session.learner.updates.version += 1
    session.engine._policy_version = session.learner.version
