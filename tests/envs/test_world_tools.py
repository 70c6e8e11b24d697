"""A tool of one's own in the place of the search that comes with a world of questions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.tools.base import tool
from workbench.values import Task
from workbench.values.errors import ConfigError, ToolError
from workbench.worlds import PRESETS, tasks
from workbench.worlds.qa.worlds import world
from workbench.worlds.world_qa import WorldQA


@tool(trusted=True)
def search(query: str, task: Task) -> str:
    """Find the one document about a name."""
    here = world("plain", task.payload["world"])
    told = [document.text for document in here.corpus().documents if document.title == query]
    return told[0] if told else "Nothing found."


def test_a_tool_of_ones_own_takes_the_place_of_the_search_and_knows_the_world_of_its_task():
    family = replace(PRESETS["world-qa"], tools=("tests.envs.test_world_tools:search",))
    (task,) = tasks(family, "held-out", 1)
    env = family.make()
    try:
        (schema,) = env.reset(task, 0).tools
        assert schema["function"]["description"] == "Find the one document about a name."
        assert set(schema["function"]["parameters"]["properties"]) == {"query"}, (
            "the task is handed in, not asked for"
        )
        name = task.payload["support"][0].partition("/")[2]
        (reply,) = env.step(env.format.write_call("search", {"query": name})).observation.messages
        assert name in reply.text
    finally:
        env.close()


def test_no_tool_at_all_and_a_tool_that_is_not_there():
    with pytest.raises(ConfigError, match="context='closed'"):
        WorldQA(tools=())
    with pytest.raises(ToolError, match="cannot be imported"):
        WorldQA(tools=("tests.envs.test_world_tools:serch",)).make()


def test_a_persons_question_is_about_a_world_that_knows_its_names():
    family = PRESETS["world-qa"]
    for number in (0, 5):
        task = next(t for t in tasks(family, "held-out", 64) if t.payload["world"] == number)
        asked = family.question_task(task.payload["question"])
        env = family.make()
        env.reset(asked, 0)
        name = task.payload["support"][0].partition("/")[2]
        (reply,) = env.step(env.format.write_call("search", {"query": name})).observation.messages
        assert name in reply.text and asked.payload["answers"] == []
    assert family.question_task("Who is Nobodyknows?", 3).payload["world"] == 3
