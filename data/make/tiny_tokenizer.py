"""A small tokenizer of our own, for the tiny policies that ship with the project.

Byte-level BPE, so that any text at all can be encoded, trained on the texts that the environments really show, so that
their words are single tokens. Three choices make a 0.6 M-parameter model's life easier, and cost nothing elsewhere:

* a capital letter that no small letter follows stands alone, and so do `_` and every digit: each cell of a text grid
  is one token, always the same one, whatever stands beside it;
* a capitalised word never carries the space before it: `Left` is the same token first, second and last in an answer;
* ` || ` is one token with both of its spaces.

For policies that call tools two more can be asked for: what stands around the names in a tool's schema and in a call is
one token (a call costs seven tokens and its argument, not thirty; a schema fifteen, not ninety), and invented names are
cut into their syllables, always the same way, so that copying a name from a document into a query is copying two or three
tokens. `pieces` does the like for numbers of products.

The chat template is ChatML without a default system prompt. It renders each message by itself and leaves old thoughts
where they are, so a conversation can only grow at its end (the append-only law of `workbench.chat`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
# Written by the policy and read by parsers: single tokens, but not "special", so that decoding keeps them.
TAG_TOKENS = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

# Alternatives from left to right: the separator of moves; a lone capital; a capitalised word; a small word with its
# space; a digit; one other visible character with its space; white space.
PIECES = (
    r" \|\| |[,:.;] (?=[A-Z])| ?[A-Z_√](?![a-z])|[A-Z][a-z]+| ?[a-z]+| ?[0-9]| ?[^\sA-Za-z0-9_√]|\s"
)

# In front of the others where tools are called: what JSON says around the names, and the template around that.
JSON_FRAMES = (
    "Tools, one JSON schema a line:\n",
    "Call one as ",
    '{"name": ..., "arguments": {...}}',
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "string"}}, "required": ["',
    '"]}}}',
    '{"name": "',
    '", "arguments": {"',
    '": "',
    '"}}',
)

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Tools, one JSON schema a line:\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- 'Call one as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and tools and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{%- set function = call.function if call.function else call %}
{{- '<tool_call>{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

ROLES = ("system", "user", "assistant", "tool")
# Besides the environments' texts: everyday words, so that other English costs fewer tokens than bytes.
COMMON_TEXT = (
    "system user assistant tool You are a helpful agent. The answer is in the text. Think first, then answer. What is "
    "it? Who was there? Where do they live? There is no such thing. It was made by one of them and it has not been "
    "seen with this on that for you, but we can have more than their first and last time."
)


def build_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int = 512,
    words: Sequence[str] = (),
    syllables: Sequence[str] = (),
    json: bool = False,
    pieces: str = "",
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`. The same texts give the same tokenizer.

    `vocab_size` is an upper limit that counts the 256 bytes, the control and the tag tokens; training stops earlier
    when every piece of the texts is one token. `words` (and the names of roles) become single tokens however rare they
    are in the texts. So do `syllables`, small and capitalised; capitalised words made of two or more of them are always
    cut there, as no piece across them is learned. `json`: JSON_FRAMES are pieces of their own. `pieces`: a regular
    expression for what is a piece before all others are tried.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    first = (*((pieces,) if pieces else ()), *(map(_literally, JSON_FRAMES) if json else ()))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join((*first, PIECES))), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL_TOKENS) - len(TAG_TOKENS),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    # Tags are cut out: BPE must learn words, not tags, which are added tokens of their own. Words that must be single
    # tokens are said so often that nothing is merged before them.
    sayings = "\n".join(("\n".join((*ROLES, *words)),) * 2_000)
    if json:
        sayings += "\n" + "\n".join((*JSON_FRAMES, "") * 600)
    if syllables:  # more often still: a piece such as the `em` of `system`, learned first, would cut `Pema` elsewhere
        sayings += "\n".join(
            ("", *syllables, *(syllable.capitalize() for syllable in syllables)) * 6_000
        )
    corpus = (
        [COMMON_TEXT] * 2
        + [_without_names(_without_tags(text), syllables) for text in texts]
        + [sayings]
    )
    core.train_from_iterator(corpus, trainer)
    core.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS]
    )
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAG_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left",
        model_max_length=2048,
    )


def _without_tags(text: str) -> str:
    for tag in CONTROL_TOKENS + TAG_TOKENS:
        text = text.replace(tag, "\n")
    return text


def _without_names(text: str, syllables: Sequence[str]) -> str:
    """Without capitalised words of two or more syllables: of a name no more is learned than its syllables."""
    if not syllables:
        return text
    starts = "|".join(syllable.capitalize() for syllable in syllables)
    return re.sub(rf"\b(?:{starts})(?:{'|'.join(syllables)})+\b", "\n", text)


def _literally(text: str) -> str:
    """A regular expression that matches exactly this. Not `re.escape`: other engines take fewer escapes."""
    return "".join(
        f"\\{character}" if character in r"\\.^$*+?{}[]|()" else character for character in text
    )
