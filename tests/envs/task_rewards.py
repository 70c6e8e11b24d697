"""What a user's reward functions look like; importable by workers and by training processes."""

import asyncio
import os

from workbench.tools import tool


def by_length(trajectory):
    """A number, and nothing about success: shorter answers earn more."""
    return None if trajectory.answer is None else 1.0 / (1 + len(trajectory.answer))


def by_calls(trajectory):
    called = [call.name for call in trajectory.calls if not call.error]
    return {
        "used": 0.5 * ("double" in called),
        "right": float(trajectory.answer == trajectory.row["answer"]),
        "success": trajectory.answer == trajectory.row["answer"],
    }


async def later(trajectory):
    await asyncio.sleep(0)
    return trajectory.answer == trajectory.row["answer"]


def broken(trajectory):
    raise KeyError("nowhere")


def strange(trajectory):
    return "good"


def fill(trajectory):
    """Every trajectory begins with one note, which is not the one that is asked for."""
    trajectory.call("add_note", title="old", text="here before")


def noted(trajectory):
    """The state that was reached, not what was said: by the server's own answer, and by its folder."""
    listed = trajectory.call("list_notes").value["result"]
    file = trajectory.folder / f"{trajectory.row['title']}.txt"
    assert file.exists() == (trajectory.row["title"] in listed) and "old" in listed
    return {
        "kept": 0.1 * ("old" in listed),
        "noted": float(file.exists()),
        "success": file.exists(),
    }


@tool(trusted=True)
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


def process() -> str:
    """Which process runs this."""
    return str(os.getpid())


def solve(env, rng):
    """Asks the tool once, then says the gold answer."""
    if env.trajectory_values()["turn"] == 0:
        return env.format.write_call("double", {"n": 1})
    return env.format.write_answer(env.golds[0])


def guess(env, rng):
    return env.format.write_answer(str(rng.integers(100)))
