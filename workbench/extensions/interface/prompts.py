"""What an environment asks for, said in full: the rules, what a good answer is, how an answer is written, an example.

A prompt is a list of texts: ours are trusted; names and words that tools, data or other packages brought are not.
Written for instruct models of any size: plain sentences, the format once in words and once as an example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.tools.action_format import SEPARATOR, format_action
from workbench.tools.base import Tool
from workbench.tools.formats import CallFormat
from workbench.values import Text
from workbench.values.errors import ToolError

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BY_NAME = {"code": "print(1 + 1)", "command": "ls", "expression": "1 + 1"}
_EXAMPLES: Mapping[str, Any] = {
    "string": "your words",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
}


def _trusted(text: str) -> list[Text]:
    return [Text(text, trusted=True)]


def _format(example: str, think: bool, what: str) -> str:
    """How an answer is written, in words and as an example."""
    before = ""
    if think:
        before = "First think briefly between <think> and </think>. Then write "
    else:
        before = "Write "
    return (
        f"{before}{what} between <answer> and </answer>, and nothing after it.\n"
        f"Example of the format (not of a good answer):\n{example}\n\n"
    )


# ------------------------------------------------------------------------------------------------ games


def bandit(family: Any, env: Any) -> list[Text]:
    tries = (
        "You have one answer." if family.max_turns == 1 else f"You have {family.max_turns} answers."
    )
    example = format_action(
        ["Blue"], think=family.think, thought="Blue sounds as if it pays more on average."
    )
    return _trusted(
        "You are in front of a slot machine with two arms. Each arm has a name, and it pays in the manner of its name: "
        "one arm pays a small amount every time, the other pays much more but only sometimes. Pull the arm that pays more "
        f"on average. {tries}\n\n"
        + _format(
            example, family.think, "the name of one of the two arms, exactly as it is listed below,"
        ).replace(
            "Example of the format (not of a good answer):", "Example, if an arm were called Blue:"
        )
    )


def _moves(family: Any) -> str:
    """How moves are written, and the limits that are enforced."""
    several = ""
    if family.moves_per_answer > 1:
        several = (
            f" One answer may hold up to {family.moves_per_answer} moves, separated by {SEPARATOR}; they are made in "
            "that order."
        )
    return (
        f"The possible moves are {', '.join(family.moves)}.{several} You have {family.max_moves} moves and "
        f"{family.max_turns} answers in all. After each answer you are shown the new state.\n\n"
    )


def _moves_format(family: Any, example: Sequence[str], thought: str) -> str:
    what = "your move" if family.moves_per_answer == 1 else "your move or moves"
    text = format_action(example[: family.moves_per_answer], think=family.think, thought=thought)
    return _format(text, family.think, what)


def frozen_lake(family: Any, env: Any) -> list[Text]:
    player, ice, hole, goal, fallen, won = family.symbols
    slip = ""
    if family.slip:
        slip = f"The ice is slippery: with probability {family.slip:.3g} a move goes to one of the two sides instead.\n"
    return _trusted(
        f"You stand on a frozen lake, drawn as a grid of {family.size} rows and {family.size} columns.\n"
        f"{player} is you, {ice} is safe ice, {hole} is a hole, {goal} is the goal, {fallen} is you in a hole, {won} is "
        "you on the goal.\n"
        f"Reach {goal} without stepping into a hole. Up and Down change the row, Left and Right the column. A move off "
        f"the grid changes nothing. Falling into a hole ends the game.\n{slip}"
        + _moves(family)
        + _moves_format(
            family, ("Right", "Down"), "The goal is to the right and below; both cells are ice."
        )
    )


def sokoban(family: Any, env: Any) -> list[Text]:
    wall, floor, target, done, box, player, standing = family.symbols
    wanted = "the box onto the target" if family.boxes == 1 else "every box onto a target"
    drawn = (
        f"In the drawing {wall} is a wall, {floor} is floor, {target} is a target, {box} is a box, {done} is a box on a "
        f"target, {player} is you and {standing} is you on a target.\n"
    )
    in_words = "Places are given as row and column, counted from 1 at the top left; the outer ring is wall.\n"
    shown = {"grid": drawn, "coordinates": in_words, "both": drawn + in_words}[family.observation]
    return _trusted(
        f"You are in a warehouse. Push {wanted}.\n{shown}"
        "You push a box by walking into it: it moves one cell in the same direction, if that cell is free. You cannot "
        "pull a box, and not push two at once. Up makes the row smaller, Down larger; Left makes the column smaller, "
        "Right larger. A blocked move changes nothing.\n"
        + _moves(family)
        + _moves_format(family, ("Up", "Right"), "I walk around the box and push it to the right.")
    )


def countdown(family: Any, env: Any) -> list[Text]:
    tries = "one answer" if family.max_turns == 1 else f"{family.max_turns} answers"
    signs = ", ".join(family.operations)
    example = format_action(
        ["(1 + 2) - 3"], think=family.think, thought="1 + 2 is 3, and 3 - 3 is 0."
    )
    return _trusted(
        "Combine the given numbers into one arithmetic expression whose value is the target. Use each given number "
        f"exactly once and no other number. You may use {signs} and parentheses. You have {tries}.\n\n"
        + _format(example, family.think, "the expression alone, without an equals sign,").replace(
            "Example of the format (not of a good answer):",
            "Example, if the numbers were 1, 2, 3 and the target 0:",
        )
    )


def shop(family: Any, env: Any) -> list[Text]:
    example = format_action(
        ["search[blue mug]"], think=family.think, thought="I look for the product first."
    )
    return _trusted(
        "You are in an online shop. Buy the product that the instruction below asks for, with all its attributes and "
        "options, at the price it names or less.\n"
        "There are two kinds of action: search[words] finds products by words; click[name] clicks something that is shown "
        "in square brackets on the page, such as a product's number, an option or a button. Open a product, click each "
        "option that is asked for, then click[Buy Now]. Buying ends the task.\n"
        f"Write one action in each answer. You have {family.max_turns} answers.\n\n"
        + _format(example, family.think, "one action")
    )


# ------------------------------------------------------------------------------------------------ other packages


def reasoning_gym(family: Any, env: Any) -> list[Text]:
    example = format_action(["42"], think=family.think, thought="I work it out step by step.")
    return _trusted(
        "\nYou have one answer. " + _format(example, family.think, "the final answer alone")
    )


def textarena(family: Any, env: Any) -> list[Text]:
    example = format_action(["[move]"], think=family.think, thought="I choose a move.")
    return _trusted(
        f"You play a game. Its rules are below. You have {family.max_turns} answers, one action each. Write your action in "
        "the way that the rules say, usually in square brackets.\n\n"
        + _format(example, family.think, "your action")
    )


def gymnasium(family: Any, env: Any) -> list[Text]:
    """The names of the environment and of its actions are another package's."""
    before, after = _format("\0", family.think, "the name of one action").split("\0")
    example = format_action([env.names[0]], think=family.think, thought="I choose an action.")
    names = ", ".join(env.names)
    return [
        *_trusted(
            "You play a game. You are shown its state and choose one action at a time. The game is: "
        ),
        Text(f"{family.id}\n"),
        *_trusted("The possible actions are: "),
        Text(names),
        *_trusted(f"\nOne action an answer, {family.max_turns} answers.\n\n{before}"),
        Text(example),
        *_trusted(after),
    ]


# ------------------------------------------------------------------------------------------------ tools


def tools(family: Any, env: Any) -> list[Text]:
    """For environments with tools: what may be called and how, an example of a call, and of an answer."""
    texts = _trusted(f"{_task_words(family, env)}\n")
    if env.tools:
        texts += _trusted("You can call these tools:\n")
        for tool in env.tools:
            texts.append(Text(f"- {tool.name}: {tool.description} Arguments: {_arguments(tool)}\n"))
        texts += [
            *_trusted("To call a tool, write exactly this:\n"),
            *example_call(env.format, env.tools[0]),
        ]
        texts += _trusted(
            "\nThen wait: you are shown the result and can go on. Do not write a result yourself.\n"
        )
    answer = env.format.write_answer(_answer_words(family), "why" if env.calls.think else "")
    thought = (
        "Begin every turn with a short thought between <think> and </think>. "
        if env.calls.think
        else ""
    )
    when = (
        "When you know the answer, write it like this"
        if env.tools
        else "Write your answer like this"
    )
    return texts + _trusted(
        f"{thought}{when}, and nothing else:\n{answer}\nYou have {env.max_turns} "
        f"turn{'s' * (env.max_turns > 1)}{', the one with the answer included' * bool(env.tools)}.\n\n"
    )


def _task_words(family: Any, env: Any) -> str:
    if getattr(family, "name", "") == "code":
        return (
            "Write a program in Python: the function that is asked for. It is judged by tests that you do not see. Answer "
            "with the whole program."
        )
    if not env.tools:
        return "Answer the question below in as few words as possible."
    return (
        "Answer the question below. Look up what you need with the tools; often one result names what to look up next. "
        "Answer in as few words as possible."
    )


def _answer_words(family: Any) -> str:
    return "def solve(x): ..." if getattr(family, "name", "") == "code" else "the answer"


def _arguments(tool: Tool) -> str:
    properties = tool.parameters.get("properties", {})
    names = [
        f"{name} ({entry.get('type', 'any') if isinstance(entry, Mapping) else 'any'})"
        for name, entry in properties.items()
    ]
    return ", ".join(names) or "none"


def example_call(form: CallFormat, tool: Tool) -> list[Text]:
    """An example of a call. Its tags are ours, so that they may be tokens; unless the tool's own words are more than plain
    names."""
    properties = tool.parameters.get("properties", {})
    needed = tool.parameters.get("required", list(properties)[:1])
    arguments = {}
    for name in needed:
        entry = properties.get(name, {})
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        by_kind = _EXAMPLES.get(kind if isinstance(kind, str) else "", "your words")
        arguments[name] = _BY_NAME.get(name, by_kind)
    plain = all(_PLAIN_NAME.fullmatch(str(name)) for name in arguments)
    try:
        text = form.write_call(tool.name, arguments, "why" if form.think else "")
    except ToolError:  # a format that cannot write this one
        text = json.dumps({"name": tool.name, "arguments": arguments})
    return [Text(text, trusted=plain)]


# ------------------------------------------------------------------------------------------------ the question at the end

# Small models answer what stands last: so what is shown ends with what to do now, and how the answer is written.


def _now(question: str, think: bool, how: str) -> list[Text]:
    return _trusted(f"\n{question} {_answer(think)}{how}\n")


def _answer(think: bool) -> str:
    return "After one short thought between <think> and </think>, answer " if think else "Answer "


def ask_arm(family: Any, env: Any) -> list[Text]:
    """The names are the task's."""
    first, second = env.arms
    return [
        *_trusted(f"\nWhich arm do you pull? {_answer(family.think)}<answer>"),
        Text(first),
        *_trusted("</answer> or <answer>"),
        Text(second),
        *_trusted("</answer>.\n"),
    ]


def ask_moves(family: Any, env: Any) -> list[Text]:
    choices = ", ".join(f"<answer>{move}</answer>" for move in family.moves)
    several = ""
    if family.moves_per_answer > 1:
        several = f", or several moves, such as <answer>{f' {SEPARATOR} '.join(family.moves[:2])}</answer>"
    return _now("Which move do you make?", family.think, f"with one of {choices}{several}.")


def ask_expression(family: Any, env: Any) -> list[Text]:
    return _now(
        "Which expression has the target as its value?",
        family.think,
        "with <answer>your expression</answer>.",
    )


def ask_command(family: Any, env: Any) -> list[Text]:
    how = "with <answer>search[words]</answer> or <answer>click[name]</answer>."
    return _now("What do you do?", family.think, how)


def ask_action(family: Any, env: Any) -> list[Text]:
    return _now("What do you do?", family.think, "with <answer>your action</answer>.")


def ask_for_turn(family: Any, env: Any) -> list[Text]:
    if getattr(family, "name", "") == "code":
        return _trusted(
            "\nWrite the function now, between <answer> and </answer>, or call the tool first.\n"
        )
    first = "Call a tool first, or answer" if env.tools else "Answer"
    return _trusted(f"\n{first} in a few words with {env.format.write_answer('the answer', '')}.\n")


def ask_nothing(family: Any, env: Any) -> list[Text]:
    return []
