"""Groups, credit and rewards of rollouts that another framework wrote (R6 R7 R8 R11 R16 R22 of `raw.RAW_CHECKS`).

Which estimator made the advantages is not in such a file. What is asked here holds for all that give an attempt one
number relative to others: who earned more is not credited with less, and every turn of an attempt has its share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from workbench.linting.credit import out_of_order
from workbench.linting.evidence import Evidence
from workbench.linting.messages import at_first
from workbench.linting.rule import RuleResult
from workbench.types.dumps import RawSequence
from workbench.types.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place

SLACK = 1e-3  # of rewards and advantages: files round (verifiers to 4 decimals)
COINCIDENCE = 30  # nats: two attempts drawn alike whose tokens had a probability below exp(-30) did not draw by chance


def at(
    sequence: RawSequence, position: int | None = None, *, completion: int | None = None
) -> Place:
    """A place in a sequence; `position` counts from the first token of its prompt, `completion` from the first one
    after it."""
    if completion is not None:
        position = int(completion) + (
            0 if sequence.prompt_ids is None else len(sequence.prompt_ids)
        )
    return Place(sequence.attempt, segment=sequence.number, position=position)


def looked_at(count: int, missing: str) -> Iterator[RuleResult]:
    """What a rule looked at; of nothing, what was missing."""
    yield Checked(count)
    if not count:
        yield NotChecked(missing)


def turns_of(sequences: Iterable[RawSequence]) -> dict[str, list[RawSequence]]:
    """The sequences of each attempt, in the order of their numbers."""
    attempts: dict[str, list[RawSequence]] = defaultdict(list)
    for sequence in sequences:
        attempts[sequence.attempt].append(sequence)
    return {name: sorted(turns, key=lambda turn: turn.number) for name, turns in attempts.items()}


def groups_of(sequences: Iterable[RawSequence]) -> dict[str, dict[str, list[RawSequence]]]:
    """Attempts by group, turns by attempt; attempts without a group are in none."""
    groups: dict[str, dict[str, list[RawSequence]]] = defaultdict(dict)
    for name, turns in turns_of(sequences).items():
        if turns[0].group is not None:
            groups[turns[0].group][name] = turns
    return groups


# ------------------------------------------------------------------------------------------------ R6


def credit_of_attempts(evidence: Evidence) -> Iterator[RuleResult]:
    """R6: every turn of an attempt has its share of the credit, and who earned more is not credited with less."""
    looked = 0
    for turns in turns_of(evidence.raw).values():
        stretches = _stretches(turns)
        looked += sum(len(values) for _, _, values in stretches)
        for sequence, start, values in stretches:
            bad = ~np.isfinite(values)
            yield from at_first(
                bad,
                lambda k: f"{bad.sum()} of {len(values)} trained tokens in a row have no advantage",
                lambda k: at(sequence, completion=start + k),
            )
        yield from _only_the_last(stretches)
    order = 0
    for attempts in groups_of(evidence.raw).values():
        pairs, findings = _order(attempts)
        order += pairs
        yield from findings
    yield Checked(looked + order)
    if not looked:
        rows = any(sequence.advantage is not None for sequence in evidence.raw)
        yield NotChecked(
            "the advantage of each token; the file has one for a row" if rows else "advantages"
        )
    if not order:
        yield NotChecked("an advantage and a reward for the attempts of a group")


def _stretches(turns: Sequence[RawSequence]) -> list[tuple[RawSequence, int, np.ndarray]]:
    """The advantages of every run of trained tokens (one is about a turn): where it begins in the completion, and the
    values."""
    found = []
    for sequence in turns:
        mask = sequence.acted
        if mask is None or sequence.advantages is None or len(sequence.advantages) != len(mask):
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
        found += [
            (sequence, int(a), sequence.advantages[a:b]) for a, b in zip(edges[::2], edges[1::2])
        ]
    return found


def _only_the_last(stretches: Sequence[tuple[RawSequence, int, np.ndarray]]) -> Iterator[Finding]:
    if len(stretches) < 2 or not np.nan_to_num(stretches[-1][2]).any():
        return
    empty = [stretch for stretch in stretches[:-1] if not stretch[2].any()]
    if len(empty) == len(stretches) - 1:
        sequence, start, _ = empty[0]
        yield Finding(
            f"only the last of {len(stretches)} turns carries an advantage "
            f"({float(stretches[-1][2][-1]):+.4g}), the others exactly 0: their tokens learn nothing",
            at(sequence, completion=start),
            ERROR,
            sum(len(values) for _, _, values in empty),
        )


def advantage_of(turns: Sequence[RawSequence]) -> float | None:
    """The one advantage of an attempt; None where there is none, or where its tokens have different ones."""
    values = [v for _, _, values in _stretches(turns) for v in values.tolist()]
    values += [turn.advantage for turn in turns if turn.advantage is not None]
    if (
        not values
        or not np.isfinite(values).all()
        or max(values) - min(values) > SLACK * max(1.0, abs(max(values)))
    ):
        return None
    return float(values[0])


def _order(attempts: dict[str, list[RawSequence]]) -> tuple[int, list[Finding]]:
    """(pairs that were compared, what is wrong with them)."""
    known = [
        (name, turns, float(turns[0].reward), advantage)
        for name, turns in attempts.items()
        if turns[0].reward is not None
        and np.isfinite(turns[0].reward)
        and not turns[0].failed
        and (advantage := advantage_of(turns)) is not None
    ]
    findings = []
    for low, high in out_of_order([each[2] for each in known], [each[3] for each in known], SLACK):
        (other, _, earned_less, less), (_, turns, earned_more, more) = known[low], known[high]
        findings.append(
            Finding(
                f"it earned {earned_more:.4g} and is credited with {more:+.4g}, while {other} of the same group earned "
                f"{earned_less:.4g} and is credited with {less:+.4g}: somebody else's credit",
                at(turns[0]),
            )
        )
    return max(0, len(known) - 1), findings


# ------------------------------------------------------------------------------------------------ R7, R8


def group_identity(evidence: Evidence) -> Iterator[RuleResult]:
    """R7: a group is one task, and the attempts at one task are a group."""
    groups = groups_of(sequence for sequence in evidence.raw if sequence.grouped)
    prompts: dict[object, set[str]] = defaultdict(set)
    looked = 0
    for group, attempts in groups.items():
        firsts = {
            name: key
            for name, turns in attempts.items()
            if (key := prompt_key(turns[0])) is not None
        }
        looked += len(firsts)
        kinds = list(dict.fromkeys(firsts.values()))
        if len(kinds) > 1:
            other = next(name for name, key in firsts.items() if key != kinds[0])
            yield Finding(
                f"the {len(firsts)} attempts of group {group} start from {len(kinds)} different prompts: a "
                "baseline over different tasks means nothing",
                Place(other, segment=0),
                ERROR,
                len(kinds),
            )
        for key in kinds:
            prompts[key].add(group)
    yield from _ids_that_do_not_group(groups, prompts)
    yield from looked_at(looked, "group ids" if not groups else "prompts to tell tasks apart by")


def _ids_that_do_not_group(
    groups: dict[str, dict[str, list[RawSequence]]], prompts: dict[object, set[str]]
) -> Iterator[Finding]:
    """Every attempt is a group of its own, yet prompts come several times. Where all come equally often, each was
    sampled as a group and its id was lost: an error. Else a data set may repeat itself: a note."""
    if not prompts or any(len(attempts) > 1 for attempts in groups.values()):
        return
    often = {len(names) for names in prompts.values()}
    shared = [sorted(names) for names in prompts.values() if len(names) > 1]
    if shared:
        first = next(iter(groups[shared[0][0]]))
        yield Finding(
            f"every attempt is a group of its own, though {sum(map(len, shared))} of {len(groups)} share "
            f"their prompt with others (groups {', '.join(shared[0][:3])}): the ids do not group, so no "
            "attempt has a sibling to be compared with",
            Place(first),
            ERROR if len(often) == 1 else NOTE,
            len(shared),
        )


def prompt_key(sequence: RawSequence) -> object | None:
    """What tells tasks apart: the ids of the first prompt, or its text."""
    if sequence.prompt_ids is not None:
        return sequence.prompt_ids.tobytes()
    return sequence.prompt_text


def groups_that_teach(evidence: Evidence) -> Iterator[RuleResult]:
    """R8: groups of one, and groups in which all earned the same."""
    groups = list(groups_of(evidence.raw).values())
    single = [attempts for attempts in groups if len(attempts) == 1]
    earned = [
        (attempts, [turns[0].reward for turns in attempts.values()])
        for attempts in groups
        if len(attempts) > 1
    ]
    earned = [(attempts, rewards) for attempts, rewards in earned if None not in rewards]
    flat = [attempts for attempts, rewards in earned if max(rewards) == min(rewards)]
    if single:
        yield Finding(
            f"{len(single)} of {len(groups)} groups hold a single attempt, whose baseline is itself",
            Place(next(iter(single[0]))),
            NOTE,
            len(single),
        )
    if flat:
        yield Finding(
            f"{len(flat)} of {len(earned)} groups earned the same in every attempt: relative to their group "
            "they teach nothing",
            Place(next(iter(flat[0]))),
            NOTE,
            len(flat),
        )
    credits = [
        advantage
        for attempts in groups
        for turns in attempts.values()
        if (advantage := advantage_of(turns)) is not None
    ]
    if len(credits) > 1 and not any(credits) and len(flat) < len(earned):
        yield Finding(
            f"all {len(credits)} attempts have an advantage of exactly 0 though rewards differ within groups",
            Place(next(iter(groups[0]))),
            ERROR,
            len(credits),
        )
    yield Checked(len(earned) + len(single))
    if not earned:
        yield NotChecked("groups with rewards")


# ------------------------------------------------------------------------------------------------ R11, R16, R22


def truncation(evidence: Evidence) -> Iterator[RuleResult]:
    """R11: rows that were cut are all trained, or all left out."""
    cut = [
        (sequence, bool(mask.any()))
        for sequence in evidence.raw
        if sequence.truncated and (mask := sequence.trained) is not None and len(mask)
    ]
    trained = sum(kept for _, kept in cut)
    if 0 < trained < len(cut):
        odd = trained * 2 <= len(cut)
        sequence = next(sequence for sequence, kept in cut if kept == odd)
        yield Finding(
            f"of {len(cut)} sequences that were cut, {trained} are trained and {len(cut) - trained} masked "
            "out",
            at(sequence),
            ERROR,
            min(trained, len(cut) - trained),
        )
    told = any(sequence.truncated is not None for sequence in evidence.raw)
    yield from looked_at(
        len(cut), "sequences that were cut" if told else "which sequences were cut"
    )


def rewards(evidence: Evidence) -> Iterator[RuleResult]:
    """R16: rewards are numbers, one for an attempt, and what could not be scored did not earn 0."""
    looked = 0
    for turns in turns_of(evidence.raw).values():
        earned = [turn.reward for turn in turns if turn.reward is not None]
        if not earned:
            continue
        looked += 1
        if not np.isfinite(earned).all():
            yield Finding(f"the reward is {earned[0]}: not a number", at(turns[0]))
        elif turns[0].failed:
            trained = sum(int(t.trained.sum()) for t in turns if t.trained is not None)
            credit = advantage_of(turns)
            yield Finding(
                f"it broke off ({turns[0].failed}) and carries the reward {earned[0]:.4g} all the same"
                + (f", credited with {credit:+.4g}" if credit else "")
                + ": unscored is not zero",
                at(turns[0]),
                ERROR if credit and trained else NOTE,
            )
    yield from looked_at(looked, "rewards")


def own_noise(evidence: Evidence) -> Iterator[RuleResult]:
    """R22: attempts of a group that came out alike although chance would not have it so."""
    looked = 0
    for attempts in groups_of(evidence.raw).values():
        by_tokens: dict[bytes, list[list[RawSequence]]] = defaultdict(list)
        for turns in attempts.values():
            if all(turn.completion_ids is not None for turn in turns):
                by_tokens[b"|".join(turn.completion_ids.tobytes() for turn in turns)].append(turns)
        looked += sum(map(len, by_tokens.values())) if len(attempts) > 1 else 0
        for alike in by_tokens.values():
            nats = _surprise(alike[0])
            if len(alike) > 1 and nats is not None and nats > COINCIDENCE:
                yield Finding(
                    f"{len(alike)} attempts of its group were sampled token for token alike, which happens "
                    f"by chance once in 10^{nats / np.log(10):.0f}: they drew the same noise, or there was "
                    "none",
                    at(alike[1][0]),
                    ERROR,
                    len(alike),
                )
    yield from looked_at(looked, "token ids of attempts of one group")


def _surprise(turns: Sequence[RawSequence]) -> float | None:
    """Minus the logprob of all that was sampled in an attempt; None where it is not known."""
    total = 0.0
    for turn in turns:
        mask = turn.acted
        if mask is None or turn.logprobs is None or len(turn.logprobs) != len(mask):
            return None
        total -= float(np.nansum(turn.logprobs[mask]))
    return total
