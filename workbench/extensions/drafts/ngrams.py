"""Which tokens are proposed: those that most often followed the same few tokens, in all turns that the engine has sampled.

Attempts at one task, and turns of one environment, repeat each other: forms of calls, names, whole thoughts. What is
proposed is a function of the tokens that were sampled before and of nothing else, and it decides about speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (4, 2)  # tokens that a follower is looked up by; the first that is known decides
MOST_COUNTED = 64  # followers of one context; then all its counts are halved, so that a policy may change its mind
MOST_CONTEXTS = 100_000  # about 40 MB; then everything is forgotten
# Followers that are added to those seen, none of them the likeliest: what came once is no certainty.
DOUBT = 2
GRADES = 8  # of such shares; how often each of them was right is counted
TRUSTED = 8  # tokens for which a grade is taken at its word
REMEMBERED = 512  # tokens of one grade; then its counts are halved


@dataclass(slots=True)
class _Followers:
    """What came after one context, and how often."""

    likeliest: int
    counts: dict[int, int]
    total: int = 0

    def add(self, token: int) -> None:
        self.counts[token] = self.counts.get(token, 0) + 1
        self.total += 1
        if self.counts[token] >= self.counts[self.likeliest]:
            self.likeliest = token
        if self.total >= MOST_COUNTED:
            kept = {token: count // 2 for token, count in self.counts.items() if count > 1}
            self.counts = kept or {self.likeliest: 1}
            self.total = sum(self.counts.values())

    @property
    def share(self) -> float:
        """How likely the likeliest one is."""
        return self.counts[self.likeliest] / (self.total + DOUBT)


@dataclass(slots=True)
class _Grade:
    """How often the likeliest follower came, of contexts of one length that promise about as much."""

    right: float
    asked: float = TRUSTED

    def note(self, is_right: bool) -> None:
        self.right += is_right
        self.asked += 1
        if self.asked >= REMEMBERED:
            self.right /= 2
            self.asked /= 2


class Ngrams:
    """Learns from every sampled token, and proposes. Whether a context would have been right is counted whether it was asked
    or not, so where text has no pattern little is proposed, and more as soon as it has one."""

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], _Followers] = {}
        self._grades: dict[tuple[int, int], _Grade] = {}

    def __len__(self) -> int:
        """Contexts that are known."""
        return len(self._followers)

    def learn(self, before: Sequence[int], token: int) -> None:
        """`token` was sampled after `before`: the last tokens of its sequence, as many as there are of the longest of
        LENGTHS."""
        if len(self._followers) >= MOST_CONTEXTS:
            self._followers = {}
        known = self._after(before)
        if known is not None:
            length, followers = known
            self._grade(length, followers).note(followers.likeliest == token)
        for length in LENGTHS:
            context = tuple(before[-length:])
            followers = self._followers.get(context)
            if followers is None:
                followers = self._followers[context] = _Followers(token, {token: 0})
            followers.add(token)

    def propose(self, before: Sequence[int], most: int, least_share: float) -> list[int]:
        """At most `most` tokens that may come after `before`, as long as all of them together are right with a
        probability of `least_share`, as far as the counts tell."""
        proposed: list[int] = []
        tail = list(before[-LENGTHS[0] :])
        share = 1.0
        while len(proposed) < most:
            known = self._after(tail)
            if known is None:
                break
            length, followers = known
            grade = self._grade(length, followers)
            share *= min(followers.share, grade.right / grade.asked)
            if share < least_share:
                break
            proposed.append(followers.likeliest)
            tail.append(followers.likeliest)
        return proposed

    def _after(self, tail: Sequence[int]) -> tuple[int, _Followers] | None:
        """The longest context that is known at the end of this: its length, and what followed it."""
        for length in LENGTHS:
            followers = self._followers.get(tuple(tail[-length:]))
            if followers is not None:
                return length, followers
        return None

    def _grade(self, length: int, followers: _Followers) -> _Grade:
        share = followers.share
        key = (length, int(share * GRADES))
        if key not in self._grades:
            self._grades[key] = _Grade(share * TRUSTED)
        return self._grades[key]
