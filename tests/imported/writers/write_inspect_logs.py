"""Runs where inspect-ai is installed: an evaluation of Inspect's own, whose model repeats what was recorded.

    python write_inspect_logs.py RECORDED.json OUT_FOLDER

A task is a sample, a trajectory an epoch at it. The answer of every turn is a thought and a call of the tool `move`,
whose result is what the environment replied. Both recorders of Inspect write it: `.eval` (a zip) and `.json`.
"""

import json
import sys
import tempfile
from pathlib import Path

import inspect_ai
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import ToolCall, tool


def parts_of(text):
    """(thought, action) of a recorded answer."""
    thought, _, rest = text.partition("</think>")
    action = rest if rest else text
    return thought.replace("<think>", ""), action.replace("<answer>", "").replace("</answer>", "")


def replies_of(rollout):
    """What the environment said after each turn, as far as it was asked again."""
    turns = rollout["turns"]
    return [turn["messages"][-1]["content"] for turn in turns[1:]] + ["The end."]


class Recorded(ModelAPI):
    """Answers by the recording: which trajectory is told by the place of the sample and its epoch."""

    playing = []  # (rollout, turn) that is asked next

    async def generate(self, input, tools, tool_choice, config):
        rollout, turn = Recorded.playing.pop(0)
        if turn is None:
            return ModelOutput.from_content("recorded", "done")
        thought, action = parts_of(rollout["turns"][turn]["text"])
        call = ToolCall(id=f"call_{turn}", function="move", arguments={"action": action})
        content = [ContentReasoning(reasoning=thought)] if thought else []
        message = ChatMessageAssistant(
            content=[*content, ContentText(text="I move.")], tool_calls=[call], model="recorded"
        )
        ids = rollout["turns"][turn]
        usage = ModelUsage(
            input_tokens=len(ids["prompt_ids"]), output_tokens=len(ids["completion_ids"])
        )
        output = ModelOutput.from_message(message, stop_reason="tool_calls")
        output.usage = usage
        return output

    async def count_tokens(self, input, config=None):
        return 1


@modelapi(name="recorded")
def recorded():
    return Recorded


@tool
def move():
    async def execute(action: str):
        """Move on the ice.

        Args:
            action: Directions.
        """
        return Recorded.replies.pop(0)

    return execute


@scorer(metrics=[mean()])
def earned():
    async def score(state, target):
        return Score(value=Recorded.rewards[(state.sample_id, state.epoch)])

    return score


@solver
def begin():
    """Lays ready what the model and the tool say in this sample."""

    async def solve(state, generate):
        rollout = Recorded.rollouts[(state.sample_id, state.epoch)]
        Recorded.playing = [(rollout, turn) for turn in range(len(rollout["turns"]))]
        Recorded.playing.append((rollout, None))
        Recorded.replies = replies_of(rollout)
        return state

    return solve


def main(recorded_file, out):
    rollouts = {
        (f"lake {r['task']}", r["attempt"] + 1): r
        for r in json.loads(Path(recorded_file).read_text())["rollouts"]
    }
    Recorded.rollouts = rollouts
    Recorded.rewards = {place: r["reward"] for place, r in rollouts.items()}
    samples = [
        Sample(id=name, input=rollouts[(name, 1)]["turns"][0]["messages"][0]["content"])
        for name in dict.fromkeys(name for name, _ in rollouts)
    ]
    # .json takes ten times as much room: one attempt at each task
    for kind, epochs in (("eval", 3), ("json", 1)):
        with tempfile.TemporaryDirectory() as folder:
            task = Task(
                dataset=samples,
                solver=[begin(), use_tools(move()), generate()],
                scorer=earned(),
                epochs=epochs,
                name="lakes",
            )
            (log,) = eval(
                task,
                model=get_model("recorded/frozenlake-tiny"),
                log_dir=folder,
                log_format=kind,
                max_samples=1,
                display="none",
            )
            assert log.status == "success", log.error
            Path(log.location).rename(Path(out) / f"inspect_log.{kind}")
    print(f"inspect-ai {inspect_ai.__version__}")


main(*sys.argv[1:])
