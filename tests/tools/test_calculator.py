"""The calculator: right numbers, plain refusals, and no input that raises or hangs."""

import math
import operator

import numpy as np
import pytest

from workbench.tools import calculator as module
from workbench.tools.calculator import FUNCTIONS, LONGEST, MOST_BITS, calculator, evaluate
from workbench.values.seeds import rng_at


def ask(expression: str) -> str:
    return calculator.call({"expression": expression}).text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("0.1 + 0.2", "0.3"),
        ("10 / 4", "2.5"),
        ("10 / 5", "2"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("1 << 4", "16"),
        ("~5 & 7 | 8", "10"),
        ("sqrt(2)**2", "2"),
        ("round(2.675, 2)", "2.67"),
        ("round(1234, -2)", "1200"),
        ("max(1, 2, 3) - min(4, 5)", "-1"),
        ("pi", "3.14159265358979"),
        ("factorial(5)", "120"),
        ("gcd(12, 18)", "6"),
        ("log(8, 2)", "3"),
        ("\n1 +\n 1\n", "2"),
        ("1e3", "1000"),
        (".5 + 5.", "5.5"),
        ("0 << 10**9", "0"),
        ("1 >> 10**9", "0"),
        ("1 ** 10**99", "1"),
        ("2 ** 3999", str(2**3999)),
    ],
)
def test_right_numbers(expression, text):
    assert ask(expression) == text


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("9**9**9", "more than 4000 bits"),
        ("1 << 10**9", "more than 4000 bits"),
        ("2 ** 4000", "more than 4000 bits"),
        ("round(7, -10**9)", "at most 400"),
        ("factorial(9**9)", "from 0 to 400"),
        ("9" * LONGEST + "1", "at most 500"),
        ("2 ** 3999 * 2", "more than 4000 bits"),
        ("10.0 ** 400", "too large"),
        ("1e999", "too large"),
        ("1e308 * 10", "too large"),
        ("1 / 0", "division by zero"),
        ("sqrt(-1)", "domain"),
        ("(-8) ** (1/3)", "no real number"),
        ("2 ^ 3", r"\*\* for a power"),
        ("1,000", "write 1000"),
        ("2 + x", "there is no 'x'"),
        ("speed(1)", "no function 'speed'"),
        ("abs(1, 2)", "takes 1 numbers"),
        ("round(n=1)", "cannot stand"),
        ("__import__('os')", "cannot stand"),
        ("abs.__class__", "cannot stand"),
        ("True", "no real"),
        ("1 if 1 else 2", "are computed"),
        ("1 and 2", "are computed"),
        ("-" * 300 + "1", "more than 200 parts"),
        ("", "such as"),
        ("(" * 200 + "1", "no arithmetic"),
        ("1 1", "no arithmetic"),
        ("0x10", "cannot stand"),
        ("1j", "cannot stand"),
        ("1_000", "cannot stand"),
        ("١ + ١", "cannot stand"),
        ("1.5 & 2", "cannot be computed"),
        ("1 << -1", "negative shift"),
        ("(1)(2)", "are computed"),
        ("exp(1000)", "too large"),
        ("floor(1e308) ** 9", "more than 4000 bits"),
    ],
)
def test_plain_refusals(expression, said):
    result = calculator.call({"expression": expression})
    assert (
        result.error == "bad_arguments"
        and result.text.startswith("Error: ")
        and result.value is None
    )
    with pytest.raises(ValueError, match=said):
        evaluate(expression)


def test_what_is_refused_is_not_computed_first():
    """Sizes are judged before, not after: a number that would be too large is never made."""

    class Never(int):
        def __pow__(self, other):
            raise AssertionError("computed")

        __lshift__ = __mul__ = __pow__

    with pytest.raises(AssertionError, match="computed"):  # so the trap works
        module._power(Never(9), 2)
    for operation, other in (
        (module._power, 10**6),
        (module._shift_left, 10**6),
        (module._multiply, 1 << MOST_BITS),
    ):
        with pytest.raises(module._Refused, match="too large"):
            operation(Never(9), other)


# ------------------------------------------------------------------------------------------------ fuzz


PIECES = [
    "0",
    "1",
    "2",
    "7",
    "9",
    "10",
    "1e308",
    "1e-308",
    "0.5",
    ".1",
    "9" * 40,
    "(",
    ")",
    "(",
    ")",
    ",",
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "<<",
    ">>",
    "&",
    "|",
    "~",
    "^",
    " ",
    "pi",
    "e",
    "x",
    "True",
    "if",
    "else",
    "lambda",
    ":",
    "=",
    ".",
    "_",
    "'",
    '"',
    "\\",
    "\n",
    "\0",
    "[",
    "]",
    "{",
    "}",
    "é",
    "²",
    "\ud800",
    "@",
    "!",
    "#",
    "j",
    "0x",
    "1_0",
    "import",
    "await",
    *FUNCTIONS,
]


def fuzzed(rng: np.random.Generator) -> str:
    """Half of them grown by the grammar (so most of these are computed), half thrown together."""
    if rng.random() < 0.5:
        return "".join(
            PIECES[int(n)] for n in rng.integers(len(PIECES), size=int(rng.integers(1, 40)))
        )

    def grown(depth: int) -> str:
        kind = rng.random()
        if depth == 0 or kind < 0.2:
            return str(
                rng.choice(
                    [
                        "0",
                        "1",
                        "2",
                        "3",
                        "17",
                        "999",
                        "0.5",
                        "1e200",
                        "1e-200",
                        "10**9",
                        "9**99",
                        "pi",
                        "e",
                    ]
                )
            )
        if kind < 0.35:
            name = str(rng.choice(list(FUNCTIONS)))
            most = min(FUNCTIONS[name][2], 3)
            return f"{name}({', '.join(grown(depth - 1) for _ in range(int(rng.integers(1, most + 1))))})"
        if kind < 0.45:
            return f"{rng.choice(['-', '~', '+'])}({grown(depth - 1)})"
        sign = rng.choice(["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|"])
        return f"({grown(depth - 1)} {sign} {grown(depth - 1)})"

    return grown(int(rng.integers(1, 6)))


def fuzz(count: int) -> dict[str, int]:
    rng, seen = rng_at("fuzz.calculator"), {"": 0, "bad_arguments": 0}
    for _ in range(count):
        result = calculator.call({"expression": fuzzed(rng)})
        seen[result.error] += 1
        if not result.error:
            assert isinstance(result.value, int) or math.isfinite(result.value)
            assert len(result.text) <= 1_300
    return seen


def test_fuzzed_inputs():
    seen = fuzz(1_000)
    assert min(seen.values()) > 150, seen  # both kinds are there


@pytest.mark.full
def test_20_000_fuzzed_inputs():
    assert sum(fuzz(20_000).values()) == 20_000


@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|"])
def test_operators_agree_with_pythons_own(sign):
    own = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
        "//": operator.floordiv,
        "%": operator.mod,
        "**": operator.pow,
        "<<": operator.lshift,
        ">>": operator.rshift,
        "&": operator.and_,
        "|": operator.or_,
    }[sign]
    rng = rng_at("calculator", sign)
    for a, b in rng.integers(1, 40, size=(50, 2)).tolist():
        assert evaluate(f"{a} {sign} {b}") == own(a, b)
