"""Rollouts of another framework: what was read and what is not in the file, then attempt by attempt what is trained.

show_imported(found, chat.token_texts)      tokens by author, trained ones marked
show_imported(found)                        ids instead of texts; texts where the file has no ids
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from workbench.types import (
    Observation,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
    View,
)
from workbench.types.dumps import Imported, RawSequence
from workbench.types.errors import DataError
from workbench.views import doc, words
from workbench.views.escape import capped, visible
from workbench.views.html import shown
from workbench.views.tokens import TokenTexts, ids_as_texts, tokens_document

LONGEST_TEXT = 4_000  # characters of a prompt or completion of which only the text is known


def show_imported(
    found: Imported,
    token_texts: TokenTexts | None = None,
    *,
    attempt: int | None = None,
    max_attempts: int = 4,
    max_tokens: int = 800,
) -> View:
    """What was read from a dump: the first `max_attempts` attempts, or number `attempt` (counted from 0) alone.

    You will see each sequence as in `show_tokens`: `[TRAIN ...|` is trained by its mask, `[weight0 ...|` was sampled
    and is masked out, `[widened ...|` is trained though the file itself says that no model wrote it, the rest is
    prompt and reply. Arrays that do not fit their tokens are drawn as far as they go, and a line says so. Raises
    DataError for an attempt that is not there.
    """
    names = found.attempts
    if attempt is not None and not 0 <= attempt < len(names):
        raise DataError(
            f"there is no attempt {attempt} in {found.source}; they are counted from 0 to {len(names) - 1}"
        )
    picked = names[:max_attempts] if attempt is None else names[attempt : attempt + 1]
    head = f"{found.framework}: {words.count(len(names), 'attempt')}, {found.num_trained:,} trained tokens"
    about = [
        doc.WarningLine(line) if line[:3].isupper() else doc.Note(line)
        for line in found.about.splitlines()[1:]
    ]
    parts: list[doc.Part] = [doc.TextPart(found.about), doc.PagePart((doc.Heading(head), *about))]
    for name in picked:
        parts += [
            doc.BlankLine(),
            *_attempt(
                [s for s in found.sequences if s.attempt == name],
                token_texts or ids_as_texts,
                max_tokens,
            ),
        ]
    notice = (
        doc.first_shown(len(picked), len(names), "attempts", mark="… ") if attempt is None else None
    )
    return shown(doc.ViewDocument((*parts, notice)))


def _attempt(
    sequences: Sequence[RawSequence], token_texts: TokenTexts, max_tokens: int
) -> Iterator[doc.Part]:
    first = sequences[0]
    facts = [f"group {first.group}" if first.group is not None else "no group"]
    facts.append("not scored" if first.reward is None else f"reward {words.signed(first.reward)}")
    if first.advantage is not None:
        facts.append(f"advantage {words.signed(first.advantage)}")
    facts += ["cut off"] if any(sequence.truncated for sequence in sequences) else []
    facts += [f"broke off: {first.failed}"] if first.failed else []
    yield doc.Note(f"{first.attempt}: {', '.join(facts)}")
    for sequence in sequences:
        yield from (doc.WarningLine(line, mark="⚠ ") for line in _unfit(sequence))
    if any(sequence.completion_ids is not None for sequence in sequences):
        trajectory, weight, advantage = _drawable(sequences)
        columns = {"weight": weight} | (
            {} if np.isnan(advantage).all() else {"advantage": advantage}
        )
        yield from tokens_document(trajectory, token_texts, columns, max_tokens=max_tokens).parts
        return
    for sequence in sequences:
        for what, said in (
            ("prompt", sequence.prompt_text),
            ("completion", sequence.completion_text),
        ):
            text = capped(said or "", LONGEST_TEXT)
            yield doc.PagePart((doc.Note(f"{what} (text alone)"), doc.Block(text)))
            yield doc.TextPart(f"[{what}, text alone|{visible(text)}]")


def _unfit(sequence: RawSequence) -> list[str]:
    """Arrays that are not as long as the tokens they are about."""
    names = ("mask", "sampled", "logprobs", "advantages")
    pairs = [(name, getattr(sequence, name), sequence.completion_ids) for name in names]
    pairs.append(("prompt_mask", sequence.prompt_mask, sequence.prompt_ids))
    return [
        f"sequence {sequence.number}: {name} has {len(array)} entries for {len(ids)} tokens; drawn as far as they "
        "go"
        for name, array, ids in pairs
        if array is not None and ids is not None and len(array) != len(ids)
    ]


def _drawable(sequences: Sequence[RawSequence]) -> tuple[Trajectory, np.ndarray, np.ndarray]:
    """The sequences as segments of one trajectory that is only drawn, and its columns weight and advantage [T]."""
    segments, weights, advantages = [], [], []
    for sequence in sequences:
        prompt = sequence.prompt_ids if sequence.prompt_ids is not None else np.zeros(0, np.int32)
        ids = (
            sequence.completion_ids
            if sequence.completion_ids is not None
            else np.zeros(0, np.int32)
        )
        trained = _fitted(sequence.mask, len(ids), 0) != 0
        sampled = (
            trained if sequence.sampled is None else _fitted(sequence.sampled, len(ids), 0) != 0
        )
        logprobs = _fitted(sequence.logprobs, len(ids), np.nan)
        spans = [Span(Source.PROMPT, 0, np.maximum(prompt, 0))]
        edges = [0, *(np.flatnonzero(np.diff(sampled)) + 1), len(ids)] if len(ids) else []
        for a, b in zip(edges, edges[1:]):
            spans.append(
                Span(
                    Source.POLICY if sampled[a] else Source.ENV,
                    sequence.number,
                    np.maximum(ids[a:b], 0),
                    logprobs[a:b] if sampled[a] else None,
                    sampled=bool(sampled[a]),
                )
            )
        segments.append(Segment(tuple(spans)))
        prompt_weight = _fitted(sequence.prompt_mask, len(prompt), 0)
        weights += [prompt_weight != 0, trained]
        row = np.full(len(ids), np.nan if sequence.advantage is None else sequence.advantage)
        row = row if sequence.advantages is None else _fitted(sequence.advantages, len(ids), np.nan)
        advantages += [np.full(len(prompt), np.nan), np.where(trained, row, np.nan)]
    first = sequences[0]
    turns = tuple(Turn(k, "", reward=0.0) for k in range(len(sequences)))
    trajectory = Trajectory(
        Task(first.attempt, "imported", 0),
        0,
        0,
        Observation(()),
        turns,
        tuple(segments),
        StopReason.TERMINATED,
        outcome=first.reward,
        scored=first.reward is not None,
    )
    return trajectory, np.concatenate(weights).astype(np.float64), np.concatenate(advantages)


def _fitted(array: np.ndarray | None, length: int, missing: float) -> np.ndarray:
    """The array cut, or filled with `missing`, to `length`."""
    fitted = np.full(length, missing, np.float64)
    if array is not None:
        fitted[: min(length, len(array))] = array[:length]
    return fitted
