"""While training: what a session's engine was given so far, and the cause of a mismatch that the lint finds (R23).

The lint hands every step over before its updates (`remember_step`). Where R23 then finds that engine and trainer disagree, it
asks `mismatch_cause`, whose sentence stands in its finding. Weights of small policies alone are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np

from workbench.engines.recorder import Exchange
from workbench.extensions.engine_audit.attribution import Attribution
from workbench.extensions.engine_audit.forward import NOW, Weights
from workbench.extensions.engine_audit.held import held_by
from workbench.extensions.engine_audit.report import Trainer, attribution_of
from workbench.learn.learner import Learner
from workbench.linting.evidence import Evidence
from workbench.training.session import Session
from workbench.values import Trajectory

MOST_SETS = 8  # of weights that are kept
MOST_BYTES = 32 << 20  # of one set; nothing is kept of a larger policy
WORST = 6  # trajectories with the largest gaps that are looked at
BEST = 2  # ... and of those that agree best
ASK = "`workbench audit` tries out why"


@dataclass(eq=False)
class _Memory:
    """Of one session: weights by version, oldest first; the step that was begun last, its version and its exchanges."""

    sets: dict[int, Weights] = field(default_factory=dict)
    step: int = 0
    version: int = 0
    exchanges: tuple[Exchange, ...] = ()


_memories: WeakKeyDictionary[Learner, _Memory] = WeakKeyDictionary()


def remember_step(session: Session, step: int, exchanges: Sequence[Exchange]) -> None:
    """Keep the learner's weights as a step begins with them, and what the engine was asked and answered for it."""
    weights = session.learner.weights()
    memory = _memories.setdefault(session.learner, _Memory())
    memory.exchanges = tuple(exchanges)
    if session.place[1] > 1 or sum(held.nbytes for held in weights.values()) > MOST_BYTES:
        memory.step = step
        return
    memory.step = step
    memory.version = session.learner.version
    if memory.version not in memory.sets:
        memory.sets[memory.version] = {n: held.detach().clone() for n, held in weights.items()}
    while len(memory.sets) > MOST_SETS:
        del memory.sets[min(memory.sets)]


def mismatch_cause(evidence: Evidence) -> str:
    """Which of the four causes a gap that R23 found has, as a sentence."""
    session = evidence.session
    memory = _memories.get(session.learner) if session is not None else None
    if memory is None or memory.step != evidence.step:
        return f"Its cause is told while a session trains; of what is stored, {ASK}"
    if memory.version not in memory.sets:
        return (
            "Its cause was not looked for: the weights of earlier steps are kept of policies up to "
            f"{MOST_BYTES >> 20} MB in one process; {ASK}"
        )
    attribution = step_attribution(evidence)
    if attribution is None:
        return f"In a plain forward pass they agree: the trainer's own pass is another one. {ASK}"
    return str(attribution)


def step_attribution(evidence: Evidence, without: Collection[str] = ()) -> Attribution | None:
    """The cause of a gap in the step that a session began last; None: rounding explains it.

    `without` evidence of these kinds, as if it were not known: "journal", "versions" of the turns, older "weights", what the engine
    has "held".
    """
    session = evidence.session
    memory = _memories[session.learner]
    trainer = _trainer(session, memory)
    trajectories = _chosen(evidence)
    if "weights" in without:
        now = {NOW: trainer.known[NOW]}
        trainer = replace(trainer, known=now, words={NOW: ""})
    if "held" not in without:
        trainer = trainer.beside(held_by(session.engine, trainer.known, session.policy.model))
    if "versions" in without:
        trajectories = [_without_versions(trajectory) for trajectory in trajectories]
    return attribution_of(
        trajectories,
        trainer,
        exchanges=() if "journal" in without else memory.exchanges,
        temperature=session.config.collect.temperature,
        top_p=session.config.collect.top_p,
        tokenizer=session.chat.encoder.backend,
    )


def _without_versions(trajectory: Trajectory) -> Trajectory:
    segments = []
    for segment in trajectory.segments:
        spans = tuple(replace(span, policy_version=None) for span in segment.spans)
        segments.append(replace(segment, spans=spans))
    return replace(trajectory, segments=tuple(segments))


def _trainer(session: Session, memory: _Memory) -> Trainer:
    sets: dict[str, Weights] = {NOW: memory.sets[memory.version]}
    versions = {NOW: memory.version}
    older = dict(memory.sets)
    older.setdefault(0, session.policy.model.state_dict())
    for version, weights in older.items():
        if version != memory.version:
            sets[f"version {version}"] = weights
            versions[f"version {version}"] = version
    words = {name: f"the weights of {name}" for name in sets}
    is_bf16 = session.config.learner.precision == "bf16"
    return Trainer(
        session.policy.model,
        sets,
        words,
        bf16=is_bf16,
        version=memory.version,
        versions=versions,
    )


def _chosen(evidence: Evidence) -> list[Trajectory]:
    """Trajectories that disagree most and least, in their order: by the first update's own logprobs."""
    flat = evidence.flat
    first = min(evidence.updates, key=lambda update: update.table.update)
    columns: Mapping[str, np.ndarray] = first.table.columns
    eligible = columns["eligible"]
    gap_T = np.abs(flat.plain_logp_T[flat.trained_T] - columns["new_logp"][eligible])
    gap_T = np.where(columns["used"][eligible], np.nan_to_num(gap_T), 0.0)
    row_T = flat.trajectory_P[np.repeat(np.arange(len(flat.length_P)), flat.length_P)]
    row_T = row_T[flat.trained_T]
    total_N = np.bincount(row_T, gap_T, len(evidence.trajectories))
    order = np.argsort(-total_N / np.maximum(np.bincount(row_T, minlength=len(total_N)), 1))
    kept = {*order[:WORST].tolist(), *order[WORST:][-BEST:].tolist()}
    return [evidence.trajectories[n] for n in sorted(kept)]
