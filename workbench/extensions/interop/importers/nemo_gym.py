"""NeMo Gym: `rollouts.jsonl`, a row a rollout.

`response.output` holds the items of all turns. Where the model server returns ids, the last item of each turn has
`prompt_token_ids` (the whole history as the model saw it), `generation_token_ids` and `generation_log_probs`; what was
generated is what is trained, so there is no mask. A trainer joins the turns into one sequence (NeMo RL refuses those that
do not join), so a history that is rewritten is an error here.

From 0.6 on a row may have `ng_trajectory` (every model call with its token counts), `_ng_token_capture` and `mask_sample`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from workbench.extensions.interop.dumps import Compared, RawSequence
from workbench.extensions.interop.importers.pairs import calls_and_answers
from workbench.extensions.interop.importers.values import (
    Reader,
    Row,
    has_ids,
    ids,
    mapping,
    name,
    number,
    numbers,
    prompt_name,
    rows_of,
    text_of,
)

NO_IDS = (
    "token ids and logprobs: the model server returned none, so R1, R3, R4, R5, R12 and R22 cannot be checked; "
    "collect with a vllm_model server whose return_token_id_information is true, as training does"
)
NO_ADVANTAGES = "advantages: the trainer computes them, so R6 cannot be checked"
NO_GROUPS = "task indices: rows of old versions have none; equal prompts are taken as a group, so R7 cannot be checked"
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
ANSWERS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
TASK = "_ng_task_index"
ATTEMPT = "_ng_rollout_index"


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row is a finished rollout, or one that failed."""
    return "responses_create_params" in row and ("response" in row or "_ng_failure_class" in row)


@dataclass
class _Turn:
    """The items of one answer of the model: what it wrote, and the item that has the ids of all of it."""

    items: list[dict[str, Any]] = field(default_factory=list)
    holder: dict[str, Any] | None = None


def sequences_of(row: Row, where: str) -> list[RawSequence]:
    """One sequence for each turn with ids; one of texts alone where there are none."""
    response = mapping(row.get("response"), "response")
    output = [
        mapping(item, "an item") for item in rows_of(response.get("output"), "response.output")
    ]
    turns = _turns_of(output)
    common = _common(row, response, where)
    held = [turn for turn in turns if turn.holder is not None]
    if not held:
        items = chain.from_iterable(turn.items for turn in turns)
        written = text_of([_words(item) for item in items])
        compared = (_calls(output),)
        return [
            RawSequence(
                number=0,
                prompt_ids=None,
                completion_ids=None,
                completion_text=written,
                compared=compared,
                **common,
            )
        ]
    sequences = [_sequence(turn, k, row, common) for k, turn in enumerate(held)]
    compared = (_calls(output), *_compared(row, response, turns, sequences))
    first = _sequence(held[0], 0, row, common | {"compared": compared})
    return [first, *sequences[1:]]


def _turns_of(output: Sequence[dict[str, Any]]) -> list[_Turn]:
    """The model's items by turn: a turn ends where somebody else has the word, or, behind the item that has the ids, where
    something other than its calls comes."""
    turns: list[_Turn] = []
    is_open = False
    for item in output:
        if not _by_model(item):
            is_open = False
            continue
        has_holder = is_open and turns[-1].holder is not None
        holds = bool(item.get("generation_token_ids"))  # some agents write empty lists
        if not is_open or (has_holder and (holds or item.get("type") not in CALLS)):
            turns.append(_Turn())
            is_open = True
        turns[-1].items.append(item)
        if holds:
            turns[-1].holder = item
    return turns


def _by_model(item: Mapping[str, Any]) -> bool:
    kind = item.get("type", "message")
    return kind not in ANSWERS and (kind != "message" or item.get("role") == "assistant")


def _words(item: Mapping[str, Any]) -> str:
    """An item as text for people."""
    if item.get("type") in CALLS:
        return f"{name(item.get('name'))}({text_of(item.get('arguments'))})"
    return text_of(item.get("summary") or item.get("content") or item.get("output"))


def _common(row: Row, response: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields that all sequences of a rollout share."""
    params = mapping(row.get("responses_create_params"), "responses_create_params")
    prompt_text = text_of(params.get("input")) or None
    task = row.get(TASK)
    attempt = row.get(ATTEMPT)
    agent = mapping(row.get("agent_ref"), "agent_ref").get("name")
    is_numbered = task is not None and attempt is not None
    title = f"task {name(task, 12)}, rollout {name(attempt, 12)}, {where}" if is_numbered else where
    group = f"task {name(task, 24)}" if task is not None else prompt_name(prompt_text or "")
    identity = f"rollout {name(attempt, 12)} of task {name(task, 12)} ({name(agent)})"
    return {
        "attempt": title,
        "group": group,
        "grouped": task is not None,
        "one_prompt_one_task": False,
        "identity": identity if is_numbered else None,
        "reward": number(row.get("reward"), "reward"),
        "failed": _failure(row, response),
        "truncated": _truncated(response),
        "prompt_text": prompt_text,
    }


def _failure(row: Row, response: Mapping[str, Any]) -> str | None:
    """Why a rollout broke off, or why it is left out of training."""
    if row.get("_ng_failure_class") is not None:
        return name(f"{row['_ng_failure_class']}: {row.get('failure_reason', '')}")
    if response.get("error"):
        error = response["error"]
        return name(error.get("message", "error") if isinstance(error, dict) else error)
    if row.get("mask_sample"):
        capture = row.get("_ng_token_capture")
        reason = capture.get("error") if isinstance(capture, dict) else None
        return name(f"mask_sample: {reason}" if reason else "mask_sample")
    return None


def _truncated(response: Mapping[str, Any]) -> bool | None:
    if "incomplete_details" not in response and "status" not in response:
        return None
    return bool(response.get("incomplete_details")) or response.get("status") == "incomplete"


def _sequence(turn: _Turn, k: int, row: Row, common: Mapping[str, Any]) -> RawSequence:
    """A turn: all that was generated is trained, unless the row is to be left out."""
    holder = turn.holder or {}
    what = f"turn {k}: "
    prompt = ids(holder.get("prompt_token_ids") or [], f"{what}prompt_token_ids")
    generated = ids(holder.get("generation_token_ids"), f"{what}generation_token_ids")
    is_trained = not row.get("mask_sample")
    return RawSequence(
        number=k,
        prompt_ids=prompt,
        completion_ids=generated,
        mask=np.full(len(generated), float(is_trained)),
        logprobs=numbers(holder.get("generation_log_probs"), f"{what}generation_log_probs"),
        fork=False if k else None,
        completion_text=text_of([_words(item) for item in turn.items]),
        **common,
    )


# ------------------------------------------------------------------------------------------------ said twice


def _calls(output: Sequence[Mapping[str, Any]]) -> Compared:
    calls = [_call_id(item) for item in output if item.get("type") in CALLS]
    answers = [_call_id(item) for item in output if item.get("type") in ANSWERS]
    return calls_and_answers(calls, answers)


def _call_id(item: Mapping[str, Any]) -> str:
    return str(item.get("call_id", item.get("id")))


def _compared(
    row: Row,
    response: Mapping[str, Any],
    turns: Sequence[_Turn],
    sequences: Sequence[RawSequence],
) -> Iterator[Compared]:
    bare = [k for k, turn in enumerate(turns) if turn.holder is None]
    words = None
    if bare:
        words = (
            f"{len(bare)} of {len(turns)} turns of the model have no token ids, the first turn {bare[0]}, while others have: "
            "what was sampled there is not trained"
        )
    yield Compared("R5", len(turns), words)
    sizes = [len(sequence.completion_ids) for sequence in sequences]
    calls = _captured(row)
    if calls:
        yield _against_calls(sizes, calls)
    else:
        yield from _against_usage(sizes, response, bool(bare))
    delivered = mapping(row.get("_ng_token_capture"), "_ng_token_capture").get("delivered_fraction")
    share = number(delivered, "delivered_fraction")
    if share is not None:
        lost = f"only {share:.0%} of the tokens that were captured are delivered: calls beside the chain are dropped"
        yield Compared("R37", 1, lost if share < 1 else None, is_error=False)


def _against_usage(
    sizes: Sequence[int], response: Mapping[str, Any], some_bare: bool
) -> Iterator[Compared]:
    """What the engine counted of the whole rollout. Some agents keep the usage of their last call alone, or none."""
    usage = mapping(response.get("usage"), "response.usage")
    counted = number(usage.get("output_tokens"), "usage.output_tokens")
    if not counted or (len(sizes) > 1 and counted == sizes[-1]):
        return
    total = sum(sizes)
    if total > counted:
        words = f"{total} tokens are trained as generated, and the engine counted {counted:.0f}: the rest nobody sampled"
        yield Compared("R3", total, words)
        return
    is_lost = counted > total and not some_bare
    words = f"the engine counted {counted:.0f} generated tokens, and {total} have ids: the others are not trained"
    yield Compared("R37", total, words if is_lost else None, is_error=False)
    yield Compared("R3", total)


def _captured(row: Row) -> list[int]:
    """Generated tokens of each model call that succeeded, as `ng_trajectory` has them."""
    trajectory = mapping(row.get("ng_trajectory"), "ng_trajectory")
    sizes = []
    for call in rows_of(trajectory.get("model_calls"), "ng_trajectory.model_calls"):
        call = mapping(call, "a model call")
        stats = mapping(call.get("token_stats"), "token_stats")
        size = number(stats.get("completion_tokens"), "completion_tokens")
        metadata = mapping(call.get("response_metadata"), "response_metadata")
        if size and not metadata.get("error_category"):
            sizes.append(int(size) if size < 2**31 else 0)
    return sizes


def _against_calls(sizes: Sequence[int], calls: Sequence[int]) -> Compared:
    """Turns in the order of calls: each must be one of them. Calls beside them are sub-agents, or retries."""
    left = iter(calls)
    strange = [size for size in sizes if size not in left]  # what is looked at is used up
    if strange:
        return Compared(
            "R3",
            len(sizes),
            f"{len(strange)} turns have ids of which no captured call knows: one of {strange[0]} tokens, where calls "
            f"generated {', '.join(map(str, calls[:6]))}",
        )
    beside = len(calls) - len(sizes)
    words = f"{beside} of {len(calls)} captured model calls have no ids in the rollout: they are not trained"
    return Compared("R37", len(calls), words if beside else None, is_error=False)


def missing(sequences: Sequence[RawSequence], rows: Sequence[Row]) -> list[str]:
    """What these files do not tell."""
    lacking = [] if has_ids(sequences) else [NO_IDS]
    lacking.append(NO_ADVANTAGES)
    if not any(sequence.grouped for sequence in sequences):
        lacking.append(NO_GROUPS)
    return lacking


READER = Reader("NeMo Gym (rollouts)", is_row, sequences_of, missing)
