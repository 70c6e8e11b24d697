"""A small tokenizer for any chat template: the marks that the template names are its added tokens.

It stands in for a published tokenizer, which cannot be had here. What it lacks: the family's true vocabulary, and marks
that a model knows and its template never names (`MORE` has those that matter).
"""

from __future__ import annotations

import re
from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from tests.chat.chat_families import TEMPLATES, byte_level

MARKS = re.compile(
    r"<\|[^|<>\s{}'\"]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|<\|[a-z_\"]{1,20}>|<[a-z_]{1,20}\|>|<\|\"\|>"
    r"|</?(?:think|tool_call|tool_response|start_of_turn|end_of_turn|sop)>|\[/?[A-Z_]{3,20}\]|\[gMASK\]"
)
MORE = ("<|eom_id|>",)
OWN = ("<BOS>", "<EOS>", "<PAD>")


def tokenizer_for(source: str, *, more: tuple[str, ...] = MORE) -> PreTrainedTokenizerFast:
    """A tokenizer whose chat template is `source`. As in published files, tags of words are added but not special."""
    marks = [*dict.fromkeys(MARKS.findall(source)), *OWN, *more]
    marks = list(dict.fromkeys(marks))
    plain = [mark for mark in marks if re.fullmatch(r"</?[a-z_]+>", mark)]
    special = [mark for mark in marks if mark not in plain]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level("", tuple(special), tuple(plain)),
        bos_token="<BOS>",
        eos_token="<EOS>",
        pad_token="<PAD>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = source
    return tokenizer


def template_names() -> list[str]:
    """The templates that the newest TRL carries."""
    return sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def source_of(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@lru_cache
def tokenizer_of_template(name: str) -> PreTrainedTokenizerFast:
    return tokenizer_for(source_of(name))
