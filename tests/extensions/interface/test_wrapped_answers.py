"""Wrappings that instruct models of any size put around an answer, and the other answers that must not come of them."""

from __future__ import annotations

import pytest

from workbench.extensions.interface import answers
from workbench.extensions.interface.turns import bare_program
from workbench.tools.action_format import parse_answer

MOVES = ("Left", "Down", "Right", "Up")
WRAPPINGS = {
    "bold": "**{}**",
    "a code block": "```\n{}\n```",
    "a code block of a language": "```text\n{}\n```",
    "a prefix": "Action: {}",
    "a bold prefix": "**Action:** {}",
    "prefix and bold": "Final Answer: **{}**",
    "bold within the tags": "<answer>**{}**</answer>",
    "a heading": "### Answer\n{}",
    "a quotation": "`{}`",
}


def answer(reading):
    """What the strict format has of it; "" where it was left as it is."""
    parsed = parse_answer(reading.text, think=False)
    return parsed.moves[0] if reading.forgiven and parsed.valid else ""


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapping_is_no_part_of_an_answer(wrapping):
    text = WRAPPINGS[wrapping].format
    assert answer(answers.read_moves(text("Right"), MOVES, think=False)) == "Right"
    assert answer(answers.read_expression(text("(1 + 2) * 3"), think=False)) == "(1 + 2) * 3"
    assert answer(answers.read_command(text("click[Buy Now]"), think=False)) == "click[Buy Now]"
    # Words that are strictly right stay as they are, and no question asks for an action in free words.
    if "<answer>" not in WRAPPINGS[wrapping] and "Action" not in WRAPPINGS[wrapping]:
        assert answer(answers.read_free(text("Paris"), think=False)) == "Paris"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Thought: going down leads to a hole.\nAction: Right", "Right"),
        ("Reasoning: down is a hole.\n\n**Final Answer:** Right || Right", "Right || Right"),
        (r"$\boxed{\text{Right}}$", "Right"),
        ("Right ✅", "Right"),
    ],
)
def test_moves_behind_reasons_and_in_boxes(text, meant):
    assert answer(answers.read_moves(text, MOVES, think=False)) == meant


@pytest.mark.parametrize(
    "text", ["Action: Right\nAction: Left", "Action: Right or Left", "Answer: not Right"]
)
def test_last_words_that_disagree_are_left_as_they_are(text):
    assert answer(answers.read_moves(text, MOVES, think=False)) == ""


@pytest.mark.parametrize(
    "text",
    [
        r"$(1 + 2) \times 3 = 9$",
        r"\[ (1 + 2) \cdot 3 = 9 \]",
        r"\boxed{(1 + 2) \times 3}",
        "(1 + 2) x 3 = 9",
        "(1 + 2) ∗ 3",
        "**Expression:** (1 + 2) * 3",
    ],
)
def test_signs_of_other_alphabets_are_the_signs_that_they_are(text):
    assert answer(answers.read_expression(text, think=False)) == "(1 + 2) * 3"


@pytest.mark.parametrize(
    "text",
    [
        "2**3 + 1",
        "the value of (1 + 2) ^ 2",
        r"(1 + 2) \bmod 3",
        "x + (1 + 2) * 3",
        "(1 + 2)y",
        "7 // 2",
        "(1 + 2)_3",
    ],
)
def test_half_an_expression_is_none(text):
    """Before, "(1 + 2)" was read of these, which nobody wrote."""
    assert answer(answers.read_expression(text, think=False)) == ""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('search["blue mug"]', "search[blue mug]"),
        ("Action: [Buy Now]", "click[Buy Now]"),
        ("**Action:** `search[blue mug]`", "search[blue mug]"),
    ],
)
def test_commands_in_quotes(text, meant):
    assert answer(answers.read_command(text, think=False)) == meant


@pytest.mark.parametrize(
    "text", [r"\boxed{\text{Paris}}", '{"answer": "Paris"}', "### Final Answer\n**Paris**"]
)
def test_free_answers_in_boxes_and_objects(text):
    assert answer(answers.read_free(text, think=False)) == "Paris"


PROGRAM = "def solve(x):\n    return x + 1"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (PROGRAM, PROGRAM),
        (f"# It adds one.\n{PROGRAM}", f"# It adds one.\n{PROGRAM}"),
        (f"Here is the function:\n\n{PROGRAM}\n\nThis function adds one to x.", PROGRAM),
        (f"{PROGRAM}\n```\nIn this example, the number grows.", PROGRAM),
        ("import math\n\n" + PROGRAM, "import math\n\n" + PROGRAM),
        (PROGRAM + "\n\nprint(solve(", PROGRAM),
    ],
)
def test_a_program_without_a_code_block(text, program):
    assert bare_program(text) == [program]


def test_a_text_without_a_program_has_none_and_one_that_was_cut_goes_to_the_end():
    assert bare_program("I would define a function that adds one.") == []
    assert bare_program("class A:\n    x = (") == ["class A:\n    x = ("]
