"""Published chat templates, row by row: no fault that nobody is told of. `make templates` writes the page from the same."""

import re

import pytest

from tests.chat.template_kit import source_of, template_names, tokenizer_for
from tests.chat.templates import Row, _calls, _stops, _thoughts, main, row_of
from tests.counts import reduced
from workbench.chat import ChatFormat
from workbench.chat.manner import Manner

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
