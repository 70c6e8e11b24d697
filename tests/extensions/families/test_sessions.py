"""Sessions with turns in a family's own words, from the prompt to the lint: calls read, turns ended where they end,
thoughts accepted by every world, every token with its author."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families_kit import (  # noqa: E402
    ARGUMENTS,
    WORDS,
    Asking,
    chat_of,
    fitted,
    lint_of,
    rolled,
    with_hermes,
)

from tests.chat.template_kit import source_of, tokenizer_for  # noqa: E402
from workbench.chat import ChatFormat  # noqa: E402
from workbench.tools.action_format import parse_action, parse_answer  # noqa: E402
from workbench.training.config import load_config  # noqa: E402
from workbench.training.session import open_session  # noqa: E402
from workbench.values import Source, StopReason  # noqa: E402
from workbench.values.errors import ConfigError  # noqa: E402
from workbench.worlds import FrozenLake  # noqa: E402
from workbench.worlds.tool_env import CallSettings  # noqa: E402

FAMILIES = list(WORDS)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_session_reads_calls_and_answers_in_the_familys_own_words(name):
    words, chat = WORDS[name], chat_of(WORDS[name].template)
    family = fitted(chat, Asking())
    assert family.calls.format == words.form
    group, sampled = rolled(chat, family, [words.call, words.answer])
    trajectory = group[0]
    first, second = trajectory.turns
    assert [(call.name, dict(call.arguments)) for call in first.tool_calls] == [
        ("population", ARGUMENTS)
    ]
    assert first.info["valid_format"] and second.info["valid_format"]
    assert "Ulm 1990: 126000" in first.reply[0].text
    assert trajectory.stop_reason is StopReason.TERMINATED and trajectory.success
    assert [turn.finish for turn in trajectory.turns] == ["stop", "stop"]
    # Every token with its author: what was sampled is the policy's, all of it, and nothing else is.
    [segment] = trajectory.segments
    spans = [span for span in segment.spans if span.source is Source.POLICY]
    assert [span.token_ids.tolist() for span in spans] == sampled
    outside = (Source.ENV, Source.PROMPT)
    foreign = [span for span in segment.spans if span.source in outside]
    forged = {int(token) for span in foreign for token in span.token_ids} & chat.encoder.control_ids
    assert not forged
    report = lint_of(chat, family, group)
    assert not report.errors, report.text
    assert {rule for rule, _ in report.notes} <= {"R8"}, (
        report.text
    )  # both trajectories say the same


@pytest.mark.parametrize("name", FAMILIES)
def test_a_thought_in_the_familys_marks_is_accepted_by_every_world(name):
    words, chat = WORDS[name], chat_of(WORDS[name].template)
    said = words.answer[0].replace("126000", "Right")
    world = FrozenLake(think=bool(words.thought))
    group, _ = rolled(chat, world, [(said, words.answer[1])])
    turn = group[0].turns[0]
    assert turn.info["valid_format"], turn.info
    ids = chat.template.tokenizer.encode(said, add_special_tokens=False)
    text = chat.action_text(ids)
    for think in (False, True) if words.thought else (False,):
        assert parse_action(text, ("Right", "Left"), think=think).moves == ("Right",)
        answer = parse_answer(text, think=think)
        assert answer.valid and answer.thought == words.thought


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen3"])
def test_the_format_of_before_is_refused_when_the_session_opens(name):
    """Negative control: read as hermes, these calls are none, and nobody would be told."""
    words, chat = WORDS[name], chat_of(WORDS[name].template)
    with pytest.raises(ConfigError, match="env.calls.format = 'template'"):
        fitted(chat, with_hermes(Asking()))
    group, _ = rolled(chat, with_hermes(Asking()), [words.call, words.answer])
    assert not group[0].turns[0].tool_calls


def test_a_turn_that_ends_its_thought_is_not_over():
    """gpt-oss ends a thought with the token that its template writes behind past answers: no stop."""
    words, chat = WORDS["gpt-oss"], chat_of("gptoss")
    stops = set(chat.token_texts(sorted(chat.stop_ids)))
    assert stops == {"<|return|>", "<|call|>", "<EOS>"}
    assert set(chat_of("llama3_1").token_texts(sorted(chat_of("llama3_1").stop_ids))) == {
        "<|eot_id|>",
        "<|eom_id|>",
        "<EOS>",
    }
    # Behind a sampled end, the template's own end of a past turn is not written once more.
    unread = (words.answer[0].replace("answer", "reply"), words.answer[1])
    group, _ = rolled(chat, fitted(chat, Asking()), [words.call, unread, words.answer])
    ids = group[0].segments[0].token_ids.tolist()
    texts = chat.token_texts(ids)
    assert texts[texts.index("<|call|>") + 1] == "<|start|>"
    assert texts[texts.index("<|return|>") + 1] == "<|start|>"


# What stands between a call and the policy's next words, as the family publishes it.
BEHIND = {
    "gpt-oss": (
        '<|call|><|start|>functions.population to=assistant<|channel|>commentary<|message|>"Ulm 1990: 126000"<|end|>'
        "<|start|>assistant"
    ),
    "gemma4": '<|tool_response>response:population{value:<|"|>Ulm 1990: 126000<|"|>}<tool_response|>',
}


@pytest.mark.parametrize("name", BEHIND)
def test_replies_stand_behind_calls_as_the_template_writes_them(name):
    words, chat = WORDS[name], chat_of(WORDS[name].template)
    family = fitted(chat, Asking(max_turns=4))
    group, _ = rolled(chat, family, [words.call, words.call, words.answer])
    [segment] = group[0].segments
    text = chat.encoder.backend.decode(segment.token_ids.tolist(), skip_special_tokens=False)
    assert text.count(BEHIND[name]) == 2 and "<tool_response>" not in text
    # The template wrote what stands around the reply, the environment its name and its words.
    env = [span for span in segment.spans if span.source is Source.ENV and span.turn == 0]
    shown = "".join(chat.decode(span.token_ids) for span in env)
    assert "population" in shown and "Ulm 1990: 126000" in shown and "response" not in shown
    report = lint_of(chat, family, group)
    assert "R2   passed" in report.text and not report.errors
    # Negative control: replies as user text, where the chat format declares them behind calls.
    declared = chat.capabilities
    chat.capabilities = replace(declared, called_replies=False)
    try:
        group, _ = rolled(chat, family, [words.call, words.call, words.answer])
    finally:
        chat.capabilities = declared
    assert "R2" in {rule for rule, _ in lint_of(chat, family, group).errors}


@pytest.mark.parametrize("name", BEHIND)
def test_a_call_that_could_not_be_read_is_answered_by_user_text(name):
    """No tool was called, so there is no name for its reply to stand under."""
    words, chat = WORDS[name], chat_of(WORDS[name].template)
    assert any("could not be read, its reply is user text" in note for note in chat.differences)
    damaged = (words.call[0].replace("1990", "19x0"), words.call[1])
    family = fitted(chat, Asking())
    group, _ = rolled(chat, family, [damaged, words.answer])
    text = chat.encoder.backend.decode(
        group[0].segments[0].token_ids.tolist(), skip_special_tokens=False
    )
    assert "<tool_response>\nError" in text and not lint_of(chat, family, group).errors


def test_replies_that_cannot_be_proven_stay_user_text_and_that_is_said():
    """A template that writes other words behind a call from its third reply on."""
    source = source_of("gptoss")
    changed = source.replace(
        '{{- " to=assistant<|channel|>commentary<|message|>"',
        '{{- (" again" if loop.index0 > 5 else "") + " to=assistant<|channel|>commentary<|message|>"',
    )
    assert changed != source
    chat = ChatFormat.from_tokenizer(tokenizer_for(changed))
    assert not chat.capabilities.called_replies
    assert any("shown as user text" in note for note in chat.differences)
    assert ChatFormat.from_tokenizer(tokenizer_for(source)).capabilities.called_replies


DAMAGES = {
    "half": lambda text: text[: len(text) // 2],
    "all but the last character": lambda text: text[:-1],
    "all but the last ten": lambda text: text[:-10],
    "two thirds": lambda text: text[: 2 * len(text) // 3],
    "without the first mark": lambda text: text[text.find(">") + 1 :] if ">" in text else text[1:],
    "without the name": lambda text: text.replace("population", ""),
    "a name that is none": lambda text: text.replace("population", "popu lation"),
    "without a key": lambda text: text.replace("city", ""),
    "a key twice": lambda text: text.replace("year", "city"),
    "without a value": lambda text: text.replace("1990", ""),
    "a number that is none": lambda text: text.replace("1990", "19x0"),
    "not a number": lambda text: text.replace("1990", "NaN"),
    "a number too large": lambda text: text.replace("1990", "1" * 401),
    "text behind it": lambda text: text + " as you see",
    "text before it": lambda text: "I call: " + text,
    "half a call behind it": lambda text: text + text[len(text) // 2 :],
    "an answer behind it": lambda text: text + "<answer>1</answer>",
    "brackets lost": lambda text: text.translate(str.maketrans("", "", "{}[]()>")),
    "colons and equals lost": lambda text: text.translate(str.maketrans("", "", ":=")),
    "an argument that holds what ends it": lambda text: _ended_twice(text),
    "slashes and bars lost": lambda text: text.translate(str.maketrans("", "", "/|")),
    "quotation marks lost": lambda text: text.replace('"', "").replace("'", ""),
}


def _ended_twice(text: str) -> str:
    """`Ulm` ended, something more, and ended again."""
    end = re.match(r"\W.*?(?:[>']|\"(?!\|))", text.partition("Ulm")[2], re.DOTALL)[0]
    return text.replace(f"Ulm{end}", f"Ulm{end} and more{end}")


# Damages that leave the call whole: words that fall into the thought, a thought or a line break that is lost.
THOUGHT_LOST = "without the first mark"
HARMLESS: dict[str, set[str]] = {
    "qwen3.5": {THOUGHT_LOST, "text before it"},
    "nemotron3": {THOUGHT_LOST, "text before it", "all but the last character"},
    "glm": {THOUGHT_LOST},
    "lfm2": {THOUGHT_LOST},
    "qwen3": {THOUGHT_LOST},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_damaged_call_is_refused_or_named(name):
    """Never another call than the one that was meant, and never silence."""
    words, chat = WORDS[name], chat_of(WORDS[name].template)
    family = fitted(chat, Asking())
    tried = 0
    for damage, damaged in DAMAGES.items():
        text = damaged(words.call[0])
        if text == words.call[0]:
            continue
        env = family.make()
        env.reset(family.task(0), 0)
        result = env.step(chat.manner.plain(text))
        errors = [call["error"] for call in result.info["calls"] if call["error"]]
        if result.info["valid_format"] and not errors:
            [call] = result.tool_calls
            assert (call.name, dict(call.arguments)) == ("population", ARGUMENTS), (damage, text)
            assert damage in HARMLESS.get(name, ()), (damage, text)
        else:
            assert errors or result.info["complaint"], (damage, text)
            assert result.observation.messages, (damage, text)
            tried += 1
    assert tried >= 19 - len(HARMLESS.get(name, ()))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_not_damaged_is_made(name):
    """Negative control of the damages."""
    words, chat = WORDS[name], chat_of(WORDS[name].template)
    env = fitted(chat, Asking()).make()
    env.reset(Asking().task(0), 0)
    result = env.step(chat.manner.plain(words.call[0]))
    assert result.info["valid_format"] and result.info["calls"] == [
        {"name": "population", "error": ""}
    ]


def test_a_session_opens_with_the_form_that_its_template_asks_for():
    """The shipped policy's template shows no tools, so our text does, which asks for hermes. It stands in the run's config."""
    config = load_config("search", {"env.calls.format": "template"})
    session = open_session(config, quiet=True)
    assert session.config.env.calls.format == "hermes" == session.family.calls.format
    assert config.env.calls.format == "template"


def test_a_form_that_is_given_by_name_is_kept():
    words, chat = WORDS["glm"], chat_of("glm4moe")
    family = Asking(CallSettings(format=words.form))
    assert fitted(chat, family) is family
    tags = Asking(CallSettings(format="tags"))
    assert fitted(chat, tags) is tags
    # Tools that are not shown are asked for in no form.
    hidden = Asking(CallSettings(format="hermes", show_schemas=False))
    assert fitted(chat, hidden) is hidden
    with pytest.raises(ConfigError, match="'glm'"):
        fitted(chat, Asking(CallSettings(format="qwen_xml")))
