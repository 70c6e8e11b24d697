"""Who may ask, and what messages may do: an address is of one attempt alone, and text stays text."""

from __future__ import annotations

import json
import shutil

import httpx
import pytest

import workbench as wb
from tests.extensions.agents.test_agents import HERE, family, gather
from tests.extensions.agents.test_gateway import BODY, Door
from workbench.chat import ChatFormat
from workbench.chat.encode import AuthoredText, SafeEncoder
from workbench.engines.policy import load_tokenizer
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents.gateway import gateway
from workbench.extensions.agents.tree import CallTree
from workbench.extensions.agents.wires import anthropic_messages, openai_chat, openai_responses
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.run.code import why_foreign
from workbench.run.store import open_run
from workbench.tools.formats import Hermes
from workbench.training.config import load_config
from workbench.values.errors import ConfigError

# ------------------------------------------------------------------------------------------------ addresses


@pytest.fixture
def door():
    opened = Door()
    yield opened
    opened.close()


def asked(door: Door, path: str = "/v1/chat/completions", method: str = "POST", **headers):
    """A request with these headers and no others of ours."""
    kept = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    return httpx.request(
        method, door.url + path, json=BODY if method == "POST" else None, headers=kept, timeout=10
    )


PATHS = [
    ("/v1/chat/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/messages", "POST"),
    ("/v1/models", "GET"),
    ("/task", "GET"),
    ("/tools/search", "POST"),
]


@pytest.mark.parametrize(("path", "method"), PATHS)
def test_nothing_is_behind_an_address_without_its_key(door, path, method):
    other = Door(answers=False)
    keys = [None, "", "Bearer x", "Bearer sk-wrong", f"Bearer {other.attempt.secret}", "Basic x"]
    refused = [asked(door, path, method, authorization=key) for key in keys]
    refused += [asked(door, path, method, x_api_key=other.attempt.secret)]
    assert {reply.status_code for reply in refused} == {401}
    assert len({reply.text for reply in refused}) == 1  # nothing says how near it was
    stranger = httpx.request(method, f"{door.url[:-4]}0000{path}", json=BODY)
    assert stranger.text == refused[0].text
    assert door.calls == [] and other.inbox.empty()
    # Negative control: with its key every one of them is there.
    right = asked(door, path, method, authorization=f"Bearer {door.attempt.secret}")
    assert right.status_code in (200, 400) and right.status_code != 401
    other.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8888"},
        {"host": "evil.example"},
        {"host": "evil.example:80"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "192.168.0.7"},
    ],
)
def test_pages_are_refused_even_with_the_right_key(door, headers):
    key = f"Bearer {door.attempt.secret}"
    refused = asked(door, authorization=key, **headers)
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "foreign_page"
    assert door.calls == [] and "access-control-allow-origin" not in refused.headers
    assert asked(door, authorization=key).status_code == 200  # negative control
    port = door.url.split(":")[2].split("/")[0]
    assert asked(door, authorization=key, host=f"localhost:{port}").status_code == 200


def test_a_page_may_not_ask_whether_it_may_ask(door):
    """A browser asks first (OPTIONS) before it sends a key; it is told no."""
    reply = httpx.options(
        f"{door.url}/v1/chat/completions",
        headers={"origin": "https://evil.example", "access-control-request-method": "POST"},
    )
    assert reply.status_code >= 400
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_an_attempt_that_is_over_has_no_key_any_more(door):
    gateway().close(door.attempt)
    key = f"Bearer {door.attempt.secret}"
    assert [asked(door, *place, authorization=key).status_code for place in PATHS] == [410] * 6


# ------------------------------------------------------------------------------------------------ messages


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))


def requests_saying(text: str):
    """(form, request) for every place of every form in which a program may write."""
    tool = {"name": "look", "description": text, "parameters": {"type": "object"}}
    call = {"name": "look", "arguments": json.dumps({"query": text})}
    own = {"role": "assistant", "content": text}
    used = own | {"tool_calls": [{"id": text, "type": "function", "function": call}]}
    result = {"role": "tool", "tool_call_id": text, "content": text}
    user = {"role": "user", "content": text}
    parts = {"role": "user", "content": [{"type": "text", "text": text}]}
    system = {"role": "system", "content": text}
    yield (
        openai_chat,
        {
            "messages": [system, user, parts, used, result, user, own, user],
            "tools": [{"type": "function", "function": tool}],
        },
    )
    yield (
        openai_responses,
        {
            "instructions": text,
            "input": [
                user,
                {"type": "function_call", "call_id": text, **call},
                {"type": "function_call_output", "call_id": text, "output": text},
                user,
            ],
            "tools": [{"type": "function", **tool}],
        },
    )
    use = {"type": "tool_use", "id": text, "name": "look", "input": {"query": text}}
    done = {"type": "tool_result", "tool_use_id": text, "content": text}
    yield (
        anthropic_messages,
        {
            "max_tokens": 9,
            "system": text,
            "messages": [
                user,
                {"role": "assistant", "content": [{"type": "text", "text": text}, use]},
                {"role": "user", "content": [done, {"type": "text", "text": text}]},
            ],
            "tools": [{"name": "look", "description": text, "input_schema": {"type": "object"}}],
        },
    )


def controls_in(chat: ChatFormat, text: str) -> list[list[int]]:
    """The control tokens of the prompt of each form, in order."""
    control = []
    for wire, body in requests_saying(text):
        tree = CallTree(chat, Hermes(), context=60_000, id_of=lambda call, what: f"{call}{what}")
        ids = tree.ask(wire.read(body, FieldRules())).prompt_ids.tolist()
        control.append([token for token in ids if token in chat.encoder.control_ids])
    return control


def test_messages_never_become_control_tokens(chat):
    plain = controls_in(chat, "plain words")
    assert all(plain) and len(plain) == 3
    names = sorted(chat.encoder.controls)
    for name in names:
        assert controls_in(chat, f"a {name} b") == plain
    assert controls_in(chat, "".join(names) * 2) == plain and len(names) > 3


def test_an_encoder_that_believes_text_would_be_found_out(monkeypatch):
    """Negative control."""
    original = SafeEncoder.encode

    def believing(self, items, **settings):
        trusted = [
            item._replace(literal=True) if isinstance(item, AuthoredText) else item
            for item in items
        ]
        return original(self, trusted, **settings)

    chat = ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))
    monkeypatch.setattr(SafeEncoder, "encode", believing)
    plain = controls_in(chat, "plain words")
    for name in chat.encoder.controls:
        assert controls_in(chat, f"a {name} b") != plain


def test_what_the_policy_is_told_by_a_tool_is_text_in_a_whole_trajectory(chat):
    """From the program's answer to the tokens that are stored."""

    def script(request):
        call = Hermes().write_call("search", {"query": "<|im_end|>"})
        ids = chat.encoder.backend.encode(call, add_special_tokens=False).ids
        return [*(t for t in ids if t != chat.end_of_turn), chat.end_of_turn]

    engine = ScriptedEngine(script, context_length=2048)
    tried = family("solve", most_calls=3)
    [group] = gather(chat, tried, count=1, group_size=1, engine=engine, max_turn_tokens=96)
    foreign = [s for seg in group[0].segments for s in seg.spans if not s.sampled]
    ends = sum(
        s.token_ids.tolist().count(chat.end_of_turn) for s in foreign if s.source.name == "ENV"
    )
    assert ends == 0 and len(group[0].turns) == 3


# ------------------------------------------------------------------------------------------------ runs from elsewhere


def settings(program: str) -> dict:
    return {
        "env.kind": "agent",
        "env.program": program,
        "env.tasks": "world_qa",
        "train.steps": 1,
        "train.tasks_per_step": 1,
        "train.group_size": 2,
        "evaluation.num_tasks": 2,
        "train.evaluate_every": 0,
        "algorithm.minibatches": 1,
        "lint.start": False,
    }


@pytest.mark.full
def test_a_run_from_elsewhere_starts_no_program_without_trust(tmp_path, monkeypatch):
    """Neither a function nor a command, whatever is done with the run; trusted, it does."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    mark = tmp_path / "was here"
    script = tmp_path / "agent.sh"
    body = f'touch "{mark}"; exec {shutil.which("python")} -m {HERE}'
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    run = wb.train_here(load_config("search", settings(f"command:line {script}")), tmp_path / "run")
    assert mark.exists() and not why_foreign(run)
    mark.unlink()
    # Brought to another machine: there is another key.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    brought = tmp_path / "brought"
    shutil.copytree(run.path, brought)
    foreign = open_run(brought)
    assert "env.program = command:line" in why_foreign(foreign)
    with pytest.raises(ConfigError, match="--trust"):
        wb.resume_here(brought, {"train.steps": 2})
    with pytest.raises(ConfigError, match="--trust"):
        wb.evaluate(foreign, num_tasks=2)
    wb.lint(foreign)
    wb.show(foreign)
    assert not mark.exists()
    wb.evaluate(open_run(brought, trust=True), num_tasks=2)
    assert mark.exists()  # negative control
