"""A family whose environments hold tools that are not trusted, importable by worker processes."""

from dataclasses import dataclass

from workbench.tools import tools_named
from workbench.values import Task
from workbench.worlds.tool_env import CallSettings, ToolEnv


@dataclass(frozen=True)
class ZooFamily:
    deadline_s: float = 5.0
    name: str = "zoo"
    max_turns: int = 10

    def make(self):
        tools = tools_named(["tool_zoo:Counter", "tool_zoo:misbehave", "tool_zoo:add"])
        return ToolEnv(
            tools, max_turns=self.max_turns, calls=CallSettings(deadline_s=self.deadline_s)
        )


def task(task_id):
    return Task(task_id, "zoo", 0, {"question": "who?", "answers": ["me"]})
