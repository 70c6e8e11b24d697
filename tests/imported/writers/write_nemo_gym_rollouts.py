"""Runs where nemo-gym 0.4.0 is installed: its converter makes the items of each turn, its collector writes the rows.

    python write_nemo_gym_rollouts.py RECORDED.json OUT_FOLDER

Only the agent's server is a stand-in: `run_examples`, which posts a row to it, hands out what was recorded. The answer
of a turn is a thought and a call of the tool `move`, whose output is what the environment replied.
"""

import asyncio
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from nemo_gym.base_resources_server import BaseVerifyResponse
from nemo_gym.openai_utils import NeMoGymFunctionCallOutput, NeMoGymResponse
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper


def parts_of(text):
    """(thought, action) of a recorded answer."""
    thought, _, rest = text.partition("</think>")
    return thought.replace("<think>", ""), (rest or text).replace("<answer>", "").replace(
        "</answer>", ""
    )


def output_of(rollout, with_ids):
    """The items of all turns, each turn's ids on its last one."""
    converter = ResponsesConverter(return_token_id_information=with_ids)
    turns = rollout["turns"]
    items = []
    for k, turn in enumerate(turns):
        thought, action = parts_of(turn["text"])
        call = {"name": "move", "arguments": json.dumps({"action": action})}
        message = {
            "role": "assistant",
            "content": f"<think>{thought}</think>I move." if thought else "I move.",
            "tool_calls": [{"id": f"call_{k}", "type": "function", "function": call}],
            "prompt_token_ids": turn["prompt_ids"],
            "generation_token_ids": turn["completion_ids"],
            "generation_log_probs": turn["logprobs"],
        }
        items += converter.postprocess_assistant_message_dict(message)
        last = k + 1 == len(turns)
        reply = "The end." if last else turns[k + 1]["messages"][-1]["content"]
        items.append(NeMoGymFunctionCallOutput(call_id=f"call_{k}", output=reply))
    return items


def response_of(rollout, with_ids):
    prompts = sum(len(turn["prompt_ids"]) for turn in rollout["turns"])
    sampled = sum(len(turn["completion_ids"]) for turn in rollout["turns"])
    return NeMoGymResponse.model_validate(
        {
            "id": f"resp_{rollout['task']}_{rollout['attempt']}",
            "created_at": 0.0,
            "model": "frozenlake-tiny",
            "object": "response",
            "output": [item.model_dump() for item in output_of(rollout, with_ids)],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": prompts,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompts + sampled,
            },
        }
    )


class Collector(RolloutCollectionHelper):
    """The collector, without a server to ask."""

    def run_examples(self, examples, head_server_config=None, semaphore=None):
        async def run(row):
            rollout = rollouts[(row["_ng_task_index"], row["_ng_rollout_index"])]
            verified = BaseVerifyResponse.model_validate(
                {
                    "responses_create_params": row["responses_create_params"],
                    "response": response_of(rollout, self.__class__.with_ids),
                    "reward": rollout["reward"],
                }
            )
            return row, json.loads(verified.model_dump_json(exclude_unset=True))

        return [run(row) for row in examples]


def main(recorded, out):
    global rollouts
    recordings = json.loads(Path(recorded).read_text())["rollouts"]
    rollouts = {(r["task"], r["attempt"]): r for r in recordings}
    for name, with_ids in (("nemo_gym_rollouts", True), ("nemo_gym_rollouts_text", False)):
        Collector.with_ids = with_ids
        with tempfile.TemporaryDirectory() as folder:
            tasks = Path(folder) / "tasks.jsonl"
            prompts = [rollouts[(task, 0)]["turns"][0]["messages"] for task in (0, 1)]
            rows = [json.dumps({"responses_create_params": {"input": one}}) for one in prompts]
            tasks.write_text("".join(f"{row}\n" for row in rows))
            config = RolloutCollectionConfig(
                agent_name="lake_agent",
                input_jsonl_fpath=str(tasks),
                output_jsonl_fpath=str(Path(folder) / "rollouts.jsonl"),
                num_repeats=3,
                upload_rollouts_to_wandb=False,
                disable_aggregation=True,
            )
            asyncio.run(Collector().run_from_config(config))
            (Path(folder) / "rollouts.jsonl").rename(Path(out) / f"{name}.jsonl")
    print(f"nemo-gym {version('nemo-gym')}")


main(*sys.argv[1:])
