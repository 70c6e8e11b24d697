"""R28: each call is what the policy wrote, and is answered by its own result. Rollouts by a script are changed in one
place, as a broken environment would write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from tests.silent_bugs.scripted_tools import scripted
from workbench.basics.findings import Answer
from workbench.extensions.world_rules.tool_results import expected_text
from workbench.linting import Evidence, all_rules, check
from workbench.tools.results import as_result
from workbench.tools.retrieval.base import Corpus, Document
from workbench.tools.retrieval.bm25 import Bm25
from workbench.tools.search import SearchTool
from workbench.values import Message, Text, ToolCall, Trajectory, Turn

RULES = all_rules()


@lru_cache
def played(history: str = "append") -> Evidence:
    return scripted(history)


def ask(evidence: Evidence) -> Answer:
    return check(evidence, [RULES["R28"]])["R28"]


def where(
    change: Callable[[Turn], Turn | None], history: str = "append", every: bool = False, **more
) -> Answer:
    """With the first turn for which `change` gives another one, or every one."""
    evidence, done = played(history), []

    def of_turn(turn: Turn) -> Turn:
        if done and not every:
            return turn
        changed = change(turn)
        done.extend([changed] if changed is not None else [])
        return turn if changed is None else changed

    groups = tuple(
        tuple(replace(t, turns=tuple(map(of_turn, t.turns))) for t in group)
        for group in evidence.groups
    )
    assert done, "a negative control that changes nothing controls nothing"
    return ask(replace(evidence, groups=groups, **more))


def several(turn: Turn) -> bool:
    """Calls side by side, which were all taken and answered otherwise."""
    tools = [message for message in turn.reply if message.role == "tool"]
    return (
        len(turn.tool_calls) == len(tools) == 2
        and tools[0].text != tools[1].text
        and turn.info["valid_format"]
    )


def said(message: Message, text: str) -> Message:
    return replace(message, content=(Text(text),))


@pytest.mark.parametrize("history", ["append", "fresh"])
def test_rollouts_with_calls_are_clean(history):
    answer = ask(played(history))
    assert answer.status == "passed" and answer.looked > 40, answer.findings


def test_trajectories_without_calls_are_not_looked_at():
    bare = tuple(tuple(replace(t, turns=()) for t in group) for group in played().groups)
    assert ask(replace(played(), groups=bare)).status == "not checked"


def test_results_in_a_message_of_another_role_are_an_environments_own_way():
    def change(turn: Turn) -> Turn | None:
        if not turn.tool_calls:
            return None
        return replace(
            turn, reply=(Message("user", "\n".join(message.text for message in turn.reply)),)
        )

    assert not where(change, every=True, family=None).errors


# ------------------------------------------------------------------------------------------------ negative controls


def swapped(turn: Turn) -> Turn | None:
    """Each text under the other call."""
    if not several(turn):
        return None
    one, other = turn.reply[:2]
    return replace(turn, reply=(said(one, other.text), said(other, one.text), *turn.reply[2:]))


def reordered(turn: Turn) -> Turn | None:
    return (
        replace(turn, reply=(turn.reply[1], turn.reply[0], *turn.reply[2:]))
        if several(turn)
        else None
    )


def one_id(turn: Turn) -> Turn | None:
    ids = (
        (turn.reply[0], replace(turn.reply[1], tool_call_id=turn.reply[0].tool_call_id))
        if several(turn)
        else None
    )
    return ids and replace(turn, reply=ids)


def lost(turn: Turn) -> Turn | None:
    return replace(turn, reply=turn.reply[:1]) if several(turn) else None


def other_name(turn: Turn) -> Turn | None:
    return (
        replace(turn, reply=(replace(turn.reply[0], name="look_up"), *turn.reply[1:]))
        if several(turn)
        else None
    )


def other_arguments(turn: Turn) -> Turn | None:
    if not turn.tool_calls:
        return None
    call = turn.tool_calls[0]
    return replace(
        turn,
        tool_calls=(replace(call, arguments={"query": "something else"}), *turn.tool_calls[1:]),
    )


def not_made(turn: Turn) -> Turn | None:
    return (
        replace(turn, tool_calls=turn.tool_calls[:1], reply=turn.reply[:1])
        if several(turn)
        else None
    )


def cut(turn: Turn) -> Turn | None:
    if not several(turn) or len(turn.reply[0].text) < 30:
        return None
    return replace(turn, reply=(said(turn.reply[0], turn.reply[0].text[:20]), *turn.reply[1:]))


def told_as_fine(turn: Turn) -> Turn | None:
    failed = [call for call in turn.info.get("calls", ()) if call["error"] and call["name"]]
    calls = [dict(call, error="") for call in turn.info.get("calls", ())]
    return (
        replace(turn, info={**turn.info, "calls": calls})
        if failed and len(calls) == len(turn.tool_calls)
        else None
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (swapped, "asked by itself"),
        (reordered, "another place"),
        (one_id, "2 results say that they answer"),
        (lost, "so some call has no result"),
        (other_name, "answered by a result of look_up"),
        (other_arguments, "is not in the action"),
        (not_made, "the action writes 2 calls"),
        (cut, "asked by itself"),
        (told_as_fine, "was refused, and counts as one that was made"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_result_that_is_not_the_calls_own_is_named(change, words):
    found = where(change).errors
    assert any(words in finding.what for finding in found), found


def test_a_call_that_was_only_thought_of_is_named():
    def thought_of(turn: Turn) -> Turn | None:
        return (
            replace(turn, text=f"<think>{turn.text}</think>", info={}) if turn.tool_calls else None
        )

    assert "is in the thought alone" in where(thought_of).errors[0].what
    assert not where(thought_of, family=None).errors, (
        "an environment of one's own may take calls wherever it likes"
    )


def test_a_call_that_the_trajectories_own_tool_refuses_is_clean(monkeypatch):
    """A world's search takes no further argument, which its tool says only once it is a trajectory's own."""

    def texts(family, task, attempt):
        more = family.make().search("Zumi").replace('"query"', '"description": "", "query"')
        return [more, "<answer>Zumi</answer>"]

    monkeypatch.setattr("tests.silent_bugs.scripted_tools.texts_of", texts)
    evidence = scripted("append")
    first = evidence.trajectories[0].turns[0]
    assert (
        first.tool_calls[0].arguments["description"] == ""
        and "was not called" in first.reply[0].text
    )
    assert ask(evidence).status == "passed", ask(evidence).findings


def test_a_search_that_keeps_what_it_found_for_somebody_else_is_named(monkeypatch):
    kept: dict[int, list] = {}
    call = SearchTool.call

    def by_length(self, arguments):
        return kept.setdefault(len(arguments["query"]), call(self, arguments))

    assert ask(played()).status == "passed"
    monkeypatch.setattr(SearchTool, "call", by_length)
    assert any(
        "and its searcher finds" in finding.what for finding in ask(scripted("append")).errors
    )


def test_a_result_that_is_longer_than_the_limit_ends_with_a_mark():
    assert any(
        len(message.text) > 150
        for t in played("fresh").trajectories
        for turn in t.turns
        for message in turn.reply
    )
    tool, call = (
        SearchTool(Bm25(Corpus((Document("1", "", "Zumi " * 60),)))),
        ToolCall("search", {"query": "Zumi"}),
    )
    for most_bytes in (40, 299, 300, 2000):
        assert (
            expected_text(tool, played().trajectories[0].task, call, most_bytes)
            == as_result(tool.call(call.arguments), most_bytes).text
        )


def test_an_answer_that_depends_on_who_asks_is_named_where_tools_may_not_be_called_again():
    """The family is not asked: its limits are not known, so that only answers to the same call are compared."""
    evidence, seen = played(), []

    def of(t: Trajectory) -> Trajectory:
        turns = []
        for turn in t.turns:
            key = (
                (t.task.id, turn.tool_calls[0].arguments["query"])
                if turn.tool_calls and turn.reply and ("query" in turn.tool_calls[0].arguments)
                else None
            )
            again = key is not None and key in seen and turn.reply[0].role == "tool"
            seen.append(key)
            turns.append(
                replace(turn, reply=(said(turn.reply[0], "Nothing found."), *turn.reply[1:]))
                if again
                else turn
            )
        return replace(t, turns=tuple(turns))

    class Quiet:
        """The family, of which no tool may be called."""

        def __getattr__(self, name):
            return getattr(evidence.family, name)

        def make(self):
            env = evidence.family.make()
            env.tools = tuple(Told(tool) for tool in env.tools)
            return env

    class Told:
        trusted = False

        def __init__(self, tool):
            self.name, self.stateful = tool.name, tool.stateful

    groups = tuple(tuple(map(of, group)) for group in evidence.groups)
    found = ask(replace(evidence, groups=groups, family=Quiet())).errors
    assert found and "depends on who asks" in found[0].what


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda text: text.rpartition("\n")[0].rpartition("\n")[0], "lacks"),
        (lambda text: f"{text}\nsearch {{}}\nNothing", "more"),
        (lambda text: "", "lacks"),
    ],
    ids=["the newest is lost", "one more", "nothing"],
)
def test_recalled_calls_are_those_that_were_made(change, words):
    def of(turn: Turn) -> Turn | None:
        if not turn.reply or not turn.reply[0].text.startswith("Before this"):
            return None
        head, _, past = turn.reply[0].text.partition("\n")
        return replace(
            turn, reply=(said(turn.reply[0], f"{head}\n{change(past)}"), *turn.reply[1:])
        )

    found = where(of, "fresh").errors
    assert found and "recalls of earlier calls" in found[0].what and words in found[0].what
