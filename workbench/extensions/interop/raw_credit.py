"""Groups, credit and rewards of rollouts that another framework wrote (R6 R7 R8 R11 R16 R22 of `raw.RAW_CHECKS`).

Which estimator made the advantages is not in such a file. What is asked here holds for all that give a trajectory one
number relative to others: who earned more is not credited with less, and every turn of a trajectory has its share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.extensions.interop.dumps import RawSequence
from workbench.linting.credit import out_of_order
from workbench.linting.evidence import Evidence
from workbench.linting.messages import at_first
from workbench.linting.rule import RuleResult

SLACK = 1e-3  # of rewards and advantages: files round (verifiers to 4 decimals)
COINCIDENCE = 30  # nats: two trajectories drawn alike whose tokens had a probability below exp(-30) did not draw by chance


def at(
    sequence: RawSequence, position: int | None = None, *, completion: int | None = None
) -> Place:
    """A place in a sequence; `position` counts from the first token of its prompt, `completion` from the first one
    after it."""
    if completion is not None:
        before = 0 if sequence.prompt_ids is None else len(sequence.prompt_ids)
        position = before + int(completion)
    return Place(sequence.attempt, segment=sequence.number, position=position)


def looked_at(count: int, missing: str) -> Iterator[RuleResult]:
    """What a rule looked at; of nothing, what was missing."""
    yield Checked(count)
    if not count:
        yield NotChecked(missing)


def turns_of(sequences: Iterable[RawSequence]) -> dict[str, list[RawSequence]]:
    """The sequences of each trajectory, in the order of their numbers."""
    trajectories: dict[str, list[RawSequence]] = defaultdict(list)
    for sequence in sequences:
        trajectories[sequence.attempt].append(sequence)
    return {
        name: sorted(turns, key=lambda turn: turn.number) for name, turns in trajectories.items()
    }


def groups_of(sequences: Iterable[RawSequence]) -> dict[str, dict[str, list[RawSequence]]]:
    """Trajectories by group, turns by trajectory; trajectories without a group are in none."""
    groups: dict[str, dict[str, list[RawSequence]]] = defaultdict(dict)
    for name, turns in turns_of(sequences).items():
        if turns[0].group is not None:
            groups[turns[0].group][name] = turns
    return groups


# ------------------------------------------------------------------------------------------------ R6


def credit_of_trajectories(evidence: Evidence) -> Iterator[RuleResult]:
    """R6: every turn of a trajectory has its share of the credit, and who earned more is not credited with less."""
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
    for trajectories in groups_of(evidence.raw).values():
        pairs, findings = _order(trajectories)
        order += pairs
        yield from findings
    yield Checked(looked + order)
    if not looked:
        rows = any(sequence.advantage is not None for sequence in evidence.raw)
        yield NotChecked(
            "the advantage of each token; the file has one for a row" if rows else "advantages"
        )
    if not order:
        yield NotChecked("an advantage and a reward for the trajectories of a group")


def _stretches(turns: Sequence[RawSequence]) -> list[tuple[RawSequence, int, np.ndarray]]:
    """The advantages of every run of trained tokens (one is about a turn): where it begins in the completion, and the
    values."""
    stretches = []
    for sequence in turns:
        mask = sequence.acted
        if mask is None or sequence.advantages is None or len(sequence.advantages) != len(mask):
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
        for start, end in edges.reshape(-1, 2).tolist():
            stretches.append((sequence, start, sequence.advantages[start:end]))
    return stretches


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
    """The one advantage of a trajectory; None where there is none, or where its tokens have different ones."""
    values: list[float] = []
    for _, _, of_stretch in _stretches(turns):
        values += of_stretch.tolist()
    values += [turn.advantage for turn in turns if turn.advantage is not None]
    if not values or not np.isfinite(values).all():
        return None
    if max(values) - min(values) > SLACK * max(1.0, abs(max(values))):
        return None
    return float(values[0])


def _order(trajectories: dict[str, list[RawSequence]]) -> tuple[int, list[Finding]]:
    """(pairs that were compared, what is wrong with them)."""
    known = []
    rewards = []
    advantages = []
    for turns in trajectories.values():
        first = turns[0]
        if first.reward is None or not np.isfinite(first.reward) or first.failed:
            continue
        advantage = advantage_of(turns)
        if advantage is not None:
            known.append(first)
            rewards.append(float(first.reward))
            advantages.append(advantage)
    findings = []
    for low, high in out_of_order(rewards, advantages, SLACK):
        findings.append(
            Finding(
                f"it earned {rewards[high]:.4g} and is credited with {advantages[high]:+.4g}, while "
                f"{known[low].attempt} of the same group earned {rewards[low]:.4g} and is credited with "
                f"{advantages[low]:+.4g}: somebody else's credit",
                at(known[high]),
            )
        )
    return max(0, len(known) - 1), findings


# ------------------------------------------------------------------------------------------------ R7, R8


def group_identity(evidence: Evidence) -> Iterator[RuleResult]:
    """R7: a group is one task, and the trajectories of one task are a group. Where no two trajectories share a prompt, and
    tasks may differ in more than that, the environment begins anew each time."""
    groups = groups_of(sequence for sequence in evidence.raw if sequence.grouped)
    begins_anew = _begins_anew(groups)
    prompts: dict[object, set[str]] = defaultdict(set)
    looked = 0
    for group, trajectories in groups.items():
        keys = {name: prompt_key(turns[0]) for name, turns in trajectories.items()}
        keys = {name: key for name, key in keys.items() if key is not None}
        looked += len(keys)
        kinds = list(dict.fromkeys(keys.values()))
        if len(kinds) > 1:
            other = next(name for name, key in keys.items() if key != kinds[0])
            yield Finding(
                f"the {len(keys)} trajectories of group {group} start from {len(kinds)} different prompts: a "
                "baseline over different tasks means nothing",
                Place(other, segment=0),
                NOTE if begins_anew else ERROR,
                len(kinds),
            )
        for key in kinds:
            prompts[key].add(group)
    yield from _ids_that_do_not_group(groups, prompts)
    yield from looked_at(looked, "group ids" if not groups else "prompts to tell tasks apart by")


def _begins_anew(groups: dict[str, dict[str, list[RawSequence]]]) -> bool:
    firsts = [turns[0] for trajectories in groups.values() for turns in trajectories.values()]
    keys = [prompt_key(first) for first in firsts]
    return len(set(keys)) == len(keys) and not any(first.one_prompt_one_task for first in firsts)


def _ids_that_do_not_group(
    groups: dict[str, dict[str, list[RawSequence]]], prompts: dict[object, set[str]]
) -> Iterator[Finding]:
    """Every trajectory is a group of its own, yet prompts come several times. Where all come equally often, each was
    sampled as a group and its id was lost: an error. Else, or where tasks may differ in more than their prompts, a data set
    may repeat itself: a note."""
    if not prompts or any(len(trajectories) > 1 for trajectories in groups.values()):
        return
    often = {len(names) for names in prompts.values()}
    shared = [sorted(names) for names in prompts.values() if len(names) > 1]
    if shared:
        trajectories = groups[shared[0][0]]
        first = next(iter(trajectories))
        is_one_task = trajectories[first][0].one_prompt_one_task
        yield Finding(
            f"every trajectory is a group of its own, though {sum(map(len, shared))} of {len(groups)} share "
            f"their prompt with others (groups {', '.join(shared[0][:3])}): the ids do not group, so no "
            "trajectory has another one to be compared with",
            Place(first),
            ERROR if len(often) == 1 and is_one_task else NOTE,
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
    single = [trajectories for trajectories in groups if len(trajectories) == 1]
    earned = 0
    flat = []
    credits = []
    for trajectories in groups:
        advantages = map(advantage_of, trajectories.values())
        credits += [advantage for advantage in advantages if advantage is not None]
        rewards = [turns[0].reward for turns in trajectories.values()]
        if len(trajectories) > 1 and None not in rewards:
            earned += 1
            if max(rewards) == min(rewards):
                flat.append(trajectories)
    if single:
        yield Finding(
            f"{len(single)} of {len(groups)} groups hold a single trajectory, whose baseline is itself",
            Place(next(iter(single[0]))),
            NOTE,
            len(single),
        )
    if flat:
        yield Finding(
            f"{len(flat)} of {earned} groups have zero variance (the same reward in every trajectory): a group baseline "
            "makes every advantage zero",
            Place(next(iter(flat[0]))),
            NOTE,
            len(flat),
        )
    if len(credits) > 1 and not any(credits) and len(flat) < earned:
        yield Finding(
            f"all {len(credits)} trajectories have an advantage of exactly 0 though rewards differ within groups",
            Place(next(iter(groups[0]))),
            ERROR,
            len(credits),
        )
    yield Checked(earned + len(single))
    if not earned:
        yield NotChecked("groups with rewards")


# ------------------------------------------------------------------------------------------------ R11, R16, R22


def truncation(evidence: Evidence) -> Iterator[RuleResult]:
    """R11: rows that were cut are all trained, or all left out."""
    trained = []
    left_out = []
    for sequence in evidence.raw:
        mask = sequence.trained
        if sequence.truncated and mask is not None and len(mask):
            (trained if mask.any() else left_out).append(sequence)
    cut = len(trained) + len(left_out)
    if trained and left_out:
        fewer = trained if len(trained) <= len(left_out) else left_out
        yield Finding(
            f"of {cut} sequences that were cut, {len(trained)} are trained and {len(left_out)} masked "
            "out",
            at(fewer[0]),
            ERROR,
            len(fewer),
        )
    is_known = any(sequence.truncated is not None for sequence in evidence.raw)
    yield from looked_at(cut, "sequences that were cut" if is_known else "which sequences were cut")


def rewards(evidence: Evidence) -> Iterator[RuleResult]:
    """R16: rewards are numbers, one for a trajectory, and what could not be scored did not earn 0."""
    looked = 0
    for turns in turns_of(evidence.raw).values():
        earned = [turn.reward for turn in turns if turn.reward is not None]
        if not earned:
            continue
        looked += 1
        if not np.isfinite(earned).all():
            yield Finding(f"the reward is {earned[0]}: not a number", at(turns[0]))
        elif turns[0].failed:
            trained = sum(int(turn.trained.sum()) for turn in turns if turn.trained is not None)
            credit = advantage_of(turns)
            credited = f", credited with {credit:+.4g}" if credit else ""
            yield Finding(
                f"it broke off ({turns[0].failed}) and carries the reward {earned[0]:.4g} all the same"
                f"{credited}: unscored is not zero",
                at(turns[0]),
                ERROR if credit and trained else NOTE,
            )
    yield from looked_at(looked, "rewards")


def own_noise(evidence: Evidence) -> Iterator[RuleResult]:
    """R22: trajectories of a group that came out alike although chance would not have it so."""
    looked = 0
    for trajectories in groups_of(evidence.raw).values():
        by_tokens: dict[bytes, list[list[RawSequence]]] = defaultdict(list)
        for turns in trajectories.values():
            if all(turn.completion_ids is not None for turn in turns):
                by_tokens[b"|".join(turn.completion_ids.tobytes() for turn in turns)].append(turns)
        looked += sum(map(len, by_tokens.values())) if len(trajectories) > 1 else 0
        for alike in by_tokens.values():
            nats = _surprise(alike[0])
            if len(alike) > 1 and nats is not None and nats > COINCIDENCE:
                yield Finding(
                    f"{len(alike)} trajectories of its group were sampled token for token alike, which happens "
                    f"by chance once in 10^{nats / np.log(10):.0f}: they drew the same noise, or there was "
                    "none",
                    at(alike[1][0]),
                    ERROR,
                    len(alike),
                )
    yield from looked_at(looked, "token ids of trajectories of one group")


def _surprise(turns: Sequence[RawSequence]) -> float | None:
    """Minus the logprob of all that was sampled in a trajectory; None where it is not known."""
    total = 0.0
    for turn in turns:
        mask = turn.acted
        if mask is None or turn.logprobs is None or len(turn.logprobs) != len(mask):
            return None
        total -= float(np.nansum(turn.logprobs[mask]))
    return total
