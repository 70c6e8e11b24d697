"""Texts come back from their ids, or the tokenizer is damaged.

    refuse_damaged_tokenizer(tokenizer, "my-policy")        PolicyError: 'room 12' became 'room '

A tokenizer may know few characters: then it says so, by its unknown token, or by having no letter for them in its
vocabulary (one that spells nearly all bytes has letters for everything). What it has letters for must come back as it was. Where it does not, something before or behind the
vocabulary (normalizer, pre-tokenizer, decoder) alters texts without a word: the policy reads another prompt than the
environment showed, and the environment another answer than the policy gave.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tokenizers import pre_tokenizers

from workbench.values.errors import PolicyError

# Thirty texts in five scripts (Latin, Greek, Cyrillic, Devanagari, Han), all in Unicode's normal form C: words with
# spaces, digits, upper and lower case, accents, signs, emoji, tabs, line breaks, indented lines.
TEXTS = (
    "The goal lies to the right.",
    "Move Right, then Down || Up",
    "room 12, floor 3",
    "3 + 4 = 7",
    "-0.25 and 1,000,000",
    "0123456789",
    "ABC abc XyZ",
    "camelCase and CONSTANT_NAME",
    "naïve café, déjà vu",
    "Größe über Straße",
    "señor Muñoz, ¿qué?",
    "Łódź, Čapek, Þór",
    "Καλημέρα κόσμε",
    "ΑΒΓ αβγ 15",
    "Привет, мир",
    "Ёлка 2024 года",
    "नमस्ते दुनिया",
    "हिन्दी 42",
    "你好 世界",
    "北京 2008 年",
    "emoji 🙂 and 🚀",
    "👍🏽 done",
    "one\ttwo\tthree",
    "first line\nsecond line",
    "a paragraph\n\nand another",
    "if x > 0:\n    return y",
    '{"name": "look", "arguments": {"n": 5}}',
    "<b>bold</b> & [x](y) #1",
    "a@b.org: 50% of $20?",
    "'single' \"double\" `code`",
)
LEFT_OUT_AT_MOST = (
    0.5  # of a text's characters, where the vocabulary lacks letters: of less nothing is asked
)
MOST_BYTES = 200  # of 256: published vocabularies lack some twenty, which no text has
QUOTED = 60  # characters of a text in a message


class LostText(NamedTuple):
    """A text that came back altered."""

    text: str
    returned: str


def refuse_damaged_tokenizer(tokenizer: Any, name: str) -> None:
    """Raise PolicyError, with an example and what is altered, where texts do not come back from their ids. `name`: of the
    policy. One without a tokenizer.json is left to the chat format, which says what it needs."""
    damaged = damages(tokenizer)
    if not damaged:
        return
    first = damaged[0]
    raise PolicyError(
        f"{name}: the tokenizer alters texts without a word: {_quoted(first.text)} became "
        f"{_quoted(first.returned)} on its way through ids and back, and so did {len(damaged)} of {len(TEXTS)} texts "
        f"({', '.join(_kinds(damaged))}), although its vocabulary was made to write them. The policy would read "
        "another prompt than the environment shows, and the environment another answer than the policy gives. Take "
        "tokenizer.json from the original model (its normalizer, pre_tokenizer and decoder), or copy it again"
    )


def damages(tokenizer: Any) -> list[LostText]:
    """The texts that do not come back, in order."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return []
    vocabulary = backend.get_vocab(with_added_tokens=False)
    unknown = getattr(backend.model, "unk_token", None)
    unknown_id = None if unknown is None else backend.token_to_id(unknown)
    written = _Letters(vocabulary)
    damaged = []
    for text in TEXTS:
        kept = "".join(character for character in text if written.can_write(character)).strip()
        if len(kept) < LEFT_OUT_AT_MOST * len(text):
            continue
        ids = backend.encode(kept, add_special_tokens=False).ids
        if unknown_id in ids:
            continue
        returned = backend.decode(ids, skip_special_tokens=False)
        # Some tokenizers put a space before the first word, which no reader minds.
        if returned not in (kept, f" {kept}"):
            damaged.append(LostText(kept, returned))
    return damaged


class _Letters:
    """What a vocabulary can write at all, character by character."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._letters = {token.removeprefix("##") for token in vocabulary}
        by_byte = _stand_ins()
        # Bytes as GPT-2 spells them, or as SentencePiece does.
        self._spelled = by_byte if "Ġ" in self._letters else {}
        self._has_bytes = all(f"<0x{byte:02X}>" in self._letters for byte in range(256))
        # Who has letters for nearly all bytes was made to write everything, and lost those of plain ASCII that are missing.
        self._wrote_all = len(self._letters.intersection(self._spelled.values())) >= MOST_BYTES

    def can_write(self, character: str) -> bool:
        if self._has_bytes or character in self._letters:
            return True
        if character == " " and "▁" in self._letters:
            return True
        if not self._spelled:
            return False
        if self._wrote_all and character.isascii():
            return True
        return all(self._spelled[byte] in self._letters for byte in character.encode())


def _stand_ins() -> Mapping[int, str]:
    """Byte -> the printable character that byte-level vocabularies have for it: printable Latin-1 stands for itself, the
    others follow from U+0100 on."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own = {ord(character): character for character in alphabet if ord(character) < 256}
    others = sorted(character for character in alphabet if ord(character) >= 256)
    return own | dict(zip((byte for byte in range(256) if byte not in own), others))


def _kinds(damaged: Iterable[LostText]) -> list[str]:
    """In words, which kinds of characters were lost or altered, the most frequent first."""
    lost: Counter[str] = Counter()
    for text, returned in damaged:
        missing = Counter(text) - Counter(returned)
        lost.update({_kind(character) for character in missing} or {"the order of characters"})
    return [kind for kind, _ in lost.most_common()]


def _kind(character: str) -> str:
    if character in "\n\t":
        return "line breaks and tabs"
    if character == " ":
        return "spaces"
    if character.isdigit():
        return "digits"
    if character.isalpha() and unicodedata.decomposition(character):
        return "accents"
    if character.isupper():
        return "upper case"
    return "other letters" if character.isalpha() else "signs"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= QUOTED else text[: QUOTED - 3] + "...")
