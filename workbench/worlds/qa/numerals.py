"""Numbers inside an answer, each written in one way, so that removing punctuation makes no other number of it.

    -17.750        -> -17.75        the sign and the decimal point stay; zeros behind the last decimal do not
    1,775   1'775  -> 1775          separators of thousands go (1,00,000 as in India, too)
    $15  15%  € 15 -> 15            currency and percent go, or come first ("$15", "%15") where `units` is asked for
    1.5e3          -> 1500
    007            -> 007           leading zeros stay: an identifier, no number
    2021-05-03  10:30  1/2  1,2,3   digits in groups that are no number: the groups stay apart (2021/05/03)
    covid-19       19              a hyphen behind a letter is no sign

A comma is never a decimal point. A sign stands right before its number or currency, or at the very beginning ("- 5").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

CURRENCIES = "$€£¥₹₩₽"
_SIGNS = "-+\u2212\u2013"  # the last two: a minus sign, and a dash that is written for one
_CURRENCY = f"[{re.escape(CURRENCIES)}]"
_NUMERAL = re.compile(
    rf"(?:(?P<sign>(?<![\w.)\]%])[{_SIGNS}])?(?:(?P<before>{_CURRENCY})\s?)?"
    rf"|(?P<first>{_CURRENCY})(?P<second>[{_SIGNS}]))"
    r"(?P<digits>(?<![\w.])\.[0-9]+|[0-9]+(?:[,.'_/:-][0-9]+)*)"
    r"(?P<exponent>e[-+]?[0-9]{1,2}(?!\w))?"
    rf"(?P<after>\s?%|{_CURRENCY}(?![0-9]))?"
)
_LEADING_SIGN = re.compile(rf"\A\s*([{_SIGNS}])\s+(?=[0-9.{re.escape(CURRENCIES)}])")
_THOUSANDS = re.compile(
    r"[1-9][0-9]{0,2}(?:([,'_])[0-9]{3})(?:\1[0-9]{3})*(?:\.[0-9]+)?"
    r"|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?"
)
_PLAIN = re.compile(r"[0-9]*(?:\.[0-9]+)?")


def parts_of(text: str, *, units: bool) -> Iterator[tuple[str, bool]]:
    """The text in parts, in order: (a number as it is written above, True) or (what stands between, False)."""
    text = _LEADING_SIGN.sub(r"\1", text)
    end = 0
    for match in _NUMERAL.finditer(text):
        yield text[end : match.start()], False
        yield _written(match, units), True
        end = match.end()
    yield text[end:], False


def has_unit(text: str) -> bool:
    """Whether a number in the text has a currency or a percent sign."""
    return any(map(_unit, _NUMERAL.finditer(text)))


def _unit(match: re.Match[str]) -> str:
    return (match["before"] or match["first"] or match["after"] or "").strip()


def _written(match: re.Match[str], units: bool) -> str:
    unit = _unit(match) if units else ""
    digits = match["digits"]
    exponent = match["exponent"] or ""
    if _THOUSANDS.fullmatch(digits):
        digits = re.sub("[,'_]", "", digits)
    if not _PLAIN.fullmatch(digits):
        return unit + "/".join(re.findall("[0-9]+", digits)) + exponent
    if exponent:
        digits = format(Decimal(digits + exponent), "f")
    whole, _, decimals = digits.partition(".")
    decimals = decimals.rstrip("0")
    value = (whole or "0") + (f".{decimals}" if decimals else "")
    sign = match["sign"] or match["second"] or "+"
    is_negative = sign != "+" and value.strip("0.")
    return f"{unit}{'-' if is_negative else ''}{value}"
