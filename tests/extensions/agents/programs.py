"""Programs as somebody might have them: they know their task, and where their model is. Named by the tests, imported by runs."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

NO_PROGRAM = object()


def solve(task, model):
    """A loop over chat completions, as every introduction to tool calls has it."""
    with model.openai(max_retries=0) as client:
        messages: list[Any] = list(task.messages)
        while True:
            answer = client.chat.completions.create(
                model=model.name, messages=messages, tools=task.tools
            )
            reply = answer.choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return reply.content
            for call in reply.tool_calls:
                result = task.call(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def solve_streamed(task, model):
    """The same as a coroutine, with streams."""
    client = model.async_openai(max_retries=0)
    messages: list[Any] = list(task.messages)
    while True:
        text = ""
        calls: dict[int, dict[str, str]] = {}
        stream = await client.chat.completions.create(
            model=model.name, messages=messages, tools=task.tools, stream=True
        )
        async for chunk in stream:
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for piece in delta.tool_calls or ():
                call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += piece.id or ""
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
        functions = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls.values()
        ]
        if not functions:
            return text
        messages.append({"role": "assistant", "content": text, "tool_calls": functions})
        for call in calls.values():
            result = task.call(call["name"], json.loads(call["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def solve_by_responses(task, model):
    with model.openai(max_retries=0) as client:
        tools = [{"type": "function", **tool["function"]} for tool in task.tools]
        items: list[Any] = list(task.messages)
        while True:
            reply = client.responses.create(model=model.name, input=items, tools=tools)
            items += [item.model_dump(exclude_none=True) for item in reply.output]
            calls = [item for item in reply.output if item.type == "function_call"]
            if not calls:
                return reply.output_text
            for call in calls:
                result = task.call(call.name, json.loads(call.arguments))
                items.append(
                    {"type": "function_call_output", "call_id": call.call_id, "output": result}
                )


def solve_by_messages(task, model):
    """Anthropic's form, written by hand."""
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in task.tools
    ]
    messages: list[Any] = list(task.messages)
    headers = {"x-api-key": model.key}
    with httpx.Client(base_url=model.url, headers=headers, timeout=30) as client:
        while True:
            body = {"model": model.name, "max_tokens": 64, "messages": messages, "tools": tools}
            reply = client.post("/v1/messages", json=body).raise_for_status().json()
            messages.append({"role": "assistant", "content": reply["content"]})
            uses = [block for block in reply["content"] if block["type"] == "tool_use"]
            if not uses:
                return "".join(block["text"] for block in reply["content"])
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": use["id"],
                    "content": task.call(use["name"], use["input"]),
                }
                for use in uses
            ]
            messages.append({"role": "user", "content": results})


def with_helpers(task, model):
    """Two helpers at once at every turn, and now and then the past rewritten."""
    with model.openai(max_retries=0) as client, ThreadPoolExecutor(2) as pool:

        def ask(messages, tools=()):
            offered = {"tools": list(tools)} if tools else {}
            answer = client.chat.completions.create(model=model.name, messages=messages, **offered)
            return answer.choices[0].message

        messages = list(task.messages)
        for turn in range(3):
            prompts = [[{"role": "user", "content": f"Helper {turn} {k}"}] for k in range(2)]
            helpers = [pool.submit(ask, prompt) for prompt in prompts]
            reply = ask(messages, task.tools)
            for helper in helpers:
                helper.result()
            kept = reply.model_dump(exclude_none=True)
            kept["content"] = (kept.get("content") or "") + (" (edited)" if turn == 1 else "")
            messages.append(kept)
            if not reply.tool_calls:
                return reply.content
            for call in reply.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "Nothing."})
        return None


# ------------------------------------------------------------------------------------------------ programs that fail


def raises(task, model):
    ask_once(task, model)
    raise KeyError("somebody's bug")


def says_nothing(task, model):
    return "an answer out of thin air"


def asks_for_ever(task, model):
    while True:
        ask_once(task, model).raise_for_status()


def asks_too_long(task, model):
    body = {"messages": [{"role": "user", "content": "word " * 4000}]}
    ask_once(task, model)
    ask_once(task, model, body).raise_for_status()


def hangs(task, model):
    ask_once(task, model)
    time.sleep(60)


def gives_a_number(task, model):
    ask_once(task, model)
    return 0.25


def is_hot(task, model):
    ask_once(
        task, model, {"messages": task.messages, "temperature": 0.5, "seed": 1}
    ).raise_for_status()
    return "x"


def ask_once(task, model, body=None):
    headers = {"authorization": f"Bearer {model.key}"}
    body = body or {"messages": task.messages}
    return httpx.post(
        f"{model.openai_url}/chat/completions", json=body, headers=headers, timeout=30
    )


# ------------------------------------------------------------------------------------------------ programs that are scored


def gives_facts(task, model):
    """What only a function of one's own can read."""
    ask_once(task, model)
    ask_once(task, model, {"messages": [*task.messages, {"role": "user", "content": "And?"}]})
    return {"answer": "Zumi", "asked": task.question}


def gives_a_file(task, model):
    ask_once(task, model)
    return threading.Lock()


def judge(attempt):
    known = attempt.returned["asked"] == attempt.task.question
    return {"asked": float(len(attempt.calls)), "success": known}


async def judge_later(attempt):
    return attempt.messages[-1]["role"] == "assistant"


def judge_raises(attempt):
    return attempt.task.call("search", {"query": "Zumi"})


def judge_knows_nothing(attempt):
    return None


if __name__ == "__main__":  # as a command of its own
    import os

    told = json.loads(os.environ["WORKBENCH_TASK"])
    reply = httpx.post(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json={"messages": told["messages"]},
        headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
        timeout=30,
    )
    searched = httpx.post(
        os.environ["WORKBENCH_URL"] + "/tools/search",
        json={"query": "Zumi"},
        headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
        timeout=30,
    )
    print("found:", searched.text)
    print(json.dumps({"answer": reply.json()["choices"][0]["message"]["content"]}))
