"""Runs where verifiers 0.1.14 is installed: its own states, its own parser of token responses and its own
`save_outputs`.

    python write_verifiers_results.py RECORDED.json OUT_FOLDER
"""

import asyncio
import json
import sys
from pathlib import Path

import verifiers
from verifiers.types import (
    AssistantMessage,
    Response,
    ResponseMessage,
    ResponseTokens,
    State,
    TrajectoryStep,
    Usage,
    UserMessage,
)
from verifiers.utils.response_utils import parse_response_message, parse_response_tokens
from verifiers.utils.save_utils import (
    GenerateOutputsBuilder,
    save_metadata,
    save_outputs,
    states_to_outputs,
)


def response_of(turn):
    tokens = ResponseTokens(
        prompt_ids=turn["prompt_ids"],
        prompt_mask=[0] * len(turn["prompt_ids"]),
        completion_ids=turn["completion_ids"],
        completion_mask=[1] * len(turn["completion_ids"]),
        completion_logprobs=turn["logprobs"],
    )
    usage = Usage(
        prompt_tokens=len(turn["prompt_ids"]),
        reasoning_tokens=0,
        completion_tokens=len(turn["completion_ids"]),
        total_tokens=len(turn["prompt_ids"]) + len(turn["completion_ids"]),
    )
    message = ResponseMessage(
        content=turn["text"], finish_reason="stop", is_truncated=False, tokens=tokens
    )
    return Response(id="0", created=0, model="frozenlake-tiny", usage=usage, message=message)


def messages_of(messages):
    return [
        (AssistantMessage if m["role"] == "assistant" else UserMessage)(content=m["content"])
        for m in messages
    ]


async def state_of(number, rollout):
    state = State(
        input={
            "prompt": messages_of(rollout["turns"][0]["messages"]),
            "example_id": rollout["task"],
            "answer": "",
        }
    )
    siblings = rollout["siblings"]
    credit = rollout["reward"] - sum(siblings) / len(siblings)
    steps, completion = [], []
    for k, turn in enumerate(rollout["turns"]):
        response = response_of(turn)
        said = await parse_response_message(response)
        steps.append(
            TrajectoryStep(
                prompt=messages_of(turn["messages"]),
                completion=said,
                response=response,
                tokens=await parse_response_tokens(response),
                reward=None,
                advantage=credit,
                is_truncated=False,
                trajectory_id=f"{number:032x}",
                extras={},
            )
        )
        completion += (
            messages_of(turn["messages"])[len(rollout["turns"][k - 1]["messages"]) + 1 :]
            if k
            else []
        )
        completion += said
    state.update(
        trajectory=steps,
        trajectory_id=f"{number:032x}",
        completion=completion,
        reward=rollout["reward"],
        metrics={"solved": rollout["reward"]},
        is_completed=True,
        is_truncated=False,
        error=None,
        stop_condition="max_turns_reached",
        timing={"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0},
    )
    return state


def main(recorded, out):
    rollouts = json.loads(Path(recorded).read_text())["rollouts"]
    for rollout in rollouts:
        rollout["siblings"] = [r["reward"] for r in rollouts if r["task"] == rollout["task"]]
    states = [asyncio.run(state_of(number, rollout)) for number, rollout in enumerate(rollouts)]
    for name, columns in (("verifiers_results", ["trajectory"]), ("verifiers_results_text", None)):
        folder = Path(out) / name
        outputs = states_to_outputs(states if columns else states[:3], columns)
        for output in outputs:
            for step in output.get("trajectory", ()):
                step.pop(
                    "response", None
                )  # says the same again, and makes the file four times as large
        builder = GenerateOutputsBuilder(
            env_id="lake",
            env_args={},
            model="frozenlake-tiny",
            client=object(),
            num_examples=2,
            rollouts_per_example=3,
            state_columns=columns,
            sampling_args={"temperature": 1.0},
            results_path=folder,
        )
        builder.start_time = 0.0
        builder.add_outputs(outputs)
        save_outputs(outputs, folder)
        save_metadata(builder.build()["metadata"], folder)
        metadata = json.loads((folder / "metadata.json").read_text())
        (folder / "metadata.json").write_text(json.dumps({**metadata, "time": 0.0}))
    print(f"verifiers {verifiers.__version__}")


main(*sys.argv[1:])
