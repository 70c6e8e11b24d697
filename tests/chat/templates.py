"""The compatibility of chat templates, row by row: `make templates` writes docs/evidence/templates.md from it.

    python -m tests.chat.templates            measure, keep the rows as data, write the page; exit 1 for a silent fault
    python -m tests.chat.templates --check    the same, and nothing is written

For every template that TRL carries, what the *template itself* writes of a turn (a call, an answer, a thought) is taken as
what a policy samples: cut where the first stop token stands, as an engine does, and read as a session reads it. A cell is
right, or refused in words, or it is a fault that nobody would be told of, and then the exit status is 1. The tokenizers are
made from the marks in the template (template_kit): vocabularies of published models are not at hand.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from docs.make.__main__ import compact, machine, write_pages
from tests.chat.template_kit import source_of, template_names, tokenizer_for
from workbench.chat import ChatFormat, Conversation
from workbench.extensions.families.fitting import asked_form, fit_calls
from workbench.tools.action_format import parse_action
from workbench.tools.base import FunctionTool
from workbench.tools.formats import Hermes, format_for
from workbench.values import Message, Observation, Sampling, Source
from workbench.values.errors import ChatFormatError, ConfigError
from workbench.worlds.tool_env import CallSettings

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/evidence/data/templates.json"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "which place"},
        "number": {"type": "integer", "description": "how many"},
        "share": {"type": "number", "description": "which share"},
        "exact": {"type": "boolean", "description": "exactly"},
        "among": {"type": "array", "items": {"type": "string"}, "description": "of these"},
    },
    "required": ["place"],
}
TOOL = FunctionTool("count_birds", "Counts birds.", SCHEMA, len)
SHOWN = {
    "type": "function",
    "function": {"name": "count_birds", "description": "Counts birds.", "parameters": SCHEMA},
}
CALLS: tuple[dict[str, Any], ...] = (
    {"place": "Zürich & <b>Uster</b>"},
    {
        "place": "12",
        "number": -12,
        "share": 0.25,
        "exact": True,
        "among": ["tit", "owl of the wood"],
    },
    {"place": "two\nlines", "among": []},
    {},
)
QUESTION = "How many birds?"
REPLY = "Nine birds."
THOUGHT = "I had better count them."
ANSWER = "<answer>Right</answer>"
# What ends a turn, as far as it is known of the published models and not only of their templates.
KNOWN_STOPS: dict[str, set[str]] = {
    "gptoss": {"<|return|>", "<|call|>"},
    "llama3_1": {"<|eot_id|>", "<|eom_id|>"},
    "llama3_2": {"<|eot_id|>", "<|eom_id|>"},
    "glm4moe": {"<|user|>", "<|observation|>"},
    "gemma4": {"<turn|>", "<|tool_response>"},
    "diffusion_gemma": {"<turn|>", "<|tool_response>"},
    "gemma4_v2": {"<turn|>"},
    "muse_glimmer": {"<|eot|>"},
    "deepseekv3": {"<｜end▁of▁sentence｜>"},
    "deepseek_r1_distill": {"<｜end▁of▁sentence｜>"},
    "qwen": {"<|im_end|>"},
    "lfm2": {"<|im_end|>"},
    "nemotron": {"<|im_end|>"},
    "phi3": {"<|end|>"},
    "gemma": {"<end_of_turn>"},
    "llama3": {"<|eot_id|>"},
}


@dataclass
class Row:
    """One template. Cells in words; `faults`: what nobody would be told of."""

    template: str
    loads: str = "yes"
    append_only: str = ""
    tools: str = ""
    calls: str = ""
    thought: str = ""
    stops: str = ""
    round_trip: str = ""
    faults: list[str] = field(default_factory=list)


def row_of(name: str, source: str) -> Row:
    """The row of a template. Nothing is raised: what breaks is a fault."""
    row = Row(name)
    tokenizer = tokenizer_for(source)
    try:
        chat = ChatFormat.from_tokenizer(tokenizer)
    except ChatFormatError as refused:
        row.loads = f"refused: {str(refused).split(';')[0][:100]}"
        return row
    except Exception as broken:
        row.loads = "crash"
        row.faults.append(f"loads: {type(broken).__name__}")
        return row
    changed = any("a later turn" in words for words in chat.differences)
    row.append_only = "suffix equal, past declared" if changed else "equal"
    for cell, check in (
        ("tools", _tools),
        ("calls", _calls),
        ("thought", _thoughts),
        ("stops", _stops),
        ("round_trip", _round_trip),
    ):
        try:
            setattr(row, cell, check(row, chat))
        except AssertionError as wrong:
            setattr(row, cell, "SILENT")
            row.faults.append(f"{cell}: {str(wrong).splitlines()[0][:200]}")
    return row


# ------------------------------------------------------------------------------------------------ what a policy would sample


def _rendered(chat: ChatFormat, messages: list[dict], *, tools: bool, prompt: bool) -> str | None:
    try:
        return chat.template.tokenizer.apply_chat_template(
            messages,
            tools=[SHOWN] if tools else None,
            tokenize=False,
            add_generation_prompt=prompt,
        )
    except Exception:  # a template may raise anything
        return None


def sampled(chat: ChatFormat, message: dict, *, tools: bool, reply: str = "") -> list[int] | None:
    """The ids of a turn as the template writes it behind its generation prompt, cut behind the first stop token; None where
    the template writes none. `reply`: role of a message that follows."""
    user = {"role": "user", "content": QUESTION}
    after = {"role": reply, "content": REPLY, "name": "count_birds", "tool_call_id": "abc12def3"}
    before = _rendered(chat, [user], tools=tools, prompt=True)
    messages = [user, message, *([after] if reply else [])]
    whole = _rendered(chat, messages, tools=tools, prompt=bool(reply))
    if before is None or whole is None:
        return None
    ids_before = chat.template.tokenizer.encode(before, add_special_tokens=False)
    ids_whole = chat.template.tokenizer.encode(whole, add_special_tokens=False)
    start = 0
    while start < min(len(ids_before), len(ids_whole)) and ids_before[start] == ids_whole[start]:
        start += 1
    turn = ids_whole[start:]
    end = next((place for place, token in enumerate(turn) if token in chat.stop_ids), None)
    return turn if end is None else turn[: end + 1]


def _call_messages(arguments: dict[str, Any]) -> list[dict]:
    """A call as messages; templates want its arguments as a mapping, or as text, and its content empty, or none."""
    messages = []
    for given in (arguments, json.dumps(arguments, ensure_ascii=False)):
        for content in ("", None):
            function = {"name": "count_birds", "arguments": given}
            call = {"id": "abc12def3", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": content, "tool_calls": [call]})
    return messages


# ------------------------------------------------------------------------------------------------ the cells


def _calls(row: Row, chat: ChatFormat) -> str:
    """Calls as the prompt asks for them are read, or the session is refused in words."""
    family = SimpleNamespace(calls=CallSettings(), make=lambda: SimpleNamespace(tools=(TOOL,)))
    asked = asked_form(chat)
    if asked != "hermes":
        try:
            fit_calls(family, chat)
        except ConfigError as refused:
            assert "env.calls.format" in str(refused)
        else:
            raise AssertionError("calls are read as hermes, which the template does not ask for")
    if asked is None:
        return "refused in words"
    form = format_for(asked, (TOOL,))
    if not chat.capabilities.tool_schemas:
        for arguments in CALLS:
            written = Hermes().write_call("count_birds", arguments)
            ids = chat.template.tokenizer.encode(written, add_special_tokens=False)
            _same_call(form.parse(chat.action_text(ids)), arguments)
        return "hermes, as our text asks"
    written = [arguments for arguments in CALLS if _read_back(chat, form, arguments)]
    if not written:
        for arguments in CALLS:
            text = form.write_call("count_birds", arguments)
            ids = chat.template.tokenizer.encode(text, add_special_tokens=False)
            _same_call(form.parse(chat.action_text(ids)), arguments)
        return f"{asked} (the template writes none)"
    return asked


def _tools(row: Row, chat: ChatFormat) -> str:
    """How tools are shown, and their replies; where those stand behind calls, they are what the template writes there."""
    able = chat.capabilities
    if not able.tool_schemas:
        return "as our text"
    if able.tool_replies:
        return "own form"
    if not able.called_replies:
        return "own form, replies as user text (said)"
    assert any("stand behind calls" in words for words in chat.differences), "nobody is told"
    for arguments in CALLS:
        _reply_behind(chat, arguments)
    return "own form, replies behind calls"


def _reply_behind(chat: ChatFormat, arguments: dict[str, Any]) -> None:
    """A reply behind a call that the template itself wrote, cut where sampling ends, token by token."""
    user = {"role": "user", "content": QUESTION}
    named = {"name": "count_birds", "tool_call_id": "abc12def3"}
    text = 'Nine "birds".\n'
    reply = Observation((Message("tool", text, "count_birds", "abc12def3"),))
    for message in _call_messages(arguments):
        ids = sampled(chat, message, tools=True, reply="tool")
        if ids is None or "count_birds" not in chat.decode(ids):
            continue
        after = {"role": "tool", "content": text} | named
        whole = _rendered(chat, [user, message, after], tools=True, prompt=True)
        before = _rendered(chat, [user], tools=True, prompt=True)
        spans = chat.append(reply, turn=0, last_id=ids[-1])
        ours = [*chat.template.tokenizer.encode(before, add_special_tokens=False), *ids]
        ours += [int(token) for span in spans for token in span.token_ids]
        theirs = chat.template.tokenizer.encode(whole, add_special_tokens=False)
        assert ours == theirs, f"the template writes {whole!r}"
        return
    raise AssertionError("the template writes no call to stand behind")


def _read_back(chat: ChatFormat, form: Any, arguments: dict[str, Any]) -> bool:
    """Whether the template writes this call; what it writes has to be read as exactly this call."""
    for message in _call_messages(arguments):
        for reply in ("tool", ""):
            ids = sampled(chat, message, tools=True, reply=reply)
            if ids is None or "count_birds" not in chat.decode(ids):
                continue
            _same_call(form.parse(chat.action_text(ids)), arguments)
            return True
    return False


def _same_call(turn: Any, arguments: dict[str, Any]) -> None:
    calls = [(call.name, call.arguments) for call in turn.calls]
    assert turn.valid, f"refused: {turn.complaint} {turn.quote}"
    assert calls == [("count_birds", arguments)], f"read as {calls}"


def _thoughts(row: Row, chat: ChatFormat) -> str:
    """An answer behind a thought, as the template writes both, is taken by a game."""
    thoughts = dict.fromkeys(("reasoning_content", "thinking", "reasoning"), THOUGHT)
    message = {"role": "assistant", "content": ANSWER} | thoughts
    ids = sampled(chat, message, tools=False)
    text = chat.action_text(ids) if ids is not None else ""
    shows = THOUGHT in text
    if chat.manner.opens and not shows:
        text = chat.action_text(
            chat.template.tokenizer.encode(
                f"{THOUGHT}\n</think>\n\n{ANSWER}", add_special_tokens=False
            )
        )
        shows = True
    if ids is not None or shows:
        for think in (False, True) if shows else (False,):
            read = parse_action(text, ("Right",), think=think)
            assert read.valid, f"refused: {read.complaint} {text[:60]!r}"
            assert not shows or read.thought == THOUGHT, f"the thought is read as {read.thought!r}"
    shows = _thought_before_call(chat, thoughts) or shows
    if chat.manner.opens:
        return "opened by the prompt"
    return "written by the policy" if shows else "none"


def _thought_before_call(chat: ChatFormat, thoughts: dict[str, str]) -> bool:
    """Whether the template writes a thought before a call; what it writes has to be read as one."""
    asked = asked_form(chat)
    if asked is None or not chat.capabilities.tool_schemas:
        return False
    for message in _call_messages(CALLS[0]):
        ids = sampled(chat, message | thoughts, tools=True, reply="tool")
        text = chat.action_text(ids) if ids is not None else ""
        if THOUGHT in text:
            turn = format_for(asked, (TOOL,)).parse(text)
            _same_call(turn, CALLS[0])
            assert turn.thought.strip() == THOUGHT, f"the thought is read as {turn.thought!r}"
            return True
    return False


def _stops(row: Row, chat: ChatFormat) -> str:
    """The tokens that end a turn: those known, and those that the template writes behind an answer and behind a call."""
    stops = set(chat.token_texts(sorted(chat.stop_ids))) - {"<EOS>"}
    known = max(
        (name for name in KNOWN_STOPS if row.template.startswith(name)), key=len, default=None
    )
    if known is not None:
        assert stops == KNOWN_STOPS[known], (
            f"{sorted(stops)}, expected {sorted(KNOWN_STOPS[known])}"
        )
    answer = {"role": "assistant", "content": ANSWER}
    # Where a past turn ends otherwise than a last one, the last one is what a policy samples.
    ids = sampled(chat, answer, tools=False, reply="" if chat.instead else "user")
    assert ids is None or ids[-1] in chat.stop_ids, "an answer runs past its end"
    assert ids is None or REPLY not in chat.decode(ids), "an answer runs past its end"
    return " ".join(sorted(stops)) or "eos alone"


def _round_trip(row: Row, chat: ChatFormat) -> str:
    """What was sampled stands in the sequence as it was sampled, by the policy, and nothing else does."""
    first = Observation((Message("user", QUESTION),), (SHOWN,))
    conversation = Conversation(chat, first)
    stop = chat.end_of_turn if chat.end_of_turn in chat.stop_ids else min(chat.stop_ids)
    said = []
    for number in range(3):
        text = f"{THOUGHT} {number} Zürich 🦊\n"
        ids = [*chat.template.tokenizer.encode(text, add_special_tokens=False), stop]
        said.append(ids)
        conversation.add_action(
            ids,
            np.full(len(ids), -1.0, np.float32),
            finish="stop",
            policy_version=0,
            sampling=Sampling(engine="test", dtype="float32"),
        )
        conversation.add_observation(
            Observation((Message("user", f"{REPLY} {''.join(chat.encoder.controls)}"),))
        )
    [segment] = conversation.segments
    policy = [span.token_ids.tolist() for span in segment.spans if span.source is Source.POLICY]
    assert policy == said, "the sampled ids changed"
    for span in segment.spans:
        if span.source in (Source.ENV, Source.PROMPT):
            forged = set(span.token_ids.tolist()) & chat.encoder.forbidden_ids
            assert not forged, f"untrusted text became {chat.token_texts(sorted(forged))}"
    return "equal"


# ------------------------------------------------------------------------------------------------ the page


def measured(names: Sequence[str]) -> list[Row]:
    """The rows of these templates, with a line of progress for each."""
    rows = []
    for name in names:
        row = row_of(name, source_of(name))
        rows.append(row)
        print(f"{name}: {'; '.join(row.faults) or 'ok'}", flush=True)
    return rows


def data_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows as a file of docs/evidence/data."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "version": 1,
        "title": "Chat templates of published families",
        "command": "make templates",
        "date": datetime.date.today().isoformat(),
        "machine": machine(f"templates of TRL {version('trl')}"),
        "seeds": [],
        "commit": commit.stdout.strip(),
        "source": "measured",
        "kind": "templates",
        "result": {"rows": [asdict(row) for row in rows]},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Which chat templates are read right.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("names", nargs="*", help="of templates; none: all of them")
    options = parser.parse_args(arguments)
    rows = measured(options.names or template_names())
    silent = [row for row in rows if row.faults]
    refused = [row for row in rows if row.loads.startswith("refused")]
    print(
        f"{len(rows)} templates: {len(silent)} with a silent fault, {len(refused)} refused in words"
    )
    if not options.check and not options.names and not silent:
        DATA.write_text(compact(data_of(rows)) + "\n", encoding="utf-8")
        write_pages()
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
