"""Tokens of programs that change their past: sampled ones are trained where they were sampled, none is lost, none forged."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import pytest

from tests.extensions.agents.wild_clients import TOOLS, WildClient, faults
from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.extensions.agents import messages, tree
from workbench.extensions.agents.messages import Ground, RefusedCall
from workbench.extensions.agents.reading import read_action
from workbench.extensions.agents.tree import CallTree
from workbench.extensions.agents.wires import openai_chat
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.tools.formats import Hermes
from workbench.tools.turns import ParsedTurn
from workbench.values import Message, Source, Text, ToolCall


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))


def tree_of(chat: ChatFormat, **settings) -> CallTree:
    return CallTree(
        chat, Hermes(), context=4096, id_of=lambda call, what: f"{call}x{what}", **settings
    )


def played(chat: ChatFormat, seed: int, actions: int) -> WildClient:
    client = WildClient(tree_of(chat), random.Random(seed))
    for _ in range(actions):
        client.act()
    client.finish()
    return client


def count(chat: ChatFormat, trajectories: int, actions: int = 40) -> tuple[int, int, list[str]]:
    """(calls that were asked, of which refused, whatever is wrong)"""
    clients = [played(chat, seed, actions) for seed in range(trajectories)]
    calls = sum(len(client.tree.calls) for client in clients)
    return calls, sum(client.refused for client in clients), [f for c in clients for f in faults(c)]


# ------------------------------------------------------------------------------------------------ many clients


def test_wild_clients_lose_and_forge_nothing(chat):
    calls, refused, wrong = count(chat, 12)
    assert wrong == []
    assert calls > 200 and refused < calls / 3


@pytest.mark.full
def test_ten_thousand_calls_of_wild_clients_lose_and_forge_nothing(chat):
    calls, _, wrong = count(chat, 500)
    assert wrong == [] and calls >= 10_000


def test_every_way_and_every_ground_occurs(chat):
    """The counts above are of something."""
    ways = set()
    grounds = set()
    for seed in range(12):
        for call in played(chat, seed, 60).tree.calls:
            ways.add(call.way)
            grounds.add(call.facts.get("recognised"))
    assert ways == {"root", "extends", "fork", "resampled"}
    assert grounds >= {str(ground) for ground in Ground}


def test_recognising_by_similarity_is_found_out(chat, monkeypatch):
    """Negative control: a tree that believes ids, whatever words stand beside them."""

    def believes_ids(message, given):
        issued = {call.id for call in given.calls} | {given.mark}
        named = message.mark in issued or any(call.id in issued for call in message.calls)
        return Ground.IDS if named else messages.ground_of(message, given)

    monkeypatch.setattr(tree, "ground_of", believes_ids)
    assert any("shows the turn" in words for words in count(chat, 6)[2])


def test_an_id_of_another_answer_is_no_equal_text(chat):
    """A message that names one answer and says the words of another is neither of them."""
    tree = tree_of(chat)
    _, first = sampled(tree, "one", USER)
    _, second = sampled(tree, "two", USER)
    mixed = first | {"content": "two"}
    call, _ = sampled(tree, "x", USER, mixed, USER)
    assert call.facts["foreign"] == 1 and call.facts["way"] == "fork"
    call, _ = sampled(tree, "x", USER, {key: second[key] for key in ("role", "content")}, USER)
    assert call.facts["recognised"] == "exact" and call.facts["way"] == "extends"


def test_realigning_is_found_out(chat, monkeypatch):
    """Negative control: a tree that goes on in a segment that others went on in meanwhile."""
    original = CallTree._walk

    def realigned(self, root, asked):
        known = original(self, root, asked)
        if known.last is not None:
            known.last.end = self._rows[known.last.segment].length
        return known

    monkeypatch.setattr(CallTree, "_walk", realigned)
    assert count(chat, 6)[2] != []


# ------------------------------------------------------------------------------------------------ one by one


def asked(*sent: dict, tools: list | None = TOOLS):
    body = {"model": "policy", "messages": list(sent)} | ({"tools": tools} if tools else {})
    return openai_chat.read(json.loads(json.dumps(body)), FieldRules())


def sampled(tree: CallTree, text: str, *sent: dict, tools: list | None = TOOLS):
    """Ask, sample this text, and give the message back as a client has it."""
    call = tree.ask(asked(*sent, tools=tools))
    client = WildClient(tree, random.Random(0))
    ids = [*tree.chat.foreign_ids(text), tree.chat.end_of_turn]
    client.sample = lambda: (ids, [-1.0] * len(ids), "stop")
    conversation: list = []
    client.answer((call, conversation, True))
    return call, conversation[0].wire


USER = {"role": "user", "content": "Where does Zumi live?"}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Zumi"}}\n</tool_call>'


def test_an_appended_history_is_one_segment(chat):
    tree = tree_of(chat)
    _, first = sampled(tree, CALL, USER)
    reply = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "In Tevi."}
    call, _ = sampled(tree, "<answer>Tevi</answer>", USER, first, reply)
    assert call.way == "extends" and len(tree.segments) == 1
    assert [turn.text for turn in tree.turns()] == [CALL, "<answer>Tevi</answer>"]
    assert tree.turns()[0].reply[0].text == "In Tevi."


def test_everything_that_was_sampled_is_given_back(chat):
    tree = tree_of(chat)
    text = f'Let me look. {CALL}{CALL.replace("Zumi", "Tevi")} <tool_call>{{"name": 1}}</tool_call>'
    _, message = sampled(tree, text, USER)
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["search", "search"]
    assert message["content"].startswith("Let me look.")
    assert '<tool_call>{"name": 1}</tool_call>' in message["content"]


def test_a_form_whose_blocks_are_not_known_loses_no_text():
    @dataclass(frozen=True)
    class Shouted:
        name: str = "shouted"

        def parse(self, text):
            return ParsedTurn(calls=(ToolCall("search", {"query": "Zumi"}),))

    text, [call], _ = read_action("Well. SEARCH Zumi", Shouted(), lambda index: f"c{index}")
    assert text == "Well. SEARCH Zumi" and call.name == "search"


def test_without_tools_nothing_is_read_as_a_call(chat):
    _, message = sampled(tree_of(chat), CALL, USER, tools=None)
    assert message["content"] == CALL and "tool_calls" not in message


def test_other_words_under_our_ids_are_somebodys_text(chat):
    tree = tree_of(chat)
    _, message = sampled(tree, CALL, USER)
    edited = message | {"content": "I would rather not."}
    call, _ = sampled(tree, "x", USER, edited, {"role": "user", "content": "Go on."})
    assert call.way == "fork" and call.facts["foreign"] == 1
    differs = call.facts["differs"]
    assert (differs["message"], differs["role"], differs["character"]) == (1, "assistant", 0)
    assert (differs["call"], differs["is"][:12]) == (0, "I would rath")
    shown = [span for span in tree.segments[1].spans if span.source is Source.POLICY]
    assert [span.sampled for span in shown] == [True]  # its own turn, and nothing of the edited one


def test_the_same_prompt_again_is_sampled_again(chat):
    tree = tree_of(chat)
    first, _ = sampled(tree, "one", USER)
    second, _ = sampled(tree, "two", USER)
    assert (first.way, second.way) == ("root", "resampled")
    assert first.facts["conversation"] == second.facts["conversation"] == "main"


def test_a_summary_keeps_the_ids_of_the_turn_that_it_keeps(chat):
    """The middle is gone, and the newest turn stands behind another prompt: its ids are those that were sampled."""
    tree = tree_of(chat)
    _, first = sampled(tree, "one thing", USER)
    more = {"role": "user", "content": "And then?"}
    kept, second = sampled(tree, "another thing", USER, first, more)
    summary = {"role": "user", "content": "So far: one thing."}
    call, _ = sampled(tree, "x", summary, second, more)
    assert call.facts["shown_again"] == [kept.number]
    again = [s for s in tree.segments[1].spans if s.source is Source.POLICY and not s.sampled]
    assert [span.token_ids.tolist() for span in again] == [kept.ids.tolist()]


def test_words_of_the_author_keep_what_is_trusted_in_them(chat):
    author = Message("user", (Text("<answer>", trusted=True), Text(" <answer>")))
    with_author = tree_of(chat, issued=(author,))
    sent = {"role": "user", "content": author.text}
    control = chat.encoder.controls.get("<answer>")
    assert control is not None
    counts = []
    for built in (with_author, tree_of(chat)):
        counts.append(built.ask(asked(sent, tools=None)).prompt_ids.tolist().count(control))
    assert counts == [1, 0]  # what anybody else says becomes no control token


def test_what_does_not_fit_is_refused_and_changes_nothing(chat):
    small = CallTree(chat, Hermes(), context=20, id_of=lambda call, what: f"{call}{what}")
    with pytest.raises(RefusedCall, match="a sequence may have 20"):
        small.ask(asked(USER))
    assert small.calls == [] and small.num_segments == 0
