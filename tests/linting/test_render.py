"""R2 and R15: prompts with something lost, doubled or forged, made by hand and by breaking our own chat code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.linting.clean_rollouts import HISTORIES, QUICK, TEMPLATES, Recipe, chat_of, collected
from tests.linting.damaged import (
    at,
    clean,
    found,
    other_id,
    says,
    start_of,
    with_spans,
    with_trajectory,
)
from workbench.chat import ChatFormat, Conversation
from workbench.chat.encode import AuthoredText, SafeEncoder
from workbench.linting import Evidence, check
from workbench.linting.reference import GUARD, Reference
from workbench.linting.render import chosen
from workbench.linting.table import RULES
from workbench.values import Message, Observation, Source, Span

LAKE = dict(preset="sokoban-6x6", tasks=1, group_size=3, seed=3)
FAMILIES = ("qwen3", "llama3.1", "gemma", "gpt-oss")


def talk(template: str, history: str = "append", kind: str = "tools", **settings) -> Evidence:
    return clean(template=template, history=history, talk=kind, **{**LAKE, **settings})


def scaffold_after_a_turn(evidence: Evidence, history: str) -> tuple[int, int, int, Span]:
    """The template's literal right behind a turn of the policy that is not the last."""
    for n, trajectory in enumerate(evidence.trajectories):
        for s, segment in enumerate(trajectory.segments):
            for k, span in enumerate(segment.spans):
                if (
                    k
                    and span.source is Source.SCAFFOLD
                    and segment.spans[k - 1].source is Source.POLICY
                ):
                    return n, s, k, span
    raise AssertionError("no literal behind a turn")


@pytest.mark.parametrize(
    "template",
    [
        *QUICK,
        *(pytest.param(each, marks=pytest.mark.full) for each in TEMPLATES if each not in QUICK),
    ],
)
def test_every_family_and_history_has_a_reference(template):
    """Negative control: all of it was looked at and nothing found, nor skipped."""
    for history in HISTORIES:
        report = check(talk(template, history), [RULES["R2"], RULES["R15"]])
        for answer in report:
            assert (answer.status, answer.missing) == ("passed", ()) and answer.looked >= 3, (
                report.text
            )


# ------------------------------------------------------------------------------------------------ R2, by hand


@pytest.mark.parametrize("history", ["append", "window", "template"])
@pytest.mark.parametrize("template", FAMILIES)
def test_r2_one_token_dropped_between_a_turn_and_a_tool_reply(template, history):
    """verl#6921: the newline behind the policy's turn is lost where a tool answers."""
    evidence = talk(template, history)
    n, s, k, span = scaffold_after_a_turn(evidence, history)
    dropped = at(k, lambda x: replace(x, token_ids=x.token_ids[1:]))
    finding = says(
        "R2",
        with_spans(evidence, n, s, dropped, batch=False),
        "own template writes",
        index=n,
        segment=s,
    )
    assert abs(finding.place.position - start_of(evidence, n, s, k)) <= 1


@pytest.mark.parametrize("template", FAMILIES)
def test_r2_the_opening(template):
    evidence = talk(template)
    first = evidence.trajectories[0].segments[0].spans
    says(
        "R2",
        with_spans(
            evidence, 0, 0, at(0, lambda x: [Span(x.source, 0, x.token_ids[:1]), x]), batch=False
        ),
        index=0,
        segment=0,
    )  # a second BOS, or header
    last = next(k for k, span in enumerate(first) if span.logprobs is not None) - 1
    says(
        "R2",
        with_spans(
            evidence, 0, 0, at(last, lambda x: replace(x, token_ids=x.token_ids[:-1])), batch=False
        ),
        index=0,
        segment=0,
    )  # of the generation prompt
    prompt = next(k for k, span in enumerate(first) if span.source is Source.PROMPT)
    says(
        "R2",
        with_spans(
            evidence, 0, 0, at(prompt, lambda x: replace(x, token_ids=x.token_ids[3:])), batch=False
        ),
        index=0,
        segment=0,
        position=start_of(evidence, 0, 0, prompt),
    )


@pytest.mark.parametrize("change", ["system", "tools"])
@pytest.mark.parametrize("template", ("qwen3", "gemma", "llama3.1"))
def test_r2_system_text_or_tools_that_were_not_shown(template, change):
    """What was shown lacks what the environment said: here the environment says more than was shown."""
    evidence = clean(template=template, **LAKE)
    opening = evidence.trajectories[0].first_observation
    more = {
        "system": Observation((Message("system", "You play."), *opening.messages)),
        "tools": Observation(
            opening.messages, talk(template).trajectories[0].first_observation.tools
        ),
    }[change]
    told = with_trajectory(evidence, 0, lambda t: replace(t, first_observation=more), batch=False)
    says("R2", told, index=0, segment=0)
    says("R15", told, index=0)


def test_r2_the_same_text_in_other_tokens():
    evidence = talk("qwen3")
    tokenizer = evidence.chat.template.tokenizer
    n, s, k, span = next(
        (n, s, k, span)
        for n, t in enumerate(evidence.trajectories)
        for s, segment in enumerate(t.segments)
        for k, span in enumerate(segment.spans)
        if span.source is Source.ENV and len(span) > 2
    )
    letters = [
        token for char in tokenizer.decode(span.token_ids) for token in tokenizer.encode(char)
    ]
    assert tokenizer.decode(letters) == tokenizer.decode(span.token_ids) and len(letters) > len(
        span
    )
    says(
        "R2",
        with_spans(evidence, n, s, at(k, lambda x: replace(x, token_ids=letters)), batch=False),
        "by the tokenizer itself",
        index=n,
        segment=s,
    )


def test_r2_knows_what_was_declared_and_notes_what_was_not():
    """gpt-oss writes a header before past answers that the policy never sampled: declared, so no word of it."""
    evidence = talk("gpt-oss", kind="plain")
    assert any("<|channel|>final<|message|>" in said for said in evidence.chat.differences)
    assert check(evidence, [RULES["R2"]])["R2"].status == "passed"
    chat = chat_of("gpt-oss")
    silent = ChatFormat(
        chat.template, chat.encoder, chat.capabilities, chat.template.tokenizer.eos_token_id
    )
    silent.differences = ()
    notes = check(replace(evidence, chat=silent), [RULES["R2"]])["R2"].notes
    assert notes and "would write the past otherwise" in notes[0].what


# ------------------------------------------------------------------------------------------------ R2, our own code broken


def broken_glue(change):
    real = ChatFormat.append

    def append(self, observation, **rest):
        return tuple(change(list(real(self, observation, **rest))))

    return append


GLUE_BUGS = {
    "first token lost": lambda spans: [
        replace(spans[0], token_ids=spans[0].token_ids[1:]),
        *spans[1:],
    ],
    "first token twice": lambda spans: [
        Span(spans[0].source, spans[0].turn, spans[0].token_ids[:1]),
        *spans,
    ],
    "no generation prompt": lambda spans: spans[:-1],
    "generation prompt twice": lambda spans: [*spans, spans[-1]],
    "reply lost": lambda spans: [span for span in spans if span.source is not Source.ENV],
    "reply cut": lambda spans: [
        replace(s, token_ids=s.token_ids[:-1]) if s.source is Source.ENV else s for s in spans
    ],
    "last token lost": lambda spans: [
        *spans[:-1],
        replace(spans[-1], token_ids=spans[-1].token_ids[:-1]),
    ],
    "parts swapped": lambda spans: spans[::-1],
}


@pytest.mark.parametrize("bug", GLUE_BUGS)
@pytest.mark.parametrize("template, history", [("qwen3", "append"), ("llama3.1", "window")])
def test_r2_our_glue_broken(template, history, bug, monkeypatch):
    recipe = Recipe(template=template, history=history, talk="tools", **LAKE)
    chat_of(template)  # proven before it is broken
    monkeypatch.setattr(ChatFormat, "append", broken_glue(GLUE_BUGS[bug]))
    evidence = collected(recipe)
    says("R2", evidence, "own template writes")
    if bug.startswith("reply"):
        says("R15", evidence, "the environment said")


def test_r2_a_window_that_forgets_a_reply(monkeypatch):
    real = Conversation._windowed
    monkeypatch.setattr(
        Conversation,
        "_windowed",
        lambda self, exchanges: [
            span for span in real(self, exchanges) if span.source is not Source.ENV
        ],
    )
    evidence = collected(Recipe(template="qwen3", history="window", **LAKE))
    says("R2", evidence)
    says("R15", evidence)


def test_r2_fresh_prompts_with_a_stale_reply(monkeypatch):
    real = ChatFormat.fresh
    kept = []

    def stale(self, first, reply, *, turn):
        kept.append(reply)
        return real(self, first, kept[max(len(kept) - 4, 0)], turn=turn)

    monkeypatch.setattr(ChatFormat, "fresh", stale)
    evidence = collected(Recipe(template="qwen3", history="fresh", **LAKE))
    says("R2", evidence)


def test_r2_a_template_that_is_not_the_tokenizers_own(monkeypatch):
    """A flag that is forgotten on the way to the template, say: thoughts switched off, and yet prompted for."""
    tokenizer = chat_of("qwen3").template.tokenizer
    flagged = ChatFormat.from_tokenizer(tokenizer, template_flags={"enable_thinking": False})
    evidence = clean(template="qwen3", **LAKE)
    assert found("R2", replace(evidence, chat=flagged))


# ------------------------------------------------------------------------------------------------ R15


def test_r15_a_control_token_by_hand():
    evidence = talk("qwen3", kind="hostile")
    for source in (Source.ENV, Source.PROMPT):
        n, s, k, span = next(
            (n, s, k, span)
            for n, t in enumerate(evidence.trajectories)
            for s, segment in enumerate(t.segments)
            for k, span in enumerate(segment.spans)
            if span.source is source and len(span) > 2
        )
        stop = evidence.chat.end_of_turn
        broken = with_spans(
            evidence,
            n,
            s,
            at(k, lambda x: replace(x, token_ids=[*x.token_ids[:2], stop, *x.token_ids[2:]])),
            batch=False,
        )
        finding = says(
            "R15",
            broken,
            "'<|im_end|>' stands here as the control token",
            index=n,
            segment=s,
            position=start_of(evidence, n, s, k) + 2,
        )
        assert str(stop) in finding.what


@pytest.mark.parametrize("template", ["qwen3", "llama3.1", "gemma"])
def test_r15_an_encoder_that_trusts_everybody(template, monkeypatch):
    """transformers#29279: an observation that writes `<|im_end|>` ends the turn."""
    real, chat = SafeEncoder.encode, chat_of(template)
    monkeypatch.setattr(chat, "_opened", {})
    monkeypatch.setattr(
        SafeEncoder,
        "encode",
        lambda self, items, **rest: real(
            self,
            [
                item._replace(literal=True) if isinstance(item, AuthoredText) else item
                for item in items
            ],
            **rest,
        ),
    )
    evidence = collected(Recipe(template=template, talk="hostile", **{**LAKE, "group_size": 6}))
    says("R15", evidence, "as the control token")
    says("R2", evidence)


def test_r15_trusted_instructions_may_have_control_tokens():
    """The tiny tokenizer's <think> and <answer> are control tokens, and the instructions show them."""
    evidence = clean(template="tiny", preset="frozenlake-4x4", tasks=1, seed=1)
    controls = set(Reference(evidence.chat).controls)
    prompt = [
        t
        for s in evidence.trajectories[0].segments[0].spans
        if s.source is Source.PROMPT
        for t in s.token_ids
    ]
    assert controls & set(map(int, prompt)) and not found("R15", evidence)
    message = evidence.trajectories[0].first_observation.messages[0]
    said = replace(message, content=tuple(replace(part, trusted=False) for part in message.content))
    untrusted = with_trajectory(
        evidence, 0, lambda t: replace(t, first_observation=Observation((said,))), batch=False
    )
    says("R15", untrusted, "no trusted text", index=0)


@pytest.mark.parametrize("history", HISTORIES)
def test_r15_text_that_is_lost_or_changed(history):
    evidence = talk("llama3.1", history, kind="plain")
    n, s, k, span = next(
        (n, s, k, span)
        for n, t in enumerate(evidence.trajectories)
        for s, segment in enumerate(t.segments)
        for k, span in enumerate(segment.spans)
        if span.source is Source.ENV and span.turn == segment.spans[-1].turn - 1
    )
    middle = len(span) // 2
    for ids in (
        [*span.token_ids[:middle], *span.token_ids[middle + 1 :]],
        [
            *span.token_ids[:middle],
            other_id(evidence, int(span.token_ids[middle])),
            *span.token_ids[middle + 1 :],
        ],
    ):
        broken = with_spans(
            evidence, n, s, at(k, lambda x, ids=ids: replace(x, token_ids=ids)), batch=False
        )
        says("R15", broken, "the environment said", index=n, segment=s)


# ------------------------------------------------------------------------------------------------ samples, guards


@pytest.mark.parametrize("template", FAMILIES)
def test_r15_a_text_with_the_mark_of_a_space_comes_out_as_the_tokenizer_makes_it(template):
    """Qwen's normalizer leaves U+2581 alone, Gemma's takes it for a space."""
    reference = Reference(chat_of(template))
    backend, said = reference.backend, "bars: ▁▂▁ and ▁ by itself"
    text = reference.normalized(said)
    assert ("▁" in text) is (template != "gemma")
    if template != "gemma":
        assert text == reference.decode(backend.encode(said, add_special_tokens=False).ids)


def test_samples_are_spread_and_others_in_every_step():
    evidence = clean(template="tiny", preset="frozenlake-4x4", tasks=4, group_size=6, seed=2)
    assert chosen(evidence) == list(range(24))
    steps = [chosen(replace(evidence, samples=4, step=step)) for step in range(24)]
    assert (
        all(len(set(each)) == len(each) <= 4 for each in steps)
        and len({n for each in steps for n in each}) == 24
    )


@pytest.mark.parametrize("template", FAMILIES)
def test_guards_leave_no_control_token_and_can_be_taken_out(template):
    reference = Reference(chat_of(template))
    for name in reference.controls.values():
        for text in (name, name * 2, f"a{name}b", name[:-1] + name, name + name[1:]):
            guarded = reference._guarded(text)
            assert guarded.replace(GUARD, "") == text and not reference.controls_in(guarded)
            assert (
                reference.cut(reference.backend.encode(guarded, add_special_tokens=False).ids)[
                    0
                ].text
                == text
            )


def test_an_environment_that_writes_our_marks_is_not_checked_rather_than_misread():
    evidence = clean(template="qwen3", **LAKE)
    odd = Message("user", f"odd {GUARD}")
    told = with_trajectory(
        evidence, 0, lambda t: replace(t, first_observation=Observation((odd,))), batch=False
    )
    assert any(
        "private" in each or "U+E000" in each for each in check(told, [RULES["R2"]])["R2"].missing
    )
