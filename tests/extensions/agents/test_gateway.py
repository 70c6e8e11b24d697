"""The door: who may call, what is refused by name, and that a call that is delivered twice is one call."""

from __future__ import annotations

import json
import queue
import threading

import httpx
import numpy as np
import pytest

from workbench.engines.base import Completion, Request
from workbench.extensions.agents.gateway import HttpCall, OpenAttempt, gateway
from workbench.extensions.agents.journal import CallJournal
from workbench.extensions.agents.messages import GivenAnswer, WireCall
from workbench.extensions.agents.wires import anthropic_messages, openai_chat, openai_responses
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.values import Sampling

BODY = {"model": "policy", "messages": [{"role": "user", "content": "Hello"}]}
GIVEN = GivenAnswer(
    "It is a text of more than twenty-four characters.",
    (WireCall("call_1", "search", '{"query": "Zumi, in a long way"}'),),
    "msg_1",
    "calls",
    prompt_tokens=3,
    sampled_tokens=4,
)


class Door:
    """An attempt at the gateway, whose calls are answered by a thread."""

    def __init__(self, answers: bool = True, **rules) -> None:
        self.inbox: queue.SimpleQueue[HttpCall] = queue.SimpleQueue()
        self.attempt = OpenAttempt("task#0", self.inbox, FieldRules(**rules))
        self.url = gateway().open(self.attempt)
        self.calls: list[HttpCall] = []
        if answers:
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while (call := self.inbox.get()) is not None:
            self.calls.append(call)
            call.answer.set_result(GIVEN)

    def post(self, body=BODY, path="/v1/chat/completions", key=None, **headers) -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.attempt.secret}", **headers}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(self.url + path, content=content, headers=headers, timeout=10)

    def close(self) -> None:
        gateway().close(self.attempt)
        self.inbox.put(None)


@pytest.fixture
def door():
    opened = Door()
    yield opened
    opened.close()


# ------------------------------------------------------------------------------------------------ who may call


def test_the_address_is_of_this_machine_alone_and_not_to_be_guessed(door):
    other = Door(answers=False)
    assert door.url.startswith("http://127.0.0.1:") and len(door.attempt.id) == 24
    assert door.post(key="sk-wrong").status_code == 401
    assert door.post(key=other.attempt.secret).status_code == 401  # another attempt's key
    other.close()
    unknown = httpx.post(f"{door.url[:-4]}0000/v1/chat/completions", json=BODY)
    assert unknown.status_code == 401 and unknown.json()["error"]["code"] == "invalid_api_key"
    assert door.calls == []
    assert door.post().status_code == 200 and len(door.calls) == 1


def test_a_call_after_the_end_is_told_so_and_counted(door):
    gateway().close(door.attempt)
    late = door.post()
    assert late.status_code == 410 and late.json()["error"]["code"] == "attempt_ended"
    assert door.attempt.late == 1 and door.calls == []


def test_a_call_that_waits_when_the_attempt_ends_is_told_so():
    door = Door(answers=False)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(door.post()))
    thread.start()
    door.inbox.get(timeout=10)
    door.close()
    thread.join(10)
    assert answers[0].status_code == 410


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'{"model": "policy"}', 400, "invalid_value"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b" " * (17 << 20), 413, "too_large"),
        (json.dumps(BODY | {"seed": 2}).encode(), 400, "unsupported_field"),
        (json.dumps(BODY | {"n": 99}).encode(), 400, "invalid_value"),
        (json.dumps(BODY | {"temperature": 0.3}).encode(), 400, "unsupported_field"),
        (json.dumps(BODY | {"max_tokens": "9"}).encode(), 400, "invalid_type"),
        (json.dumps(BODY | {"sampler": "best"}).encode(), 400, "unsupported_field"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(door, body, status, code):
    refused = door.post(body)
    assert refused.status_code == status
    assert refused.json()["error"]["code"] == code
    assert door.calls == []


def test_what_the_program_decides_is_followed():
    asked = openai_chat.read(
        BODY | {"temperature": 0.3, "max_tokens": 9}, FieldRules(decides=("temperature",))
    )
    assert (asked.temperature, asked.most_tokens, asked.noted) == (0.3, 9, {})


# ------------------------------------------------------------------------------------------------ one call or two


def test_a_retry_is_one_call_and_an_equal_request_is_two(door):
    assert door.post().json() == door.post(**{"x-stainless-retry-count": "1"}).json()
    assert len(door.calls) == 1 and door.calls[0].repeats == 1
    door.post()
    assert len(door.calls) == 2
    for _ in range(3):
        door.post(**{"idempotency-key": "a"})
    assert len(door.calls) == 3


def test_a_client_that_went_away_gets_the_answer_that_it_missed():
    door = Door(answers=False)
    headers = {"authorization": f"Bearer {door.attempt.secret}"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{door.url}/v1/chat/completions", json=BODY, headers=headers, timeout=0.2)
    call = door.inbox.get(timeout=10)
    for _ in range(500):
        if call.gone:
            break
        threading.Event().wait(0.01)
    assert call.gone
    call.answer.set_result(GIVEN)
    again = httpx.post(f"{door.url}/v1/chat/completions", json=BODY, headers=headers, timeout=10)
    assert again.json()["choices"][0]["message"]["content"] == GIVEN.text
    assert door.inbox.empty() and call.repeats == 1
    door.close()


# ------------------------------------------------------------------------------------------------ streams


def _events(chunks) -> list[dict]:
    lines = "".join(chunks).splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def test_a_stream_of_chat_is_the_whole_answer():
    asked = openai_chat.read(BODY | {"stream": True}, FieldRules())
    deltas = [event["choices"][0]["delta"] for event in _events(openai_chat.chunks(GIVEN, asked))]
    assert "".join(delta.get("content", "") for delta in deltas) == GIVEN.text
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in pieces) == GIVEN.calls[0].arguments


def test_a_stream_of_responses_is_the_whole_answer():
    asked = openai_responses.read({"input": "Hello", "stream": True}, FieldRules())
    events = _events(openai_responses.chunks(GIVEN, asked))
    texts = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(texts) == GIVEN.text
    assert events[-1]["response"] == openai_responses.answer(GIVEN, asked)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_stream_of_messages_is_the_whole_answer():
    body = {"messages": BODY["messages"], "max_tokens": 9, "stream": True}
    asked = anthropic_messages.read(body, FieldRules())
    deltas = [
        e["delta"]
        for e in _events(anthropic_messages.chunks(GIVEN, asked))
        if "index" in e and "delta" in e
    ]
    assert "".join(delta.get("text", "") for delta in deltas) == GIVEN.text
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    assert json.loads(arguments) == json.loads(GIVEN.calls[0].arguments)


def test_the_three_forms_say_the_same():
    """One conversation, as each of the three sends it back."""
    call = {"name": "search", "arguments": '{"query": "Zumi"}'}
    chat = openai_chat.read(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Where?"},
                {
                    "role": "assistant",
                    "content": "So.",
                    "tool_calls": [{"id": "c", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "Tevi."},
            ]
        },
        FieldRules(),
    )
    responses = openai_responses.read(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "So."}],
                },
                {"type": "function_call", "call_id": "c", **call},
                {"type": "function_call_output", "call_id": "c", "output": "Tevi."},
            ],
        },
        FieldRules(),
    )
    messages = anthropic_messages.read(
        {
            "max_tokens": 9,
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "Where?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "So."},
                        {
                            "type": "tool_use",
                            "id": "c",
                            "name": "search",
                            "input": {"query": "Zumi"},
                        },
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": "Tevi."}],
                },
            ],
        },
        FieldRules(),
    )
    assert chat.messages == responses.messages == messages.messages


# ------------------------------------------------------------------------------------------------ what is kept


def _request(number: int, prompt=(1, 2, 3)) -> Request:
    return Request(
        number, f"task#0/{number}", np.array(prompt, np.int32), 17 + number, 8, frozenset({9})
    )


def _completion(number: int) -> Completion:
    logprobs = -np.array([0.1, 0.2 + number, 1 / 3], np.float32)
    return Completion(number, np.array([5, 6, 9], np.int32), logprobs, "stop", 4, Sampling())


def test_a_stored_call_comes_back_bit_for_bit_and_only_to_the_same_request(tmp_path):
    journal = CallJournal(tmp_path)
    step = journal.begin((0, "train", 3))
    for number in range(3):
        step.store(_request(number), _completion(number))
    # A process died in the middle of a line.
    with step.path.open("ab") as file:
        file.write(b'{"session": "task#0/9", "dig')
    later = CallJournal(tmp_path).begin((0, "train", 3))
    for number in range(3):
        known = later.recall(_request(number + 0), 4)
        assert known.token_ids.tolist() == [5, 6, 9] and known.finish == "stop"
        assert known.logprobs.tobytes() == _completion(number).logprobs.tobytes()
    assert later.recall(_request(1), 5) is None  # other weights
    assert later.recall(_request(1, (1, 2, 4)), 4) is None  # another prompt
    assert later.recall(_request(7), 4) is None  # another seed


def test_calls_of_committed_steps_go_and_others_are_never_kept(tmp_path):
    journal = CallJournal(tmp_path)
    journal.begin((0, "train", 1)).store(_request(1), _completion(1))
    assert len(list((tmp_path / "calls").iterdir())) == 1
    journal.begin((0, "train", 3))
    assert list((tmp_path / "calls").iterdir()) == []
    assert journal.begin((0, "look", 1)).path is None
    assert CallJournal().begin((0, "train", 1)).path is None
