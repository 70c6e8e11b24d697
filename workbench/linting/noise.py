"""Do trajectories draw their own noise (R22)?

Axis letters: N trajectories · G in a group · H earlier ones of it · L tokens of a trajectory · T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from workbench.basics.findings import Checked, Finding, NotChecked
from workbench.linting.evidence import Evidence
from workbench.linting.flat import Flat
from workbench.linting.prefixes import JOURNAL, JournalEntry, journal_of
from workbench.linting.rule import Rule, RuleResult

# Two trajectories that draw by themselves say the same by chance with probability exp(sum of logprobs). Over a run of a
# million steps, a false alarm of this bound is still a one-in-a-million event.
COINCIDENCE = 1e-12


def check_noise(evidence: Evidence) -> Iterator[RuleResult]:
    """No two requests share a seed; trajectories of a task do not repeat each other against all odds."""
    if evidence.journal is not None:
        yield from _seeds(evidence)
    else:
        yield NotChecked(JOURNAL, "seeds of requests")
    flat = evidence.flat
    drawn_N = _drawn_N(flat)
    cost_T = np.concatenate([[0.0], -np.nan_to_num(flat.logp_T.astype(np.float64)).cumsum()])
    likest: list[Alike] = []
    for first, group in evidence.numbered_groups:
        likest += _longest_repeats(
            flat, [n for n in range(first, first + len(group)) if drawn_N[n]], cost_T
        )
    yield Checked(len(likest), "whether trajectories repeat each other")
    yield from _repeats(evidence, flat, likest)


class Alike(NamedTuple):
    """Attempt `n` begins with the same `length` tokens as the earlier trajectory `other`. By chance, a trajectory is so like
    any of those before it with a probability of at most exp(-surprise)."""

    n: int
    other: int
    length: int
    surprise: float


def _repeats(evidence: Evidence, flat: Flat, likest: list[Alike]) -> Iterator[Finding]:
    """Trajectories that draw by themselves have surprises that are exponentially distributed, or smaller; so one of them is
    judged by itself, and all of them by their sum (Chernoff's bound of a gamma distribution)."""
    count = len(likest)
    alone = [alike for alike in likest if alike.surprise > np.log(max(count, 1) / COINCIDENCE)]
    for n, other, length, surprise in alone:
        yield Finding(
            f"the first {length} tokens are those of attempt {evidence.trajectories[other].attempt}; two trajectories that "
            f"draw by themselves agree on that with probability exp(-{surprise:.0f})",
            evidence.place(n, segment=0, position=_first_sampled(flat, n)),
            count=length,
        )
    mean = sum(alike.surprise for alike in likest) / max(count, 1)
    if not alone and mean > 1 and count * (mean - 1 - np.log(mean)) > -np.log(COINCIDENCE):
        worst = max(likest, key=lambda alike: alike.surprise)
        yield Finding(
            f"{sum(alike.surprise > 3 for alike in likest)} of {count} trajectories repeat an earlier one at their task "
            f"for longer than chance allows (this one for {worst.length} tokens); all of it together has the "
            f"probability exp(-{count * (mean - 1 - np.log(mean)):.0f})",
            evidence.place(worst.n, segment=0),
            count=worst.length,
        )


def _seeds(evidence: Evidence) -> Iterator[RuleResult]:
    entries = journal_of(evidence)
    addressed = [entry for entry in entries if entry.exchange.addressed]
    if len(addressed) < len(entries):
        yield NotChecked(
            "an engine that draws by seeds (engine.seeded)", "turns that were drawn without them"
        )
    yield Checked(len(addressed), "seeds of requests")
    known: dict[int, JournalEntry] = {}
    for entry in addressed:
        first = known.setdefault(entry.exchange.request.seed, entry)
        if first is not entry:
            yield Finding(
                f"this turn was sampled with the seed of turn {first.turn} of "
                f"{evidence.flat.names_N[first.row]}: the two draw the same noise",
                evidence.place(entry.row, segment=entry.segment, turn=entry.turn),
            )


def _drawn_N(flat: Flat) -> np.ndarray:
    """bool [N]: whether chance had a part in it: sampled tokens, not greedy, not from a script."""
    sampled = np.flatnonzero(flat.sampled_P)
    settings = [flat.spans[p].sampling for p in sampled]
    by_chance = np.array(
        [
            sampling is None or (sampling.temperature > 0 and sampling.engine != "scripted")
            for sampling in settings
        ],
        bool,
    )
    drawn_N = np.bincount(flat.trajectory_P[sampled], minlength=len(flat.names_N)) > 0
    drawn_N[flat.trajectory_P[sampled[~by_chance]]] = False
    return drawn_N


def _first_sampled(flat: Flat, n: int) -> int:
    """Where the first sampled token of a trajectory stands in its first segment."""
    return next(
        (int(flat.start_P[p]) for p in flat.spans_of(flat.segments_of(n)[0]) if flat.sampled_P[p]),
        0,
    )


def _longest_repeats(flat: Flat, members: list[int], cost_T: np.ndarray) -> Iterator[Alike]:
    """For each trajectory but the first, the earlier one that it repeats for longest. `cost_T` [T + 1] sums -logprobs."""
    if len(members) < 2:
        return
    starts, ends = (
        flat.offset_S[flat.first_segment_N[np.array(members) + later]].tolist() for later in (0, 1)
    )
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    ids_GL = np.full((len(members), longest), -1, np.int32)
    for g, (start, end) in enumerate(zip(starts, ends, strict=True)):
        ids_GL[g, : end - start] = flat.ids_T[start:end]
    for g in range(1, len(members)):
        differ_HL = ids_GL[:g] != ids_GL[g]
        shared_H = np.where(differ_HL.any(1), differ_HL.argmax(1), ends[g] - starts[g])
        cost_H = cost_T[starts[g] + shared_H] - cost_T[starts[g]]
        h = int(cost_H.argmax())
        # It could have repeated any of the g trajectories before it.
        yield Alike(
            members[g], members[h], int(shared_H[h]), max(float(cost_H[h] - np.log(g)), 0.0)
        )


R22 = Rule(
    "R22",
    "trajectories are sampled with independent noise",
    "Trajectories of the same task are copies of each other: a group of 8 is worth one trajectory, its reward std is zero or "
    "false, and nothing is explored.",
    "Give every turn of every trajectory a seed of its own, from run, step, task, attempt and turn.",
    ("groups",),
    check_noise,
)

RULES: tuple[Rule, ...] = (R22,)
