"""What a text answers, by the kind of answer that a world wants: moves, an expression, a command, free text.

Each function takes an action text and gives a `Reading`. What they go by is written in docs/guides/real_models.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache

from workbench.extensions.interface.reading import Reading, read_answer
from workbench.tools.action_format import SEPARATOR

# Words that may stand around moves without changing what is meant.
_FILLERS = frozenset(
    (
        "a action actions again all input and answer answers arm best called choice choose choosing direction directions final "
        "finally first following go going i i'll i'm in is let's me move moves moving my next now of once one output pick "
        "plan pull push second select sequence should solution so step steps take the then third to toward towards walk "
        "will would be are am named"
    ).split()
)
# Behind one of them the moves are meant.
_MARKERS = frozenset(
    (
        "action actions answer choice choose choosing chose direction go going move moves moving pick plan pull push "
        "select solution step take walk"
    ).split()
)
# In a sentence with one of them it is not known what is meant.
_DOUBTS = frozenset(
    (
        "although available avoid but can cannot could either except if instead maybe may might never neither no nor not "
        "options or perhaps possible rather than unless unlike whether without"
    ).split()
)
# Behind moves, what begins a reason: names that follow are not what is to be done.
_REASONS = frozenset("because since as so which for".split())
# With one of them a line that stands alone is no answer.
_NO_ANSWERS = frozenset(
    (
        "alright certainly first hello here hi hm hmm i i'll i'm let let's now of ok okay please sorry sure thank thanks "
        "understood wait well"
    ).split()
)
_COUNTED = frozenset("moves answers turns tries steps".split())  # "moves left" is no move
_PRAISED = frozenset("answer action away choice direction move now one option path way".split())
_SENTENCE = re.compile(r"(?<=[.!?;\n])")
_MARKER = re.compile(r"(?:final answer|answer|solution|expression)\s*(?:is|:|=)+\s*", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\{([^{}\n]{1,200})\}")
# What stands around an answer and says nothing: lines that open or close a code block, words of LaTeX, emoji.
_FENCE = re.compile(r"^[ \t]*```\w*[ \t]*$", re.MULTILINE)
_LATEX = re.compile(r"\\(?:text|textbf|mathrm|mathbf|left|right)(?![a-z])\s*|\\[\[\]()]")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}\n]{0,200})\}")
_EMOJI = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff\ufe0f]")
_BOLD = re.compile(r"\*\*([^*\n](?:[^\n]{0,200}?[^*\n])?)\*\*")
_TIMES = re.compile(r"\\times(?![a-z])|\\cdot(?![a-z])|(?<=[0-9)])\s*[xX]\s*(?=[0-9(])")
_OVER = re.compile(r"\\div(?![a-z])")
# A line of its own that says what the answer is: what is reasoned before it is no answer.
_LAST_WORD = re.compile(
    r"^\W*(?:my |the )?(?:final |next )?(?:answer|action|move|choice)(?: input)?\W*[:=]\W*([^\n]*\w[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = re.compile(r"^#+[ \t]*(?:final )?answer[ \t]*:?[ \t]*\n+", re.IGNORECASE | re.MULTILINE)
_KEYED = re.compile(r'"(?:final_)?answer"\s*:\s*"([^"\n]{1,200})"')
_POWER = re.compile(r"\*\s*\*|/\s*/")
_BEFORE_A_PART = re.compile(r"[\\^_{}%]\s*$")  # ... of an expression that is not made out
_BEHIND_A_PART = re.compile(r"\s*(?:[\\^_{}%]|[^\W\d_](?![^\W\d_]))")
_RUN = re.compile(r"[-+*/()0-9 \t]+")
_COMMAND = re.compile(r"\b(search|click)\s*\[([^\[\]\n]{1,200})\]", re.IGNORECASE)
_BRACKETED = re.compile(r"\[([^\[\]\n]{1,60})\]")
_SIGNS = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "$": " ", "`": " "}
)
_ACTION = re.compile(r"^(?:my |the )?(?:next |final )?action\W*[:=]\W*?(?=\[)", re.IGNORECASE)
_QUOTES = " \t\"'`“”"
_DECORATION = " \t\r\n*_`\"'$"
MOST_LINES = 50  # of a text that may hold expressions
LONGEST_LINE = 100  # characters of an answer that stands alone, without any tag


def unwrapped(text: str) -> str:
    """The text without what stands around answers and says nothing."""
    text = _WRAPPED.sub(r"\1", _FENCE.sub("", text))
    return _EMOJI.sub("", _LATEX.sub("", text))


# ------------------------------------------------------------------------------------------------ moves


def read_moves(text: str, names: Sequence[str], *, think: bool) -> Reading:
    """One or several of `names`: `Right || Down`, "Right, Down", "Move Right", "I choose Right."."""
    by_word = {name.lower(): name for name in names}

    def strict(answer: str) -> str:
        moves = [by_word.get(part.strip().lower(), "") for part in answer.split(SEPARATOR)]
        return f" {SEPARATOR} ".join(moves) if all(moves) else ""

    def claims(part: str, inside: bool) -> Iterator[str]:
        part = _BOXED.sub(r"\1", unwrapped(part)).replace("$", " ")
        for moves in _last_words(part, tuple(names)) or _moves_in(part, tuple(names)):
            yield f" {SEPARATOR} ".join(by_word[move] for move in moves)

    return read_answer(text, think, strict, claims)


def _last_words(text: str, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The moves on lines that say what the answer is and name nothing else; none where there are no such lines."""
    known = {name.lower() for name in names}
    named: list[tuple[str, ...]] = []
    for line in _LAST_WORD.findall(text)[:MOST_LINES]:
        words = _words(line, names)
        moves = tuple(word for word in words if word in known)
        if not moves or not all(word in known or word in _FILLERS for word in words):
            return []
        named.append(moves)
    return named


def _moves_in(text: str, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """What a text says is to be done: all of it, where it is moves and little else; else sentence by sentence."""
    known = {name.lower() for name in names}
    words = _words(text, names)
    moves = tuple(word for word in words if word in known)
    if not moves or (len(names) > 2 and moves == tuple(name.lower() for name in names)):
        return  # nothing, or the list of what there is
    if all(word in known or word in _FILLERS for word in words):
        yield moves
        return
    whole = [word for word in words if word in known]
    if len(set(whole)) == 1 and not _directions(known) and _DOUBTS.isdisjoint(words):
        yield (whole[0],)
        return
    claimed: list[tuple[str, ...]] = []
    for sentence in _SENTENCE.split(text):
        sentence_words = _words(sentence, names)
        if _DOUBTS.isdisjoint(sentence_words) and "?" not in sentence:
            claimed += _behind_markers(sentence_words, known)
        elif claimed and not known.intersection(sentence_words) <= set(claimed[-1]):
            return  # second thoughts
    yield from claimed


def _behind_markers(words: Sequence[str], known: set[str]) -> Iterator[tuple[str, ...]]:
    at = 0
    while at < len(words):
        at += 1
        if words[at - 1] not in _MARKERS:
            continue
        moves: list[str] = []
        while at < len(words) and (words[at] in known or words[at] in _FILLERS):
            moves += [words[at]] if words[at] in known else []
            at += 1
        others = known.intersection(words[at:]) - set(moves)
        if moves and (not others or words[at] in _REASONS):
            yield tuple(moves)


def _directions(known: set[str]) -> bool:
    """Whether the names are words that prose is full of."""
    return not known.isdisjoint(("left", "right", "up", "down"))


def _words(text: str, names: tuple[str, ...]) -> list[str]:
    """The words and names of a text in lower case, without punctuation; "" for what is neither, and for a name that is
    none where it stands ("moves left", "the right answer")."""
    words: list[str] = []
    for match in _scanner(names).finditer(text):
        word = match[0].lower()
        if match.lastgroup is None:
            continue
        letter = len(word) == 1 and match.lastgroup == "name" and match[0] not in names
        if (
            match.lastgroup == "other"
            or letter
            or (word == "left" and words[-1:] and words[-1] in _COUNTED)
        ):
            word = ""
        if words[-1:] == ["right"] and word in _PRAISED:
            words[-1] = ""
        words.append("not" if word.endswith(("n't", "n’t")) else word)
    return words


@cache
def _scanner(names: tuple[str, ...]) -> re.Pattern:
    longest_first = sorted(names, key=len, reverse=True)
    named = "|".join(re.escape(name) for name in longest_first)
    # 1. or 2) before an item of a list is punctuation where no name is a number.
    item = "" if any(name[:1].isdigit() for name in names) else r"|\d{1,2}[.)](?=\s)"
    return re.compile(
        rf"(?P<name>(?<!\w)(?:{named})(?!\w))|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)?)"
        rf"|(?:[\s,.;:|>→!\"'`*(){{}}\[\]#=_-]{item})|(?P<other>.)",
        re.IGNORECASE,
    )


# ------------------------------------------------------------------------------------------------ expressions


def read_expression(text: str, *, think: bool) -> Reading:
    """An expression of numbers: "The answer is (25 + 3) * 7 = 196.", with × and ÷ for * and /."""

    def claims(part: str, inside: bool) -> Iterator[str]:
        part = _BOXED.sub(r"\1", unwrapped(part))
        marked = [part[match.end() :].partition("\n")[0] for match in _MARKER.finditer(part)]
        lines = [line.strip(_DECORATION) for line in marked] or part.splitlines()
        for line in lines[-MOST_LINES:]:
            yield from _expressions_in(line)

    return read_answer(text, think, _as_expression, claims)


def _as_expression(text: str) -> str:
    """An expression that has at least one operation, without spaces around it, "" for anything else."""
    text = " ".join(text.split())
    if len(text) > LONGEST_LINE or not _RUN.fullmatch(text) or text.isdigit():
        return ""
    if _POWER.search(text) or text[:1] in "+*/":  # signs of Python's own, or half of something
        return ""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""
    return text if isinstance(tree, ast.BinOp) else ""


def _expressions_in(line: str) -> Iterator[str]:
    """What is written on a line, without the value behind or before an equals sign. A part of something that is not made out
    (a power, a sign that is not known, a variable) is none."""
    line = _OVER.sub("/", _TIMES.sub("*", _without_bold(line).translate(_SIGNS)))
    for side in line.split("="):
        for run in _RUN.finditer(side):
            expression = _as_expression(run[0])
            cut = _BEFORE_A_PART.search(side[: run.start()]) or _is_cut(side[run.end() :])
            if expression and not cut:
                yield _spaced(expression)


def _is_cut(behind: str) -> bool:
    """Whether an expression goes on behind a run in a way that is not made out."""
    match = _BEHIND_A_PART.match(behind)
    return bool(match) and match[0].strip().lower() not in ("a", "i")


def _without_bold(line: str) -> str:
    """Without the stars around bold text; two stars between numbers are a power."""

    def plain(match: re.Match) -> str:
        before = line[: match.start()].rstrip()[-1:]
        behind = line[match.end() :].lstrip()[:1]
        goes_on = behind.isdigit() or behind == "("
        ends = match[1][-1].isdigit() or match[1][-1] == ")"
        is_power = before.isdigit() or before == ")" or (ends and goes_on)
        return match[0] if is_power else match[1]

    return _BOLD.sub(plain, line)


def _spaced(expression: str) -> str:
    """With the spaces that solvers write, so that one expression is one text."""
    return (
        " ".join(re.findall(r"[0-9]+|[-+*/()]", expression)).replace("( ", "(").replace(" )", ")")
    )


# ------------------------------------------------------------------------------------------------ commands, free text


def read_command(text: str, *, think: bool) -> Reading:
    """A command of the shop: "I will search[coffee mug] first", or a name in brackets alone, which is clicked."""

    def strict(answer: str) -> str:
        match = _COMMAND.fullmatch(answer.strip())
        return answer.strip() if match and match[1].islower() else ""

    def claims(part: str, inside: bool) -> Iterator[str]:
        commands = _COMMAND.findall(part)
        named = [f"{verb.lower()}[{name.strip(_QUOTES)}]" for verb, name in commands]
        alone = _BRACKETED.fullmatch(_ACTION.sub("", part.strip(_DECORATION)))
        return iter(named or ([f"click[{alone[1].strip()}]"] if alone else []))

    return read_answer(text, think, strict, claims)


def read_bracketed(text: str, *, think: bool) -> Reading:
    """A move in square brackets, as games of TextArena want it; between the tags, whatever stands there."""

    def claims(part: str, inside: bool) -> Iterator[str]:
        return iter(
            [f"[{name}]" for name in _BRACKETED.findall(part)] or ([part] if inside else [])
        )

    return read_answer(text, think, _as_it_stands, claims)


def read_free(text: str, *, think: bool) -> Reading:
    """A short answer in whatever words: behind "the answer is", in a box, behind an equals sign, or alone on one line."""

    def claims(part: str, inside: bool) -> Iterator[str]:
        return iter(short_answers(part))

    return read_answer(text, think, _as_it_stands, claims)


def _as_it_stands(answer: str) -> str:
    return answer.strip()


def short_answers(text: str, most_words: int = 6) -> list[str]:
    """The answers that a text names; where it names none, the text itself if it is one short line and no question."""
    text = _HEADING.sub("Answer: ", unwrapped(text))
    named = _BOXED.findall(text) + _KEYED.findall(text)
    named += [text[match.end() :].partition("\n")[0] for match in _MARKER.finditer(text)]
    if not named:
        line = text.strip(_DECORATION)
        is_short = "\n" not in line and len(line) <= LONGEST_LINE and not line.endswith(("?", ":"))
        words = [word.strip(",.!:") for word in line.lower().split()]
        is_answer = is_short and words[:1] and words[0] not in _NO_ANSWERS
        named = [line.rpartition("=")[2]] if is_answer and len(words) <= most_words else []
        named = [answer for answer in named if not answer.strip().startswith(("<", "{", "["))]
    trimmed = [answer.strip(_DECORATION).removesuffix(".").strip(_DECORATION) for answer in named]
    return [answer for answer in trimmed if answer and len(answer) <= LONGEST_LINE]
