"""Published chat templates, row by row: no fault that nobody is told of. `make templates` writes the page from the same."""

import re
from copy import deepcopy

import pytest

from tests.chat.template_kit import source_of, template_names, tokenizer_for
from tests.chat.templates import Row, _calls, _stops, _thoughts, main, row_of
from tests.counts import reduced
from workbench.chat import ChatFormat
from workbench.chat.manner import Manner
from workbench.chat.skeleton import guard_tool
from workbench.values import Message, Observation, Source
from workbench.values.tokens import GENERATION_STOPS

QUICK = ("gptoss", "llama3_1", "glm4moe", "gemma4_v5", "qwen3_5_think", "lfm2", "smolvlm")


@pytest.mark.parametrize("name", reduced(template_names(), QUICK))
def test_a_template_is_read_right_or_refused_in_words(name):
    row = row_of(name, source_of(name))
    assert not row.faults
    assert row.loads == "yes" or row.loads.startswith("refused: ")


def chat_of(name: str) -> ChatFormat:
    return ChatFormat.from_tokenizer(tokenizer_for(source_of(name)))


@pytest.mark.parametrize(
    ("name", "check", "fault"),
    [
        ("llama3_1", _calls, "refused"),
        ("qwen3_5_think", _thoughts, "outside the tags|refused"),
        ("gptoss", _stops, "expected"),
        ("gptoss", _thoughts, "refused"),
    ],
)
def test_without_the_manner_of_the_template_the_faults_come_back(name, check, fault):
    """Negative control: the same checks on a chat that was not told how its template has its model write."""
    chat = chat_of(name)
    check(Row(name), chat)
    chat.manner = Manner(calls="hermes", opens=chat.manner.opens)
    chat.stop_ids = frozenset(chat.stop_ids | {chat.encoder.controls.get("<|end|>", 0)})
    if name == "qwen3_5_think":
        chat.manner = Manner(
            calls="hermes", opens=True, plain=lambda text: f"so {text}".replace("</think>", "")
        )
    with pytest.raises(AssertionError, match=fault):
        check(Row(name), chat)


def test_a_template_that_nobody_reads_is_refused_in_words():
    """A family that does not exist: its calls are in no form that is known, and the session says so."""
    source = source_of("qwen3_5_think")
    strange = source.replace("<function=", "<do ").replace("</function>", "</do>")
    row = row_of("strange", strange)
    assert not row.faults and row.calls == "refused in words"
    notes = ChatFormat.from_tokenizer(tokenizer_for(strange)).differences
    assert any("nobody here reads" in note for note in notes)


def test_marks_of_a_thought_are_told_from_the_template():
    """Held back: marks that stand in no table."""
    source = source_of("qwen3_5_nothink")
    renamed = re.sub(r"(</?)think>", r"\1ponder>", source)
    chat = ChatFormat.from_tokenizer(tokenizer_for(renamed, more=("<ponder>", "</ponder>")))
    assert (
        chat.action_text(
            chat.template.tokenizer.encode(
                "<ponder>\nhm\n</ponder>\n\nUp", add_special_tokens=False
            )
        )
        == "\nhm\n</think>\n\n\nUp"
    )


def test_the_command_says_what_it_found(capsys):
    assert main(["--check", "llama3", "smolvlm"]) == 0
    assert "2 templates: 0 with a silent fault, 1 refused in words" in capsys.readouterr().out


TEMPLATE_OF_NAMES = (
    "{% for t in tools or [] %}<|im_start|>system\n{{ t.function.name }}: {{ t.function.description }} "
    "{{ t.function.parameters | tojson }}<|im_end|>\n{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "name<|im_end|>",
        "description": "object",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": ["name", "<|im_end|>"]}},
            "required": ["name"],
        },
    },
}


def test_what_a_schema_prescribes_is_not_guarded():
    """Qwen's added <|repo_name|> and <|object_ref_start|> end and begin with words that every schema holds."""
    tokenizer = tokenizer_for(TEMPLATE_OF_NAMES, more=("<|repo_name|>", "<|object_ref_start|>"))
    chat = ChatFormat.from_tokenizer(tokenizer)
    assert chat.capabilities.tool_schemas and not chat.capabilities.refused
    guarded = guard_tool(TOOL, chat.shapes.guard)
    assert list(guarded["function"]) == ["name", "description", "parameters"]
    parameters = guarded["function"]["parameters"]
    assert list(parameters) == ["type", "properties", "required"] and parameters["type"] == "object"
    # Negative control: what an author wrote is guarded as ever, and no control token comes of it.
    assert "<|im_end|>" not in str(guarded) and guarded["function"]["description"] != "object"
    assert list(parameters["properties"]) != ["name"]
    spans = chat.open(Observation((Message("user", "u"),), (TOOL,)))
    prompt = [
        int(token) for span in spans if span.source is Source.PROMPT for token in span.token_ids
    ]
    assert not set(prompt) & chat.encoder.forbidden_ids
    ids = [int(token) for span in spans for token in span.token_ids]
    assert "name<|im_end|>: object" in chat.decode(ids)


def test_the_true_reason_is_told_where_a_templates_tools_are_not_used():
    """It shows tools in a prompt and raises behind a reply: found by the proof, so the proof's words are the reason."""
    raising = TEMPLATE_OF_NAMES.replace(
        "{{ m.content }}",
        "{{ m.content }}{% if tools and loop.index > 3 %}{{ raise_exception('too many') }}{% endif %}",
    )
    chat = ChatFormat.from_tokenizer(tokenizer_for(raising))
    [note] = [note for note in chat.differences if "own tools are not used" in note]
    assert "too many" in note and not any("no tool schemas" in words for words in chat.differences)


def test_stops_of_generation_config_end_turns_and_those_inside_of_turns_do_not():
    tokenizer = deepcopy(tokenizer_for(source_of("gptoss")))
    before = ChatFormat.from_tokenizer(tokenizer).stop_ids
    ids = {text: tokenizer.convert_tokens_to_ids(text) for text in ("<PAD>", "<|end|>")}
    setattr(tokenizer, GENERATION_STOPS, tuple(ids.values()))
    assert ChatFormat.from_tokenizer(tokenizer).stop_ids == before | {ids["<PAD>"]}
