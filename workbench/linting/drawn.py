"""Is what is trained what was drawn, and what was sampled? (R37, R38)

Sampling ahead of training (train.staleness) invites two shortcuts that no curve shows. Whoever throws away what is too old,
too long or too slow trains on other tasks than were drawn: the slow ones starve. And whoever ends the turns that are under way
when new weights come has actions that the policy did not end.

The tasks of a step are a function of run seed and step (invariant 8), so they are drawn once more here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from workbench.basics.digits import whole_in
from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.linting.evidence import Evidence
from workbench.linting.logprobs import SCRIPTED
from workbench.linting.prefixes import JOURNAL
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Sampling, Trajectory
from workbench.worlds.splits import tasks


def drawn_trajectories(
    family: Any, step: int, *, seed: int, tasks_per_step: int, group_size: int, chosen: Any = ()
) -> tuple[str, ...]:
    """The trajectories that a step is to have, as "task id#trajectory". `chosen`: its tasks, where they are no plain draw."""
    drawn = chosen or tasks(
        family, "train", tasks_per_step, seed=seed, step=step, per_step=tasks_per_step
    )
    names: list[str] = []
    for task in drawn:
        names += [f"{task.id}#{attempt}" for attempt in range(group_size)]
    return tuple(names)


def _sampling_of(trajectory: Trajectory) -> Iterator[Sampling]:
    for segment in trajectory.segments:
        yield from (span.sampling for span in segment.spans if span.sampling is not None)


# ------------------------------------------------------------------------------------------------ R37


def check_drawn(evidence: Evidence) -> Iterator[RuleResult]:
    """Every trajectory that was drawn is there, and none besides; and every one that was sampled."""
    place = Place(step=evidence.step)
    for trajectory in evidence.aside:
        settings = _sampling_of(trajectory)
        bent = next((sampling for sampling in settings if sampling.temperature != 0), None)
        if bent is not None:
            yield Finding(
                f"the trajectory of task {trajectory.task.id} that others are compared with was to be made of the most likely "
                f"tokens (temperature 0), and was sampled at temperature {bent.temperature:g}",
                place,
            )
    there = {f"{t.task.id}#{t.attempt}" for t in evidence.trajectories}
    if evidence.drawn:
        yield Checked(len(evidence.drawn), "what was drawn")
        lost = [name for name in evidence.drawn if name not in there]
        strange = sorted(there - set(evidence.drawn))
        if lost:
            yield Finding(
                f"{len(lost)} of the {len(evidence.drawn)} trajectories that were drawn for this step are not in it, the "
                f"first {lost[0]}{_length_comparison(evidence, lost)}",
                place,
                count=len(lost),
            )
        if strange:
            yield Finding(
                f"{len(strange)} trajectories were not drawn for this step, the first {strange[0]}",
                place,
                count=len(strange),
            )
    if evidence.journal is None:
        yield NotChecked(JOURNAL, "what was sampled")
        return
    sampled = dict.fromkeys(
        exchange.request.session.rpartition("/")[0] for exchange in evidence.journal
    )
    yield Checked(len(sampled), "what was sampled")
    there |= {f"{t.task.id}#{t.attempt}" for t in evidence.aside}
    lost = [name for name in sampled if name not in there and name not in evidence.drawn]
    if lost:
        yield Finding(
            f"{len(lost)} of {len(sampled)} trajectories were sampled and are not in the step, the first {lost[0]}"
            f"{_length_comparison(evidence, lost)}",
            place,
            count=len(lost),
        )


def _length_comparison(evidence: Evidence, lost: list[str]) -> str:
    """How long these trajectories are beside the others, where the journal says."""
    tokens: dict[str, list[int]] = {}
    for exchange in evidence.journal or ():
        size = 0 if exchange.completion is None else len(exchange.completion.token_ids)
        tokens.setdefault(exchange.request.session.rpartition("/")[0], []).append(size)
    gone = [sizes for name, sizes in tokens.items() if name in lost]
    kept = [sizes for name, sizes in tokens.items() if name not in lost]
    if not gone or not kept:
        return ""
    return f": on average they have {_average(gone)}, those in the step {_average(kept)}"


def _average(lengths: Sequence[Sequence[int]]) -> str:
    turns = sum(map(len, lengths)) / len(lengths)
    tokens = sum(map(sum, lengths)) / len(lengths)
    return f"{turns:.3g} turns and {tokens:.3g} tokens"


# ------------------------------------------------------------------------------------------------ R38


def check_ended(evidence: Evidence) -> Iterator[RuleResult]:
    """Every turn that was asked for was answered, and cut nowhere but at the length that was asked for."""
    known = {f"{t.task.id}#{t.attempt}": n for n, t in enumerate(evidence.trajectories)}
    looked = 0
    for exchange in evidence.journal:
        attempt, _, segment = exchange.request.session.rpartition("/")
        if attempt not in known:
            continue
        looked += 1
        request = exchange.request
        completion = exchange.completion
        row = known[attempt]
        place = evidence.place(
            row,
            segment=whole_in(segment),
            position=len(request.prompt_ids),
        )
        if completion is None:
            if not evidence.trajectories[row].stop_reason.is_fault:
                yield Finding(
                    "a turn was asked for here and never answered, and its trajectory says of no fault",
                    place,
                )
        elif (
            completion.finish == "length"
            and (size := len(completion.token_ids)) < request.max_new_tokens
        ):
            # A script that ran out cuts its turn as well.
            scripted = completion.sampling is None or completion.sampling.engine in SCRIPTED
            yield Finding(
                f"the turn was cut for its length after {size} of {request.max_new_tokens} tokens that were asked for: "
                "something else ended it",
                place,
                NOTE if scripted else ERROR,
                max(size, 1),
            )
    yield Checked(looked)


RULES: tuple[Rule, ...] = (
    Rule(
        "R37",
        "what is trained is what was drawn",
        means="Trajectories were left out for what became of them: too old, too long, too slow. Tasks that take long are trained "
        "less than they are drawn, and every average is over a choice that nobody declared.",
        mend="Begin only what can be finished, and keep what was begun (train.staleness bounds how old it may be). A selection "
        "that is meant is algorithm.filter, which is stored and shown.",
        needs=("groups",),
        check=check_drawn,
        threads=("tinker-cookbook#822", "marin#8936", "marin#8955"),
    ),
    Rule(
        "R38",
        "a turn is ended by its stop token or by its limit",
        means="A turn that something else cut short, an abort where new weights came, is trained as if the policy had ended it "
        "or had been too long: it learns from actions that it did not choose.",
        mend="Publish weights between rollouts, or keep what is under way (pause, not abort); ask an aborted turn again, or end "
        "its trajectory with a named stop reason.",
        needs=("groups", "journal"),
        check=check_ended,
        threads=("miles#2296",),
    ),
)
