"""The OpenAI Agents SDK with the tools and the prompt of the task, word for word: what is left is the SDK itself."""

from __future__ import annotations

import json
from typing import Any

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

set_tracing_disabled(True)


def _tool(task: Any, schema: Any) -> FunctionTool:
    function = schema["function"]

    async def call(_context: Any, arguments: str) -> str:
        return task.call(function["name"], json.loads(arguments))

    return FunctionTool(
        function["name"],
        function["description"],
        function["parameters"],
        call,
        strict_json_schema=False,
    )


async def same_prompt(task: Any, model: Any) -> Any:
    tools = [_tool(task, schema) for schema in task.tools]
    chat = OpenAIChatCompletionsModel(model.name, model.async_openai())
    agent = Agent("Researcher", tools=tools, model=chat)
    return (await Runner.run(agent, task.messages)).final_output
