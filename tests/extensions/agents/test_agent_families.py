"""Calls in the words of published families: cut out of the text, given as calls with ids, known again when they come back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.extensions.families.families_kit import WORDS, chat_of
from workbench.engines.base import Completion
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents.family import ProgramTasks
from workbench.extensions.agents.messages import AskedCall, WireCall, WireMessage
from workbench.extensions.agents.reading import form_for, read_action
from workbench.extensions.agents.tree import CallTree
from workbench.extensions.families.fitting import fit_calls
from workbench.extensions.families.table import ROWS
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.tools.formats import Hermes, format_for
from workbench.values import Sampling, Source, StopReason
from workbench.values.errors import ConfigError, ToolError

ASKING = "tests.extensions.families.families_kit:Asking"
HERE = "tests.extensions.agents.programs"
NAMES = [row.form.name for row in ROWS]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "count": {"type": "integer"}},
        },
    },
}
MEANT = {"word": "12", "count": 3}  # a text that looks like a number: the schema says which


def tried(**settings) -> ProgramTasks:
    return ProgramTasks(program=f"{HERE}:solve", tasks=ASKING, **settings)


def played(name: str, family: ProgramTasks):
    """(trajectory, sampled ids of each turn): the program `solve` with a policy of this family."""
    words = WORDS[name]
    chat = chat_of(words.template)
    encode = chat.template.tokenizer.encode
    said = [
        [*encode(text, add_special_tokens=False), *encode(stop, add_special_tokens=False)]
        for text, stop in (words.call, words.answer)
    ]
    count = iter(range(99))
    [group] = collect(
        [family.task(0)],
        family=family,
        engine=ScriptedEngine(lambda request: said[min(1, next(count))], context_length=20_000),
        chat=chat,
        config=CollectConfig(max_turn_tokens=2_000),
        group_size=1,
        address=(0, "families"),
    )
    return group[0], said


@pytest.mark.parametrize("name", list(WORDS))
def test_a_program_is_given_calls_of_every_family_and_sends_them_back(name):
    chat = chat_of(WORDS[name].template)
    family, notes = fit_calls(tried(settings={"calls": {"format": "template"}}), chat)
    assert family.calls.format == WORDS[name].form and notes
    trajectory, said = played(name, family)
    assert trajectory.stop_reason is StopReason.TERMINATED and trajectory.success
    first, second = trajectory.turns
    assert "Ulm 1990: 126000" in first.reply[0].text  # the program made the call that it was given
    assert second.info["call"]["recognised"] == "exact"
    [segment] = trajectory.segments
    sampled = [span for span in segment.spans if span.source is Source.POLICY]
    assert [span.token_ids.tolist() for span in sampled] == said
    outside = [s for s in segment.spans if s.source in (Source.ENV, Source.PROMPT)]
    assert not {int(t) for s in outside for t in s.token_ids} & chat.encoder.control_ids


@pytest.mark.parametrize("name", [name for name, words in WORDS.items() if words.form != "hermes"])
def test_another_form_is_refused_when_the_session_opens(name):
    """Negative control: with hermes no call would be read; the error names the setting of the tasks' environment."""
    chat = chat_of(WORDS[name].template)
    family = tried(settings={"calls": {"format": "hermes"}})
    with pytest.raises(ConfigError, match=r"env\.settings\.calls\.format = 'template'"):
        fit_calls(family, chat)
    trajectory, _ = played(name, family)
    assert len(trajectory.turns) == 1 and not trajectory.success


def read(text: str, form):
    rest, calls, _ = read_action(text, form, lambda index: f"c{index}")
    return rest, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_cut_out_and_every_other_word_stays(name):
    form = form_for(format_for(name), [TOOL])
    call = form.call_text("look_up", MEANT)
    assert read(f"First this. {call}", form) == ("First this.", [("look_up", MEANT)])
    thought, calls = read(f"hm</think>\n{call}", form)
    assert (thought, calls) == ("hm</think>", [("look_up", MEANT)])
    assert read("No call at all.", form) == ("No call at all.", [])


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_read_stays_in_the_text(name):
    """A call that breaks off, behind one that is whole: nothing of it is lost."""
    form = form_for(format_for(name), [TOOL])
    call = form.call_text("look_up", MEANT)
    broken = f"{call}\n{call[: len(call) * 2 // 3]}"
    rest, calls = read(broken, form)
    assert calls in ([("look_up", MEANT)], [])
    tail = call[: len(call) * 2 // 3].strip()
    assert tail[-12:] in rest


@pytest.mark.parametrize("name", NAMES)
def test_a_programs_own_tools_say_what_values_are(name):
    """Forms that write values as plain text read them by the schema of the tool that was offered."""
    call = form_for(format_for(name), [TOOL]).call_text("look_up", MEANT)
    tree = tree_of(format_for(name))
    given, _ = answered(tree, call)
    assert [json.loads(call.arguments) for call in given.calls] == [MEANT]


def test_without_the_schema_a_text_would_be_a_number():
    """Negative control of the test before this one."""
    form = format_for("qwen_xml")
    call = form_for(form, [TOOL]).call_text("look_up", MEANT)
    assert read(call, form)[1] == [("look_up", {"word": 12, "count": 3})]


def tree_of(form) -> CallTree:
    chat = chat_of("qwen3")
    return CallTree(chat, form, context=20_000, id_of=lambda call, what: f"{call}x{what}")


def answered(tree: CallTree, text: str):
    """(what the program is given, the call) of one call in which the policy says this text."""
    call = tree.ask(AskedCall((WireMessage("user", "Look."),), (TOOL,)))
    ids = np.array([*tree.chat.foreign_ids(text), tree.chat.end_of_turn], np.int32)
    logprobs = np.zeros(len(ids), np.float32)
    return tree.answer(call, Completion(0, ids, logprobs, "stop", 0, Sampling())), call


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_comes_back_changed_is_known_and_another_is_not(name):
    """As a client has it: parsed and dumped again, in another order, under an id of its own."""
    tree = tree_of(format_for(name))
    given, first = answered(tree, form_for(format_for(name), [TOOL]).call_text("look_up", MEANT))
    again = json.dumps({"count": 3.0, "word": "12"}, indent=1)
    for arguments, way in ((again, "extends"), (again.replace("12", "13"), "fork")):
        sent = WireMessage("assistant", given.text, (WireCall("own", "look_up", arguments),))
        asked = (*first.asked.messages, sent, WireMessage("tool", "found", call_id="own"))
        call = tree.ask(AskedCall(asked, (TOOL,)))
        assert call.way == way
        assert ("recognised" in call.facts) == (way == "extends")


def test_calls_of_others_are_written_as_the_policy_writes_them():
    """An example that a program made up: in the form of the family, as plain text."""
    tree = tree_of(format_for("qwen_xml"))
    example = WireMessage("assistant", "", (WireCall("x", "look_up", json.dumps(MEANT)),))
    messages = (WireMessage("user", "Look."), example, WireMessage("tool", "found", call_id="x"))
    call = tree.ask(AskedCall(messages, (TOOL,)))
    assert "<parameter=word>\n12\n</parameter>" in tree.chat.decode(call.prompt_ids)


def test_a_form_that_no_table_has_is_used_as_it_is():
    class Own(Hermes):
        name = "my own"

        def readers(self):
            return {}

    assert form_for(Own(), [TOOL]).name == "my own"
    with pytest.raises(ToolError):
        format_for("my own")
