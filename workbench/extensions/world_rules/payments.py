"""What is paid, and for what (R29): to the turn that earned it, once, and never for what failed or was cut.

What earns a reward is read from what a trajectory says of itself: documents that calls brought, errors of calls, the
answer that was read, whether a turn could be read at all.

Axis letters: K turns.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from workbench.basics.findings import Checked, Finding
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.values import StopReason, Trajectory, Turn
from workbench.values.errors import shortened
from workbench.worlds.qa.answers import normalize
from workbench.worlds.scoring import scores_after

ELEMENT = re.compile(r"<(?!think>)(\w+)>.*?</\1>", re.DOTALL)

NEAR = 1e-6
ENOUGH = 4  # turns that end alike before their end is taken for the mark of a whole answer


def check_payments(evidence: Evidence) -> Iterator[RuleResult]:
    yield Checked(len(evidence.trajectories))
    judged = bool(
        getattr(evidence.family, "reward", "")
    )  # by a function of the user's: what it calls right is its matter
    scored_after = scores_after(evidence.family)
    measure = None if judged else getattr(getattr(evidence.family, "rewards", None), "answer", None)
    for n, trajectory in enumerate(evidence.trajectories):
        for k, what in _contradictions(trajectory, measure, judged, scored_after):
            yield Finding(what, evidence.place(n) if k is None else evidence.place(n, turn=k))
            break
    yield from _documents(evidence)
    yield from _formats(evidence)
    yield from _cut_turns(evidence)


def _contradictions(
    t: Trajectory, measure: str | None, judged: bool, scored_after: bool
) -> Iterator[tuple[int | None, str]]:
    """Find what a single trajectory contradicts itself in: (turn, words). `measure`: by which answers are said to be scored.
    `scored_after`: a score has the last word on success."""
    if t.stop_reason.is_fault and (t.scored or t.success or t.outcome):
        what = (
            f"it ended by a fault ({t.stop_reason.value}), which is neither scored nor a success: scored "
            f"{t.scored}, success {t.success}, outcome {t.outcome}"
        )
        yield None, what
    last_k = len(t.turns) - 1
    last = t.turns[-1].info if t.turns else {}
    said_by_turn = t.success is not None and "success" in last and not scored_after
    if said_by_turn and t.success != last["success"]:
        yield last_k, f"its last turn says success {last['success']}, the trajectory {t.success}"
    for k, turn in enumerate(t.turns):
        what = _paid_for_failed_calls(turn)
        if what is not None:
            yield k, what
        for what in _answered(t, turn, measure, judged):
            yield k, what
    # An answer was read, with something beside it that should not be there.
    read = "complaint" in last and isinstance(last.get("answer"), str)
    unread_end = t.stop_reason is StopReason.TERMINATED and last.get("valid_format") is False
    if unread_end and t.success and not (read or judged):
        yield last_k, "it ends with an action that could not be read, and counts as a success"


def _paid_for_failed_calls(turn: Turn) -> str | None:
    calls = turn.info.get("calls") or ()
    if not calls or not all(isinstance(call, Mapping) and call.get("error") for call in calls):
        return None
    parts = turn.reward_parts
    paid = {name: parts[name] for name in ("process", "tool") if parts.get(name, 0) > 0}
    earned = paid or turn.info.get("documents")
    if not earned:
        return None
    return f"every call of it failed ({calls[0]['error']}), and it is paid {earned}"


def _answered(t: Trajectory, turn: Turn, measure: str | None, judged: bool) -> Iterator[str]:
    """An answer that the turn says was read, compared with the action and the gold answers."""
    if "complaint" not in turn.info:  # elsewhere "answer" may be the gold one, for people
        return
    answer = turn.info.get("answer")
    gold = t.task.payload.get("answers")
    won = turn.info.get("success")
    has_gold = isinstance(gold, (list, tuple)) and bool(gold)
    if not isinstance(answer, str):
        if won and has_gold and answer is None and not judged:
            yield "no answer was read, and it counts as a success"
        return
    if "call" in turn.info:
        pass  # a program words its answer itself
    elif answer not in turn.text:
        yield f"the answer {shortened(answer)} was read, and is not in the action"
    elif answer not in turn.text.rpartition("</think>")[2]:
        yield f"the answer {shortened(answer)} was read from the thought"
    if has_gold and won is not None and not judged:
        yield from _judged_otherwise(turn, answer, gold, won, measure)


def _judged_otherwise(
    turn: Turn, answer: str, gold: Sequence[str], won: bool, measure: str | None
) -> Iterator[str]:
    """An answer that counts, or is paid, otherwise than the gold answers have it."""
    equal = plain_answer(answer) in {plain_answer(gold_answer) for gold_answer in gold}
    shared = _shared(answer, gold)
    if measure not in ("em", "f1") and (won or answer not in gold):
        # Other ways to compare may be kinder: wrong is only what shares nothing with the gold, numbers left out.
        if shared or any(letter.isdigit() for letter in answer):
            equal = won
    if won != equal:
        verdict = "right" if won else "wrong"
        yield f"the answer {shortened(answer)} counts as {verdict}, and gold is {shortened(list(gold))}"
    paid = turn.reward_parts.get("answer")
    if paid is None:
        return
    in_order = turn.info.get("valid_format") and not turn.reward_parts.get("format")
    partly = measure != "em" and shared
    too_much = paid > 0 and not (equal or partly)
    too_little = paid <= 0 and equal and in_order
    if too_much or too_little:
        yield f"the answer {shortened(answer)} is paid {paid:g}, and gold is {shortened(list(gold))}"


def _shared(answer: str, gold: Sequence[str]) -> set[str]:
    known: set[str] = set()
    for gold_answer in gold:
        known.update(plain_answer(gold_answer).split())
    return known.intersection(plain_answer(answer).split())


def plain_answer(text: str) -> str:
    """As answers are compared: no case, punctuation, articles (SQuAD's rules, arXiv 1606.05250); numbers as numbers."""
    if any(letter.isdigit() for letter in text):
        return normalize(text)
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split()) or " ".join(text.lower().split())


# ------------------------------------------------------------------------------------------------ documents


def _documents(evidence: Evidence) -> Iterator[RuleResult]:
    """A supporting document pays the turn whose call brought it first, each alike, and no other turn."""
    rates: Counter[float] = Counter()
    rows = []
    for n, t in enumerate(evidence.trajectories):
        support = t.task.payload.get("support")
        if not isinstance(support, (list, tuple)) or not any(
            "process" in turn.reward_parts for turn in t.turns
        ):
            continue
        met: set[str] = set()
        for k, turn in enumerate(t.turns):
            new = {
                document for document in turn.info.get("documents", ()) if document in support
            } - met
            met |= new
            paid = turn.reward_parts.get("process", 0.0)
            rows.append((n, k, len(new), paid))
            if new and paid:
                rates[round(paid / len(new), 9)] += 1
    if not rows:
        return
    yield Checked(len(rows))
    usual = (
        rates.most_common(1)[0][0]
        if rates
        else getattr(getattr(evidence.family, "rewards", None), "process", 0.0)
    )
    declared = getattr(getattr(evidence.family, "rewards", None), "process", None)
    for n, k, new, paid in rows:
        if abs(paid - new * (declared or usual)) > NEAR:
            yield Finding(
                f"its calls brought {new} supporting documents for the first time, each worth "
                f"{declared or usual:g}, and it is paid {paid:g} for the process",
                evidence.place(n, turn=k),
            )
            return


# ------------------------------------------------------------------------------------------------ what cannot be read


class FormatReward(NamedTuple):
    """A turn that says whether it could be read, and what it is paid for its format."""

    n: int  # its trajectory
    k: int  # its place there
    paid: float
    valid: bool


def _format_rewards(evidence: Evidence) -> Iterator[FormatReward]:
    """The formats of turns with a reward, but for those that end a trajectory with an answer."""
    for n, t in enumerate(evidence.trajectories):
        for k, turn in enumerate(t.turns):
            if "format" not in turn.reward_parts or turn.reward is None:
                continue
            valid = turn.info.get("valid_format")
            answers = k + 1 == len(t.turns) and "answer" in turn.info
            if isinstance(valid, bool) and not answers:
                yield FormatReward(n, k, turn.reward_parts["format"], valid)


def _formats(evidence: Evidence) -> Iterator[RuleResult]:
    """A penalty of format falls on turns that could not be read, and on no others."""
    known = list(_format_rewards(evidence))
    rewards = getattr(evidence.family, "rewards", None)
    if not known or getattr(rewards, "rule", "sum") != "sum":
        return
    yield Checked(len(known))
    fined = next((row for row in known if row.valid and row.paid < 0), None)
    if fined is not None:
        yield Finding(
            f"it could be read, and is paid {fined.paid:g} for its format",
            evidence.place(fined.n, turn=fined.k),
        )
    penalties = (getattr(part, "format_penalty", None) for part in (evidence.family, rewards))
    declared = next((penalty for penalty in penalties if penalty is not None), None)
    if declared is None:
        return
    unread = (row for row in known if not row.valid)
    odd = next((row for row in unread if abs(row.paid - declared) > NEAR), None)
    if odd is not None:
        yield Finding(
            f"it could not be read, which costs {declared:g}, and is paid {odd.paid:g} for its format",
            evidence.place(odd.n, turn=odd.k),
        )


def _cut_turns(evidence: Evidence) -> Iterator[RuleResult]:
    """A turn that was cut at its token limit, without the mark that ends a whole one, is no whole one."""
    whole: list[str] = []
    for t in evidence.trajectories:
        ended = [turn for turn in t.turns if turn.finish == "stop"]
        whole += [turn.text.rstrip() for turn in ended if turn.info.get("valid_format")]
    ends = Counter(
        text[text.rfind("</") :] for text in whole if text.endswith(">") and "</" in text
    )
    if sum(ends.values()) < max(ENOUGH, len(whole)):
        return
    for n, t in enumerate(evidence.trajectories):
        for k, turn in enumerate(t.turns):
            if turn.finish != "length":
                continue
            yield Checked(1)
            counts_as_whole = (
                turn.info.get("valid_format")
                or (turn.info.get("success") and k + 1 == len(t.turns))
                or (turn.reward or 0) > 0
            )
            # One that goes on behind its end is whole, with chatter; so is one with an element that no other turn has.
            if (
                counts_as_whole
                and not any(end in turn.text for end in ends)
                and not ELEMENT.search(turn.text)
            ):
                yield Finding(
                    f"it was cut before {' or '.join(ends)}, which ends every whole turn, and counts as one: "
                    f"{shortened(turn.text[-40:])}, reward {turn.reward}",
                    evidence.place(n, turn=k),
                )
                return


R29 = Rule(
    "R29",
    "rewards are paid for what was done, to the turn that did it",
    "Turns are paid for what another turn did, for what failed, or twice for one thing: the policy learns to do that.",
    "Compute a part of the reward from the very calls, results and text of the turn that it is put on; remember what "
    "was paid before; pay nothing for calls that failed and turns that could not be read.",
    ("groups",),
    check_payments,
)

RULES: tuple[Rule, ...] = (R29,)
