"""Text that came from a model, an environment or a file, made safe and visible. Every view goes through here.

Two dangers, two steps. `visible` spells out characters that would otherwise act or hide: control characters and ANSI
sequences (they drive a terminal), bidirectional and zero-width characters (they reorder or hide what is read), lone
surrogates (they cannot be written as UTF-8). `esc` does that and then escapes what HTML would read as markup. The text
form of a view uses `visible`, the HTML form `esc`, always by way of `markup.tag`, which escapes every plain string.
"""

from __future__ import annotations

import html
import unicodedata


def _spelled_out(code: int) -> str:
    if code < 0x20:
        return chr(
            0x2400 + code
        )  # the control pictures: U+241B for escape, U+240D for carriage return
    if code == 0x7F:
        return "\u2421"
    return f"⟨U+{code:04X}⟩"


class _Spelling(dict):
    """A table for `str.translate` that decides about each character once: rendering long texts stays fast."""

    def __missing__(self, code: int) -> int | str:
        category = unicodedata.category(chr(code))
        # C*: control, format (bidi, zero width, tags), surrogate, private, unassigned. Zl, Zp: line breaks in disguise.
        acts_or_hides = category.startswith("C") or category in ("Zl", "Zp")
        self[code] = _spelled_out(code) if acts_or_hides and code != 0x0A else code
        return self[code]


_SPELLING = _Spelling()


def visible(text: object, *, newline: str = "\n") -> str:
    """`text` with every character that acts or hides spelled out; line feeds become `newline` (kept by default).

    visible("a\\x1b[31m\\u202eb")  ->  "a␛[31m⟨U+202E⟩b"
    """
    shown = str(text).translate(_SPELLING)
    return shown if newline == "\n" else shown.replace("\n", newline)


def esc(text: object, *, newline: str = "\n") -> str:
    """`text` as HTML that can only be text, in an element and in a quoted attribute alike."""
    return html.escape(visible(text, newline=newline), quote=True)


def capped(text: str, limit: int) -> str:
    """The first and last part of a long text, with a notice of what was left out between them."""
    if len(text) <= limit:
        return text
    head = limit - limit // 4
    tail = limit // 4
    return f"{text[:head]} … {len(text) - head - tail:,} characters not shown … {text[len(text) - tail :]}"
