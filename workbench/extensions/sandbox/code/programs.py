"""Tasks that are made here: what to do with a list of whole numbers, or with a text, in one to three steps and an end.

    Write a function `solve(numbers)`. It takes a list of whole numbers. Keep only those greater than 3, then square
    each, and return their sum.

A step is its words, its Python, and a function that does it: the three say the same (tests hold them against each
other). Values that tests expect come from the functions.

Vague words leave open which of two steps is meant ("change each by 3"). The example tells: they do not come to the same
there. Whoever does not look at it is right in one of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Step:
    """`words` and `source` hold {k} where there is a number; in `source`, x is what came before."""

    words: str
    source: str
    does: Callable[[Any, int], Any]
    numbers: tuple[int, ...] = (0,)


_VOWELS = "aeiouAEIOU"

ON_NUMBERS = (
    Step(
        "keep only the even ones",
        "[n for n in x if n % 2 == 0]",
        lambda x, k: [n for n in x if n % 2 == 0],
    ),
    Step(
        "keep only the odd ones",
        "[n for n in x if n % 2 == 1]",
        lambda x, k: [n for n in x if n % 2 == 1],
    ),
    Step(
        "keep only those greater than {k}",
        "[n for n in x if n > {k}]",
        lambda x, k: [n for n in x if n > k],
        tuple(range(-3, 8)),
    ),
    Step(
        "keep only those less than {k}",
        "[n for n in x if n < {k}]",
        lambda x, k: [n for n in x if n < k],
        tuple(range(-1, 10)),
    ),
    Step(
        "keep only the multiples of {k}",
        "[n for n in x if n % {k} == 0]",
        lambda x, k: [n for n in x if n % k == 0],
        (3, 4, 5),
    ),
    Step(
        "multiply each by {k}",
        "[n * {k} for n in x]",
        lambda x, k: [n * k for n in x],
        (2, 3, 4, 5, 10),
    ),
    Step(
        "add {k} to each",
        "[n + {k} for n in x]",
        lambda x, k: [n + k for n in x],
        tuple(range(1, 10)),
    ),
    Step("square each", "[n * n for n in x]", lambda x, k: [n * n for n in x]),
    Step(
        "replace each by its absolute value",
        "[abs(n) for n in x]",
        lambda x, k: [abs(n) for n in x],
    ),
    Step(
        "replace each by its remainder when divided by {k}",
        "[n % {k} for n in x]",
        lambda x, k: [n % k for n in x],
        (2, 3, 4, 5, 7),
    ),
    Step("sort them, smallest first", "sorted(x)", lambda x, k: sorted(x)),
    Step(
        "sort them, largest first", "sorted(x, reverse=True)", lambda x, k: sorted(x, reverse=True)
    ),
    Step("reverse their order", "x[::-1]", lambda x, k: x[::-1]),
    Step(
        "drop repeats, keeping the first of each",
        "list(dict.fromkeys(x))",
        lambda x, k: list(dict.fromkeys(x)),
    ),
    Step("leave out the first {k}", "x[{k}:]", lambda x, k: x[k:], (1, 2)),
    Step("take every second one, beginning with the first", "x[::2]", lambda x, k: x[::2]),
    Step(
        "replace each by the sum of all up to it",
        "[sum(x[:i + 1]) for i in range(len(x))]",
        lambda x, k: list(accumulate(x)),
    ),
)
END_NUMBERS = (
    Step("return the list", "x", lambda x, k: x),
    Step("return their sum", "sum(x)", lambda x, k: sum(x)),
    Step("return how many there are", "len(x)", lambda x, k: len(x)),
    Step(
        "return the largest, or None where there is none",
        "max(x, default=None)",
        lambda x, k: max(x, default=None),
    ),
    Step(
        "return the smallest, or None where there is none",
        "min(x, default=None)",
        lambda x, k: min(x, default=None),
    ),
)
ON_TEXT = (
    Step("turn it into upper case", "x.upper()", lambda x, k: x.upper()),
    Step("turn it into lower case", "x.lower()", lambda x, k: x.lower()),
    Step("reverse it", "x[::-1]", lambda x, k: x[::-1]),
    Step(
        "remove all vowels",
        f"''.join(c for c in x if c not in '{_VOWELS}')",
        lambda x, k: "".join(c for c in x if c not in _VOWELS),
    ),
    Step(
        "replace every space by an underscore",
        "x.replace(' ', '_')",
        lambda x, k: x.replace(" ", "_"),
    ),
    Step("leave out the first {k} characters", "x[{k}:]", lambda x, k: x[k:], (1, 2, 3)),
    Step(
        "write every character twice",
        "''.join(c * 2 for c in x)",
        lambda x, k: "".join(c * 2 for c in x),
    ),
    Step(
        "put its words in reverse order",
        "' '.join(x.split(' ')[::-1])",
        lambda x, k: " ".join(x.split(" ")[::-1]),
    ),
    Step("swap upper and lower case", "x.swapcase()", lambda x, k: x.swapcase()),
)
END_TEXT = (
    Step("return the text", "x", lambda x, k: x),
    Step("return its length", "len(x)", lambda x, k: len(x)),
    Step(
        "return the list of its words, which single spaces separate",
        "x.split(' ')",
        lambda x, k: x.split(" "),
    ),
    Step(
        "return how many vowels it has",
        f"sum(c in '{_VOWELS}' for c in x)",
        lambda x, k: sum(c in _VOWELS for c in x),
    ),
)


@dataclass(frozen=True)
class VagueStep:
    """Words that could mean any of `steps`, with the numbers that {k} may be."""

    words: str
    steps: tuple[Step, ...]
    numbers: tuple[int, ...] = (0,)


def _steps(*begins: str) -> tuple[Step, ...]:
    steps: list[Step] = []
    for begin in begins:
        steps += [step for step in ON_NUMBERS if step.words.startswith(begin)]
    return tuple(steps)


VAGUE = (
    VagueStep("change each by {k}", _steps("multiply each", "add {k}"), tuple(range(2, 10))),
    VagueStep(
        "keep only those that {k} lets through", _steps("keep only those"), tuple(range(2, 8))
    ),
    VagueStep("leave some of them out", _steps("keep only the even", "keep only the odd")),
)

_WORDS = (
    "red",
    "Apple",
    "moon",
    "Quiet",
    "river",
    "stone",
    "Orange",
    "bird",
    "umbrella",
    "Ice",
    "lamp",
    "tree",
)


@dataclass(frozen=True)
class CodePlan:
    """What to do, step by step, each with its number. `vague`: words that stand for those of the first step, "": none."""

    on_text: bool
    steps: tuple[tuple[Step, int], ...]
    vague: str = ""

    @property
    def argument(self) -> str:
        return "text" if self.on_text else "numbers"

    @property
    def words(self) -> str:
        phrases = [step.words.format(k=number) for step, number in self.steps]
        phrases[0] = self.vague or phrases[0]
        takes = "a text" if self.on_text else "a list of whole numbers"
        before = ", then ".join(phrases[:-1])
        return (
            f"Write a function `solve({self.argument})`. It takes {takes}. "
            f"{before[:1].upper()}{before[1:]}, and {phrases[-1]}."
        )

    @property
    def source(self) -> str:
        lines = [f"def solve({self.argument}):", f"    x = {self.argument}"]
        lines += [f"    x = {step.source.format(k=number)}" for step, number in self.steps]
        return "\n".join([*lines, "    return x\n"])

    def value(self, x: Any) -> Any:
        for step, number in self.steps:
            x = step.does(x, number)
        return x


def drawn_program(rng: np.random.Generator, least: int, most: int) -> CodePlan:
    """`least` to `most` steps before the end, no words twice."""
    on_text = bool(rng.random() < 0.4)
    choice, ends = (ON_TEXT, END_TEXT) if on_text else (ON_NUMBERS, END_NUMBERS)
    count = int(rng.integers(least, most + 1))
    steps = [choice[int(place)] for place in rng.permutation(len(choice))[:count]]
    steps.append(_one_of(ends, rng))
    return CodePlan(on_text, tuple((step, _one_of(step.numbers, rng)) for step in steps))


def _one_of(values: Sequence[Any], rng: np.random.Generator) -> Any:
    return values[int(rng.integers(len(values)))]


def drawn_vague(rng: np.random.Generator) -> tuple[CodePlan, tuple[CodePlan, ...], list[int]]:
    """A plan in vague words, all plans that these words could mean (it is one of them), and an example that tells them
    apart: three or four different numbers and one that comes of them. Ends that no example tells apart (how many there
    are, once each was changed) are drawn again."""
    while True:
        vague = _one_of(VAGUE, rng)
        end = _one_of(END_NUMBERS[1:], rng)
        number = _one_of(vague.numbers, rng)
        words = vague.words.format(k=number)
        rivals = tuple(CodePlan(False, ((step, number), (end, 0)), words) for step in vague.steps)
        for _ in range(4):
            numbers = rng.permutation(np.arange(-9, 16))
            example = [int(one) for one in numbers[: int(rng.integers(3, 5))]]
            if len({repr(plan.value(example)) for plan in rivals}) == len(rivals):
                return _one_of(rivals, rng), rivals, example


def drawn_inputs(rng: np.random.Generator, on_text: bool, count: int) -> list[Any]:
    """Different ones; the last is empty."""
    inputs: list[Any] = []
    while len(inputs) < count - 1:
        value: Any
        if on_text:
            places = rng.integers(len(_WORDS), size=int(rng.integers(1, 5)))
            value = " ".join(_WORDS[int(place)] for place in places)
        else:
            value = [int(number) for number in rng.integers(-9, 16, size=int(rng.integers(3, 9)))]
        if value not in inputs:
            inputs.append(value)
    return [*inputs, "" if on_text else []]
