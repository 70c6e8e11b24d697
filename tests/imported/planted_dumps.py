"""Faults planted into dumps of NeMo Gym, agentcore-rl-toolkit and Inspect, and the rule that must name each."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.imported.planted import FILES, rows_of, write
from workbench.extensions.interop.importers import zips

GYM, GYM_TEXT = "nemo_gym_rollouts.jsonl", "nemo_gym_rollouts_text.jsonl"
TREES, FORKS = "agentcore_rollouts.json", "agentcore_rollouts_forked.json"
LOG, LOG_JSON = "inspect_log.eval", "inspect_log.json"
Content = list[Any]


@dataclass(frozen=True)
class Fault:
    """`rule` must say `words` as an error or a note; of other rules only `also` may say an error."""

    name: str
    file: str
    rule: str
    words: str
    plant: Callable[[Content], None]
    severity: str = "error"
    also: tuple[str, ...] = ()


def content_of(file: str) -> Content:
    """The rows of a file: of a zip its samples."""
    if file.endswith(".eval"):
        with zips.opened(FILES / file) as log:
            members = [info for info in log.members if info.filename.startswith("samples/")]
            return [json.loads(zips.member(log, info)) for info in members]
    return json.loads((FILES / file).read_text()) if file.endswith(".json") else rows_of(file)


def put(content: Content, file: str, folder: Path) -> Path:
    """The content written as the file is; what else is in a zip is kept."""
    path = folder / file
    if file.endswith(".jsonl"):
        return write(content, path)
    if file.endswith(".json"):
        path.write_text(json.dumps(content))
        return path
    with zips.opened(FILES / file) as log, zipfile.ZipFile(path, "w") as out:
        for info in log.members:
            if not info.filename.startswith("samples/"):
                out.writestr(info.filename, zips.member(log, info))
        for number, sample in enumerate(content):
            out.writestr(f"samples/{number}.json", json.dumps(sample))
    return path


# ------------------------------------------------------------------------------------------------ NeMo Gym


def items(row: dict[str, Any]) -> list[dict[str, Any]]:
    return row["response"]["output"]


def holders(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The items that have the ids of a turn."""
    return [item for item in items(row) if "generation_token_ids" in item]


def reply_is_generated(rows: Content) -> None:
    first, second, _ = holders(rows[1])
    start = len(first["prompt_token_ids"]) + len(first["generation_token_ids"])
    reply = second["prompt_token_ids"][start:]
    first["generation_token_ids"] += reply
    first["generation_log_probs"] += [0.0] * len(reply)


def turn_is_tokenized_again(rows: Content) -> None:
    first, *later = holders(rows[1])
    at = len(first["prompt_token_ids"]) + 1
    for item in later:
        item["prompt_token_ids"][at : at + 1] = [1, 2]


def logprobs_are_shifted(rows: Content) -> None:
    holders(rows[2])[0]["generation_log_probs"].pop(0)


def call_is_dropped(rows: Content) -> None:
    del items(rows[1])[4:7]


def rollout_is_there_twice(rows: Content) -> None:
    rows.append(deepcopy(rows[0]))


def thought_is_stripped(rows: Content) -> None:
    first, *later = holders(rows[1])
    start = len(first["prompt_token_ids"])
    for item in later:
        del item["prompt_token_ids"][start : start + 5]


def tasks_are_mixed(rows: Content) -> None:
    for row, other in ((rows[0], 1), (rows[3], 0)):
        row["_ng_task_index"] = other
        row["_ng_rollout_index"] += 5


def turn_has_no_ids(rows: Content) -> None:
    item = holders(rows[1])[1]
    for key in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
        del item[key]


def logprobs_are_not_kept(rows: Content) -> None:
    for row in rows:
        for item in holders(row):
            item["generation_log_probs"] = [0.0] * len(item["generation_log_probs"])


# ------------------------------------------------------------------------------------------------ agentcore


def record(groups: Content, group: int = 0, episode: int = 1) -> dict[str, Any]:
    return groups[group][episode]["records"][0]


def tool_output_is_trained(groups: Content) -> None:
    record(groups)["loss_mask"] = [1] * len(record(groups)["loss_mask"])


def turn_is_masked(groups: Content) -> None:
    record(groups)["loss_mask"][1] = 0


def logprobs_of_a_record_are_shifted(groups: Content) -> None:
    record(groups)["logprobs"].pop(0)


def rewards_are_swapped(groups: Content) -> None:
    one, other = record(groups, 0, 1), record(groups, 0, 2)
    one["reward"], other["reward"] = other["reward"], one["reward"]


def records_are_swapped(groups: Content) -> None:
    one, other = groups[0][0], groups[0][1]
    one["records"], other["records"] = other["records"], one["records"]


def episode_is_there_twice(groups: Content) -> None:
    groups[0].append(deepcopy(groups[0][0]))


def episodes_are_in_the_wrong_group(groups: Content) -> None:
    groups[0][0], groups[1][0] = groups[1][0], groups[0][0]


def branch_is_trained_twice(groups: Content) -> None:
    groups[0][0]["records"].append(deepcopy(groups[0][0]["records"][0]))


# ------------------------------------------------------------------------------------------------ Inspect


def made_call_is_dropped(samples: Content) -> None:
    next(m for m in samples[0]["messages"] if m.get("tool_calls")).pop("tool_calls")


def sample_is_there_twice(samples: Content) -> None:
    samples.append(deepcopy(samples[0]))


def score_of_another_attempt(samples: Content) -> None:
    one, other = (s for s in samples if (s["id"], s["epoch"]) in (("lake 0", 1), ("lake 0", 3)))
    one["scores"], other["scores"] = other["scores"], one["scores"]


def sample_is_in_the_wrong_group(samples: Content) -> None:
    sample = next(s for s in samples if s["id"] == "lake 1")
    sample |= {"id": "lake 0", "epoch": 9}


def logprob_is_a_probability(samples: Content) -> None:
    event = next(e for e in samples[0]["events"] if e["event"] == "model")
    event["output"]["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": 0.5}]}


def thoughts_are_stripped(samples: Content) -> None:
    for message in samples[0]["events_data"]["messages"]:
        if isinstance(message["content"], list):
            message["content"] = [p for p in message["content"] if p["type"] != "reasoning"]


def model_call_is_dropped(samples: Content) -> None:
    events = samples[0]["events"]
    events.remove(next(e for e in events if e["event"] == "model"))


def failed_sample_is_scored(samples: Content) -> None:
    samples[0]["error"] = {"message": "the sandbox died", "traceback": ""}


FAULTS = (
    Fault("reply is generated", GYM, "R3", "nobody sampled", reply_is_generated),
    Fault("turn is tokenized again", GYM, "R1", "tokenized again", turn_is_tokenized_again),
    Fault("logprobs are shifted", GYM, "R4", "logprobs has", logprobs_are_shifted),
    Fault("call is dropped", GYM, "R28", "has been dropped", call_is_dropped),
    Fault("rollout is there twice", GYM, "R37", "2 times", rollout_is_there_twice, also=("R22",)),
    Fault("thought is stripped", GYM, "R1", "rewrites the past", thought_is_stripped),
    Fault("tasks are mixed", GYM, "R7", "different prompts", tasks_are_mixed),
    Fault("turn has no ids", GYM, "R5", "have no token ids", turn_has_no_ids),
    Fault("logprobs are not kept", GYM, "R12", "exactly 0", logprobs_are_not_kept),
    Fault("tool output is trained", TREES, "R3", "nobody sampled", tool_output_is_trained),
    Fault("turn is masked", TREES, "R3", "are context by the mask", turn_is_masked),
    Fault("logprobs are shifted", TREES, "R4", "logprobs has", logprobs_of_a_record_are_shifted),
    Fault("reward of another", TREES, "R16", "differ", rewards_are_swapped),
    Fault("records are swapped", TREES, "R37", "stands in", records_are_swapped),
    Fault("episode is there twice", TREES, "R37", "2 times", episode_is_there_twice, also=("R22",)),
    Fault("wrong group", TREES, "R7", "different prompts", episodes_are_in_the_wrong_group),
    Fault("branch is trained twice", FORKS, "R37", "in both", branch_is_trained_twice),
    Fault("call is dropped", LOG, "R28", "has been dropped", made_call_is_dropped),
    Fault("sample is there twice", LOG, "R37", "2 times", sample_is_there_twice),
    Fault("score of another attempt", LOG, "R16", "differ", score_of_another_attempt),
    Fault("wrong group", LOG, "R7", "different prompts", sample_is_in_the_wrong_group),
    Fault("logprob is a probability", LOG, "R12", "are none", logprob_is_a_probability),
    Fault("thoughts are stripped", LOG, "R1", "thoughts were", thoughts_are_stripped, "note"),
    Fault("model call is dropped", LOG, "R37", "are missing", model_call_is_dropped, "note"),
    Fault("failed sample is scored", LOG, "R16", "broke off", failed_sample_is_scored, "note"),
)
