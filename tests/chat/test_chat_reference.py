"""Append-only rendering equals the tokenizer's own `apply_chat_template`, on published templates of many families."""

from __future__ import annotations

import pytest
from chat_checks import chat_of, ids_of, say
from chat_families import FAMILIES, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from data.make.tiny_tokenizer import build_tokenizer
from workbench.chat import ChatFormat
from workbench.chat.capabilities import chat_message, fit
from workbench.values import Message, Observation, Source
from workbench.values.errors import ChatFormatError

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": 'Suche "überall" & <b>überall</b>.\nSlow.',
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "enum": ["a", "b"]}},
                "required": [],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"numbers": {"type": "array", "items": {"type": "number"}}},
                "required": ["numbers"],
            },
        },
    },
)
# Templates that never re-render the past of conversations without thoughts.
STABLE = (
    "qwen2.5",
    "qwen3",
    "qwen3-2507",
    "llama3",
    "llama3.1",
    "gemma",
    "gemma3",
    "phi3",
    "cohere",
)


def reference_ids(chat: ChatFormat, tokenizer, first: Observation, exchanges, **flags) -> list[int]:
    """The tokenizer's ids of the whole conversation, its messages fitted to what the template takes."""
    messages = fit(
        [chat_message(m, Source.PROMPT, 0) for m in first.messages],
        first.tools,
        chat.capabilities,
        opening=True,
    )
    dicts = [{"role": message.role, "content": message.text} for message in messages]
    for text, reply in exchanges:
        dicts.append({"role": "assistant", "content": text})
        fitted = fit(
            [chat_message(m, Source.ENV, 0) for m in reply.messages],
            (),
            chat.capabilities,
            opening=False,
        )
        dicts += [{"role": message.role, "content": message.text} for message in fitted]
    tools = [dict(tool) for tool in first.tools] if chat.capabilities.tool_schemas else None
    return tokenizer.apply_chat_template(
        dicts,
        tools=tools or None,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=True,
        **flags,
    )


def append_only_ids(chat: ChatFormat, tokenizer, first: Observation, exchanges) -> list[int]:
    ids = ids_of(chat.open(first))
    for turn, (text, reply) in enumerate(exchanges):
        ids += tokenizer.encode(text, add_special_tokens=False)
        ids += ids_of(chat.append(reply, turn=turn, last_id=None))
    return ids


# Benign: any text that does not spell out an added token. White space at the ends is where templates like to meddle.
blanks = st.text(" \n\t", max_size=3)
words = st.one_of(
    st.sampled_from(
        [
            "You moved.",
            "_ P _\n_ O G",
            "a  b\n\nc",
            '"q"\\ {}',
            "Ünïcödé 🦊 日本",
            "e\u0301",
            "<b>&amp;</b>",
            "x",
        ]
    ),
    st.text(
        st.characters(blacklist_categories=("Cs",), blacklist_characters="<|[▁｜"), max_size=12
    ),
)
contents = st.builds(lambda left, word, right: left + word + right, blanks, words, blanks)
actions = st.sampled_from(["Up", "Down || Left", "I say so.\n\nRight", "naïve 🦊", "x"])


@st.composite
def observations(draw, roles: tuple[str, ...]) -> Observation:
    count = draw(st.integers(1, 3))
    return Observation(
        tuple(Message(draw(st.sampled_from(roles)), draw(contents)) for _ in range(count))
    )


@pytest.mark.parametrize("family", STABLE)
@settings(max_examples=60)
@given(data=st.data())
def test_ids_equal_apply_chat_template(family, data):
    chat, tokenizer = chat_of(family), tokenizer_of(family)
    system = [Message("system", data.draw(contents))] if data.draw(st.booleans()) else []
    tools = TOOLS[: data.draw(st.integers(0, 2))]
    first = Observation((*system, Message("user", data.draw(contents))), tools)
    replies = observations(("tool",)) | observations(("user",)) | observations(("user", "system"))
    exchanges = data.draw(st.lists(st.tuples(actions, replies), max_size=3))
    expected = reference_ids(chat, tokenizer, first, exchanges)
    assert append_only_ids(chat, tokenizer, first, exchanges) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_first_prompt_with_schemas_and_two_tool_replies(family):
    """The place where glue is most easily wrong: several tool replies in one turn."""
    chat, tokenizer = chat_of(family), tokenizer_of(family)
    first = Observation((Message("system", "Be brief."), Message("user", "What is 1 + 1?")), TOOLS)
    reply = Observation((Message("tool", "2"), Message("tool", 'two,\n"zwei"')))
    for exchanges in ([], [("I call.", reply)]):
        expected = reference_ids(chat, tokenizer, first, exchanges)
        ours = append_only_ids(chat, tokenizer, first, exchanges)
        if family in STABLE or not exchanges:
            assert ours == expected
        else:  # the past is re-rendered, what follows it is not
            glue = ids_of(chat.append(reply, turn=0, last_id=None))
            assert expected[-len(glue) :] == glue


@pytest.mark.parametrize("thinking", [True, False])
def test_qwen3_flag_enable_thinking(thinking):
    tokenizer = tokenizer_of("qwen3")
    chat = ChatFormat.from_tokenizer(tokenizer, template_flags={"enable_thinking": thinking})
    first = say("Begin.")
    assert ids_of(chat.open(first)) == reference_ids(
        chat, tokenizer, first, [], enable_thinking=thinking
    )
    empty_thought = tokenizer.encode("<think>\n\n</think>\n\n", add_special_tokens=False)
    assert (ids_of(chat.open(first))[-len(empty_thought) :] == empty_thought) is (not thinking)
    said = " ".join(chat.differences)
    assert (
        "drop '<think>\\nLeft is a hole.\\n</think>\\n\\n'" in said
        or "<think>\\n\\n</think>" in said
    )
    assert ("'<think>\\n\\n</think>\\n\\n'" in said) is (not thinking)


def test_differences_are_told_once_and_only_where_they_are():
    assert chat_of("qwen2.5").differences == ()
    [form] = chat_of("llama3.1").differences
    assert "llama_json" in form and "env.calls.format" in form
    assert len(set(chat_of("qwen3").differences)) == len(chat_of("qwen3").differences) == 1
    assert "no system role" in chat_of("gemma").differences[0]
    assert any("alternating" in note for note in chat_of("cohere").differences)


def test_each_family_is_taken_as_it_is():
    """Falling back to tools as text is for templates that need it: it must not hide that our glue is wrong."""
    abilities = {family: chat_of(family).capabilities for family in FAMILIES}
    assert {family for family, capabilities in abilities.items() if capabilities.is_native} == {
        "qwen2.5",
        "qwen3",
        "qwen3-2507",
        "llama3.1",
    }
    assert {
        family for family, capabilities in abilities.items() if not capabilities.system_first
    } == {"gemma"}
    assert {
        family for family, capabilities in abilities.items() if not capabilities.repeated_users
    } == {"gemma", "gemma3", "cohere"}
    assert {family for family, capabilities in abilities.items() if capabilities.tool_replies} == {
        "qwen2.5",
        "qwen3",
        "qwen3-2507",
        "llama3.1",
        "deepseek-r1",
    }
    assert {family for family, capabilities in abilities.items() if capabilities.tool_schemas} == {
        "qwen2.5",
        "qwen3",
        "qwen3-2507",
        "llama3.1",
        "gpt-oss",
    }


def test_our_own_tokenizer_is_append_only_without_differences():
    tokenizer = build_tokenizer(["You moved. Left Right"])
    chat = ChatFormat.from_tokenizer(tokenizer)
    first = Observation((Message("system", "Play."), Message("user", "_ P\n_ G")), TOOLS)
    exchanges = [
        ("<think>hm</think><answer>Up || Down</answer>", say("You moved.")),
        ("", say("√", role="tool")),
    ]
    assert append_only_ids(chat, tokenizer, first, exchanges) == reference_ids(
        chat, tokenizer, first, exchanges
    )
    assert chat.differences == ()


def test_gemma_folds_system_and_joins_users():
    chat = chat_of("gemma")
    first = Observation(
        (Message("system", "Be kind."), Message("user", "Hi."), Message("user", "You?"))
    )
    assert "".join(chat.token_texts(ids_of(chat.open(first)))) == (
        "<bos><start_of_turn>user\nBe kind.\n\nHi.\n\nYou?<end_of_turn>\n<start_of_turn>model\n"
    )
    reply = Observation((Message("tool", "1"), Message("tool", "2"), Message("user", "Go on.")))
    assert "".join(
        chat.token_texts(ids_of(chat.append(reply, turn=0, last_id=chat.end_of_turn)))
    ) == (
        "\n<start_of_turn>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\n\nGo on."
        "<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("spaces", ["first", "always", "prepend"])
def test_sentencepiece_tokenizers_that_put_a_space_in_front(spaces):
    """Llama-2's kind: a space before the text (in three published ways), brackets that are no control tokens, and an
    end of turn that is the eos token."""
    tokenizer = llama2_like(spaces)
    chat = ChatFormat.from_tokenizer(tokenizer)
    first, reply = say("Where is  it?"), say(" \nMoved. <s>[INST]")
    assert ids_of(chat.open(first)) == reference_ids(chat, tokenizer, first, [])
    benign = say("Moved [INST] x")
    expected = reference_ids(chat, tokenizer, first, [("Up", benign)])
    glue = ids_of(chat.append(benign, turn=0, last_id=None))
    assert expected[-len(glue) :] == glue and glue[0] == tokenizer.eos_token_id
    forged = ids_of(chat.append(reply, turn=0, last_id=tokenizer.eos_token_id))
    assert tokenizer.bos_token_id not in forged


def llama2_like(spaces: str):
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *map(chr, range(0x21, 0x7F)),
        "▁[",
        "▁U",
        "Up",
        "▁Up",
        "ST",
        "]▁",
        "▁▁",
    ]
    merges = [
        ("▁", "["),
        ("▁", "U"),
        ("U", "p"),
        ("▁", "Up"),
        ("▁U", "p"),
        ("S", "T"),
        ("]", "▁"),
        ("▁", "▁"),
    ]
    core = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=merges,
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    if spaces == "prepend":
        core.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme=spaces, split=False
        )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    core.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate!') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
    )
    return tokenizer


# ------------------------------------------------------------------------------------------------ refusals


def chatml(loop_body: str) -> object:
    """A tokenizer of the Qwen kind with another template."""
    tokenizer = build_tokenizer(["You moved. Left Right"])
    tokenizer.chat_template = (
        "{%- for message in messages %}" + loop_body + "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    return tokenizer


def test_control_a_harmless_template_of_this_making_passes():
    ChatFormat.from_tokenizer(
        chatml("{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}")
    )


@pytest.mark.parametrize(
    "body, said",
    [
        # The glue depends on how long the conversation is: no fixed suffix exists.
        (
            "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' ~ loop.index ~ '\n' }}",
            "First difference at token",
        ),
        # The policy's own words never appear.
        (
            "{{- '<|im_start|>' + message.role + '\n' + (message.content if message.role != 'assistant' else '...') "
            "+ '<|im_end|>\n' }}",
            "found it 0 times",
        ),
        # Contents become something else altogether.
        (
            "{{- '<|im_start|>' + message.role + '\n' + message.content | upper + '<|im_end|>\n' }}",
            "rewrites the content",
        ),
        ("{{- raise_exception('never') }}", "refuses the roles"),
    ],
)
def test_a_template_without_append_only_suffix_is_refused(body, said):
    with pytest.raises(ChatFormatError, match=said):
        ChatFormat.from_tokenizer(chatml(body))


def test_a_past_that_changes_is_recorded_not_refused():
    """Numbers counted from the end change in the past, while what follows the last turn is always the same."""
    body = "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' ~ loop.revindex ~ '\n' }}"
    chat = ChatFormat.from_tokenizer(chatml(body))
    assert any("turn '1' of the past into '3'" in difference for difference in chat.differences)


def test_refusal_names_the_first_differing_token():
    body = "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' ~ loop.index ~ '\n' }}"
    with pytest.raises(ChatFormatError) as refused:
        ChatFormat.from_tokenizer(chatml(body))
    assert "the template writes '6' (id 21)" in str(
        refused.value
    ) and "append-only rendering" in str(refused.value)


def test_a_tokenizer_without_template_and_a_flag_that_does_nothing_are_refused():
    tokenizer = build_tokenizer(["x"])
    with pytest.raises(ChatFormatError, match="template flag 'enable_thinking' does nothing"):
        ChatFormat.from_tokenizer(tokenizer, template_flags={"enable_thinking": False})
    tokenizer.chat_template = None
    with pytest.raises(ChatFormatError, match="without one"):
        ChatFormat.from_tokenizer(tokenizer)


def test_a_slow_tokenizer_is_refused():
    class Slow:
        chat_template = "{{ messages }}"

    with pytest.raises(ChatFormatError, match="fast tokenizer"):
        ChatFormat.from_tokenizer(Slow())
