"""What is paid, and for what (R29): to the turn that earned it, once, and never for what failed or was cut.

What earns a reward is read from what an attempt says of itself: documents that calls brought, errors of calls, the
answer that was read, whether a turn could be read at all.

Axis letters: K turns.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.types import StopReason, Trajectory, Turn
from workbench.types.findings import Checked, Finding, shortened

ELEMENT = re.compile(r"<(?!think>)(\w+)>.*?</\1>", re.DOTALL)

NEAR = 1e-6
ENOUGH = 4  # turns that end alike before their end is taken for the mark of a whole answer


def check_payments(evidence: Evidence) -> Iterator[RuleResult]:
    yield Checked(len(evidence.trajectories))
    judged = bool(
        getattr(evidence.family, "reward", "")
    )  # by a function of the user's: what it calls right is its matter
    measure = None if judged else getattr(getattr(evidence.family, "rewards", None), "answer", None)
    for n, trajectory in enumerate(evidence.trajectories):
        for k, what in _wrong(trajectory, measure, judged):
            yield Finding(what, evidence.place(n) if k is None else evidence.place(n, turn=k))
            break
    yield from _documents(evidence)
    yield from _formats(evidence)
    yield from _cut_turns(evidence)


def _wrong(t: Trajectory, measure: str | None, judged: bool) -> Iterator[tuple[int | None, str]]:
    """What a single attempt contradicts itself in: (turn, words). `measure`: by which answers are said to be scored."""
    if t.stop_reason.is_fault and (t.scored or t.success or t.outcome):
        yield (
            None,
            (
                f"it ended by a fault ({t.stop_reason.value}), which is neither scored nor a success: scored "
                f"{t.scored}, success {t.success}, outcome {t.outcome}"
            ),
        )
    last = t.turns[-1].info if t.turns else {}
    if t.success is not None and "success" in last and t.success != last["success"]:
        yield (
            len(t.turns) - 1,
            f"its last turn says success {last['success']}, the attempt {t.success}",
        )
    for k, turn in enumerate(t.turns):
        calls = turn.info.get("calls") or ()
        if calls and all(isinstance(call, Mapping) and call.get("error") for call in calls):
            paid = {
                name: turn.reward_parts[name]
                for name in ("process", "tool")
                if turn.reward_parts.get(name, 0) > 0
            }
            if paid or turn.info.get("documents"):
                yield (
                    k,
                    (
                        f"every call of it failed ({calls[0]['error']}), and it is paid "
                        f"{paid or turn.info['documents']}"
                    ),
                )
        yield from ((k, what) for what in _answered(t, turn, measure, judged))
    read = "complaint" in last and isinstance(
        last.get("answer"), str
    )  # with something beside it that should not be there
    if (
        t.stop_reason is StopReason.TERMINATED
        and last.get("valid_format") is False
        and t.success
        and not (read or judged)
    ):
        yield (
            len(t.turns) - 1,
            "it ends with an action that could not be read, and counts as a success",
        )


def _answered(t: Trajectory, turn: Turn, measure: str | None, judged: bool) -> Iterator[str]:
    """An answer that the turn says was read, held against the action and the gold answers."""
    answer, gold, won = (
        turn.info.get("answer"),
        t.task.payload.get("answers"),
        turn.info.get("success"),
    )
    if "complaint" not in turn.info:  # elsewhere "answer" may be the gold one, for people
        return
    if not isinstance(answer, str):
        if won and gold and isinstance(gold, (list, tuple)) and answer is None and not judged:
            yield "no answer was read, and it counts as a success"
        return
    if answer not in turn.text:
        yield f"the answer {shortened(answer)} was read, and does not stand in the action"
    elif answer not in turn.text.rpartition("</think>")[2]:
        yield f"the answer {shortened(answer)} was read from the thought"
    if judged or not isinstance(gold, (list, tuple)) or not gold or won is None:
        return
    equal = plain_answer(answer) in {plain_answer(each) for each in gold}
    if measure not in ("em", "f1") and (won or answer not in gold):
        # Other ways to compare may be kinder: wrong is only what shares nothing with the gold, numbers left out.
        equal = (
            won if _shared(answer, gold) or any(letter.isdigit() for letter in answer) else equal
        )
    if won != equal:
        yield (
            f"the answer {shortened(answer)} counts as {'right' if won else 'wrong'}, and gold is "
            f"{shortened(list(gold))}"
        )
    paid = turn.reward_parts.get("answer")
    in_order = turn.info.get("valid_format") and not turn.reward_parts.get("format")
    if paid is not None and (
        paid > 0
        and not (equal or measure != "em" and _shared(answer, gold))
        or paid <= 0
        and equal
        and in_order
    ):
        yield f"the answer {shortened(answer)} is paid {paid:g}, and gold is {shortened(list(gold))}"


def _shared(answer: str, gold: Sequence[str]) -> set[str]:
    return set(plain_answer(answer).split()) & {
        word for each in gold for word in plain_answer(each).split()
    }


def plain_answer(text: str) -> str:
    """As answers are compared: no case, punctuation, articles (SQuAD's rules, arXiv 1606.05250)."""
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
            new = {each for each in turn.info.get("documents", ()) if each in support} - met
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


def _formats(evidence: Evidence) -> Iterator[RuleResult]:
    """A penalty of format falls on turns that could not be read, and on no others."""
    known = [
        (n, k, turn.reward_parts["format"], turn.info["valid_format"])
        for n, t in enumerate(evidence.trajectories)
        for k, turn in enumerate(t.turns)
        if "format" in turn.reward_parts
        and isinstance(turn.info.get("valid_format"), bool)
        and turn.reward is not None
        and (k + 1 < len(t.turns) or "answer" not in turn.info)
    ]
    if not known or getattr(getattr(evidence.family, "rewards", None), "rule", "sum") != "sum":
        return
    yield Checked(len(known))
    fined = {
        valid: [row for row in known if row[3] == valid and row[2] < 0] for valid in (True, False)
    }
    read = [row for row in known if not row[3]]
    if fined[True]:
        n, k, paid, _ = fined[True][0]
        yield Finding(
            f"it could be read, and is paid {paid:g} for its format", evidence.place(n, turn=k)
        )
    declared = next(
        (
            value
            for part in (evidence.family, getattr(evidence.family, "rewards", None))
            if (value := getattr(part, "format_penalty", None)) is not None
        ),
        None,
    )
    odd = [row for row in read if declared is not None and abs(row[2] - declared) > NEAR]
    if odd:
        n, k, paid, _ = odd[0]
        yield Finding(
            f"it could not be read, which costs {declared:g}, and is paid {paid:g} for its format",
            evidence.place(n, turn=k),
        )


def _cut_turns(evidence: Evidence) -> Iterator[RuleResult]:
    """A turn that was cut at its token limit, without the mark that ends a whole one, is no whole one."""
    whole = [
        turn.text.rstrip()
        for t in evidence.trajectories
        for turn in t.turns
        if turn.finish == "stop" and turn.info.get("valid_format")
    ]
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
            said = (
                turn.info.get("valid_format")
                or (turn.info.get("success") and k + 1 == len(t.turns))
                or (turn.reward or 0) > 0
            )
            # One that goes on behind its end is whole, with chatter; so is one with an element that no other turn has.
            if said and not any(end in turn.text for end in ends) and not ELEMENT.search(turn.text):
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
