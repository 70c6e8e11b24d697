"""Logs of Inspect: `.eval` (a zip with a member for each sample) and `.json`. A sample is a task, an epoch an attempt at it.

Messages and scores, no token ids. Much stands there twice: a score in the sample, in its last event and in the summaries;
a history in every model call. So the one is compared with the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.basics.regular_files import open_stream
from workbench.extensions.interop.dumps import Compared, RawSequence
from workbench.extensions.interop.importers import zips
from workbench.extensions.interop.importers.inspect_samples import (
    compared_in,
    messages_of,
    scores_of,
)
from workbench.extensions.interop.importers.json_pieces import pieces, value_of
from workbench.extensions.interop.importers.pairs import same_number
from workbench.extensions.interop.importers.values import (
    Damaged,
    Reader,
    Row,
    mapping,
    name,
    rows_of,
    text_of,
)
from workbench.values.errors import DataError

BEGINNING = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
LOOK = 4096  # bytes of a file that tell whose it is
MEMBERS = {"header.json", "_journal/start.json"}
CUT = ("max_tokens", "model_length")
NO_IDS = (
    "token ids: Inspect keeps messages, so R3, R4, R5, R12 and R22 cannot be checked; where a model is trained, look at "
    "the rollouts that its trainer writes"
)
NO_ADVANTAGES = "advantages: an evaluation has none, so R6 cannot be checked"
SCORES = (
    "one reward: samples have several scores and none is called reward, so which counts is not known, and R8 and most of "
    "R16 cannot be checked"
)


def is_file(path: Path) -> bool:
    """Whether a file is a log of either kind."""
    with open_stream(path) as stream:
        beginning = stream.read(LOOK)
    if beginning.startswith(b"PK\x03\x04"):
        try:
            with zips.opened(path) as log:
                return any(info.filename in MEMBERS for info in log.members)
        except DataError:
            return path.suffix == ".eval"
    return BEGINNING.match(beginning) is not None


def rows(path: Path) -> Iterator[Row | Damaged]:
    """A sample at a time, with what the rest of the log says of it."""
    with open_stream(path) as stream:
        is_zip = stream.read(4) == b"PK\x03\x04"
    yield from _of_zip(path) if is_zip else _of_json(path)


def _of_json(path: Path) -> Iterator[Row | Damaged]:
    version = None
    with open_stream(path) as stream:
        for place, data in pieces(stream, lambda place: place in ((), ("samples",))):
            try:
                if place == ("eval",):
                    version = _version(mapping(value_of(data), "eval"))
                elif len(place) == 2:
                    yield {"sample": mapping(value_of(data), "a sample"), "version": version}
            except Damaged as damage:
                yield damage


def _of_zip(path: Path) -> Iterator[Row | Damaged]:
    with zips.opened(path) as log:
        infos = {info.filename: info for info in log.members}
        try:
            begun = value_of(zips.member(log, infos["_journal/start.json"]))
            version = _version(mapping(mapping(begun, "start").get("eval"), "eval"))
        except (Damaged, KeyError):
            version = None
        summaries = _summaries(log, infos)
        samples = [info for info in log.members if info.filename.startswith("samples/")]
        for info in samples:
            try:
                sample = mapping(value_of(zips.member(log, info)), "a sample")
            except Damaged as damage:
                yield Damaged(f"{name(info.filename)}: {damage}")
                continue
            summary = summaries.get(_place(sample))
            yield {"sample": sample, "version": version, "summary": summary}


def _version(evaluation: Mapping[str, Any]) -> str | None:
    packages = evaluation.get("packages")
    version = packages.get("inspect_ai") if isinstance(packages, dict) else None
    return name(version, 24) if isinstance(version, str) else None


def _summaries(log: zips.Zip, infos: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Summaries by sample and epoch; none where they cannot be read, or a place comes twice."""
    try:
        listed = rows_of(value_of(zips.member(log, infos["summaries.json"])), "summaries")
        summaries = [mapping(summary, "a summary") for summary in listed]
    except (Damaged, KeyError):
        return {}
    often = Counter(map(_place, summaries))
    return {_place(summary): summary for summary in summaries if often[_place(summary)] == 1}


def _place(sample: Mapping[str, Any]) -> str:
    return f"sample {name(sample.get('id'), 32)}, epoch {name(sample.get('epoch'), 12)}"


def sequences_of(row: Row, where: str) -> list[RawSequence]:
    """The sample as one sequence of texts."""
    sample = row["sample"]
    if "id" not in sample or "messages" not in sample:
        raise Damaged("no sample: id or messages are not there")
    scores = scores_of(sample)
    messages = messages_of(sample)
    answers = [message for message in messages if message.get("role") == "assistant"]
    error = mapping(sample.get("error"), "error")
    return [
        RawSequence(
            attempt=f"{_place(sample)}, {where}",
            group=f"sample {name(sample.get('id'))}",
            number=0,
            prompt_ids=None,
            completion_ids=None,
            reward=_reward(scores),
            truncated=_truncated(sample),
            failed=name(error.get("message", "error")) if error else None,
            identity=_place(sample),
            one_prompt_one_task=False,
            prompt_text=text_of(sample.get("input")),
            completion_text=text_of(answers),
            compared=(*compared_in(sample, messages), *_against_summary(row, scores)),
        )
    ]


def _reward(scores: Mapping[str, float | None]) -> float | None:
    if "reward" in scores:
        return scores["reward"]
    return next(iter(scores.values())) if len(scores) == 1 else None


def _truncated(sample: Mapping[str, Any]) -> bool:
    choices = rows_of(mapping(sample.get("output"), "output").get("choices"), "choices")
    last = mapping(choices[-1], "a choice") if choices else {}
    return last.get("stop_reason") in CUT or sample.get("limit") is not None


def _against_summary(row: Row, scores: Mapping[str, float | None]) -> Iterator[Compared]:
    """The scores again, in the list that `inspect view` shows."""
    summary = row.get("summary")
    if not summary:
        return
    for scorer, listed in scores_of(summary).items():
        words = f"the score {name(scorer)} of the sample and that of its summary differ"
        same = same_number("R16", scores.get(scorer), listed, words)
        if same is not None:
            yield same


def missing(sequences: Sequence[RawSequence], rows: Sequence[Row]) -> list[str]:
    """What these logs do not tell. `rows` are the first samples."""
    lacking = [NO_IDS, NO_ADVANTAGES]
    several = [row for row in rows if len(scores_of(row["sample"])) > 1]
    if several and all(sequence.reward is None for sequence in sequences):
        lacking.append(SCORES)
    return lacking


READER = Reader(
    "Inspect (logs)",
    lambda row: False,
    sequences_of,
    missing,
    lambda rows, file: rows[0].get("version") if rows else None,
    unit="sample",
    is_file=is_file,
    rows=rows,
)
