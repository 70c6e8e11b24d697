"""Lenient readers: what has one meaning is read, what has two is not, and nothing that is strictly right is touched."""

from __future__ import annotations

import time

import numpy as np
import pytest

from workbench.extensions.interface import answers
from workbench.extensions.interface.reading import MOST_TEXT, NO_TAGS, TWO_ANSWERS
from workbench.tools.action_format import format_action, parse_action

MOVES = ("Left", "Down", "Right", "Up")
ARMS = ("Phoenix", "Dragon")


def moves(text: str, names=MOVES, think: bool = True):
    reading = answers.read_moves(text, names, think=think)
    return parse_action(reading.text, names, think=think).moves, reading


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Right, Down", ("Right", "Down")),
        ("Move Right", ("Right",)),
        ("I choose Right.", ("Right",)),
        ("**Right**", ("Right",)),
        ('{"answer": "Right"}', ("Right",)),
        ("1. Right\n2. Down", ("Right", "Down")),
        ("Answer: Down || Down", ("Down", "Down")),
        ("The best move is to go right.", ("Right",)),
        ("The player should move to the right.", ("Right",)),
        ("I go right because left is a hole.", ("Right",)),
        ("If I go right I fall. So I go down.", ("Down",)),
        ("Don't go left. Go up.", ("Up",)),
        ("The right answer is Left", ("Left",)),
        ("<answer>Right, Down</answer>", ("Right", "Down")),
        ("Well: <think>x</think><answer>Right</answer> done", ("Right",)),
        ("<think>hm <answer>Right", ("Right",)),
        ("<answer>Right</answer><answer>right</answer>", ("Right",)),
    ],
)
def test_moves_in_other_words_are_read(text, meant):
    read, reading = moves(text)
    assert read == meant
    assert reading.forgiven and not reading.doubt
    assert not parse_action(text, MOVES, think=True).valid, "the strict reader refuses it"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plan",
        "Right or Down",
        "I could go Right",
        "I will not go Right",
        "Is it Right?",
        "Left, Down, Right, Up",
        "Moves left: 8",
        "P _ _ O\n_ _ _ _",
        "<answer>name</answer>",
        "<answer>Right</answer><answer>Down</answer>",
        "Move Right. No: move Down to the goal, or move Left.",
        "<think>Right",
        "Go right now, and left is better",
    ],
)
def test_what_has_no_one_meaning_is_left_as_it_is(text):
    read, reading = moves(text)
    assert read == ()
    assert reading.text == text and reading.forgiven == ()


def test_two_answers_are_named():
    assert moves("<answer>Right</answer><answer>Down</answer>")[1].doubt == TWO_ANSWERS
    assert moves("Move Right! Surely I then step Down.")[1].doubt == TWO_ANSWERS


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Phoenix", "Phoenix"),
        ("I would pull the Dragon arm since Phoenix is safe", "Dragon"),
        ("The name Phoenix sounds better to a bird lover.", "Phoenix"),
        ("The Dragon pays more than the Phoenix.", ""),
        ("Avoid the Phoenix.", ""),
    ],
)
def test_arms(text, meant):
    assert moves(text, ARMS, False)[0] == ((meant,) if meant else ())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("The answer is (25 - 3) * 2 = 44.", "(25 - 3) * 2"),
        ("<answer>(25 - 3) * 2 = 44</answer>", "(25 - 3) * 2"),
        ("3 × 4 + 2", "3 * 4 + 2"),
        ("3+4\n3 + 4", "3 + 4"),
        ("3+4\n5+6", ""),
        ("46", ""),
        ("1" * 5000 + "+" * 5000, ""),
    ],
)
def test_expressions(text, meant):
    reading = answers.read_expression(text, think=False)
    assert reading.text == (format_action([meant], think=False) if meant else text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("I will search[coffee mug].", "search[coffee mug]"),
        ("Search[mug]", "search[mug]"),
        ("[Buy Now]", "click[Buy Now]"),
        ("click[Buy Now] and click[B01]", ""),
        ("Buy the mug", ""),
    ],
)
def test_commands(text, meant):
    reading = answers.read_command(text, think=False)
    assert reading.text == (format_action([meant], think=False) if meant else text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("The answer is 7.", "7"),
        ("3 + 4 = 7", "7"),
        ("so \\boxed{12}", "12"),
        ("7", "7"),
        ("The answer is 7. The final answer: 8", ""),
        ("What is 3 + 4?", ""),
        ("A sentence that goes on and on without an end", ""),
    ],
)
def test_free_answers(text, meant):
    reading = answers.read_free(text, think=False)
    assert reading.text == (format_action([meant], think=False) if meant else text)


# ------------------------------------------------------------------------------------------------ laws

PIECES = (
    *"<think> </think> <answer> </answer> <answer || Right Left phoenix not because answer is: [4] search[ click[x] ] { } "
    '"name" = + 12 ( ) . , ? ```json \n \x00 é \ud83d I choose go or \\boxed{1} 🙂 n\'t 1. 3+4'.split(
        " "
    ),
    " ",
)
READERS = {
    "moves": lambda text: answers.read_moves(text, MOVES, think=True),
    "expression": lambda text: answers.read_expression(text, think=True),
    "command": lambda text: answers.read_command(text, think=True),
    "bracketed": lambda text: answers.read_bracketed(text, think=True),
    "free": lambda text: answers.read_free(text, think=True),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_are_total_and_read_their_own_reading(name):
    """Whatever the text: nothing is raised, and what was read is read as it is the second time."""
    read = READERS[name]
    rng = np.random.default_rng(7)
    forgiven = 0
    for _ in range(400):
        text = "".join(rng.choice(PIECES, size=rng.integers(1, 12)))
        reading = read(text)
        forgiven += bool(reading.forgiven)
        again = read(reading.text)
        assert again.text == reading.text, text
        if reading.text != text:
            assert reading.forgiven, text
            assert again.forgiven == (), text
    assert forgiven, "the control: some of them were forgiven"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "piece", ["<think>", "<answer>", "answer is ", "go right ", "((", "[[", "=", "1+"]
)
def test_hostile_texts_take_bounded_time(name, piece):
    text = piece * (MOST_TEXT // len(piece))
    began = time.perf_counter()
    READERS[name](text)
    assert time.perf_counter() - began < 2


def test_what_is_strictly_right_is_not_touched():
    for text in (
        "<think>a</think><answer>Right||down</answer>",
        " <think></think>\n<answer>Up</answer>\n",
    ):
        reading = moves(text)[1]
        assert reading.text is text and reading.forgiven == ()
    assert moves("Up")[1].forgiven[-1] == NO_TAGS  # the control
