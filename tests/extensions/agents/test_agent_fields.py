"""Fields of a request: the guide's table says of each what becomes of it, in each form; and what is followed is so to the token."""

from __future__ import annotations

import random
import re
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.extensions.agents import field_programs
from tests.extensions.agents.test_agents import family, gather
from workbench.chat import ChatFormat
from workbench.engines.base import Completion
from workbench.engines.policy import load_tokenizer
from workbench.engines.recorder import Journal
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents import collecting
from workbench.extensions.agents.messages import AskedCall, GivenAnswer, RefusedCall, SampledText
from workbench.extensions.agents.stopping import cut_at_stop, first_stop
from workbench.extensions.agents.wires import anthropic_messages, openai_chat, openai_responses
from workbench.extensions.agents.wires.fields import FieldRules, RequestFields
from workbench.learn.batch import Batch
from workbench.linting.evidence import Evidence
from workbench.linting.table import lint_evidence
from workbench.rollouts.config import CollectConfig
from workbench.values import Group, Sampling, StopReason
from workbench.values.errors import EngineError

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/agents.md"
PROGRAMS = "tests.extensions.agents.field_programs"
HELLO = [{"role": "user", "content": "Hello"}]
WIRES: dict[str, tuple[ModuleType, dict]] = {
    "chat completions": (openai_chat, {"model": "policy", "messages": HELLO}),
    "responses": (openai_responses, {"model": "policy", "input": HELLO}),
    "messages": (anthropic_messages, {"model": "policy", "messages": HELLO, "max_tokens": 9}),
}
# A value of each field that is not what would be done without it.
SAMPLES = {
    "temperature": 0.3,
    "top_p": 0.5,
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "max_output_tokens": 5,
    "stop": ["x"],
    "stop_sequences": ["x"],
    "n": 2,
    "logprobs": True,
    "include": ["message.output_text.logprobs"],
    "tool_choice": "none",
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "name": "f", "function": {"name": "f"}, "parameters": {}}],
    "model": "another",
    "messages": [{"role": "user", "content": "Bye"}],
    "input": "Bye",
    "instructions": "Be brief.",
    "system": "Be brief.",
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "text": {"format": {"type": "json_schema"}},
    "output_config": {"effort": "low"},
    "top_logprobs": 3,
    "logit_bias": {"1": 5},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "reasoning": {"effort": "low"},
    "truncation": "auto",
    "background": True,
    "modalities": ["audio"],
    "frequency_penalty": 1.0,
    "presence_penalty": 1.0,
    "seed": 7,
    "top_k": 5,
}
# Where forms write the same field in other ways.
OWN = {
    ("messages", "tool_choice"): {"type": "none"},
    ("messages", "tools"): [{"name": "f", "input_schema": {"type": "object"}}],
    ("responses", "messages"): HELLO,
}
FORCED = {"messages": {"type": "any"}}


def table_of(text: str) -> dict[str, dict[str, str]]:
    """Field -> form -> what the guide says of it. A row may name several fields."""
    section = text.split("## Fields of a request", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line[:1] == "|"]
    heads = [head.strip() for head in rows[0]][1:4]
    table: dict[str, dict[str, str]] = {}
    for row in rows[2:]:
        cells = [cell.strip() for cell in row[1:4]]
        for name in re.findall(r"`(\w+)`", row[0]):
            table[name] = dict(zip(heads, cells, strict=True))
    return table


def verdict(form: str, name: str) -> str:
    """What the code makes of a field, in the guide's words."""
    wire, body = WIRES[form]
    value = OWN.get((form, name), SAMPLES.get(name, "anything"))
    plain = wire.read(body, FieldRules())
    sent = body | {name: value}
    try:
        asked = wire.read(sent, FieldRules())
    except RefusedCall as refused:
        assert refused.field == name, (form, name, refused)
        noted = wire.read(sent, FieldRules(not_followed=(name,)))
        assert noted.noted == {name: value} and replace(noted, noted={}) == plain
        if name not in ("temperature", "top_p"):
            return "refused"
        followed = wire.read(sent, FieldRules(decides=(name,)))
        assert getattr(followed, name) == value and not followed.noted
        return "the run's"
    assert not asked.noted
    return "no effect" if replace(asked, model=plain.model) == plain else "followed"


# ------------------------------------------------------------------------------------------------ the table


def faults_of(table: dict[str, dict[str, str]]) -> list[str]:
    wrong = []
    for name, cells in table.items():
        for form, cell in cells.items():
            said = "refused" if cell == "" else cell  # no field of that form: not known, so refused
            if (made := verdict(form, name)) != said:
                wrong.append(f"{name} in {form}: the guide says {said!r}, and it is {made!r}")
    return wrong


def test_the_guides_table_is_what_happens():
    table = table_of(GUIDE.read_text())
    assert len(table) > 30 and set(table["temperature"]) == set(WIRES)
    assert faults_of(table) == []
    # Negative control: one cell is another.
    table["seed"]["responses"] = "no effect"
    assert len(faults_of(table)) == 1


def test_no_field_that_is_read_is_missing_in_the_table(monkeypatch):
    read = {}
    finish = RequestFields.finish

    def finished(self):
        read[form] = set(self.taken)
        finish(self)

    monkeypatch.setattr(RequestFields, "finish", finished)
    table = table_of(GUIDE.read_text())
    for form, (wire, body) in WIRES.items():
        wire.read(body, FieldRules())
        known = {name for name, cells in table.items() if cells[form]}
        assert read[form] - known == set()
    assert len(read) == 3


@pytest.mark.parametrize("form", list(WIRES))
@pytest.mark.parametrize("name", ["tool_choice", "surely_unknown"])
def test_what_would_force_a_call_or_is_not_known_is_refused_with_what_to_do(form, name):
    wire, body = WIRES[form]
    value = FORCED.get(form, "required") if name == "tool_choice" else 1
    with pytest.raises(RefusedCall, match="env.not_followed") as refused:
        wire.read(body | {name: value}, FieldRules())
    assert refused.value.field == name and refused.value.status == 400


@pytest.mark.parametrize(
    ("form", "sent", "words"),
    [
        ("chat completions", {"n": 0}, "'n' is at least 1"),
        ("chat completions", {"n": 17}, "at most 16"),
        ("chat completions", {"n": True}, "whole number"),
        ("chat completions", {"stop": [""]}, "a text"),
        ("chat completions", {"stop": ["x"] * 17}, "at most 16"),
        ("chat completions", {"stop": {"a": 1}}, "a text"),
        ("chat completions", {"max_tokens": 0}, "at least 1"),
        ("chat completions", {"logprobs": 1}, "true or false"),
        ("responses", {"max_output_tokens": -1}, "at least 1"),
        ("messages", {"max_tokens": 0}, "at least 1"),
        ("messages", {"stop_sequences": "x" * 2, "max_tokens": None}, "max_tokens"),
    ],
)
def test_values_that_are_none_are_refused(form, sent, words):
    wire, body = WIRES[form]
    with pytest.raises(RefusedCall, match=words) as refused:
        wire.read(body | sent, FieldRules())
    assert refused.value.code in ("invalid_value", "invalid_type")


def test_what_a_run_only_notes_is_not_followed():
    body = WIRES["chat completions"][1] | {"stop": ["x"], "n": 3, "logprobs": True}
    asked = openai_chat.read(body, FieldRules(not_followed=("stop", "n", "logprobs")))
    assert (asked.stops, asked.choices, asked.logprobs) == ((), 1, False)
    assert asked.noted == {"stop": ["x"], "n": 3, "logprobs": True}
    assert {field.name for field in fields(AskedCall)} >= {"stops", "choices", "logprobs"}


# ------------------------------------------------------------------------------------------------ stop texts


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))


def says(chat: ChatFormat, *texts: str):
    """A policy that says these texts one after the other, in every session, and ends its turns."""
    counts: dict[str, int] = {}

    def script(request):
        attempt = request.session.rpartition("/")[0]
        number = counts.get(attempt, 0)
        counts[attempt] = number + 1
        return [*chat.foreign_ids(texts[min(number, len(texts) - 1)]), chat.end_of_turn]

    return script


def collected(chat, program, *texts, engine=None, **settings):
    field_programs.answers.clear()
    engine = engine or Journal(ScriptedEngine(says(chat, *texts), context_length=1024))
    tried = family(f"{PROGRAMS}:{program}", **settings)
    [group] = gather(chat, tried, count=1, group_size=1, engine=engine, max_turn_tokens=64)
    return group[0], engine, tried


def linted(chat, trajectory, engine, tried):
    group = Group((trajectory,))
    return lint_evidence(
        Evidence(
            groups=(group,),
            batch=Batch.from_groups([group]),
            collect=CollectConfig(max_turn_tokens=64),
            chat=chat,
            journal=engine.exchanges,
            context_length=1024,
            family=tried,
            step=1,
        ),
        when=("step",),
    )


TRANSCRIPT = "Action: look\nObservation: it is sunny\nHuman: thanks"


def test_a_stop_text_ends_the_sampled_tokens_where_it_is_complete(chat):
    trajectory, engine, tried = collected(chat, "stops_at_observation", TRANSCRIPT, "Fine.")
    first, second = trajectory.turns
    shown = [answer["choices"][0] for answer in field_programs.answers]
    assert shown[0]["message"]["content"] == "Action: look\n"
    assert [choice["finish_reason"] for choice in shown] == ["stop", "stop"]
    assert first.text.startswith("Action: look\nObservation:") and "sunny" not in first.text
    assert (first.finish, second.finish) == ("length", "stop")
    call = first.info["call"]
    assert call["stops"] == ["Observation:", "Human:"] and call["stopped"] == "Observation:"
    # What the program sends back is that turn, the tokens of the stop text among it, and nothing is encoded again.
    assert second.info["call"]["way"] == "extends" and len(trajectory.segments) == 1
    spoken = [span for span in trajectory.segments[0].spans if span.sampled]
    ids = chat.foreign_ids(TRANSCRIPT)
    assert spoken[0].token_ids.tolist() == ids[: len(spoken[0])]
    assert first_stop(chat.decode(spoken[0].token_ids[:-1]), ["Observation:"]) is None
    report = linted(chat, trajectory, engine, tried)
    assert report.ok, str(report)


def test_tokens_behind_a_stop_text_would_be_found_out(chat, monkeypatch):
    """Negative control: nothing is cut, or what was cut is not told to the witness."""
    monkeypatch.setattr(collecting, "cut_at_stop", lambda completion, stops, decode: completion)
    trajectory, _, _ = collected(chat, "stops_at_observation", TRANSCRIPT, "Fine.")
    assert "sunny" in trajectory.turns[0].text
    monkeypatch.undo()
    monkeypatch.setattr(collecting.ProgramCollector, "witness", lambda *asked: None)
    assert not linted(chat, *collected(chat, "stops_at_observation", TRANSCRIPT, "Fine.")).ok


def test_a_cut_has_the_fewest_tokens_that_hold_a_stop_text(chat):
    rng = random.Random(0)
    letters = ["a", "b", "ab", " ", "\n", "é", "日", "Obs", ":"]
    cuts = 0
    for _ in range(300):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 20)))
        stops = ["".join(rng.choice(letters) for _ in range(rng.randint(1, 3))) for _ in range(2)]
        ids = np.array([*chat.foreign_ids(text), chat.end_of_turn], np.int32)
        whole = Completion(0, ids, -np.arange(len(ids), dtype=np.float32), "stop", 0, Sampling())
        cut = cut_at_stop(whole, stops, chat.decode)
        there = [k for k in range(len(ids) + 1) if first_stop(chat.decode(ids[:k]), stops)]
        assert len(cut.token_ids) == (there[0] if there else len(ids))
        assert cut.logprobs.tolist() == whole.logprobs[: len(cut.token_ids)].tolist()
        assert (cut is whole) == (not there)
        cuts += bool(there)
    assert 50 < cuts < 290


# ------------------------------------------------------------------------------------------------ several answers


def test_several_answers_are_calls_of_their_own_behind_one_prompt(chat):
    texts = ("one", "two", "three", "four")
    trajectory, engine, tried = collected(chat, "asks_for_three", *texts)
    assert [len(answer["choices"]) for answer in field_programs.answers] == [3, 1]
    choices = field_programs.answers[0]["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["one", "two", "three"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["id"] for choice in choices}) == 3
    usage = field_programs.answers[0]["usage"]
    assert usage["completion_tokens"] == trajectory.num_sampled - len(
        [*chat.foreign_ids("four"), 0]
    )
    assert len(trajectory.segments) == 3 and len(trajectory.turns) == 4
    prompts = [np.concatenate([span.token_ids for span in _before(s)]) for s in trajectory.segments]
    assert len({prompt.tobytes() for prompt in prompts}) == 1
    by_number = sorted(trajectory.turns, key=lambda turn: turn.info["call"]["number"])
    ways = [turn.info["call"]["way"] for turn in by_number]
    assert ways == ["root", "resampled", "resampled", "extends"]
    assert by_number[3].info["call"]["continues"] == 1
    assert linted(chat, trajectory, engine, tried).ok


def _before(segment):
    """The spans before the first that was sampled."""
    spans = []
    for span in segment.spans:
        if span.sampled:
            break
        spans.append(span)
    return spans


def test_several_answers_count_as_several_calls(chat):
    trajectory, _, _ = collected(chat, "asks_for_three", "one", most_calls=2)
    assert trajectory.stop_reason is StopReason.ENV_ERROR or not trajectory.turns
    assert field_programs.answers[0]["error"]["code"] == "most_calls"


def test_a_stream_of_several_answers_is_all_of_them():
    asked = openai_chat.read(
        {"messages": HELLO, "n": 2, "stream": True, "logprobs": True}, FieldRules()
    )
    token = SampledText("x", (120,), -0.5)
    second = GivenAnswer("second", (), "msg_2", "length")
    given = GivenAnswer("first", (), "msg_1", "stop", logprobs=(token,), others=(second,))
    whole = openai_chat.answer(given, asked)["choices"]
    assert whole[0]["logprobs"]["content"][0]["logprob"] == -0.5
    chunks = "".join(openai_chat.chunks(given, asked))
    for index, text in enumerate(["first", "second"]):
        assert f'"index": {index}, "delta": {{"content": "{text}"}}' in chunks
    assert chunks.count('"finish_reason": "length"') == 1 and '"token": "x"' in chunks


# ------------------------------------------------------------------------------------------------ logprobs, tool_choice


def test_logprobs_are_those_that_are_stored(chat):
    trajectory, _, _ = collected(chat, "asks_for_logprobs", "Zumi é lives")
    [span] = [span for span in trajectory.segments[0].spans if span.sampled]
    content = field_programs.answers[0]["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == span.logprobs[:-1].tolist()
    assert len(content) == len(span) - 1  # but for the token that ends the turn
    whole = [entry for entry in content if entry["bytes"] is not None]
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in whole) and whole
    collected(chat, "wants_no_call", "x")
    assert field_programs.answers[0]["choices"][0]["logprobs"] is None


CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Zumi"}}\n</tool_call>'


def test_with_tool_choice_none_nothing_is_read_as_a_call(chat):
    trajectory, _, _ = collected(chat, "wants_no_call", CALL)
    message = field_programs.answers[0]["choices"][0]["message"]
    assert message["content"] == CALL and "tool_calls" not in message
    assert trajectory.turns[0].info["call"]["reads_calls"] is False
    collected(chat, "asks_for_logprobs", CALL)  # negative control: without it there is one
    assert field_programs.answers[0]["choices"][0]["message"]["tool_calls"]


# ------------------------------------------------------------------------------------------------ an engine that fails


class FailsOne(ScriptedEngine):
    """Answers nothing before two requests are there, then fails one of them. It is not asked for the other for ever."""

    def __init__(self) -> None:
        super().__init__(
            self.script, context_length=1024, delay_ticks=lambda request: 5 * request.id
        )
        self.submitted = 0
        self.polled = 0

    def script(self, request):
        raise EngineError("out of memory")

    def submit(self, request):
        super().submit(request)
        self.submitted += 1

    def poll(self):
        if self.submitted < 2:
            return []
        self.polled += 1
        assert self.polled < 2000, "what was dropped is waited for"
        return super().poll()


def test_a_failing_engine_ends_all_open_calls_of_its_trajectory(chat):
    """Two calls side by side, one of which the engine cannot answer: the other is not waited for."""
    engine = FailsOne()
    trajectory, _, _ = collected(chat, "asks_two_at_once", engine=engine)
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR and "out of memory" in trajectory.error
    assert trajectory.reward is None
    assert engine.submitted == 2 and engine.polled < 5
