"""Exact match and F1 of an answer, as the official scripts of SQuAD and HotpotQA define them.

Both compare normalised text: lower case, ASCII punctuation removed, the words a, an, the removed, white space single.
Several golds are aliases of one another: the best of them counts.

    exact_match   the whole answer is a gold one. A gold answer among other guesses earns nothing
    f1            the ordinary F1 over words, with multiplicity. A gold answer among guesses earns its F1: partly right
                  words are what F1 pays for, so train on exact match where guessing in lists must not pay. Where either
                  side is yes, no or noanswer, anything but the same word earns 0 (as in HotpotQA's script)

One difference to the scripts: a text of which normalising leaves nothing ("The", "!") is compared as it stands, so an
empty answer is never right.

Sources: Rajpurkar et al. 2016 (arXiv 1606.05250); Yang et al. 2018 (arXiv 1809.09600), `hotpot_evaluate_v1.py`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WHOLE_WORDS = ("yes", "no", "noanswer")


def normalize(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the whole answer is one of the golds, normalised. False where there is no gold."""
    normalized = _comparable(answer)
    return bool(normalized) and any(normalized == _comparable(gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best F1 over words with any of the golds, 0 to 1. 0 where there is no gold."""
    scores = [_f1(_comparable(answer), _comparable(gold)) for gold in golds]
    return max(scores, default=0.0)


def _comparable(text: str) -> str:
    return normalize(text) or " ".join(text.lower().split())


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _WHOLE_WORDS or gold in _WHOLE_WORDS):
        return 0.0
    words = answer.split()
    gold_words = gold.split()
    shared = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * shared / (len(words) + len(gold_words)) if shared else 0.0
