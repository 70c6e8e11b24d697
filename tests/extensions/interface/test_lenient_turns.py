"""Turns with tools, read leniently: calls and answers in prose, in code blocks, half tagged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from workbench.extensions.interface import turns
from workbench.tools.formats import Hermes, format_for
from workbench.values import ToolCall
from workbench.worlds.world_qa import WorldQA

TOOLS = WorldQA().make().tools
CALL = '{"name": "search", "arguments": {"query": "Zumi"}}'
SCHEMA = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find documents.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
)
FORMATS = {"hermes": Hermes(), "think": Hermes(think=True), "tags": format_for("tags", TOOLS)}


def read(text: str, form: str = "hermes", **settings):
    reading = turns.read_turn(text, FORMATS[form], TOOLS, **settings)
    return FORMATS[form].parse(reading.text), reading


CALLS = [
    f"I will search.\n<tool_call>{CALL}</tool_call>",
    f"<tool_call>{CALL}",
    f"```json\n{CALL}\n```",
    f"Sure:\n{CALL}",
    CALL.replace("arguments", "parameters"),
    f"<tool_call>{CALL.replace('arguments', 'parameters')}</tool_call>",
    '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"Zumi\\"}"}</tool_call>',
    '<tool_call>{"name": "search", "arguments": "Zumi"}</tool_call>',
    '{"type": "function", "function": ' + CALL + "}",
    f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>",
]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("text", CALLS)
def test_a_call_in_other_words_is_made(text, form):
    parsed, reading = read(text, form)
    assert parsed.valid
    assert parsed.calls == (ToolCall("search", {"query": "Zumi"}),)
    assert reading.forgiven
    assert not FORMATS[form].parse(text).valid, "the strict reader refuses it"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is Bedu.", "Bedu"),
        ("Bedu", "Bedu"),
        ("<answer>Bedu", "Bedu"),
        ("Well: <answer>Bedu</answer>", "Bedu"),
        ("<answer>Bedu</answer><answer>Bedu</answer>", "Bedu"),
    ],
)
def test_an_answer_in_other_words_is_taken(text, answer):
    parsed, reading = read(text)
    assert (parsed.valid, parsed.answer) == (True, answer)
    assert reading.forgiven


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"<tool_call>{CALL}</tool_call><answer>Bedu</answer>",
        f"{CALL} The answer is <answer>Bedu</answer>",
        "<answer>A</answer><answer>B</answer>",
        "I need to search for Zumi.",
        "I do not know where Zumi lives but I think it is far",
        "<tool_call>{bad</tool_call> " + CALL,
        '{"name": "find", "arguments": {}}',
        SCHEMA,
        "<tool_call>" + SCHEMA + "</tool_call>",
        f"<think>{CALL}",
    ],
)
def test_what_has_no_one_meaning_is_left_as_it_is(text):
    parsed, reading = read(text)
    assert reading.text == text and reading.forgiven == ()
    assert not parsed.valid


def test_a_program_may_stand_in_a_code_block():
    block = "Here it is:\n```python\ndef solve(x):\n    return x\n```\nDone."
    assert read(block, programs=True)[0].answer == "def solve(x):\n    return x"
    assert not read(block)[0].valid  # the control: not where answers are words
    assert not read(block + block.replace("return x", "return 1"), programs=True)[0].valid


def test_the_reader_is_total():
    pieces = [
        *CALLS,
        "<tool_call>",
        "</tool_call>",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "{",
        "}",
        "```",
        "\n",
        '"',
        "a",
        "\ud83d",
        "[" * 40,
    ]
    rng = np.random.default_rng(3)
    read_ones = 0
    for _ in range(400):
        text = "".join(rng.choice(pieces, size=rng.integers(1, 6)))
        parsed, reading = read(text)
        read_ones += bool(reading.forgiven)
        assert parsed.valid or reading.text == text
    assert read_ones > 20
