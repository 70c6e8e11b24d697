"""Numbers of an independent implementation, checked against ours.

    python -m tests.golden FILE [FILE ...]       files in the format of tests/data/advantages_and_losses.json

Prints the largest difference per entry, over all cases of a file. Exit status: 0 all within 1e-6; 1 something lies
further off, or an entry is not known here; 2 a file cannot be read (it says why).

Every number is computed by the functions that train. Arrays are compared whole: where the mask is 0 the reference holds
0. Three habits of the reference are not ours (`HABITS`). Where a case needs one of them, it is computed with it, and the
report says for which entries and how far apart the two are: a documented difference is never silent.

Axis letters: N rows · J columns of the padded tables in a file · A masked tokens.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.learn.algorithms.objectives import (
    HELD_BY_DUAL_CLIP,
    MAX_LOG_RATIO,
    Clipped,
    clipped_surrogate,
    sequence_surrogate,
    weighted_logprob,
)
from workbench.learn.ops.gae import WHITEN_EPSILON, Advantage, gae, whiten
from workbench.learn.ops.group import STD_EPSILON, group_advantage, leave_one_out
from workbench.learn.ops.loss import clipped_value_loss, kl_estimate, masked_sum_over, reduction
from workbench.learn.ops.returns import discounted_return

FILE = Path(__file__).parent / "data" / "advantages_and_losses.json"
TOLERANCE = 1e-6
DIVISOR = 1e-8  # added by the reference to the number of things it takes a mean of
HABITS = {
    "alone": "a group of one: the reference takes its mean as 0 and its deviation as 1, so that the reward becomes the "
    "advantage; here what can be compared with nothing gets zero (learn/ops/group.py)",
    "flat": "a zero-variance group: the mean of equal numbers may be off by one bit, and the reference clips and counts tokens "
    "by the sign of what is left; here it is exactly zero (learn/ops/group.py)",
    "divisor": "a mean over n + 1e-8: whitening leaves a little of values that are all the same, and a mean over a row "
    "is off by 1e-8 / n of itself; here they are zero and exact (learn/ops/gae.py, learn/ops/loss.py)",
}


class Unreadable(Exception):
    """A file, a case or a setting is not what this check can read. Says what was expected and what came."""


# ------------------------------------------------------------------------------------------------ settings, in words

NUMBER = r"([-+]?\d*\.?\d+(?:e[-+]?\d+)?)"
REDUCTIONS = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "seq-mean-token-mean",
    "seq-mean-token-sum": "seq-mean-token-sum",
    "seq-mean-token-sum-norm": "fixed-length",
}
PHRASES = {
    "low": rf"clip low {NUMBER}",
    "high": rf"high {NUMBER}",
    "dual": rf"dual clip {NUMBER}",
    "range": rf"clip range {NUMBER}",
    "advantages": r"advantages=(\w+)",
    "target": r"target=(\w+)",
    "reduction": rf"({'|'.join(sorted(REDUCTIONS, key=len, reverse=True))})(?![\w-])",
}
KNOWN = {
    "ppo": "clip low .2 high .28, dual clip 3.0, advantages=grpo",
    "gspo": "clip low 3e-4 high 4e-4, seq-mean-token-mean, advantages=grpo",
    "cispo": "clip low .2 high .28, token-mean",
    "value": "clip range .5, token-mean, target=gae_returns",
    "gae": "advantages whitened over masked tokens",
}
DEFAULTS = {"reduction": "token-mean", "advantages": "grpo", "target": "gae_returns", "dual": 0.0}


def read_setting(name: str, text: Any) -> dict[str, Any]:
    """{"low": .2, ...} of "clip low .2 high .28, ...". Raises Unreadable where a word is left that means nothing here."""
    if name == "gae":
        if text != KNOWN[name]:
            raise Unreadable(f"setting 'gae' is known as {KNOWN[name]!r} only, got {text!r}")
        return {}
    found, rest = dict(DEFAULTS), str(text)
    for key, pattern in PHRASES.items():
        if match := re.search(pattern, rest):
            found[key] = (
                match[1] if key in ("advantages", "target", "reduction") else float(match[1])
            )
            rest = rest[: match.start()] + rest[match.end() :]
    needs = ("range",) if name == "value" else ("low", "high")
    if (
        rest.strip(" ,")
        or any(key not in found for key in needs)
        or found["target"] != "gae_returns"
    ):
        raise Unreadable(f"setting {name!r} reads like {KNOWN[name]!r}, but got {text!r}")
    return found


# ------------------------------------------------------------------------------------------------ one case


@dataclass(frozen=True)
class Case:
    """One case of a file. `habits`: what is done as the reference does it (see HABITS), most often nothing."""

    where: str
    raw: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]
    mask: Tensor = field(repr=False)  # bool [N, J]
    habits: tuple[str, ...] = ()

    @property
    def row_A(self) -> Tensor:
        return self.mask.nonzero()[:, 0]

    def table(self, name: str) -> Tensor:
        """An input as it stands in the file [N, J], float64."""
        value = self.raw["inputs"].get(name)
        if value is None:
            raise Unreadable(f"{self.where}: an entry needs the input {name!r}, which is not there")
        return read_table(f"{self.where}, input {name!r}", value, self.mask.shape)

    def at(self, name: str) -> Tensor:
        """An input at the masked tokens [A]."""
        return self.table(name)[self.mask]

    def number(self, name: str) -> float:
        if not isinstance(self.raw.get(name), int | float):
            raise Unreadable(f"{self.where}: {name!r} is a number, got {self.raw.get(name)!r}")
        return float(self.raw[name])

    def group_N(self) -> Tensor:
        names = self.raw["inputs"].get("group")
        if not isinstance(names, list) or len(names) != len(self.mask):
            raise Unreadable(
                f"{self.where}: input 'group' is a list of {len(self.mask)} groups, one per row"
            )
        numbers = {name: number for number, name in enumerate(dict.fromkeys(map(str, names)))}
        return torch.tensor([numbers[str(name)] for name in names])

    def of_tokens(self, value_A: Tensor) -> Tensor:
        """Back into a table, 0 where the mask is."""
        return torch.zeros(self.mask.shape, dtype=torch.float64).masked_scatter(
            self.mask, value_A.double()
        )

    def compared(self, advantage: Callable[..., Tensor], **how: Any) -> Tensor:
        """A group estimator's advantages [A]; what a row earned is all that its table holds, masked or not."""
        group_N, reward_N = self.group_N(), self.table("rewards").sum(1)
        found_N = advantage(reward_N, group_N, torch.ones(len(group_N), dtype=torch.bool), **how)
        if "alone" in self.habits:  # the deviation of 1 is a float32 there
            scale = float(torch.tensor(1.0) + STD_EPSILON) if how.get("normalize_std") else 1.0
            found_N = torch.where(group_N.bincount()[group_N] == 1, reward_N / scale, found_N)
        if "flat" in self.habits:
            for group in group_N.unique():
                of_group = group_N == group
                if int(of_group.sum()) > 1 and bool(
                    (reward_N[of_group] == reward_N[of_group][0]).all()
                ):
                    found_N = torch.where(of_group, reward_N - reward_N[of_group].mean(), found_N)
        return found_N[self.row_A]

    def whitened(self, value_A: Tensor) -> Tensor:
        if "divisor" in self.habits and len(value_A) > 1 and bool((value_A == value_A[0]).all()):
            count = len(value_A)
            left_A = value_A * (DIVISOR / (count + DIVISOR))
            return left_A / (left_A**2 * count / (count - 1) + WHITEN_EPSILON).sqrt()
        return whiten(value_A)

    def gae(self) -> Advantage:
        return gae(
            self.at("rewards"),
            self.at("values"),
            torch.zeros(len(self.mask)),
            self.row_A,
            gamma=self.number("gamma"),
            lam=self.number("lam"),
        )

    def reduced(self, loss_A: Tensor, kind: str) -> Tensor:
        """One number of one per token, by the reduction's name in the file."""
        all_A = torch.ones(len(loss_A), dtype=torch.bool)
        scale_A, denominator = reduction(
            REDUCTIONS[kind], all_A, self.row_A, fixed_length=self.mask.shape[1]
        )
        if "divisor" in self.habits and kind == "seq-mean-token-mean":
            scale_A = 1 / (1 / scale_A + DIVISOR)
        return masked_sum_over(loss_A, scale_A, denominator)

    def objective(self, kind: str) -> Clipped:
        """The policy loss per token [A], with the bounds and advantages that the file's settings name."""
        said = self.settings[kind]
        if said["advantages"] not in ADVANTAGES:
            raise Unreadable(
                f"{self.where}: setting {kind!r} names advantages={said['advantages']}; known are "
                f"{', '.join(ADVANTAGES)}"
            )
        tokens = self.at("logp"), self.at("old_logp"), ADVANTAGES[said["advantages"]](self)
        bounds = {"low": said["low"], "high": said["high"]}
        if kind == "ppo":
            return clipped_surrogate(*tokens, **bounds, dual=said["dual"])
        if kind == "gspo":
            return sequence_surrogate(
                *tokens, self.row_A, torch.ones(len(self.row_A), dtype=torch.bool), **bounds
            )
        return weighted_logprob(*tokens, **bounds)

    def metrics(self, kind: str) -> dict[str, Tensor]:
        """What happened to the tokens, on average."""
        state_A, change_A = self.objective(kind).state, self.at("logp") - self.at("old_logp")
        if (
            kind != "gspo"
        ):  # the reference holds the log-ratio itself there, and only its mean over a sequence here
            change_A = change_A.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        of_A = {
            "actor/pg_clipfrac": state_A.abs() == 1,
            "actor/pg_clipfrac_lower": state_A == HELD_BY_DUAL_CLIP,
            "actor/ppo_kl": -change_A,
        }
        return {
            name: self.reduced(value_A.double(), "token-mean") for name, value_A in of_A.items()
        }


ADVANTAGES: dict[str, Callable[[Case], Tensor]] = {
    "gae_whitened": lambda case: case.whitened(case.gae().advantage),
    "grpo": lambda case: case.compared(group_advantage, normalize_std=True),
    "grpo_no_std": lambda case: case.compared(group_advantage, normalize_std=False),
    "rloo": lambda case: case.compared(leave_one_out),
    "reinforce_pp": lambda case: case.whitened(
        discounted_return(case.at("rewards"), case.row_A, gamma=case.number("gamma"))
    ),
    "reinforce_pp_baseline": lambda case: case.whitened(
        case.compared(group_advantage, normalize_std=False)
    ),
}
KL = {
    "kl_k1": "k1",
    "kl_k2": "k2",
    "kl_k3": "k3",
    "kl_kl": "k1",
    "kl_abs": "abs",
    "kl_mse": "k2",
    "kl_low_var_kl": "k3",
}


def value_loss(case: Case) -> Tensor:
    said = case.settings["value"]
    found = clipped_value_loss(
        case.at("vpred"), case.at("values"), case.gae().target, clip=said["range"]
    )
    return case.reduced(found.loss, said["reduction"])


def ours(case: Case, entry: str) -> Tensor | dict[str, Tensor] | None:
    """Our number, table or mapping for an entry of the file; None: there is nothing of that name here."""
    if entry in ADVANTAGES:
        return case.of_tokens(ADVANTAGES[entry](case))
    if entry == "gae_returns":
        return case.of_tokens(case.gae().target)
    if entry == "value_loss":
        return value_loss(case)
    if entry in KL:
        return case.of_tokens(kl_estimate(case.at("logp"), case.at("ref_logp"), KL[entry]))
    if match := re.fullmatch(r"(ppo|gspo|cispo)_(?:loss(?:\[([\w-]+)\])?|(metrics))", entry):
        kind, mode, metrics = match.groups()
        if metrics:
            return case.metrics(kind)
        if (mode := mode or case.settings[kind]["reduction"]) in REDUCTIONS:
            return case.reduced(case.objective(kind).loss, mode)
    return None


# ------------------------------------------------------------------------------------------------ comparing


def difference(mine: Any, theirs: Any) -> float:
    """The largest one anywhere; infinite where the shapes, the names in a mapping or what is not a number differ."""
    if isinstance(mine, Mapping) or isinstance(theirs, Mapping):
        if (
            not isinstance(mine, Mapping)
            or not isinstance(theirs, Mapping)
            or not theirs.keys() <= mine.keys()
        ):
            return float("inf")
        return max((difference(mine[name], value) for name, value in theirs.items()), default=0.0)
    try:
        theirs = torch.tensor(theirs, dtype=torch.float64)
    except (TypeError, ValueError):
        return float("inf")
    mine = mine.double()
    if mine.shape != theirs.shape:
        return float("inf")
    apart = torch.where(
        (mine == theirs) | (mine.isnan() & theirs.isnan()), 0.0, (mine - theirs).abs()
    )
    return float(torch.where(apart.isnan(), torch.inf, apart).max()) if apart.numel() else 0.0


class Documented(NamedTuple):
    """An entry of a case that is within the tolerance only with a habit of the reference."""

    where: str
    habits: tuple[str, ...]
    entry: str
    apart: float


@dataclass(frozen=True)
class Finding:
    """What came of an entry: the largest difference over all cases, and where it was."""

    entry: str
    largest: float = -1.0
    where: str = ""
    cases: int = 0
    known: bool = True
    documented: tuple[Documented, ...] = ()

    @property
    def passed(self) -> bool:
        return self.known and self.largest < TOLERANCE

    def line(self) -> str:
        if not self.known:
            return f"{self.entry:<30} no such entry is known here ({self.where})  FAILED"
        note = (
            f"  ({len(self.documented)} of them with a documented difference, below)"
            if self.documented
            else ""
        )
        return f"{self.entry:<30} {self.largest:9.2e}  in {self.cases} cases{note}" + (
            "" if self.passed else f"  FAILED, {self.where}"
        )


def compare(case: Case, entry: str, theirs: Any, so_far: Finding) -> Finding:
    """`so_far` with this case in it. Where our own numbers do not agree, the habits of the reference are tried, the
    fewest first."""
    mine = ours(case, entry)
    if mine is None:
        return replace(so_far, known=False, where=case.where)
    apart, documented = difference(mine, theirs), so_far.documented
    if not apart < TOLERANCE:
        for habits in (("alone",), ("flat",), ("divisor",), ("alone", "flat"), tuple(HABITS)):
            published = difference(ours(replace(case, habits=habits), entry), theirs)
            if published < TOLERANCE:
                documented = (*documented, Documented(case.where, habits, entry, apart))
                apart = published
                break
    if apart > so_far.largest:
        so_far = replace(so_far, largest=apart, where=case.where)
    return replace(so_far, cases=so_far.cases + 1, documented=documented)


def documented_differences(findings: Sequence[Finding]) -> str:
    """The habits that cases needed, each with the entries it touches and how far our own numbers are from the file's."""
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for found in (documented for finding in findings for documented in finding.documented):
        grouped.setdefault(found[:2], []).append(f"{found.entry} {found.apart:.1e}")
    return "".join(
        f"documented difference, {where}: {'; and '.join(HABITS[habit] for habit in habits)}.\n"
        f"    ours and the file's lie apart by: {', '.join(entries)}\n"
        for (where, habits), entries in grouped.items()
    )


def check(raw: Mapping[str, Any]) -> list[Finding]:
    """One finding per entry, in the order of the file. Raises Unreadable."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("cases"), list) or not raw["cases"]:
        raise Unreadable('expected {"settings": {...}, "cases": [...]} with at least one case')
    findings: dict[str, Finding] = {}
    for number, content in enumerate(raw["cases"]):
        case = read_case(number, content, raw.get("settings") or {})
        for entry, theirs in content["expected"].items():
            findings[entry] = compare(case, entry, theirs, findings.get(entry, Finding(entry)))
    if not findings:
        raise Unreadable("no case expects anything, so nothing was checked")
    return list(findings.values())


def read_case(number: int, raw: Any, settings: Mapping[str, Any]) -> Case:
    where = f"case {number}"
    if not isinstance(raw, Mapping) or not all(
        isinstance(raw.get(part), Mapping) for part in ("inputs", "expected")
    ):
        raise Unreadable(f'{where}: expected {{"inputs": {{...}}, "expected": {{...}}}}')
    where += f" (seed {raw['seed']})" if "seed" in raw else ""
    texts = {**KNOWN, **settings, **(raw.get("settings") or {})}
    mask = read_table(f"{where}, input 'mask'", raw["inputs"].get("mask"))
    if not bool(((mask == 0) | (mask == 1)).all()) or not bool(mask.any()):
        raise Unreadable(f"{where}: 'mask' holds 0 and 1, and at least one 1")
    return Case(where, raw, {name: read_setting(name, texts[name]) for name in KNOWN}, mask.bool())


def read_table(what: str, value: Any, shape: torch.Size | None = None) -> Tensor:
    try:
        table = torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Unreadable(f"{what}: expected rows of numbers, all of one length ({error})") from None
    if table.ndim != 2 or (shape is not None and table.shape != shape):
        raise Unreadable(
            f"{what}: expected a table of shape {list(shape or 'NJ')}, got {list(table.shape)}"
        )
    return table


def report(path: Path) -> int:
    """Check one file and print what came of it. Returns the exit status."""
    try:
        raw = json.loads(path.read_text())
        findings = check(raw)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, Unreadable) as error:
        print(f"{path}: cannot be checked: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {len(raw['cases'])} cases of {raw.get('source', 'a source that is not named')}")
    for name in sorted(set(raw.get("settings") or {}) - set(KNOWN)):
        print(
            f"{name:<30} a setting that is not known here and has no part in it: {raw['settings'][name]!r}"
        )
    print("\n".join(finding.line() for finding in findings))
    print(documented_differences(findings), end="")
    failed = [finding.entry for finding in findings if not finding.passed]
    print(
        f"{len(findings) - len(failed)} of {len(findings)} entries within {TOLERANCE:g}"
        + (f"; not: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr if not arguments else sys.stdout)
        return 0 if arguments else 2
    return max(report(Path(argument)) for argument in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
