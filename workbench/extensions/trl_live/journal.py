"""What the sampler was asked and what it answered: who wrote which token of a row, apart from every mask.

The model's own `generate` (and `generate_batch`, and TRL's wrapper of vLLM) is listened to while rows are made, so that it
does not matter whose loop it is: TRL's, one with tools, or a `rollout_func` of the user's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.extensions.trl_live.rows import SampledRows, array_of


@dataclass(frozen=True, eq=False)
class SampledAnswer:
    """One sequence that the sampler was asked with, and its answer."""

    prompt: np.ndarray
    answer: np.ndarray
    ended: bool | None = None  # by a stop token; None where that is not known
    sampling: AnswerSampling | None = None


@dataclass(frozen=True)
class AnswerSampling:
    """How a call sampled."""

    do_sample: bool
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    stops: tuple[int, ...] = ()
    by: str = "generate"


@dataclass
class AnswerJournal:
    """All exchanges of one generation, and marks of the weights at each call of `generate`."""

    exchanges: list[SampledAnswer] = field(default_factory=list)
    sampled_with: list[np.ndarray] = field(default_factory=list)

    def note_generate(
        self, ids: Any, seen: Any, result: Any, sampling: AnswerSampling | None
    ) -> None:
        """A call of `model.generate`: padded prompts, and prompts with answers behind them."""
        result = getattr(result, "sequences", result)
        prompts = array_of(ids)
        answers = array_of(result)[:, prompts.shape[1] :]
        mask = np.ones(prompts.shape, bool) if seen is None else array_of(seen) != 0
        copies = len(answers) // max(1, len(prompts))
        stops = () if sampling is None else sampling.stops
        for row, answer in enumerate(answers):
            asked = row // max(1, copies)
            ends = np.flatnonzero(np.isin(answer, stops))
            if len(ends):
                answer = answer[: ends[0] + 1]
            self.exchanges.append(
                SampledAnswer(
                    prompts[asked][mask[asked]],
                    answer,
                    bool(len(ends)) if stops else None,
                    sampling,
                )
            )

    def note_lists(
        self, prompts: Sequence[Any], answers: Sequence[Any], sampling: AnswerSampling | None
    ) -> None:
        """A call that takes and returns lists of ids without padding."""
        for prompt, answer in zip(prompts, answers):
            self.exchanges.append(
                SampledAnswer(
                    np.asarray(prompt, np.int64), np.asarray(answer, np.int64), None, sampling
                )
            )


def settings_of(config: Any) -> AnswerSampling:
    """How a `GenerationConfig`, with all defaults filled in, samples."""
    stops = config.eos_token_id
    if stops is None:
        stops = ()
    elif not isinstance(stops, (list, tuple)):
        stops = np.atleast_1d(array_of(stops)).tolist()
    return AnswerSampling(
        bool(config.do_sample),
        _or(config.temperature, 1.0),
        _or(config.top_p, 1.0),
        int(_or(config.top_k, 0)),
        _or(getattr(config, "min_p", None), 0.0),
        _or(config.repetition_penalty, 1.0),
        tuple(int(stop) for stop in stops),
    )


def _or(value: float | None, usual: float) -> float:
    return usual if value is None else float(value)


# ------------------------------------------------------------------------------------------------ whose token is it


@dataclass(frozen=True, eq=False)
class AnswerEdit:
    """A row goes on otherwise than the answer that it took up.

    start   token of the completion at which the answer begins
    at      ... at which they differ; the row may end there
    answer  all of the answer
    """

    start: int
    at: int
    answer: np.ndarray

    @property
    def left(self) -> np.ndarray:
        """What the sampler answered from there on."""
        return self.answer[self.at - self.start :]


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """Of one row: which tokens an answer put there [tokens of the completion], and where answers were departed from.

    `ended`: whether its last answer ended by a stop token. `known`: whether the sampler was heard to make this row.
    """

    sampled: np.ndarray
    starts: tuple[int, ...]
    departures: tuple[AnswerEdit, ...]
    known: bool
    ended: bool | None = None
    samplings: tuple[AnswerSampling, ...] = ()  # of its answers, as far as they are known

    def stretches(self) -> Iterator[tuple[int, int]]:
        """(first, last + 1) of each answer's tokens in the row."""
        for start in self.starts:
            stop = start
            while stop < len(self.sampled) and self.sampled[stop]:
                stop += 1
                if stop in self.starts:
                    break
            yield start, stop


def authorship(generated: SampledRows, exchanges: Sequence[SampledAnswer]) -> list[SampledTokens]:
    """Who wrote each row: every exchange is laid to the row that its prompt begins."""
    whole = [np.concatenate(pair) for pair in zip(generated.prompt_ids, generated.completion_ids)]
    by_prompt: dict[bytes, list[int]] = defaultdict(list)
    for row, ids in enumerate(generated.prompt_ids):
        by_prompt[ids.tobytes()].append(row)
    lengths = sorted({len(ids) for ids in generated.prompt_ids})
    # row -> length of its history -> exchange
    taken: dict[int, dict[int, SampledAnswer]] = defaultdict(dict)
    left: list[tuple[SampledAnswer, list[int]]] = []
    for exchange in exchanges:
        rows = _rows_that_begin_so(exchange.prompt, by_prompt, lengths, whole)
        free = [row for row in rows if len(exchange.prompt) not in taken[row]]
        whose = next((row for row in free if _goes_on_so(whole[row], exchange)), None)
        if whose is None:
            left.append((exchange, rows))
        else:
            taken[whose][len(exchange.prompt)] = exchange
    for exchange, rows in left:
        _lay_to_nearest(exchange, rows, whole, taken)
    return [
        _of_row(len(prompt), ids, taken[row])
        for row, (prompt, ids) in enumerate(zip(generated.prompt_ids, whole))
    ]


def _lay_to_nearest(
    exchange: SampledAnswer,
    rows: Sequence[int],
    whole: Sequence[np.ndarray],
    taken: dict[int, dict[int, SampledAnswer]],
) -> None:
    """An answer that no row has as it was goes to the free row that has most of it."""
    free = [row for row in rows if len(exchange.prompt) not in taken[row]]
    if free:
        agreed = [_agreed(whole[row], exchange) for row in free]
        taken[free[int(np.argmax(agreed))]][len(exchange.prompt)] = exchange


def _rows_that_begin_so(
    prompt: np.ndarray,
    by_prompt: dict[bytes, list[int]],
    lengths: Sequence[int],
    whole: Sequence[np.ndarray],
) -> list[int]:
    rows: list[int] = []
    for length in lengths:
        if length > len(prompt):
            break
        rows += by_prompt.get(prompt[:length].tobytes(), ())
    return [
        row
        for row in rows
        if len(whole[row]) >= len(prompt) and np.array_equal(whole[row][: len(prompt)], prompt)
    ]


def _agreed(whole: np.ndarray, exchange: SampledAnswer) -> int:
    """Tokens of the answer that the row has."""
    rest = whole[len(exchange.prompt) :]
    shared = min(len(rest), len(exchange.answer))
    differ = np.flatnonzero(rest[:shared] != exchange.answer[:shared])
    return int(differ[0]) if len(differ) else shared


def _goes_on_so(whole: np.ndarray, exchange: SampledAnswer) -> bool:
    return _agreed(whole, exchange) == len(exchange.answer)


def _of_row(before: int, whole: np.ndarray, taken: dict[int, SampledAnswer]) -> SampledTokens:
    sampled = np.zeros(len(whole) - before, bool)
    starts = []
    departures = []
    ended = None
    for length in sorted(taken):
        exchange = taken[length]
        start = length - before
        agreed = _agreed(whole, exchange)
        sampled[start : start + agreed] = True
        starts.append(start)
        ended = exchange.ended
        if agreed < len(exchange.answer):
            departures.append(AnswerEdit(start, start + agreed, exchange.answer))
    heard = [exchange.sampling for exchange in taken.values() if exchange.sampling is not None]
    return SampledTokens(
        sampled, tuple(starts), tuple(departures), bool(taken), ended, tuple(heard)
    )
