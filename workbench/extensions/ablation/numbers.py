"""Numbers that a notebook prints, each compared with the same number of a view that was made anew.

A view is known by its lines with the numbers left out: no code of a notebook is run to find out what it showed. So a
changed number is found, and a line that no view here has is taken on trust.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from workbench.extensions.ablation.views.audits import MARKS

RECOMPUTED, TRUST, DIFFERENT = MARKS
# Not within a name: no digit of frozenlake-4x4, of step_00001 or of a path.
NUMBER = re.compile(r"(?<![\w./-])[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w/])")
_TAG = re.compile(r"<[^>]*>")
_GAPS = re.compile(r"[\s|]+")
ALIKE = 0.5  # share of its lines that two views have in common where they are the same one
TITLE_WITHIN = 6  # lines: a run that is under way has its progress above its title
NO_VIEW = "nothing that could be made anew here has this line"


@dataclass(frozen=True)
class AuditedNumber:
    """A number of a notebook.

    cell: which code cell, from 1 (0: the notebook as a whole).
    where: of its output.
    said: as it stands there.
    mark: recomputed, taken on trust, or different.
    by: what it was compared with, or why it was not.
    now: what was found instead, "" where nothing was.
    """

    cell: int
    where: str
    said: str
    mark: str
    by: str
    now: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def held_against(cell: int, where: str, said: Any, now: Any, by: str) -> AuditedNumber:
    """One value beside the same value, made anew: equal to the last digit, or different."""
    if said == now:
        return AuditedNumber(cell, where, f"{said}", RECOMPUTED, by)
    return AuditedNumber(cell, where, f"{said}", DIFFERENT, by, f"{now}")


def view_of(lines: Sequence[str], views: Mapping[str, Sequence[str]]) -> str:
    """Which of `views` (name -> lines) is printed here, numbers left out: the one that is most alike; "": none."""
    forms = [_form(line) for line in lines]
    alike = {name: _alike(forms, lines, view) for name, view in views.items()}
    best = max(alike, key=lambda name: alike[name], default="")
    return best if best and alike[best] >= (ALIKE, 0) else ""


def audited_lines(
    cell: int, where: str, lines: Sequence[str], now: Sequence[str], by: str
) -> list[AuditedNumber]:
    """Every number in `lines`, beside that of `now`, the lines of the same view made anew (none: all on trust)."""
    partner = _partners([_form(line) for line in lines], [_form(line) for line in now])
    audited = []
    for at, line in enumerate(lines):
        place = f"{where}, line {at + 1}"
        printed = NUMBER.findall(line)
        if at not in partner:
            audited += [AuditedNumber(cell, place, number, TRUST, NO_VIEW) for number in printed]
            continue
        again = NUMBER.findall(now[partner[at]])
        for number, remade in zip(printed, again, strict=True):
            audited.append(held_against(cell, place, number, remade, by))
    return audited


def _partners(forms: Sequence[str], others: Sequence[str]) -> dict[int, int]:
    """Which line of the others each line is, where both have it."""
    partner = {}
    for a, b, size in SequenceMatcher(None, forms, others, autojunk=False).get_matching_blocks():
        partner |= zip(range(a, a + size), range(b, b + size))
    return partner


def _alike(forms: Sequence[str], lines: Sequence[str], view: Sequence[str]) -> tuple[float, int]:
    """What share of the lines both have, numbers left out, and how many are equal throughout. Nothing, where the title
    of the view is not there: it says of which run it is."""
    others = [_form(line) for line in view]
    if not others or others[0] not in forms[:TITLE_WITHIN]:
        return 0.0, 0
    both = sum((Counter(forms) & Counter(others)).values())
    equal = sum((Counter(map(_packed, lines)) & Counter(map(_packed, view))).values())
    return both / max(len(forms), len(others)), equal


def _form(line: str) -> str:
    return _packed(NUMBER.sub("#", line))


def _packed(line: str) -> str:
    return _GAPS.sub(" ", line).strip()


def lines_of_html(page: str) -> list[str]:
    """What a reader of the page sees, piece by piece; tags and styles are left out."""
    pieces = html.unescape(_TAG.sub("\n", page)).split("\n")
    return [piece.strip() for piece in pieces if piece.strip()]
