"""Replay: was what training used really what these rollouts earn? Recomputed from the run folder, compared bit for bit.

Everything is taken from the stored trajectories of a step: the columns that say which token is which, then credit by
the run's own algorithm (from a critic's values and a reference's logprobs as stored, where it needs them), then ratio
and clip state from the stored logprobs. Each column of each credit table of the
step is compared in every bit (NaN equals NaN, 0 equals -0). Nothing is sampled, no weights are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from workbench.basics.fingerprint import code_fingerprint
from workbench.run.store import Run, differing
from workbench.values import CreditTable, Group, Segment, trajectories_of
from workbench.values.errors import DataError, StoreError
from workbench.values.view import Shown

SHOWN = 5  # differing tokens named per column

# Facts that the models gave before credit was computed: taken as stored, and the same in every update of a step.
FROM_MODELS = ("old_logp", "ref_logp", "value", "final_value")


@dataclass(frozen=True)
class ReplayDifference:
    """A column of one update that is not reproduced: `count` tokens differ, `first` are the first of them."""

    update: int
    column: str
    count: int
    first: tuple[int, ...]
    text: str


@dataclass(frozen=True, repr=False)
class ReplayReport(Shown):
    """`equal`: at least one number was compared and not a single one differs. `text` says what was compared and where
    the first differences are. `compared` names the columns of each update, `left_out` those that need the weights."""

    step: int
    compared: Mapping[int, tuple[str, ...]]
    left_out: Mapping[int, tuple[str, ...]]
    differences: tuple[ReplayDifference, ...]
    num_tokens: int
    drift: str = ""  # in words, which versions or code were others when the step was made

    @property
    def equal(self) -> bool:
        return not self.differences and any(self.compared.values())

    @property
    def text(self) -> str:
        lines = []
        for update, names in self.compared.items():
            lines.append(
                f"step {self.step}, update {update}: {self.num_tokens} tokens, recomputed {', '.join(names)}"
            )
            if self.left_out[update]:
                names = ", ".join(self.left_out[update])
                lines.append(f"  not recomputed (they need the weights of that moment): {names}")
        lines += [difference.text for difference in self.differences]
        if not self.compared:
            lines.append(f"step {self.step} has no credit table: there is nothing to compare")
        lines.append(
            "equal: every recomputed number is the stored one, bit for bit"
            if self.equal
            else "NOT EQUAL"
        )
        if self.drift and not self.equal:
            lines.append(
                f"This step was made by another program, which may be all there is to it: {self.drift}"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text


def replay_step(
    run: Run, step: int, algorithm: Any, *, collate: Callable[[Sequence[Group]], Any] | None = None
) -> ReplayReport:
    """Recompute every credit table of a committed step from its stored trajectories.

    `algorithm.credit(batch)` gives `advantage_T` and `weight_T`; `collate` makes the batch (default:
    `Batch.from_groups`). Where a table has the logprobs and the algorithm a `loss`, ratio and clip state are recomputed
    too; a table of a run on another kind of processor may differ there in a last bit, and that is reported as it is.
    Raises StoreError for a step that is not there or is damaged.
    """
    if not callable(getattr(algorithm, "credit", None)):
        raise DataError(
            f"replay_step takes an algorithm, with its `credit(batch)`; got {algorithm!r:.60}"
        )
    groups = run.groups(step)
    facts = token_facts(groups)
    tables = [run.credit(step, update) for update in run.updates(step)]
    if tables:
        facts |= _credit(groups, tables[0], algorithm, collate)
        step_facts = {name: tables[0][name] for name in FROM_MODELS if name in tables[0].columns}
    compared: dict[int, tuple[str, ...]] = {}
    left_out: dict[int, tuple[str, ...]] = {}
    differences: list[ReplayDifference] = []
    for table in tables:
        expected = facts | _used(table, facts, algorithm) | _ratios(table, facts, algorithm)
        if table.update != tables[0].update:
            expected |= step_facts
        compared[table.update] = tuple(name for name in expected if name in table.columns)
        left_out[table.update] = tuple(name for name in table.columns if name not in expected)
        for name, column in expected.items():
            difference = _compare(table, name, column, groups, facts)
            if difference is not None:
                differences.append(difference)
    tokens = len(facts["token_id"])
    return ReplayReport(step, compared, left_out, tuple(differences), tokens, _drift(run, step))


def _drift(run: Run, step: int) -> str:
    """Which versions and code are others now than when the step was made, in words; "": none, or nobody noted them."""
    noted = [facts for after, facts in run.machines() if after < step]
    now = {name: version(name) for name in ("torch", "numpy")} | {"code": code_fingerprint()}
    return differing({name: noted[-1].get(name) for name in now}, now) if noted else ""


def _credit(
    groups: Sequence[Group], table: CreditTable, algorithm: Any, collate: Any
) -> dict[str, np.ndarray]:
    """Advantage, weight and return by the algorithm; what it needs of the models is as stored."""
    if collate is None:
        from workbench.learn.batch import Batch

        collate = Batch.from_groups
    batch = collate(groups)
    if needed := getattr(algorithm, "requires", ()):
        batch = replace(batch, **stored_facts(batch, table, needed, algorithm.name))
    credit = algorithm.credit(batch)
    columns = {"advantage": np.asarray(credit.advantage_T), "weight": np.asarray(credit.weight_T)}
    others = {
        "return": "return_T",
        "entropy_weight": "entropy_weight_T",
        "kl_weight": "kl_weight_T",
        "critic_weight": "critic_weight_T",
    }
    for column, field in others.items():
        if (values := getattr(credit, field, None)) is not None:
            columns[column] = np.asarray(values)
    return columns


def stored_facts(
    batch: Any, table: CreditTable, needed: Sequence[str], name: str
) -> dict[str, Any]:
    """The later facts of the batch that an algorithm requires, from the columns of a table."""
    import torch

    columns = {fact: fact.removesuffix("_T").removesuffix("_N") for fact in needed}
    if missing := [column for column in columns.values() if column not in table.columns]:
        raise StoreError(
            f"the credit of {name} is made of {', '.join(missing)}, which the stored table does not have: "
            "this step was trained by another algorithm"
        )
    facts = {fact: torch.from_numpy(table[column].copy()) for fact, column in columns.items()}
    if "final_value_N" in facts:  # stored at each trajectory's last token
        last_N = batch.last_token_N
        value_N = facts["final_value_N"][last_N.clamp(min=0)]
        facts["final_value_N"] = torch.where(last_N < 0, torch.nan, value_N)
    return facts


def _used(
    table: CreditTable, facts: Mapping[str, np.ndarray], algorithm: Any
) -> dict[str, np.ndarray]:
    """Which tokens an update trains: all that have a weight in any term, where a step is one update. With several,
    which rows fell into this one is the learner's shuffle; then only tokens without a weight are compared with it."""
    if "used" not in table.columns:
        return {}
    terms = ("weight", "entropy_weight", "kl_weight", "critic_weight")
    used = np.any([facts[name] != 0 for name in terms if name in facts], axis=0)
    single = getattr(algorithm, "updates_per_step", None) == 1
    if not single and len(used) == len(table["used"]):
        used = used & table["used"]
    return {"used": used}


def _ratios(
    table: CreditTable, facts: Mapping[str, np.ndarray], algorithm: Any
) -> dict[str, np.ndarray]:
    """Ratio and clip state from the stored logprobs, by the algorithm's own loss; {} where the table has none."""
    count = len(facts["weight"])
    if len(table.columns.get("used", ())) != count:
        return {}  # another batch altogether: the other columns say so
    loss = stored_loss(table, algorithm, facts)
    if loss is None:
        return {}
    used, result = loss
    ratio = np.full(count, np.nan, np.float32)
    ratio[used] = result.ratio_M.numpy()
    clip_state = np.zeros(count, np.int8)
    clip_state[used] = result.clip_state_M.numpy()
    return {"ratio": ratio, "clip_state": clip_state}


def stored_loss(
    table: CreditTable, algorithm: Any, facts: Mapping[str, np.ndarray] = {}
) -> tuple[np.ndarray, Any] | None:
    """(indices into T of the tokens that an update used, what the algorithm's own loss makes of their stored logprobs);
    None where the table has none. `facts`: columns to take instead of the stored ones."""
    needed = ("used", "old_logp", "new_logp", "entropy")
    if not hasattr(algorithm, "loss") or any(name not in table.columns for name in needed):
        return None
    import torch

    from workbench.learn.algorithms.base import LossInputs

    columns = {**table.columns, **facts}
    used = np.flatnonzero(table["used"])

    def of(name: str) -> torch.Tensor:
        return torch.from_numpy(columns[name][used])

    inputs = LossInputs(
        of("new_logp"),
        of("entropy"),
        of("old_logp"),
        of("advantage").float(),
        of("rollout_logp"),
        of("segment").long(),
        of("ref_logp") if "ref_logp" in columns else None,
        of("weight") != 0,
    )
    return used, algorithm.loss(inputs)


def _compare(
    table: CreditTable,
    name: str,
    expected: np.ndarray,
    groups: Sequence[Group],
    facts: Mapping[str, np.ndarray],
) -> ReplayDifference | None:
    """None where the stored column is the recomputed one in type, length and every bit; a column that is absent from
    the table is a difference only if credit is nothing without it."""
    head = f"update {table.update}, column {name}: "
    if name not in table.columns:
        if name not in ("trajectory", "position", "token_id", "advantage", "weight"):
            return None
        return ReplayDifference(
            table.update, name, len(expected), (), head + "the stored table does not have it"
        )
    stored = table[name]
    if stored.dtype != expected.dtype or len(stored) != len(expected):
        text = (
            f"{head}stored are {len(stored)} values of type {stored.dtype}, recomputed {len(expected)} of "
            f"{expected.dtype}"
        )
        count = max(len(stored), len(expected))
        return ReplayDifference(table.update, name, count, (), text)
    rows = np.flatnonzero(~_same_bits(stored, expected))
    if not len(rows):
        return None
    first = tuple(int(t) for t in rows[:SHOWN])
    lines = [f"{head}{len(rows)} of {len(stored)} tokens differ"]
    lines += [_token_line(t, stored, expected, groups, facts) for t in first]
    return ReplayDifference(table.update, name, len(rows), first, "\n".join(lines))


def _same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool [T]: equal in every bit; any NaN equals any NaN. Nor does the sign of a zero count: it says by which product a
    token that is not trained came to nothing, and no number that is made of it can tell."""
    if a.dtype.kind != "f":
        return a == b
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _token_line(
    t: int,
    stored: np.ndarray,
    expected: np.ndarray,
    groups: Sequence[Group],
    facts: Mapping[str, np.ndarray],
) -> str:
    number, segment, turn, position, token = (
        int(facts[name][t]) for name in ("trajectory", "segment", "turn", "position", "token_id")
    )
    trajectory = trajectories_of(groups)[number]
    place = f"segment {segment}, turn {turn}, position {position}, token {token}"
    values = f"stored {stored[t].item()!r}, recomputed {expected[t].item()!r}"
    return f"  row {t}: trajectory {number} (task {trajectory.task.id!r}, attempt {trajectory.attempt}), {place}: {values}"


def token_facts(groups: Sequence[Group]) -> dict[str, np.ndarray]:
    """What a credit table says about each token before any credit, straight from the trajectories [T]."""
    rows: list[tuple[int, Segment]] = []  # number of the trajectory, segment
    for number, trajectory in enumerate(trajectories_of(groups)):
        rows += [(number, segment) for segment in trajectory.segments]

    def column(value: Callable[[int, int, Segment], Any], dtype: Any) -> np.ndarray:
        parts = [
            np.broadcast_to(value(s, n, segment), len(segment))
            for s, (n, segment) in enumerate(rows)
        ]
        return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)

    return {
        "trajectory": column(lambda s, n, segment: n, np.int32),
        "segment": column(lambda s, n, segment: s, np.int32),
        "turn": column(lambda s, n, segment: segment.turns, np.int32),
        "position": column(lambda s, n, segment: np.arange(len(segment)), np.int32),
        "token_id": column(lambda s, n, segment: segment.token_ids, np.int32),
        "source": column(lambda s, n, segment: segment.sources, np.int8),
        "eligible": column(lambda s, n, segment: segment.eligible, bool),
        "rollout_logp": column(lambda s, n, segment: segment.logprobs, np.float32),
    }
