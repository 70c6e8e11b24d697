"""A reply as it is put together of sampled tokens: its text so far, where it stops, and the calls in it.

Axis letters: T tokens of the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.chat import ChatFormat
from workbench.extensions.servers.chat_request import PastCall
from workbench.extensions.servers.sampler import SampledToken
from workbench.tools.formats import CallFormat
from workbench.tools.turns import ParsedTurn

HALF = "\ufffd"  # what a character looks like whose bytes are not all there yet
OPENINGS = (
    "<[{"  # what a tag begins with, in every way of writing calls: text is held back from there on
)
LONGEST_TAG = 40  # characters
LEAST_LOGP = -9999.0  # OpenAI's number for what is impossible: JSON has no infinity


@dataclass
class GrowingReply:
    """One reply under way. `take` gives the text that a token adds, as far as it may be shown.

    stops    texts that end it; neither they nor what follows them are part of it
    ids      sampled so far, the stop token included
    cut      it was ended by one of `stops`
    """

    chat: ChatFormat
    stops: tuple[str, ...] = ()
    ids: list[int] = field(default_factory=list)
    text: str = ""
    cut: bool = False
    _shown: int = 0  # characters that were handed out
    _from: int = 0  # the token that the newest piece of text is decoded from
    _read: int = 0  # tokens whose text is in `text`

    def take(self, token: int) -> str:
        self.ids.append(token)
        self._decode(last=False)
        return self._show(self._safe_length())

    @property
    def shown(self) -> str:
        """The text that was handed out so far."""
        return self.text[: self._shown]

    def finish(self) -> str:
        """What was held back, once nothing more comes."""
        if not self.cut:
            self._decode(last=True)
        return self._show(len(self.text))

    def _decode(self, *, last: bool) -> None:
        """Add the text of new tokens, once it is whole characters. Decoded from a few tokens before them: some tokenizers write
        a token otherwise where a text begins."""
        before = self.chat.decode(self.ids[self._from : self._read])
        after = self.chat.decode(self.ids[self._from :])
        if after.endswith(HALF) and not last:
            return
        new = after[len(before) :]
        if not new:
            return
        self._from = self._read
        self._read = len(self.ids)
        at = max(0, len(self.text) - max(map(len, self.stops), default=0))
        self.text += new
        places = [place for stop in self.stops if (place := self.text.find(stop, at)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.cut = True

    def _safe_length(self) -> int:
        """How much of the text cannot be the beginning of one of `stops`."""
        if self.cut:
            return len(self.text)
        for length in range(max(map(len, self.stops), default=1) - 1, 0, -1):
            tail = self.text[-length:]
            if len(tail) == length and any(stop.startswith(tail) for stop in self.stops):
                return len(self.text) - length
        return len(self.text)

    def _show(self, length: int) -> str:
        piece = self.text[self._shown : length]
        self._shown = max(self._shown, length)
        return piece


@dataclass(frozen=True)
class ReadReply:
    """What a client is handed: the words, and the calls in them."""

    content: str
    calls: tuple[PastCall, ...] = ()


def read_reply(text: str, style: CallFormat | None, prefix: str) -> ReadReply:
    """The calls of a reply, and the words before them. `style` None: calls are not read. A reply with a call that cannot be read
    is handed over as text, as it stands. `prefix`: of the calls' ids."""
    if style is None:
        return ReadReply(text)
    parsed = style.parse(text)
    if not parsed.calls or parsed.bad_calls:
        return ReadReply(text)
    calls = tuple(
        PastCall(f"call_{prefix}_{number}", call.name, dict(call.arguments))
        for number, call in enumerate(parsed.calls)
    )
    words = _words_before(text, style)
    return ReadReply(words if words.strip() else "", calls)


def _words_before(text: str, style: CallFormat) -> str:
    """What stands before the first call: the longest beginning in which none is begun, less its tag."""
    low = 0
    high = len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _has_calls(style.parse(text[:middle])):
            high = middle - 1
        else:
            low = middle
    tag = max(text.rfind(opening, max(0, low - LONGEST_TAG), low) for opening in OPENINGS)
    return text[: low if tag < 0 else tag]


def _has_calls(parsed: ParsedTurn) -> bool:
    return bool(parsed.calls or parsed.bad_calls)


# ------------------------------------------------------------------------------------------------ logprobs


def logprobs_of(chat: ChatFormat, sampled: Sequence[SampledToken]) -> dict[str, Any]:
    """OpenAI's form of logprobs, of the tokens that are part of the text."""
    content = []
    for token in sampled:
        if token.token in chat.stop_ids:
            continue
        own = _entry(chat, token.token, token.logp)
        top = [_entry(chat, other, logp) for other, logp in token.top]
        content.append({**own, "top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(chat: ChatFormat, token: int, logp: float | None) -> dict[str, Any]:
    text = chat.token_texts([token])[0]
    is_whole = HALF not in chat.encoder.backend.decode([token], skip_special_tokens=False)
    known = LEAST_LOGP if logp is None else max(logp, LEAST_LOGP)
    return {"token": text, "logprob": known, "bytes": list(text.encode()) if is_whole else None}
