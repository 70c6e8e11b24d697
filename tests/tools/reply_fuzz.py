"""Replies that a policy could write, most of them bad: whole calls and answers, damaged in the ways that parsers trip
over. All of it is a function of the seed."""

from __future__ import annotations

import json

import numpy as np

from workbench.values.seeds import rng_at

CONTROL = (
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<tool_response>",
    "</tool_response>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<bos>",
)
VALUES = (
    "null",
    "[]",
    "[1, 2]",
    "true",
    "3",
    "-0",
    "NaN",
    "Infinity",
    "1e999",
    "-1e999",
    '"text"',
    '"\\ud800"',
    '"\\u0000"',
    "{}",
    '{"a": 1, "a": 2}',
    "9" * 5_000,
    "[" * 3_000,
    "{" * 40,
    '{"a":' * 3_000,
    '"' + "x" * 40_000 + '"',
    '"\t"',
    "{'a': 1}",
    json.dumps(json.dumps({"name": "search", "arguments": {"query": "x"}})),
    "[" * 17 + "]" * 17,
    '"</tool_call>"',
)
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
)
NAMES = ("search", "calculator", "nothing", "__class__", "", "a b", "<|im_end|>")


def reply(number: int, seed: str = "replies") -> str:
    rng = rng_at("fuzz", seed, number)
    text = "".join(_part(rng) for _ in range(int(rng.integers(1, 6))))
    if rng.random() < 0.3:
        text = _damaged(text, rng)
    if rng.random() < 0.005:
        text = text * int(rng.choice([20, 2_000]))
    return text


def _one(rng: np.random.Generator, choices):
    return choices[int(rng.integers(len(choices)))]


def _part(rng: np.random.Generator) -> str:
    kind = int(rng.integers(10))
    if kind < 3:
        arguments = (
            {"query": _text(rng)} if rng.random() < 0.7 else {_text(rng)[:5]: int(rng.integers(9))}
        )
        gap = _one(rng, ["", "\n", " "])
        return f"<tool_call>{gap}{json.dumps({'name': _one(rng, NAMES), 'arguments': arguments})}{gap}</tool_call>"
    if kind == 3:
        name = _one(
            rng, ['"name": "search"', '"name": null', '"nam": 1', '"name": "search", "name": "x"']
        )
        return f'<tool_call>{{{name}, "arguments": {_one(rng, VALUES)}}}</tool_call>'
    if kind == 4:
        return f"<tool_call>{_one(rng, VALUES)}</tool_call>"
    if kind == 5:
        return f"<search>{_text(rng)}</search>"
    if kind == 6:
        return f"<answer>{_text(rng)}</answer>"
    if kind == 7:
        return f"<think>{_text(rng)}</think>"
    return _one(rng, [*TAGS, *CONTROL, "\n", _text(rng)])


def _text(rng: np.random.Generator) -> str:
    words = (
        "Paris",
        "the capital",
        "1 + 1",
        "é",
        "\U0001f600",
        "\0",
        "\x1b[0m",
        "\u202e",
        '"',
        "\\",
        "{",
        "}",
        "\n",
        " ",
        "\ufffd",
        "\ud800",
        *CONTROL,
        *TAGS,
    )
    return "".join(_one(rng, words) for _ in range(int(rng.integers(0, 4))))


def _damaged(text: str, rng: np.random.Generator) -> str:
    """Cut off, a piece left out, a piece twice, a character changed."""
    a, b = sorted(int(n) for n in rng.integers(0, len(text) + 1, size=2))
    return _one(
        rng, [text[:a], text[:a] + text[b:], text[:b] + text[a:], text[:a] + "x" + text[a + 1 :]]
    )
