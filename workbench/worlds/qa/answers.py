"""Exact match and F1 of an answer, as the official scripts of SQuAD and HotpotQA define them for words.

Both compare normalised text: lower case, ASCII punctuation removed, the words a, an, the removed, white space single.
Several golds are aliases of one another: the best of them counts.

    exact_match   the whole answer is a gold one. A gold answer among other guesses earns nothing
    f1            the ordinary F1 over words, with multiplicity. A gold answer among guesses earns its F1: partly right
                  words are what F1 pays for, so train on exact match where guessing in lists must not pay. Where either
                  side is yes, no or noanswer, anything but the same word earns 0 (as in HotpotQA's script)

Two differences to the scripts. A text of which normalising leaves nothing ("The", "!") is compared as it stands, so an
empty answer is never right. And numbers are compared as numbers (`numerals`): the scripts remove signs and decimal points
with all other punctuation, by which 17.75, -17.75 and 1775 are the same answer. Here 1,775 is 1775 and 17.750 is 17.75, and
none of them is -17.75; $15 and 15 % are 15, and $15 is neither 15 % nor €15.

Sources: Rajpurkar et al. 2016 (arXiv 1606.05250); Yang et al. 2018 (arXiv 1809.09600), `hotpot_evaluate_v1.py`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from workbench.worlds.qa.numerals import has_unit, parts_of

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WHOLE_WORDS = ("yes", "no", "noanswer")


def normalize(text: str, *, units: bool = False) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces; numbers keep their value.

    `units`: their currency and percent signs, too, which otherwise are punctuation.
    """
    kept = ""
    for part, is_number in parts_of(text.lower(), units=units):
        words = part if is_number else part.translate(_PUNCTUATION)
        # What stood between two numbers is not nothing: 5...6 is not 56.
        kept += words or "/" * bool(part and kept[-1:].isdigit())
    return " ".join(_ARTICLES.sub(" ", kept.rstrip("/")).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the whole answer is one of the golds, normalised. False where there is no gold."""
    pairs = [_comparable(answer, gold) for gold in golds]
    return any(given and given == right for given, right in pairs)


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best F1 over words with any of the golds, 0 to 1. 0 where there is no gold."""
    scores = [_f1(*_comparable(answer, gold)) for gold in golds]
    return max(scores, default=0.0)


def _comparable(answer: str, gold: str) -> tuple[str, str]:
    """Both, normalised. A currency or a percent sign counts where both say one: $15 is 15, and is not €15."""
    units = has_unit(answer) and has_unit(gold)
    return tuple(
        normalize(text, units=units) or " ".join(text.lower().split()) for text in (answer, gold)
    )


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _WHOLE_WORDS or gold in _WHOLE_WORDS):
        return 0.0
    words = answer.split()
    gold_words = gold.split()
    shared = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * shared / (len(words) + len(gold_words)) if shared else 0.0
