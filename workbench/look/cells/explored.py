"""What the navigator asks of runs, and the answers: JSON values beside named arrays. No widget, no torch.

    answers = Answers([run])
    answers.of({"ask": "step", "run": 0, "step": 3})

A notebook sends the questions as somebody clicks; a saved page carries the answers to those that it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.basics.extensions import service
from workbench.look import doc
from workbench.look.cells.course import course_of
from workbench.look.cells.step_record import (
    StepRecord,
    finding_row,
    group_row,
    removed_by_filter,
    spread_of,
    trained_by_author,
    trajectory_row,
)
from workbench.look.cells.stored import token_texts
from workbench.look.escape import capped, visible
from workbench.look.grid import find_grid, squares
from workbench.look.pairs import PairedGroups, paired
from workbench.look.side_by_side import pair_of, pairs_of, side_by_side
from workbench.look.spread import group_spread
from workbench.look.text import text_of
from workbench.look.tokens import ids_as_texts
from workbench.look.trajectory import added_parts, states_of
from workbench.run.store import Run
from workbench.values import Trajectory
from workbench.values.address import Address
from workbench.values.errors import DataError, WorkbenchError

if TYPE_CHECKING:
    from workbench.look.cells.edited import EditedStep
    from workbench.look.cells.terms import StepTerms

LONGEST_TEXT = 20_000  # characters of one message that a panel shows; the tokens show all of them
# Lane -> what it is made of, and its unit. A lane that was not computed is absent, never zero (invariant 5).
LANES: Mapping[str, tuple[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]]] = {
    "advantage": ("", lambda c: np.where(c["weight"] != 0, c["advantage"], np.nan)),
    "logprob": ("nats", lambda c: c["rollout_logp"]),
    "entropy": ("nats", lambda c: c["entropy"]),
    "ratio": ("", lambda c: c["ratio"]),
    "KL to the reference": (
        "nats (logp − reference logp)",
        lambda c: c["new_logp"] - c["ref_logp"],
    ),
    "value": ("", lambda c: c["value"]),
    "return": ("", lambda c: c["return"]),
    "weight": ("", lambda c: c["weight"]),
    "clipped": ("(-1: low, +1: high)", lambda c: c["clip_state"].astype(np.float64)),
}


@dataclass(frozen=True, eq=False)
class NavigatorReply:
    """`content`: JSON values, every text of them visible. `arrays`: numbers a token, by name."""

    content: dict[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class Answers:
    """Answers questions about `runs`. Each reads what the run holds now, so that one that trains is followed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self._step = lru_cache(maxsize=8)(lambda run, step: StepRecord.of(self.runs[run], step))
        self._terms_of = lru_cache(maxsize=4)(self._compute_terms)
        self._edited = lru_cache(maxsize=1)(self._open_edited)
        self._paired = lru_cache(maxsize=4)(self._pair)

    def of(self, question: Mapping[str, Any]) -> NavigatorReply:
        """The reply to a question; one that cannot be answered says so in `content["error"]`, and nothing is lost."""
        asked = {
            "runs": self._runs,
            "step": self._of_step,
            "attempt": self._of_trajectory,
            "terms": self._terms,
            "credit": self._credit,
            "columns": self._columns,
            "spread": self._spread,
            "pairs": self._pairs,
            "search": self._search,
            "search_all": self._search_all,
            "texts": self._texts,
        }
        try:
            known = {name: value for name, value in question.items() if name != "ask"}
            if question.get("ask") not in asked or not all(
                isinstance(value, (int, str)) for value in known.values()
            ):
                raise DataError(f"no answer to {question!r:.200}; asked can be {', '.join(asked)}")
            return asked[question["ask"]](**known)
        except (WorkbenchError, TypeError) as error:
            return NavigatorReply({"error": visible(str(error))})

    def address(self, at: str | Address, run: int = 0) -> Address:
        """`at`, as a place that the run has. Raises DataError, or StoreError for a step that is not there."""
        at = Address.of(at)
        if at.step is None:
            return at
        groups = self.step(run, at.step).groups
        _within(at, "task", groups)
        if at.task is not None:
            _within(at, "attempt", groups[at.task])
        if at.attempt is not None:
            trajectory = groups[at.task][at.attempt]
            _within(at, "turn", trajectory.turns)
            _within(at, "token", range(sum(map(len, trajectory.segments))))
        return at

    def step(self, run: int, step: int) -> StepRecord:
        """A committed step, read once."""
        self._known_run(run)
        return self._step(run, step)

    def _known_run(self, run: int) -> None:
        if not 0 <= run < len(self.runs):
            raise DataError(
                f"there is no run {run}; they are counted from 0 to {len(self.runs) - 1}"
            )

    def _compute_terms(self, run: int, step: int, update: int) -> StepTerms:
        from workbench.look.cells.terms import StepTerms  # only here: it takes torch

        return StepTerms.of(self.runs[run], step, self.step(run, step).table(update))

    # -------------------------------------------------------------------------------------------- answers

    def _runs(self) -> NavigatorReply:
        return NavigatorReply({"runs": [course_of(run) for run in self.runs]})

    def _of_step(self, run: int, step: int) -> NavigatorReply:
        facts = self.step(run, step)
        steps = self.runs[run].steps()
        attempts = []
        for task, group in enumerate(facts.groups):
            attempts += [trajectory_row(facts, task, number) for number in range(len(group))]
        return NavigatorReply(
            {
                "step": step,
                "groups": [group_row(facts, task) for task in range(len(facts.groups))],
                "attempts": attempts,
                "removed": removed_by_filter(facts),
                "trained": trained_by_author(facts),
                "findings": [
                    finding_row(rule, finding, at) for rule, finding, at in facts.findings
                ],
                "neighbours": [
                    max((other for other in steps if other < step), default=None),
                    min((other for other in steps if other > step), default=None),
                ],
            }
        )

    def _of_trajectory(self, run: int, step: int, task: int, attempt: int) -> NavigatorReply:
        self.address(Address(step, task, attempt), run)
        facts = self.step(run, step)
        trajectory = facts.groups[task][attempt]
        named = token_texts(self.runs[run])
        texts: list[str] = []
        for segment in trajectory.segments:
            texts += named(segment.token_ids)
        arrays = _token_arrays(trajectory, facts.credit(task, attempt))
        lanes = {name: unit for name, (unit, _) in LANES.items() if name in arrays}
        return NavigatorReply(
            _facts_of(facts, task, attempt)
            | {
                "texts": [visible(text) for text in texts],
                "lanes": lanes,
                "updates": len(facts.tables),
                "update": facts.update(task, attempt) if facts.tables else None,
                "ids": named is ids_as_texts,
            },
            arrays,
        )

    def _open_edited(self, run: int, step: int) -> EditedStep:
        from workbench.look.cells.edited import EditedStep  # as above

        return EditedStep(self.runs[run], step, self.step(run, step).groups)

    def _credit(
        self, run: int, step: int, edit: str, task: int = -1, attempt: int = -1
    ) -> NavigatorReply:
        """The step's credit after an edit (JSON: see `EditedStep.asked`), with the numbers per token of one trajectory."""
        if task >= 0:
            self.address(Address(step, task, attempt), run)
        try:
            edited = self._edited(run, step)
        except ImportError as error:
            raise DataError(
                f"credit is recomputed by the algorithm itself, which needs torch: {error}"
            ) from error
        number = None if task < 0 else self.step(run, step).number(task, attempt)
        return NavigatorReply(*edited.after(edit, number))

    def _terms(self, run: int, step: int, task: int, attempt: int) -> NavigatorReply:
        """The loss term of every token of a trajectory, in the update that its lanes are of."""
        self.address(Address(step, task, attempt), run)
        facts = self.step(run, step)
        if not facts.tables:
            raise DataError(f"step {step} made no update: no token has a loss term")
        try:
            terms = self._terms_of(run, step, facts.update(task, attempt))
        except ImportError as error:
            raise DataError(
                f"a loss term is written out by the run's own algorithm, which needs torch: {error}"
            ) from error
        rows, arrays = terms.written(facts.number(task, attempt))
        return NavigatorReply(
            {
                "rows": [
                    {"name": row["name"], "text": visible(row["text"])}
                    | {key: row[key] for key in ("array", "words") if key in row}
                    for row in rows
                ]
            },
            arrays,
        )

    def _columns(self, run: int, step: int, task: int) -> NavigatorReply:
        """The trajectories of a group side by side, each with where it diverges from the best one."""
        self.address(Address(step, task), run)
        return NavigatorReply(
            side_by_side(self.step(run, step).groups[task], token_texts(self.runs[run]))
        )

    def _spread(self, run: int) -> NavigatorReply:
        """Every group of every step: [step, task, std, side]."""
        self._known_run(run)
        spread = group_spread(self.runs[run])
        return NavigatorReply(
            {
                "steps": spread.read,
                "of": spread.steps,
                "groups": [
                    [
                        group.step,
                        group.task,
                        group.std if np.isfinite(group.std) else None,
                        group.side,
                    ]
                    for group in spread.groups
                ],
            }
        )

    def _pair(self, run: int, other: int, evaluations: int) -> PairedGroups:
        return paired(self.runs[run], None if other < 0 else self.runs[other])

    def _pairs(self, run: int, other: int, pair: int = -1) -> NavigatorReply:
        """Trajectories paired by task: of the run's first and last evaluation (other -1), or of the last of two runs."""
        for number in (run, max(other, 0)):
            self._known_run(number)
        pairs = self._paired(
            run, other, len(self.runs[run].evaluations())
        )  # a run that trains may have one more by now
        return NavigatorReply(
            pairs_of(pairs) if pair < 0 else pair_of(pairs, pair, token_texts(self.runs[run]))
        )

    def _texts(self, run: int) -> NavigatorReply:
        """Load what gives tokens their texts."""
        return NavigatorReply({"ids": token_texts(self.runs[run]) is ids_as_texts})

    def _search(self, run: int, step: int, text: str) -> NavigatorReply:
        matches = []
        for task, group in enumerate(self.step(run, step).groups):
            for number, trajectory in enumerate(group):
                if any(text.lower() in words.lower() for _, words in trajectory.messages()):
                    matches.append([task, number])
        return NavigatorReply({"text": text, "found": matches})

    def _search_all(self, text: str, stop: str = "", finding: str = "") -> NavigatorReply:
        """The trajectories of all steps of all runs that match, each with its address."""
        matches = service("search_runs", "a search over all steps")(
            self.runs, text, stop=stop, finding=finding
        )
        return NavigatorReply({"matches": matches.rows(), "hidden": matches.hidden})


def _within(at: Address, level: str, there: Sequence[Any]) -> None:
    number = getattr(at, level)
    if number is not None and number >= len(there):
        raise DataError(
            f"{at}: there is no {level} {number}; they are counted from 0 to {len(there) - 1}"
        )


# ------------------------------------------------------------------------------------------------ a trajectory


def _facts_of(facts: StepRecord, task: int, attempt: int) -> dict[str, Any]:
    group = facts.groups[task]
    trajectory = group[attempt]
    turns = [
        {
            "turn": turn.index,
            "wrote": _text(turn.text),
            "reward": turn.reward,
            "parts": {visible(name): value for name, value in turn.reward_parts.items()},
            "reply": [[visible(message.role), _text(message.text)] for message in turn.reply],
        }
        for turn in trajectory.turns
    ]
    first = [
        [visible(message.role), _text(message.text)]
        for message in trajectory.first_observation.messages
    ]
    return _segment_facts(trajectory) | {
        "step": facts.step,
        "task": task,
        "attempt": attempt,
        "number": trajectory.attempt,
        "name": visible(group.task.id),
        "first": first,
        "turns": turns,
        "reward": trajectory.reward,
        "outcome": trajectory.outcome,
        "success": trajectory.success,
        "stop": trajectory.stop_reason.value,
        "error": visible(trajectory.error or ""),
        "group": spread_of(group),
        "boards": [grid and squares(grid).rows for grid in map(find_grid, states_of(trajectory))],
    }


def _segment_facts(trajectory: Trajectory) -> dict[str, Any]:
    """Lengths of segments, why those are not trained that are not, and what an extension says of the trajectory, as text."""
    segments = trajectory.segments
    return {
        "segments": [len(segment) for segment in segments],
        "untrained": [visible(segment.untrained) for segment in segments],
        "added": visible(text_of(doc.ViewDocument(added_parts(trajectory)))),
    }


def _token_arrays(
    trajectory: Trajectory, credit: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray]:
    """[T] of a trajectory's segments end to end: author, turn, trained, weight version (-1: not known), and the lanes that
    there are, float64 with NaN for what a token does not have."""
    segments = trajectory.segments
    if not any(segment.spans for segment in segments):
        return {}  # it ended before its first prompt

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(segment, name) for segment in segments])

    eligible = joined("eligible")
    columns = {"rollout_logp": joined("logprobs")}
    trained = eligible
    if credit is not None:
        columns |= credit
        trained = columns["weight"] != 0
    # 3: trained, though nobody sampled it here
    marks = trained.astype(np.uint8) + 2 * (trained & ~eligible)
    arrays = {
        "author": joined("sources").astype(np.uint8),
        "turn": joined("turns").astype(np.int32),
        "version": np.concatenate(list(_versions(trajectory))).astype(np.int32),
        "trained": marks,
    }
    return arrays | _lanes(columns)


def _versions(trajectory: Trajectory) -> Iterator[np.ndarray]:
    """The version of the weights that sampled each token, span by span; -1 where it is not known."""
    for segment in trajectory.segments:
        for span in segment.spans:
            version = -1 if span.policy_version is None else span.policy_version
            yield np.full(len(span), version)


def _lanes(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The lanes whose columns are there, those with a number in them."""
    lanes = {}
    for name, (_, made) in LANES.items():
        try:
            values = np.asarray(made(columns), np.float64)
        except KeyError:
            continue
        if np.isfinite(values).any():
            lanes[name] = values
    return lanes


def _text(text: str) -> str:
    return visible(capped(text, LONGEST_TEXT))
