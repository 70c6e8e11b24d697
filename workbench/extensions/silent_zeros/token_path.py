"""From a policy's words to what a reward function is handed, by somebody else's tokenizer, template, stops and parser.

TokenPath(tokenizer, ...).walk(row, words)      the words after each step, in order

template    what the policy still has to write: a tag that the prompt has opened is not opened again
tokenizer   encoded and decoded
stop        with the stop token behind it, cut at the first stop and at the most tokens of a completion
parser      what is read out of it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.extensions.silent_zeros.rewards import as_messages, text_of
from workbench.values.errors import where_raised

STEPS = ("template", "tokenizer", "stop", "parser")
OPENED = re.compile(r"<(\w+)>\s*$")
THOUGHTS = ("think", "thought", "reasoning", "thinking")
TAIL = 16  # tokens of a prompt's end in which an opened tag is looked for
MARK = "workbench-mark"
TOO_LONG = "a completion has at most"


@dataclass(frozen=True, eq=False)
class PathText:
    """One row's words on their way.

    after    step -> the words behind it: text, or messages
    ids      token ids of the completion, as they were cut
    why      step -> what it did, in words
    failed   step -> the error that it raised; the words end there
    """

    after: Mapping[str, Any]
    ids: tuple[int, ...]
    why: Mapping[str, str]
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AnswerEnd:
    """An answer up to its stop: token ids, their text, and what cut it ("": nothing)."""

    ids: list[int]
    text: str
    why: str


@dataclass(frozen=True, eq=False)
class TokenPath:
    """How a trainer makes a completion of what its policy samples.

    stop_ids          token ids that end a completion
    stop_texts        texts that end it; `keeps_stop_text`: they stay in the completion
    most_tokens       of a completion; None: no limit
    skips_special     special tokens are left out when ids are decoded
    parser            text -> what is scored; None: the text itself
    parse_ids         (completion ids, prompt ids) -> a message, as TRL reads what a tokenizer has a response template for
    template_options  arguments of `apply_chat_template`: tools, chat_template, flags of the template
    """

    tokenizer: Any
    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    keeps_stop_text: bool = False
    most_tokens: int | None = None
    skips_special: bool = True
    parser: Callable[[str], Any] | None = None
    parse_ids: Callable[[list[int], list[int]], Any] | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)

    # -------------------------------------------------------------------------------------------- prompts

    def prompt_ids(self, prompt: Any) -> list[int]:
        """The prompt as it is tokenized; of None nothing. Raises what the template raises."""
        if prompt is None:
            return []
        if isinstance(prompt, str):
            return list(self.tokenizer(text=prompt)["input_ids"])
        return self._rendered_ids(prompt, True)

    def _rendered_ids(self, messages: Sequence[Any], opens_turn: bool) -> list[int]:
        rendered = self.tokenizer.apply_chat_template(
            list(messages),
            add_generation_prompt=opens_turn,
            tokenize=True,
            return_dict=True,
            **self.template_options,
        )
        return list(rendered["input_ids"])

    def opens_turn(self, prompt: Sequence[Any]) -> bool:
        """Whether the template begins the assistant's turn where it is asked to."""
        return self._rendered_ids(prompt, True) != self._rendered_ids(prompt, False)

    def end_of_turn(self, prompt: Sequence[Any]) -> str | None:
        """What the template writes behind an answer, without white space; None: nothing."""
        answered = [*prompt, {"role": "assistant", "content": MARK}]
        text = self.tokenizer.apply_chat_template(answered, tokenize=False, **self.template_options)
        tail = text.partition(MARK)[2].strip()
        if not tail:
            return None
        return self.decoded(self.encoded(tail)[:1], keeps_special=True)

    # -------------------------------------------------------------------------------------------- tokens

    def encoded(self, text: str) -> list[int]:
        return list(self.tokenizer(text=text, add_special_tokens=False)["input_ids"])

    def decoded(self, ids: Sequence[int], keeps_special: bool | None = None) -> str:
        keeps = not self.skips_special if keeps_special is None else keeps_special
        return self.tokenizer.decode(list(ids), skip_special_tokens=not keeps)

    @property
    def last_id(self) -> int | None:
        """The stop token that a policy ends with."""
        own = getattr(self.tokenizer, "eos_token_id", None)
        if own in self.stop_ids or not self.stop_ids:
            return own
        return min(self.stop_ids)

    # -------------------------------------------------------------------------------------------- the way

    def walk(self, row: Mapping[str, Any], words: Any, prompt: str = "prompt") -> PathText:
        """The words of one row, step by step. Nothing is raised: what a step raises is in `failed`."""
        after: dict[str, Any] = {}
        why: dict[str, str] = {}
        try:
            prompt_ids = self.prompt_ids(row.get(prompt))
            opened = OPENED.search(self.decoded(prompt_ids[-TAIL:], keeps_special=True))
        except Exception as error:  # anybody's template
            return PathText(after, (), why, {"template": f"{type(error).__name__}: {error}"})
        written = words
        if opened is not None:
            written = _first_changed(words, lambda text: continued(text, opened[1]))
            why["template"] = (
                f"the prompt ends in <{opened[1]}>, so the policy does not write this tag"
            )
        after["template"] = written
        reads_ids = not isinstance(row.get(prompt), str)
        return self._walk_on(written, prompt_ids if reads_ids else None, after, why)

    def _walk_on(
        self,
        written: Any,
        prompt_ids: list[int] | None,
        after: dict[str, Any],
        why: dict[str, str],
    ) -> PathText:
        """The steps behind the template. `prompt_ids`: None where the prompt is text, of which TRL reads no messages."""
        after["tokenizer"] = _each_changed(written, self._there_and_back)
        why["tokenizer"] = self._what_tokens_did(text_of(written), text_of(after["tokenizer"]))
        after["stop"] = _each_changed(written, lambda text: self.until_stop(text).text)
        last = self.until_stop(text_of(written))
        why["stop"] = last.why
        failed: dict[str, str] = {}
        try:
            after["parser"] = self._read(after["stop"], last.ids, prompt_ids)
        except Exception as error:  # anybody's parser
            failed["parser"] = f"{type(error).__name__}: {error} ({where_raised(error)})"
        else:
            if after["parser"] is None:
                failed["parser"] = "it returns None"
        return PathText(after, tuple(last.ids), why, failed)

    def _there_and_back(self, text: str) -> str:
        return self.decoded(self.encoded(text))

    def until_stop(self, text: str) -> AnswerEnd:
        """One answer with the stop token behind it, cut at the first stop and at the most tokens."""
        ids = self.encoded(text)
        written = len(ids)
        if self.last_id is not None:
            ids.append(self.last_id)
        why = ""
        ends = [place for place, token in enumerate(ids) if token in self.stop_ids]
        if ends and ends[0] < written:
            ids = ids[: ends[0] + 1]
            token = self.decoded(ids[-1:], keeps_special=True)
            why = f"the stop token {token!r} stands inside the answer, after {ends[0]} of its {written} tokens"
        if self.most_tokens is not None and len(ids) > self.most_tokens:
            why = f"{TOO_LONG} {self.most_tokens} tokens, and the answer has {len(ids)} with its stop token"
            ids = ids[: self.most_tokens]
        cut = self._without_stop_text(AnswerEnd(ids, self.decoded(ids), why))
        if cut.why or cut.text == self._there_and_back(text):
            return cut
        last = self.decoded([self.last_id], keeps_special=True)
        return replace(cut, why=f"the stop token {last!r} stays in the text: decoding keeps it")

    def _without_stop_text(self, answer: AnswerEnd) -> AnswerEnd:
        """Cut at the first of the texts that end a completion."""
        places = [answer.text.find(stop) for stop in self.stop_texts]
        known = [(place, stop) for place, stop in zip(places, self.stop_texts) if place >= 0]
        if not known:
            return answer
        place, stop = min(known)
        kept = answer.text[: place + len(stop) if self.keeps_stop_text else place]
        lengths = range(1, len(answer.ids) + 1)
        last = next(n for n in lengths if stop in self.decoded(answer.ids[:n]))
        answer = replace(answer, ids=answer.ids[:last])
        if kept == answer.text:
            return answer
        what = "kept" if self.keeps_stop_text else "left out"
        return replace(
            answer, text=kept, why=f"the stop text {stop!r} ends the completion and is {what}"
        )

    def _read(self, words: Any, ids: list[int], prompt_ids: list[int] | None) -> Any:
        is_one = isinstance(words, str) or len(words) == 1
        if self.parse_ids is not None and prompt_ids is not None and is_one:
            return [self.parse_ids(ids, prompt_ids)]
        if self.parser is None:
            return words
        if not isinstance(words, str):
            return _each_changed(words, self.parser)
        answer = self.parser(words)
        if answer is None or isinstance(answer, (str, list, tuple)):
            return answer
        return [dict(answer)] if isinstance(answer, Mapping) else str(answer)

    def _what_tokens_did(self, written: str, back: str) -> str:
        if written == back:
            return ""
        ids = self.encoded(written)
        alone = [
            (self.decoded([token], keeps_special=True), self.decoded([token])) for token in ids
        ]
        gone = dict.fromkeys(whole for whole, left in alone if whole and not left)
        if gone and self.skips_special and self.decoded(ids, keeps_special=True) == written:
            named = ", ".join(map(repr, gone))
            return f"decoding leaves special tokens out, and {named} is one of this tokenizer"
        return f"the text does not come back: {_difference(written, back)}"


def continued(text: str, tag: str) -> str:
    """The words as a policy goes on with them behind a tag that the prompt has opened."""
    opening = f"<{tag}>"
    if text.lstrip().startswith(opening):
        return text.lstrip().removeprefix(opening)
    if tag in THOUGHTS:
        return f"\n</{tag}>\n\n{text}"
    return f"{text}</{tag}>"


def _each_changed(words: Any, change: Callable[[str], Any]) -> Any:
    """Text changed; of messages what the assistant says."""
    if isinstance(words, str):
        return change(words)
    return [
        {**message, "content": change(str(message.get("content") or ""))}
        if message.get("role") == "assistant"
        else message
        for message in words
    ]


def _first_changed(words: Any, change: Callable[[str], str]) -> Any:
    """Text changed; of messages the first one alone."""
    if isinstance(words, str):
        return change(words)
    return [*_each_changed(as_messages(words)[:1], change), *words[1:]]


def _difference(written: str, back: str) -> str:
    """Where two texts part, in words."""
    shared = 0
    for one, other in zip(written, back):
        if one != other:
            break
        shared += 1
    around = slice(max(0, shared - 10), shared + 20)
    return f"{written[around]!r} becomes {back[around]!r} at character {shared}"
