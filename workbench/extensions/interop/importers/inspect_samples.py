"""A sample of an Inspect log: its messages as text, its scores as numbers, and what it says twice compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.extensions.interop.dumps import Compared
from workbench.extensions.interop.importers.pairs import calls_and_answers, same_number
from workbench.extensions.interop.importers.values import mapping, name, number, rows_of

LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # as Inspect's own metrics count them
ATTACHED = "attachment://"

Message = dict[str, Any]


def messages_of(sample: Mapping[str, Any]) -> list[Message]:
    """The messages that the sample ended with; a thought is a text as well."""
    return [_message(message, sample) for message in rows_of(sample.get("messages"), "messages")]


def _message(value: Any, sample: Mapping[str, Any]) -> Message:
    message = mapping(value, "a message")
    return message | {"content": _content(message.get("content"), sample)}


def _content(content: Any, sample: Mapping[str, Any]) -> str:
    """The text of a message, thoughts in front of it. Long texts stand in the sample's attachments."""
    if isinstance(content, str):
        return _attached(content, sample)
    parts = [mapping(part, "a part") for part in rows_of(content, "content")]
    texts = []
    for part in parts:
        text = part.get("reasoning") if part.get("type") == "reasoning" else part.get("text")
        if isinstance(text, str):
            texts.append(_attached(text, sample))
    return "\n".join(texts)


def _attached(text: str, sample: Mapping[str, Any]) -> str:
    if not text.startswith(ATTACHED):
        return text
    whole = mapping(sample.get("attachments"), "attachments").get(text.removeprefix(ATTACHED))
    return whole if isinstance(whole, str) else text


def scores_of(sample: Mapping[str, Any]) -> dict[str, float | None]:
    """Scores by scorer, as numbers; None for one that is none, a list or a comment for example."""
    scores = mapping(sample.get("scores"), "scores")
    return {name(scorer): score_of(score) for scorer, score in scores.items()}


def score_of(score: Any) -> float | None:
    value = mapping(score, "a score").get("value")
    if isinstance(value, str):
        return LETTERS.get(value)
    return float(value) if isinstance(value, (bool, int, float)) else None


# ------------------------------------------------------------------------------------------------ said twice


def compared_in(sample: Mapping[str, Any], messages: Sequence[Message]) -> Iterator[Compared]:
    """Calls and their answers, a score and its event, histories of model calls, logprobs, tokens counted."""
    calls = []
    answers = []
    for message in messages:
        made = rows_of(message.get("tool_calls"), "tool_calls")
        calls += [str(mapping(call, "a call").get("id")) for call in made]
        if message.get("role") == "tool" and message.get("tool_call_id") is not None:
            answers.append(str(message["tool_call_id"]))
    yield calls_and_answers(calls, answers)
    events = [mapping(event, "an event") for event in rows_of(sample.get("events"), "events")]
    yield from _scores_in_events(sample, events)
    asked = [event for event in events if event.get("event") == "model"]
    if asked:
        yield _histories(sample, asked)
        yield from _tokens_counted(sample, asked)
    yield from _logprobs(asked)


def _scores_in_events(
    sample: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> Iterator[Compared]:
    """The last score of each scorer, against the one in the sample. A score that somebody edited has a history."""
    last = {
        name(event.get("scorer")): event.get("score")
        for event in events
        if event.get("event") == "score" and not event.get("intermediate")
    }
    for scorer, score in mapping(sample.get("scores"), "scores").items():
        is_edited = bool(mapping(score, "a score").get("history"))
        given = last.get(name(scorer))
        if given is None or is_edited:
            continue
        words = f"the score {name(scorer)} of the sample and that of its last event differ"
        same = same_number("R16", score_of(score), score_of(given), words)
        if same is not None:
            yield same


def _histories(sample: Mapping[str, Any], asked: Sequence[Mapping[str, Any]]) -> Compared:
    """Every model call goes on from the one before it: what it was asked, and what it answered. Inspect may leave thoughts
    out (`reasoning_history`) and compact what is long, so what differs is a note."""
    before: list[str] = []
    differs = []
    for k, event in enumerate(asked):
        history = _asked(event, sample)
        if history[: len(before)] != before:
            differs.append(k)
        before = history + _answered(event, sample)
    words = None
    if differs:
        words = (
            f"the history of model call {differs[0]} does not go on from the call before it ({len(differs)} of {len(asked)} "
            "such calls): thoughts were left out, or it was rewritten; as one sequence it is wrong, as one for each call "
            "it is fine"
        )
    return Compared("R1", len(asked) - 1, words, is_error=False)


def _asked(event: Mapping[str, Any], sample: Mapping[str, Any]) -> list[str]:
    """The messages of a model call's input, each as text. Newer logs point into a pool by [start, end)."""
    messages = rows_of(event.get("input"), "input of a model call")
    data = mapping(sample.get("events_data"), "events_data")
    pool = rows_of(data.get("messages"), "events_data.messages")
    for pair in rows_of(event.get("input_refs"), "input_refs"):
        if isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair):
            start, end = pair
            messages = messages + pool[max(0, start) : max(0, end)]
    return [_said(message, sample) for message in messages]


def _answered(event: Mapping[str, Any], sample: Mapping[str, Any]) -> list[str]:
    choices = rows_of(mapping(event.get("output"), "output").get("choices"), "choices")
    return [_said(mapping(choices[0], "a choice").get("message"), sample)] if choices else []


def _said(value: Any, sample: Mapping[str, Any]) -> str:
    message = _message(value, sample)
    calls = rows_of(message.get("tool_calls"), "tool_calls")
    made = [f"{mapping(call, 'a call').get('function')}({call.get('arguments')})" for call in calls]
    return "\n".join([str(message.get("role")), message["content"], *made])


def _tokens_counted(
    sample: Mapping[str, Any], asked: Sequence[Mapping[str, Any]]
) -> Iterator[Compared]:
    """Output tokens by the sample's sum and by its calls: more in the sum are calls that are gone. A retried sample, and
    answers from a cache, are counted otherwise."""
    if sample.get("error_retries") or any(event.get("cache") for event in asked):
        return
    usages = mapping(sample.get("model_usage"), "model_usage").values()
    total = sum(_output_tokens(usage) for usage in usages)
    counted = sum(
        _output_tokens(mapping(event.get("output"), "output").get("usage")) for event in asked
    )
    if not total or not counted:
        return
    words = f"the sample counts {total:.0f} sampled tokens and its model calls {counted:.0f}: calls are missing"
    yield Compared("R37", len(asked), words if total > counted else None, is_error=False)


def _output_tokens(usage: Any) -> float:
    tokens = number(mapping(usage, "usage").get("output_tokens"), "output_tokens")
    return tokens if tokens is not None and math.isfinite(tokens) else 0.0


def _logprobs(asked: Sequence[Mapping[str, Any]]) -> Iterator[Compared]:
    """Logprobs that were asked for can be logprobs."""
    values = []
    for event in asked:
        choices = rows_of(mapping(event.get("output"), "output").get("choices"), "choices")
        for choice in choices:
            listed = mapping(mapping(choice, "a choice").get("logprobs"), "logprobs")
            for token in rows_of(listed.get("content"), "logprobs.content"):
                values.append(number(mapping(token, "a token").get("logprob"), "logprob"))
    if not values:
        return
    wrong = [value for value in values if value is None or math.isnan(value) or value > 1e-3]
    words = f"{len(wrong)} of {len(values)} logprobs are none: the first is {wrong[0] if wrong else None}"
    yield Compared("R12", len(values), words if wrong else None)
