"""Text to token ids with two guarantees: every token has an author, and untrusted text never becomes a control token.

An ordinary tokenizer looks for its added tokens (`<|im_end|>`, `<think>`, ...) in *all* text, so an observation can
forge a turn. Here added tokens are looked for only in *literal* text: what the template wrote, and instructions marked
as trusted. Everything between two control tokens, a *run*, is encoded at once by a bare copy of the tokenizer that
knows no control token, so that the ids of benign text equal the tokenizer's own, tokens across a border included.

What the tokenizer itself does to text stays as it is: Unicode normalization, and white space swallowed next to a
control token that was added with `lstrip` or `rstrip`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from workbench.basics.panics import refuse_panic
from workbench.values import Source, Span
from workbench.values.errors import ChatFormatError

CACHED_CHARACTERS = 2_048  # longer texts are encoded anew each time: they hardly repeat
# What a tokenizer calls white space: Unicode's White_Space. Python's `str.isspace` counts U+001C..U+001F too.
WHITE_SPACE = "".join(chr(c) for c in range(0x3001) if chr(c).isspace() and not 0x1C <= c <= 0x1F)


class AuthoredText(NamedTuple):
    """Text by one author. `literal`: written by the template or trusted, so it may become control tokens."""

    text: str
    source: Source
    turn: int
    literal: bool = False


class Fixed(NamedTuple):
    """Ids that exist already (sampled by the policy, or a control token of the template): never encoded again."""

    ids: Sequence[int]
    source: Source
    turn: int


class SafeEncoder:
    """The encoder of one tokenizer.

    control_ids: every added token that is more than white space; untrusted text spells them out in other tokens.
    forbidden_ids: those that plain text must never become.

    `backend` is a `tokenizers.Tokenizer`; nothing of it is changed. Errors: ChatFormatError where the tokenizer has no
    such backend, or where its vocabulary lets plain text become a control token in a way that cannot be avoided.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        if self.backend is None or not hasattr(self.backend, "to_str"):
            raise ChatFormatError(
                f"expected a fast tokenizer (one with a tokenizer.json), got {type(tokenizer).__name__}; without it, "
                "text cannot be kept from becoming control tokens. Load it with AutoTokenizer, use_fast=True"
            )
        spec = json.loads(self.backend.to_str())
        added = [token for token in spec["added_tokens"] if not _is_blank(token)]
        # White space that was added as tokens (Gemma, GPT-NeoX) is plain text: it stays with the bare tokenizer.
        blanks = [token for token in spec["added_tokens"] if _is_blank(token)]
        self.controls: dict[str, int] = {token["content"]: token["id"] for token in added}
        self.control_ids = frozenset(self.controls.values())
        self._eats_left = frozenset(token["id"] for token in added if token["lstrip"])
        self._eats_right = frozenset(token["id"] for token in added if token["rstrip"])
        self._pattern, self._inside = _patterns_of(self.controls)
        # A character that the vocabulary does not know becomes the unknown token: a loss, but not a forgery.
        unknown = spec["model"].get("unk_token")
        unknown_id = self.backend.token_to_id(unknown) if isinstance(unknown, str) else None
        self.forbidden_ids = self.control_ids - {unknown_id}
        self._bare, self._bare_later, self._renumber = _bare_tokenizers(self.backend, spec, blanks)
        self.atoms = lru_cache(maxsize=1_024)(self._split_at_controls)
        self._encode_cached = lru_cache(maxsize=4_096)(self._encode_text)

    # -------------------------------------------------------------------------------------------- literal text

    def _split_at_controls(self, literal: str) -> tuple[int | str, ...]:
        """Literal text cut into control ids and plain text, as the tokenizer itself would cut it."""
        if self._pattern is None:
            return (literal,) if literal else ()
        atoms: list[int | str] = []
        position = 0
        for match in self._pattern.finditer(literal):
            if match.start() > position:
                atoms.append(literal[position : match.start()])
            atoms.append(self.controls[match.group()])
            position = match.end()
        if position < len(literal):
            atoms.append(literal[position:])
        return tuple(atoms)

    def leading_control(self, literal: str) -> tuple[int, str] | None:
        """(control token that a literal begins with, the rest); white space before it goes with it. None: no such."""
        text = literal.lstrip()
        match = self._pattern.match(text) if self._pattern else None
        return (self.controls[match.group()], text[match.end() :]) if match else None

    # -------------------------------------------------------------------------------------------- encoding

    def encode(
        self,
        items: Iterable[AuthoredText | Fixed],
        *,
        at_start: bool = False,
        after: int | None = None,
    ) -> list[Span]:
        """Spans of `items`, neighbours by the same author and turn joined.

        `at_start`: the sequence begins here (some tokenizers put a space there). `after`: the control token that stands
        just before, where it is not among the items. A token made of text by two authors belongs to the content, not to
        the template around it.
        """
        builder = _Builder(self, at_start, after)
        for item in items:
            if isinstance(item, Fixed):
                builder.ids(item.ids, item.source, item.turn)
            elif item.literal:
                for atom in self.atoms(item.text):
                    if isinstance(atom, int):
                        builder.ids((atom,), item.source, item.turn)
                    else:
                        builder.text(item._replace(text=atom))
            elif item.text:
                builder.text(item)
        return builder.spans()

    def run(self, text: str, later: bool, plain: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """(ids, character offsets) of text without control tokens in it. `plain`: all of it is literal text."""
        encode = self._encode_cached if len(text) <= CACHED_CHARACTERS else self._encode_text
        ids, offsets = encode(text, later)
        if not plain and not self.forbidden_ids.isdisjoint(ids):
            ids, offsets = self._encode_apart(text, later)
        return ids, offsets

    def _encode_text(self, text: str, later: bool) -> tuple[list[int], list[tuple[int, int]]]:
        bare = self._bare_later if later else self._bare
        try:
            encoding = bare.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeError):
            # Half a surrogate pair has no UTF-8 form at all; one character for one keeps the offsets right.
            text = re.sub("[\ud800-\udfff]", "\ufffd", text)
            encoding = bare.encode(text, add_special_tokens=False)
        except BaseException as error:
            refuse_panic(error, _broken_down)
            raise
        ids = encoding.ids
        if self._renumber:
            ids = [self._renumber.get(token, token) for token in ids]
        return ids, encoding.offsets

    def _encode_apart(self, text: str, later: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """For a vocabulary that spells a control token in one piece even without its added tokens: cut inside it."""
        cuts = {0, len(text)} | {match.start() + 1 for match in self._inside.finditer(text)}
        for borders in (sorted(cuts), range(len(text) + 1)):
            ids: list[int] = []
            offsets: list[tuple[int, int]] = []
            for start, end in zip(borders[:-1], borders[1:], strict=True):
                part_ids, part_offsets = self._encode_text(text[start:end], later or start > 0)
                ids += part_ids
                offsets += [(start + left, start + right) for left, right in part_offsets]
            if self.forbidden_ids.isdisjoint(ids):
                return ids, offsets
        token = next(token for token in ids if token in self.forbidden_ids)
        raise ChatFormatError(
            f"untrusted text must not become the control token {self.backend.id_to_token(token)!r} (id {token}), but "
            "this tokenizer writes even a single character with it; remove that added token from the tokenizer"
        )


def _broken_down(words: str) -> ChatFormatError:
    return ChatFormatError(
        f"the tokenizer breaks down over a text ({words}): an expression in its tokenizer.json is not done with it. Take "
        "tokenizer.json from where the model was first published"
    )


class _Builder:
    """Collects text until the next fixed ids, encodes it as one run, and says whose token is whose."""

    def __init__(self, encoder: SafeEncoder, at_start: bool, after: int | None) -> None:
        self._encoder = encoder
        self._later = not at_start
        self._previous = after
        self._run: list[AuthoredText] = []
        self._out: list[tuple[list[int], Source, int]] = []

    def text(self, piece: AuthoredText) -> None:
        self._run.append(piece)

    def ids(self, ids: Sequence[int], source: Source, turn: int) -> None:
        if len(ids) == 0:
            return
        self._flush(following=int(ids[0]))
        self._emit([int(token) for token in ids], source, turn)
        self._previous = int(ids[-1])
        self._later = True

    def spans(self) -> list[Span]:
        self._flush(following=None)
        return [Span(source, turn, ids) for ids, source, turn in self._out]

    def _emit(self, ids: list[int], source: Source, turn: int) -> None:
        if self._out and self._out[-1][1] is source and self._out[-1][2] == turn:
            self._out[-1][0].extend(ids)
        elif ids:
            self._out.append((list(ids), source, turn))

    def _flush(self, following: int | None) -> None:
        if not self._run:
            return
        run = self._run
        self._run = []
        encoder = self._encoder
        if self._previous in encoder._eats_right:
            run = stripped(run, left=WHITE_SPACE)
        if following in encoder._eats_left:
            run = stripped(run, right=WHITE_SPACE)
        if not run:
            return
        text = run[0].text if len(run) == 1 else "".join(piece.text for piece in run)
        # Literals side by side are there because a guard was taken out between them: joined, they may be a forgery.
        ids, offsets = encoder.run(text, self._later, plain=len(run) == 1 and run[0].literal)
        self._later = True
        if len(run) == 1:
            self._emit(ids, run[0].source, run[0].turn)
            return
        self._share_out(ids, offsets, run)

    def _share_out(
        self, ids: list[int], offsets: list[tuple[int, int]], run: list[AuthoredText]
    ) -> None:
        """Give each token to the part that wrote it; across a border to the content, of two contents to the later."""
        done = end = 0
        for index, (text, source, turn, _) in enumerate(run):
            end += len(text)
            begun = bisect_left(
                offsets, (end,), lo=done
            )  # tokens that start in this part, or before
            inside = begun
            while inside > done and offsets[inside - 1][1] > end:
                inside -= 1
            self._emit(ids[done:inside], source, turn)
            for token in range(inside, begun):
                reach = offsets[token][1] - end + len(text)
                self._emit([ids[token]], *self._owner(run[index:], reach))
            done = begun
        self._emit(ids[done:], run[-1].source, run[-1].turn)

    @staticmethod
    def _owner(run: list[AuthoredText], reach: int) -> tuple[Source, int]:
        """Author and turn of a token that starts in the first part and ends `reach` characters after that begins."""
        owner = run[0]
        for piece, following in zip(run[:-1], run[1:], strict=True):
            reach -= len(piece.text)
            if reach <= 0:
                break
            is_content = following.source is not Source.SCAFFOLD
            if following.text and (is_content or owner.source is Source.SCAFFOLD):
                owner = following
        return owner.source, owner.turn


def stripped(pieces: Sequence[AuthoredText], left: str = "", right: str = "") -> list[AuthoredText]:
    """The pieces without these characters at the two ends of the text that they make together."""
    pieces = list(pieces)
    for at, strip, characters in ((0, str.lstrip, left), (-1, str.rstrip, right)):
        while characters and pieces:
            if text := strip(pieces[at].text, characters):
                pieces[at] = pieces[at]._replace(text=text)
                break
            pieces.pop(at)
    return pieces


def _patterns_of(
    controls: Mapping[str, int],
) -> tuple[re.Pattern | None, re.Pattern | None]:
    """Patterns of control tokens, and of every place where one begins, also within another; None without any."""
    if not controls:
        return None, None
    # Of two that start at the same place, the longer one wins.
    names = [re.escape(name) for name in sorted(controls, key=len, reverse=True)]
    return re.compile("|".join(names)), re.compile("|".join(f"(?={name})" for name in names))


def _is_blank(token: dict) -> bool:
    """Whether an added token is nothing but white space."""
    return not token["content"].replace("▁", "").strip()


def _bare_tokenizers(
    backend: Any, spec: dict, blanks: list[dict]
) -> tuple[Any, Any, dict[int, int]]:
    """(at the start, later in the sequence, {their id: true id}): copies without control tokens."""
    bare_spec = dict(spec, added_tokens=blanks, post_processor=None, truncation=None, padding=None)
    build = type(backend).from_str
    bare = build(json.dumps(bare_spec))
    # Tokens that the model's own vocabulary does not hold are numbered anew when the others are gone.
    renumber = {bare.token_to_id(token["content"]): token["id"] for token in blanks}
    renumber = {ours: true for ours, true in renumber.items() if ours != true}
    text = json.dumps(bare_spec)
    later_text = text.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    later = bare if later_text == text else build(later_text)
    return bare, later, renumber
