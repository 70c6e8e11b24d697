"""The action format: one strict rule, no exception whatever the text, linear time."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.tools.action_format import ANSWER_TAGS, THINK_TAGS, format_action, parse_action
from workbench.tools.formats import Hermes
from workbench.worlds import FrozenLake
from workbench.worlds.frozen_lake import MOVES

VALID = {
    (True, "<think>go</think><answer>Right || Down</answer>"): ("Right", "Down"),
    (True, "\n <think></think>\n\n<answer> up </answer> \n"): ("Up",),
    (True, "<think>a < b || c\nor not</think><answer>LEFT||left</answer>"): ("Left", "Left"),
    (False, "<answer>Left</answer>"): ("Left",),
}
INVALID = {
    (True, ""): "<think> is missing",
    (True, "<answer>Left</answer>"): "<think> is missing",
    (True, "<think>go</think>Left"): "<answer> is missing",
    (True, "<think>go<answer>Left</answer>"): "</think> is missing",
    (True, "<answer>Left</answer><think>go</think>"): "wrong order",
    (True, "<think><answer>Left</think></answer>"): "wrong order",
    (
        True,
        "<think>a</think><think>b</think><answer>Left</answer>",
    ): "<think> stands there more than once",
    (
        True,
        "<think>a</think><answer>Left</answer><answer>Left</answer>",
    ): "<answer> stands there more than once",
    (True, "<think>a</think>so<answer>Left</answer>"): "outside the tags",
    (True, "Sure! <think>a</think><answer>Left</answer>"): "outside the tags",
    (True, "<think>a</think><answer>Left</answer> done"): "outside the tags",
    (True, "<think>a</think><answer>  </answer>"): "empty",
    (True, "<think>a</think><answer>Left || Jump</answer>"): "not on offer",
    (True, "<think>a</think><answer>Left || </answer>"): "not on offer",
    (True, "<think>a</think><answer>Left | Down</answer>"): "not on offer",
    (False, "<think>a</think><answer>Left</answer>"): "outside the tags",
}


@pytest.mark.parametrize(("case", "moves"), VALID.items())
def test_valid_texts(case, moves):
    think, text = case
    parsed = parse_action(text, MOVES, think=think)
    assert (parsed.valid, parsed.moves, parsed.complaint, parsed.quote) == (True, moves, "", "")


@pytest.mark.parametrize(("case", "complaint"), INVALID.items())
def test_invalid_texts_are_refused_as_a_whole_and_say_why(case, complaint):
    think, text = case
    parsed = parse_action(text, MOVES, think=think)
    assert not parsed.valid and parsed.moves == () and complaint in parsed.complaint


def test_the_quote_is_short_printable_and_the_policys_own():
    parsed = parse_action("<answer>Up || \x1b[31m\n" + "x" * 99 + "</answer>", MOVES, think=False)
    assert parsed.quote == " [31m " + "x" * 14 + "..." and parsed.quote.isprintable()


pieces = st.sampled_from(
    [*THINK_TAGS, *ANSWER_TAGS, "||", "Left", "up", "<|im_end|>", " ", "\n", "\ud800", "<think"]
)
messy = st.one_of(
    st.text(), st.lists(st.one_of(pieces, st.text(max_size=3)), max_size=12).map("".join)
)


@given(messy, st.booleans())
def test_never_raises_and_says_either_moves_or_why_not(text, think):
    parsed = parse_action(text, MOVES, think=think)
    assert parsed.valid == bool(parsed.moves) == (not parsed.complaint)
    assert set(parsed.moves) <= set(MOVES) and len(parsed.quote) <= 23
    parsed.quote.encode()  # whatever the policy wrote, the reply is text that can be stored


@given(messy)
def test_an_environment_answers_any_text_and_pays_for_it_by_its_rule(text):
    family = FrozenLake()
    env = family.make()
    env.reset(family.task(1), 0)
    before = env.draw()
    result = env.step(text)
    assert result.reward == sum(result.reward_parts.values())
    if not result.info["valid_format"]:
        assert result.reward == -0.1 and result.reward_parts["format"] == -0.1
        assert (
            env.draw() == before
            and env.moves_used == 0
            and not result.terminated
            and not result.truncated
        )


@given(
    st.lists(st.sampled_from(MOVES), min_size=1, max_size=9),
    st.booleans(),
    st.text(st.characters(exclude_characters="<>"), max_size=20),
)
def test_what_is_written_is_what_is_read(moves, think, thought):
    parsed = parse_action(format_action(moves, think=think, thought=thought), MOVES, think=think)
    assert parsed.moves == tuple(moves) and parsed.thought == (thought if think else "")


HUGE = {
    "openings": "<think>" * 150_000,
    "half tags": "<" * 1_000_000,
    "separators": "<think></think><answer>" + "||" * 500_000 + "</answer>",
    "moves": "<think></think><answer>" + "Left||" * 170_000 + "Left</answer>",
    "thought": "<think>" + "</thin" * 170_000 + "</think><answer>Left</answer>",
    "spaces": " " * 1_000_000
    + "<think></think>"
    + "\n" * 100_000
    + "<answer>"
    + " " * 100_000
    + "Up</answer>",
}


@pytest.mark.parametrize("name", HUGE)
def test_a_megabyte_costs_milliseconds(name):
    started = time.process_time()
    parse_action(HUGE[name], MOVES, think=True)
    assert (
        time.process_time() - started < 1.0
    )  # usually below 0.05; quadratic work would take minutes


OPENED = {
    "It is free.\n</think>\n<answer>Right</answer>": "It is free.",
    "\n\n</think>\n\n<answer>Right</answer>": "",
    "a < b</think>\n<answer>Right</answer>\n": "a < b",
    "two\nlines\n</think><answer> right </answer>": "two\nlines",
}
NOT_OPENED = {
    "It</think><answer>Right</answer>": "is missing|outside",  # between words: a slip, no end of a thought
    "<think>a\n</think>\n</think>\n<answer>Right</answer>": "more than once|outside",
    "a\n</think>\n</think>\n<answer>Right</answer>": "more than once",
    "a\n</think>\nso <answer>Right</answer>": "outside",
    "<answer>Right</answer>\n</think>\n": "wrong order",
    "a\n</think>\n": "<answer> is missing",
}


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize(("text", "thought"), OPENED.items())
def test_a_thought_that_the_prompt_opened_is_read(text, thought, think):
    """The same rule as in turns with tools: the closing tag alone, where the template has opened the thought."""
    parsed = parse_action(text, MOVES, think=think)
    assert (parsed.valid, parsed.moves, parsed.thought) == (True, ("Right",), thought)
    assert Hermes(think=think).parse(text).answer.lower() == "right"


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize(("text", "said"), NOT_OPENED.items())
def test_what_only_looks_like_an_opened_thought_is_refused(text, said, think):
    parsed = parse_action(text, MOVES, think=think)
    assert not parsed.valid and re.search(said, parsed.complaint)
