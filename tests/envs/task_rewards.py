"""What a user's reward functions look like; importable by workers and by training processes."""

import asyncio
import os

from workbench.envs.tools import tool


def by_length(attempt):
    """A number, and nothing about success: shorter answers earn more."""
    return None if attempt.answer is None else 1.0 / (1 + len(attempt.answer))


def by_calls(attempt):
    called = [call.name for call in attempt.calls if not call.error]
    return {
        "used": 0.5 * ("double" in called),
        "right": float(attempt.answer == attempt.row["answer"]),
        "success": attempt.answer == attempt.row["answer"],
    }


async def later(attempt):
    await asyncio.sleep(0)
    return attempt.answer == attempt.row["answer"]


def broken(attempt):
    raise KeyError("nowhere")


def strange(attempt):
    return "good"


def fill(attempt):
    """Every attempt begins with one note, which is not the one that is asked for."""
    attempt.call("add_note", title="old", text="here before")


def noted(attempt):
    """The state that was reached, not what was said: by the server's own answer, and by its folder."""
    listed = attempt.call("list_notes").value["result"]
    file = attempt.folder / f"{attempt.row['title']}.txt"
    assert file.exists() == (attempt.row["title"] in listed) and "old" in listed
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
