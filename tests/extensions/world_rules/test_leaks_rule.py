"""R27: the answer stands nowhere before it was earned. What a search brings, what the question says and what the policy
guessed are earned."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from tests.silent_bugs.scripted_tools import scripted
from workbench.basics.findings import Answer
from workbench.extensions.scripted_play.leaks import golds, holds
from workbench.linting import Evidence, all_rules, check
from workbench.values import Message, Observation, StopReason, Task, Text, Trajectory, Turn

RULES = all_rules()

PEOPLE = (
    "Zumilka Vey",
    "Korbin Aster",
    "Mirelle Quant",
    "Oswin Tarr",
    "Delphine Roe",
    "Bastian Kelp",
)


def task_of(number: int, question: str = "Who won the regatta of year {}?", **payload) -> Task:
    return Task(
        f"asked/{number}",
        "asked",
        number,
        {"question": question.format(1900 + number), "answers": [PEOPLE[number]]} | payload,
    )


def a_trajectory(
    task: Task, *turns: tuple[str, str, str], opening: str = "Answer the question."
) -> Trajectory:
    """Turns are (what the policy writes, role of the reply, reply)."""
    first = Observation((Message("user", f"{opening} {task.payload['question']}"),))
    made = tuple(
        Turn(k, text, reply=(Message(role, reply),)) for k, (text, role, reply) in enumerate(turns)
    )
    return Trajectory(task, 0, 0, first, made, (), StopReason.TERMINATED)


def asked(*trajectories: Trajectory, family=None) -> Answer:
    return check(Evidence(tuple((each,) for each in trajectories), family=family), [RULES["R27"]])[
        "R27"
    ]


def others(opening: str = "Answer the question.") -> list[Trajectory]:
    return [
        a_trajectory(
            task_of(number),
            ("I do not know.", "user", "Go on."),
            ("No.", "user", ""),
            opening=opening,
        )
        for number in range(1, len(PEOPLE))
    ]


@lru_cache
def tools() -> Evidence:
    return scripted("append")


def told_of(evidence: Evidence, change) -> Answer:
    """`change(trajectory)` of every trajectory."""
    groups = tuple(tuple(change(t) for t in group) for group in evidence.groups)
    return check(replace(evidence, groups=groups), [RULES["R27"]])["R27"]


# ------------------------------------------------------------------------------------------------ what is in order


@pytest.mark.parametrize(
    "turns",
    [
        [("I do not know.", "user", "That is wrong."), ("Korbin?", "user", "")],
        [
            ("Zumilka Vey?", "user", "You said Zumilka Vey. Are you sure?"),
            ("Yes.", "user", ""),
        ],  # its own guess
        [
            ("I do not know.", "user", "That is wrong."),
            ("No.", "user", "It was Zumilka Vey."),
        ],  # shown to nobody
        [
            ("<tool_call>...", "tool", "The regatta was won by Zumilka Vey."),
            ("Zumilka Vey", "user", ""),
        ],  # a tool found it
    ],
    ids=["nothing", "its own guess", "behind the last turn", "a tool's answer"],
)
def test_what_was_earned_may_be_said(turns):
    answer = asked(a_trajectory(task_of(0), *turns), *others())
    assert answer.status == "passed" and answer.looked, answer.findings


def test_a_question_may_name_its_answer_among_others_and_common_words_are_nobodys_secret():
    choice = task_of(0, "Who won: Zumilka Vey or Korbin Aster?")
    assert not asked(a_trajectory(choice, ("Vey", "user", "")), *others()).findings
    everybody = "Winners were Zumilka Vey, Korbin Aster, Mirelle Quant. Answer."
    assert not asked(
        a_trajectory(task_of(0), ("Vey", "user", ""), opening=everybody), *others(everybody)
    ).findings


def test_rollouts_with_tools_are_clean():
    answer = told_of(tools(), lambda t: t)
    assert answer.status == "passed" and answer.looked > 20, answer.findings


def test_without_a_gold_answer_nothing_is_looked_at():
    free = Task("free/1", "free", 1, {"question": "Say something."})
    assert asked(a_trajectory(free, ("Hello.", "user", ""))).status == "not checked"


# ------------------------------------------------------------------------------------------------ negative controls


@pytest.mark.parametrize(
    "opening", ["For example Zumilka Vey.", "Hint: it ends with Zumilka.", "(ZUMILKA VEY)"]
)
def test_negative_control_the_prompt_holds_a_part_of_the_answer(opening):
    (found,) = asked(
        a_trajectory(task_of(0), ("Vey", "user", ""), opening=opening), *others()
    ).errors
    assert "the first prompt holds" in found.what and found.place.trajectory == "asked/0/0"


@pytest.mark.parametrize(
    "role, reply",
    [
        ("user", "Wrong; it is Zumilka Vey."),
        ("user", "Not the one from the Zumilka."),
        ("tool", "Error: expected Zumilka Vey"),
    ],
)
def test_negative_control_a_reply_tells_it(role, reply):
    (found,) = asked(
        a_trajectory(task_of(0), ("Korbin", role, reply), ("Vey", "user", "")), *others()
    ).errors
    assert f"the {role} message after turn 0 holds" in found.what and found.place.turn == 0


def test_negative_control_a_schema_lists_it():
    first = a_trajectory(task_of(0), ("Vey", "user", ""))
    schema = {"name": "answer", "parameters": {"who": {"enum": ["Zumilka Vey"]}}}
    first = replace(first, first_observation=replace(first.first_observation, tools=(schema,)))
    assert "the first prompt holds" in asked(first, *others()).errors[0].what


def test_negative_control_every_question_ends_with_its_answer():
    made = [
        a_trajectory(
            task_of(number, "Who won in year {}? " + f"({PEOPLE[number]})"), ("No.", "user", "")
        )
        for number in range(len(PEOPLE))
    ]
    assert "each time between '? (' and ')'" in asked(*made).errors[0].what


def test_one_of_two_that_every_question_names_is_no_leak():
    """Three of four stand in the first place: that is chance."""
    pairs = [
        (PEOPLE[n], f"Nobody{n}") if n % 4 else (f"Nobody{n}", PEOPLE[n])
        for n in range(len(PEOPLE))
    ]
    made = [
        a_trajectory(task_of(number, f"Who is older, {one} or {other}?"), ("No.", "user", ""))
        for number, (one, other) in enumerate(pairs)
    ]
    assert not asked(*made).findings


def test_negative_control_a_search_adds_what_no_document_says():
    def change(t: Trajectory) -> Trajectory:
        gold = t.task.payload["answers"][0]
        turns = [
            replace(
                turn,
                reply=tuple(
                    replace(message, content=(*message.content, Text(f"\nSee also: {gold}")))
                    if message.role == "tool"
                    else message
                    for message in turn.reply
                ),
            )
            for turn in t.turns
        ]
        return replace(t, turns=tuple(turns))

    found = told_of(tools(), change).errors
    assert found and "which no document that it brought says" in found[0].what


def test_gold_answers_are_found_by_their_names_and_as_whole_words():
    task = Task(
        "x",
        "x",
        0,
        {
            "gold": {"value": 4711, "also": "no"},
            "Answers": ["Zumi", "Zumi"],
            "note": "Kolo",
            "label": True,
        },
    )
    assert golds(task) == ("4711", "Zumi")
    assert (
        holds("It is ZUMI.", "Zumi")
        and not holds("Zumiland", "Zumi")
        and not holds("14711", "4711")
    )


# ------------------------------------------------------------------------------------------------ a name, or an answer


def called(number: int, said: str, *, success: bool = True, **payload) -> Trajectory:
    """A task whose prompt says the word that its payload has under `label`."""
    label = f"item{number}x"
    task = Task(f"called/{number}", "called", number, {"label": label} | payload)
    first = Observation((Message("user", f"Look at {label}. What is it?"),))
    turns = (Turn(0, said.format(label=label)),)
    made = Trajectory(task, 0, 0, first, turns, (), StopReason.TERMINATED)
    return replace(made, success=success)


def test_a_label_that_solves_is_a_gold_answer_and_one_that_does_not_is_a_name():
    said = asked(*(called(number, "It is {label}.") for number in range(6)))
    assert said.errors and "of the gold answer" in said.errors[0].what
    assert not asked(*(called(number, "A chair.") for number in range(6))).errors
    tried = (called(number, "A chair.", success=False) for number in range(6))
    assert asked(*tried).errors, "nobody solved it: the name is believed"


def test_a_label_beside_a_gold_answer_is_a_name():
    named = [called(number, "No.", success=False, answer=f"word{number}") for number in range(6)]
    assert not asked(*named).errors
    assert golds(named[0].task) == ("word0",)
