"""Faults planted into files that real writers made, one a function: what the lint must name, and by which rule.

Each takes the rows of a file and changes them in place. The thread is a report of that bug somewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "files"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Planted:
    """`rule` must say an error, and `words` must be in it; no other rule may. `thread`: repository#number, or ""."""

    name: str
    file: str
    rule: str
    words: str
    plant: Callable[[Rows], None]
    thread: str = ""


def rows_of(file: str) -> Rows:
    """The rows of one of the committed files."""
    path = FILES / file
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        return parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(rows: Rows, path: Path) -> Path:
    """The rows in the format of the path's suffix."""
    if path.suffix == ".parquet":
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def tokens(row: dict[str, Any], turn: int = 0) -> dict[str, Any]:
    return row["trajectory"][turn]["tokens"]


def nodes(rows: Rows) -> Iterable[dict[str, Any]]:
    return (node for row in rows for trace in row["traces"] for node in trace["nodes"])


def sampled(rows: Rows) -> list[dict[str, Any]]:
    return [node for node in nodes(rows) if node["sampled"]]


def long_trajectory(rows: Rows) -> dict[str, Any]:
    """A row of `results.jsonl` with three turns."""
    return next(row for row in rows if len(row["trajectory"]) == 3)


# ------------------------------------------------------------------------------------------------ verifiers, results


def mask_is_longer(rows: Rows) -> None:
    tokens(rows[0])["completion_mask"].append(1)


def mask_is_all_zero(rows: Rows) -> None:
    tokens(rows[0])["completion_mask"] = [0] * len(tokens(rows[0])["completion_mask"])


def turn_is_tokenized_again(rows: Rows) -> None:
    """One sampled token comes back as two in the prompts of all later turns."""
    steps = long_trajectory(rows)["trajectory"]
    at = len(steps[0]["tokens"]["prompt_ids"]) + 1
    for step in steps[1:]:
        ids = step["tokens"]["prompt_ids"]
        step["tokens"]["prompt_ids"] = ids[:at] + [1, 2] + ids[at + 1 :]
        step["tokens"]["prompt_mask"].append(0)


def last_prompt_begins_with_the_wrong_turn(rows: Rows) -> None:
    """What was sampled in the first turn is put where the second should be: a variable that was used twice."""
    first, second, third = (step["tokens"] for step in long_trajectory(rows)["trajectory"])
    at = len(second["prompt_ids"])
    wrong = first["completion_ids"][: len(second["completion_ids"])]
    third["prompt_ids"][at : at + len(wrong)] = wrong


def group_ids_are_distinct(rows: Rows) -> None:
    for number, row in enumerate(rows):
        row["example_id"] = number


def group_holds_different_tasks(rows: Rows) -> None:
    for number, row in enumerate(rows):
        row["example_id"] = number % 3 if number < 3 else number - 3


def prompt_is_trained(rows: Rows) -> None:
    tokens(rows[1])["prompt_mask"][-3:] = [1, 1, 1]


def pad_is_a_sampled_token(rows: Rows) -> None:
    """The mask of every turn by `ids != pad`, where the padding is the token that ends a turn."""
    for row in rows:
        for step in row["trajectory"]:
            ids = step["tokens"]["completion_ids"]
            step["tokens"]["completion_mask"] = [int(token != 482) for token in ids]


def logprobs_are_dropped(rows: Rows) -> None:
    for row in rows:
        for step in row["trajectory"]:
            step["tokens"]["completion_logprobs"] = [0.0] * len(step["tokens"]["completion_ids"])


def logprobs_are_shifted(rows: Rows) -> None:
    tokens(rows[2])["completion_logprobs"].pop(0)


def logprob_is_not_a_number(rows: Rows) -> None:
    tokens(rows[0])["completion_logprobs"][2] = float("nan")


def logprobs_are_probabilities(rows: Rows) -> None:
    values = tokens(rows[0])["completion_logprobs"]
    values[:] = [2.718281828**value for value in values]


def credit_of_somebody_else(rows: Rows) -> None:
    best, worst = (pick(rows[:3], key=lambda row: row["reward"]) for pick in (max, min))
    a, b = best["trajectory"][0]["advantage"], worst["trajectory"][0]["advantage"]
    for row, credit in ((best, b), (worst, a)):
        for step in row["trajectory"]:
            step["advantage"] = credit


def advantages_are_zero(rows: Rows) -> None:
    for row in rows:
        for step in row["trajectory"]:
            step["advantage"] = 0.0


def some_cut_rows_are_masked(rows: Rows) -> None:
    for row in (rows[0], rows[1]):
        row["trajectory"][-1]["is_truncated"] = True
    last = tokens(rows[1], -1)
    last["completion_mask"] = [0] * len(last["completion_mask"])


def failed_attempt_earns_zero(rows: Rows) -> None:
    rows[2]["error"] = {"error": "ToolError", "error_chain_repr": "", "error_chain_str": ""}


def attempts_draw_the_same_noise(rows: Rows) -> None:
    """Two trajectories of a group alike, so long that chance is out of the question."""
    for step in rows[0]["trajectory"]:
        step["tokens"]["completion_logprobs"] = [-4.0] * len(step["tokens"]["completion_ids"])
    rows[1]["trajectory"] = json.loads(json.dumps(rows[0]["trajectory"]))
    rows[1]["reward"] = rows[0]["reward"]


def reward_is_not_a_number(rows: Rows) -> None:
    rows[0]["reward"] = float("inf")


def id_is_negative(rows: Rows) -> None:
    tokens(rows[0])["completion_ids"][-1] = -100


# ------------------------------------------------------------------------------------------------ verifiers, traces


def scaffold_is_trained(rows: Rows) -> None:
    """The tokens that open an answer (`<|im_start|>assistant`) count as the policy's."""
    node = sampled(rows)[1]
    node["mask"] = [True] * len(node["mask"])


def reply_is_trained(rows: Rows) -> None:
    reply = [
        node for node in nodes(rows) if not node["sampled"] and node.get("parent") is not None
    ][0]
    reply["mask"] = [True] * len(reply["mask"])


def stop_token_is_not_trained(rows: Rows) -> None:
    for node in sampled(rows):
        node["mask"][-1] = False


def node_credit_on_the_last_turn_only(rows: Rows) -> None:
    for row in rows:
        for node in sampled([row])[:-1]:
            node["advantages"] = [0.0] * len(node["advantages"])


# ------------------------------------------------------------------------------------------------ TRL, verl


def tool_mask_is_longer(rows: Rows) -> None:
    rows[0]["completion_mask"] = [*rows[0]["completion_mask"], 1, 1, 1]


def turn_is_realigned(rows: Rows) -> None:
    mask = list(rows[0]["completion_mask"])
    mask[mask.index(1) + 1] = 0
    rows[0]["completion_mask"] = mask


def response_mask_is_all_zero(rows: Rows) -> None:
    rows[0]["response_mask"] = json.dumps([0] * len(json.loads(rows[0]["response_mask"])))


def advantages_are_swapped(rows: Rows) -> None:
    order = sorted(range(3), key=lambda n: rows[n]["advantage"])
    first, last = rows[order[0]], rows[order[-1]]
    first["advantage"], last["advantage"] = last["advantage"], first["advantage"]


def uids_are_distinct(rows: Rows) -> None:
    for number, row in enumerate(rows):
        row["uid"] = f"{number}_0_0"


def uids_group_different_tasks(rows: Rows) -> None:
    for number, row in enumerate(rows):
        row["uid"] = f"{number % 2}_{number // 2}_0"


RESULTS, TRACES = "verifiers_results/results.jsonl", "verifiers_traces.jsonl"
TABLE, TEXTS = "trl_completions_with_ids.parquet", "trl_completions.parquet"
VERL, VERL_IDS = "verl_generations.jsonl", "verl_generations_v0_with_ids.jsonl"

PLANTED = (
    Planted("mask is longer", RESULTS, "R4", "mask has", mask_is_longer, "trl#5144"),
    Planted(
        "mask is all zero",
        RESULTS,
        "R5",
        "no token of this completion is trained",
        mask_is_all_zero,
        "rllm#352",
    ),
    Planted(
        "turn is tokenized again",
        RESULTS,
        "R1",
        "tokenized again",
        turn_is_tokenized_again,
        "trl#5224",
    ),
    Planted(
        "prompt begins with the wrong turn",
        RESULTS,
        "R1",
        "",
        last_prompt_begins_with_the_wrong_turn,
        "prime-rl#1383",
    ),
    Planted(
        "group ids are distinct",
        RESULTS,
        "R7",
        "a group of its own",
        group_ids_are_distinct,
        "Search-R1#88",
    ),
    Planted(
        "group of different tasks",
        RESULTS,
        "R7",
        "different prompts",
        group_holds_different_tasks,
        "tinker-cookbook#771",
    ),
    Planted(
        "prompt is trained",
        RESULTS,
        "R3",
        "of the prompt are trained",
        prompt_is_trained,
        "prime-rl#2471",
    ),
    Planted(
        "pad is a sampled token",
        RESULTS,
        "R4",
        "comparing ids with the padding",
        pad_is_a_sampled_token,
        "rllm#517",
    ),
    Planted(
        "logprobs are dropped", RESULTS, "R12", "exactly 0", logprobs_are_dropped, "slime#1995"
    ),
    Planted("logprobs are shifted", RESULTS, "R4", "logprobs has", logprobs_are_shifted),
    Planted("logprob is not a number", RESULTS, "R12", "missing", logprob_is_not_a_number),
    Planted("logprobs are probabilities", RESULTS, "R12", "above 0", logprobs_are_probabilities),
    Planted(
        "credit of somebody else", RESULTS, "R6", "somebody else's credit", credit_of_somebody_else
    ),
    Planted("advantages are zero", RESULTS, "R8", "exactly 0", advantages_are_zero, "rllm#916"),
    Planted(
        "some cut rows are masked",
        RESULTS,
        "R11",
        "that were cut",
        some_cut_rows_are_masked,
        "trl#4976",
    ),
    Planted(
        "failed trajectory earns zero",
        RESULTS,
        "R16",
        "unscored is not zero",
        failed_attempt_earns_zero,
        "trl#5902",
    ),
    Planted(
        "trajectories draw the same noise",
        RESULTS,
        "R22",
        "token for token alike",
        attempts_draw_the_same_noise,
    ),
    Planted("reward is not a number", RESULTS, "R16", "not a number", reward_is_not_a_number),
    Planted("id is negative", RESULTS, "R4", "negative id", id_is_negative),
    Planted(
        "scaffold is trained",
        TRACES,
        "R3",
        "that no model sampled",
        scaffold_is_trained,
        "SkyRL#710",
    ),
    Planted(
        "reply is trained", TRACES, "R3", "that no model sampled", reply_is_trained, "RAGEN#54"
    ),
    Planted(
        "stop token is not trained",
        TRACES,
        "R3",
        "sampled tokens are not trained",
        stop_token_is_not_trained,
        "trl#4974",
    ),
    Planted(
        "credit on the last turn only",
        TRACES,
        "R6",
        "only the last of",
        node_credit_on_the_last_turn_only,
        "SkyRL#1492",
    ),
    Planted("tool mask is longer", TABLE, "R4", "mask has", tool_mask_is_longer, "trl#5144"),
    Planted(
        "turn is realigned", TABLE, "R3", "are context by the mask", turn_is_realigned, "trl#5224"
    ),
    Planted(
        "advantages are swapped", TEXTS, "R6", "somebody else's credit", advantages_are_swapped
    ),
    Planted(
        "response mask is all zero",
        VERL_IDS,
        "R5",
        "no token of this completion",
        response_mask_is_all_zero,
        "rllm#352",
    ),
    Planted(
        "uids are distinct", VERL, "R7", "a group of its own", uids_are_distinct, "Search-R1#88"
    ),
    Planted(
        "uids group different tasks",
        VERL,
        "R7",
        "different prompts",
        uids_group_different_tasks,
        "tinker-cookbook#771",
    ),
)
