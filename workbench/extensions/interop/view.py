"""Rollouts of another framework: what was read and what is not in the file, then trajectory by trajectory what is trained.

imported_view(found, chat.token_texts)      tokens by author, trained ones marked
imported_view(found)                        ids instead of texts; texts where the file has no ids
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from workbench.extensions.interop.dumps import Imported, RawSequence
from workbench.look import doc, words
from workbench.look.escape import capped, visible
from workbench.look.html import shown
from workbench.look.tokens import TokenTexts, ids_as_texts, tokens_document
from workbench.values import (
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
from workbench.values.errors import DataError

LONGEST_TEXT = 4_000  # characters of a prompt or completion of which only the text is known


def imported_view(
    found: Imported,
    token_texts: TokenTexts | None = None,
    *,
    attempt: int | None = None,
    max_trajectories: int = 4,
    max_tokens: int = 800,
) -> View:
    """What was read from a dump: the first `max_trajectories` trajectories, or number `attempt` (counted from 0) alone.

    You will see each sequence as in `show_tokens`: `[TRAIN ...|` is trained by its mask, `[weight0 ...|` was sampled
    and is masked out, `[widened ...|` is trained though the file itself says that no model wrote it, the rest is
    prompt and reply. Arrays that do not fit their tokens are drawn as far as they go, and a line says so. Raises
    DataError for a trajectory that is not there.
    """
    names = found.trajectories
    if attempt is not None and not 0 <= attempt < len(names):
        raise DataError(
            f"there is no trajectory {attempt} in {found.source}; they are counted from 0 to {len(names) - 1}"
        )
    picked = names[:max_trajectories] if attempt is None else names[attempt : attempt + 1]
    head = f"{found.framework}: {words.count(len(names), 'trajectory', 'trajectories')}, {found.num_trained:,} trained tokens"
    about = [
        doc.WarningLine(line) if line[:3].isupper() else doc.Note(line)
        for line in found.about.splitlines()[1:]
    ]
    parts: list[doc.Part] = [doc.TextPart(found.about), doc.PagePart((doc.Heading(head), *about))]
    for name in picked:
        sequences = [sequence for sequence in found.sequences if sequence.attempt == name]
        parts.append(doc.BlankLine())
        parts += _trajectory(sequences, token_texts or ids_as_texts, max_tokens)
    if attempt is None:
        parts.append(doc.first_shown(len(picked), len(names), "trajectories", mark="… "))
    return shown(doc.ViewDocument(tuple(parts)))


def _trajectory(
    sequences: Sequence[RawSequence], token_texts: TokenTexts, max_tokens: int
) -> Iterator[doc.Part]:
    first = sequences[0]
    facts = [f"group {first.group}" if first.group is not None else "no group"]
    facts.append("not scored" if first.reward is None else f"reward {words.signed(first.reward)}")
    if first.advantage is not None:
        facts.append(f"advantage {words.signed(first.advantage)}")
    if any(sequence.truncated for sequence in sequences):
        facts.append("cut off")
    if first.failed:
        facts.append(f"broke off: {first.failed}")
    yield doc.Note(f"{first.attempt}: {', '.join(facts)}")
    for sequence in sequences:
        yield from (doc.WarningLine(line, mark="⚠ ") for line in _unfit(sequence))
    if any(sequence.completion_ids is not None for sequence in sequences):
        trajectory, columns = _drawable(sequences)
        yield from tokens_document(trajectory, token_texts, columns, max_tokens=max_tokens).parts
        return
    for sequence in sequences:
        yield from _text_alone("prompt", sequence.prompt_text)
        yield from _text_alone("completion", sequence.completion_text)


def _text_alone(what: str, text: str | None) -> Iterator[doc.Part]:
    text = capped(text or "", LONGEST_TEXT)
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


def _drawable(sequences: Sequence[RawSequence]) -> tuple[Trajectory, dict[str, np.ndarray]]:
    """The sequences as segments of one trajectory that is only drawn, and its columns weight and advantage [T]."""
    weights = []
    advantages = []
    for sequence in sequences:
        prompt_length = 0 if sequence.prompt_ids is None else len(sequence.prompt_ids)
        length = 0 if sequence.completion_ids is None else len(sequence.completion_ids)
        trained = _fitted(sequence.mask, length, 0) != 0
        weights += [_fitted(sequence.prompt_mask, prompt_length, 0) != 0, trained]
        if sequence.advantages is not None:
            of_tokens = _fitted(sequence.advantages, length, np.nan)
        else:
            of_row = np.nan if sequence.advantage is None else sequence.advantage
            of_tokens = np.full(length, of_row)
        advantages += [np.full(prompt_length, np.nan), np.where(trained, of_tokens, np.nan)]
    columns = {"weight": np.concatenate(weights).astype(np.float64)}
    advantage = np.concatenate(advantages)
    if not np.isnan(advantage).all():
        columns["advantage"] = advantage
    first = sequences[0]
    trajectory = Trajectory(
        Task(first.attempt, "imported", 0),
        0,
        0,
        Observation(()),
        tuple(Turn(k, "", reward=0.0) for k in range(len(sequences))),
        tuple(map(_segment, sequences)),
        StopReason.TERMINATED,
        outcome=first.reward,
        scored=first.reward is not None,
    )
    return trajectory, columns


def _segment(sequence: RawSequence) -> Segment:
    """A sequence by author: what was sampled, as the file says, else what is trained."""
    nothing = np.zeros(0, np.int32)
    prompt = nothing if sequence.prompt_ids is None else sequence.prompt_ids
    ids = nothing if sequence.completion_ids is None else sequence.completion_ids
    authors = sequence.mask if sequence.sampled is None else sequence.sampled
    sampled = _fitted(authors, len(ids), 0) != 0
    logprobs = _fitted(sequence.logprobs, len(ids), np.nan)
    spans = [Span(Source.PROMPT, 0, np.maximum(prompt, 0))]
    edges = [0, *(np.flatnonzero(np.diff(sampled)) + 1), len(ids)] if len(ids) else []
    for start, end in pairwise(edges):
        of_span = np.maximum(ids[start:end], 0)
        if sampled[start]:
            values = logprobs[start:end]
            spans.append(Span(Source.POLICY, sequence.number, of_span, values, sampled=True))
        else:
            spans.append(Span(Source.ENV, sequence.number, of_span, None, sampled=False))
    return Segment(tuple(spans))


def _fitted(array: np.ndarray | None, length: int, missing: float) -> np.ndarray:
    """The array cut, or filled with `missing`, to `length`."""
    fitted = np.full(length, missing, np.float64)
    if array is not None:
        fitted[: min(length, len(array))] = array[:length]
    return fitted


def show_rollouts(
    rollouts: Imported, *, attempt: int | None = None, tokenizer: str | None = None
) -> View:
    """Rollouts that another framework wrote: what the file holds and what not, then the first trajectories, or number
    `attempt`, token by token with what is trained.

    tokenizer  a policy or path whose tokenizer gives the tokens their texts; ids are shown without
    """
    if tokenizer is None:
        return imported_view(rollouts, None, attempt=attempt)
    from workbench.look.cells.stored import texts_of_tokenizer

    return imported_view(rollouts, texts_of_tokenizer(tokenizer), attempt=attempt)
