"""A thought in the marks of a template, as environments read it: closed by `</think>`.

Environments know a thought that the prompt opened: it has a closing tag and no opening one, and every world takes it
(tools/action_format.py) where a line ends there. So that is what a thought in other marks becomes before a turn is handed over. The sampled tokens
stay as they are. A turn that is not whole in its own marks stays as it is too, and the world says what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.tools.turns import END_THINK, THINK

_ENDED = f"{END_THINK}\n"


@dataclass(frozen=True)
class Tagged:
    """A thought between two marks, at the beginning of a turn.

    opening, closing   the marks, without white space around them
    opens              the prompt ends in the opening mark, so that a turn need not hold it"""

    opening: str
    closing: str
    opens: bool

    def plain(self, text: str) -> str:
        start = text.lstrip()
        if start.startswith(self.opening):
            rest = start[len(self.opening) :]
        elif self.opens:
            rest = text
        else:
            return text
        thought, closing, after = rest.partition(self.closing)
        if not closing or _has_marks(thought):
            return text
        return f"{thought}{_ENDED}{after}"


@dataclass(frozen=True)
class Channelled:
    """Thoughts and answers as messages of one turn, each with a header.

    start     what begins a message; the prompt ends in it
    end       what ends a message inside a turn
    thought   the header of a thought, its end included
    answer    the header of an answer, its end included
    message   what ends a header"""

    start: str
    end: str
    thought: str
    answer: str
    message: str

    def plain(self, text: str) -> str:
        if self.message not in text:
            return text
        messages = text.split(self.start)
        thoughts: list[str] = []
        others: list[str] = []
        for place, written in enumerate(messages):
            is_last = place + 1 == len(messages)
            ended = written.endswith(self.end)
            whole = written.removesuffix(self.end)
            if whole.startswith(self.thought) and ended:
                thoughts.append(whole[len(self.thought) :])
            elif is_last and whole.startswith(self.answer):
                others.append(whole[len(self.answer) :])
            elif self.message in whole and not whole.startswith((self.thought, self.answer)):
                others.append(whole)
            else:
                return text
        thought = "\n".join(thoughts)
        if _has_marks(thought) or self.message in thought:
            return text
        return (f"{thought}{_ENDED}" if thoughts else "") + "".join(others)


def _has_marks(thought: str) -> bool:
    return THINK in thought or END_THINK in thought
