"""Programs that send fields of a request, and keep what they were answered. Named by the tests, imported by runs."""

from __future__ import annotations

from typing import Any

import httpx

answers: list[dict[str, Any]] = []  # in the order of calls; a test empties it first


def ask(model: Any, messages: list[Any], **fields: Any) -> dict[str, Any]:
    """One chat completion, whole; it is kept."""
    reply = post(model, messages, **fields)
    answers.append(reply.json())
    reply.raise_for_status()
    return reply.json()


def post(model: Any, messages: list[Any], **fields: Any) -> httpx.Response:
    body = {"model": model.name, "messages": messages, **fields}
    headers = {"authorization": f"Bearer {model.key}"}
    return httpx.post(
        f"{model.openai_url}/chat/completions", json=body, headers=headers, timeout=30
    )


def stops_at_observation(task: Any, model: Any) -> str:
    """As programs do that let the model write a transcript: the environment's part must not be the model's."""
    messages = list(task.messages)
    first = ask(model, messages, stop=["Observation:", "Human:"])["choices"][0]["message"]
    messages += [first, {"role": "user", "content": "Observation: it rains."}]
    ask(model, messages, stop="Observation:")
    return "x"


def asks_for_three(task: Any, model: Any) -> str:
    """Goes on with the second of three answers."""
    messages = list(task.messages)
    choices = ask(model, messages, n=3, tools=task.tools)["choices"]
    messages += [choices[1]["message"], {"role": "user", "content": "Go on."}]
    ask(model, messages, tools=task.tools)
    return "x"


def asks_for_logprobs(task: Any, model: Any) -> str:
    ask(model, list(task.messages), logprobs=True, tools=task.tools)
    return "x"


def wants_no_call(task: Any, model: Any) -> str:
    ask(model, list(task.messages), tools=task.tools, tool_choice="none")
    return "x"


def asks_two_at_once(task: Any, model: Any) -> str:
    """Nothing is kept: the answers may come after the test that asked."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        prompts = [[{"role": "user", "content": f"Helper {number}"}] for number in range(2)]
        list(pool.map(lambda prompt: post(model, prompt), prompts))
    return "x"


def asks_in_every_way(task: Any, model: Any) -> str:
    """Three answers with their logprobs, then one that ends with a letter that comes soon."""
    messages = list(task.messages)
    first = ask(model, messages, n=3, logprobs=True, max_tokens=12)["choices"][0]["message"]
    messages += [first, {"role": "user", "content": "Go on."}]
    ask(model, messages, stop="e", max_tokens=24)
    return "x"
