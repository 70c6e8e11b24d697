"""What a shipped policy says of itself, and whether that is true: checksums, stated success, the recipe run again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from workbench.values.errors import PolicyError
from workbench.values.stats import paired_difference, wilson_interval

POLICIES = Path(__file__).resolve().parents[2] / "data" / "policies"
PROVENANCE, CHECKSUMS = "provenance.json", "SHA256SUMS"
# A recipe that is run on another machine, or with other versions, rounds differently, and small differences grow while
# a model is trained: two such runs are two draws of a policy. Their success may differ by this much beyond chance.
RECIPE_SPREAD = 0.05


@dataclass(frozen=True)
class CheckReport:
    """`passed`, the sentence for people, and the numbers behind it."""

    passed: bool
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def checksums(folder: Path) -> str:
    """The content of SHA256SUMS, as `sha256sum -c` reads it: every file of the folder but itself, in name order."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CHECKSUMS)
    return "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def verify_checksums(folder: Path) -> None:
    """PolicyError naming the files that are missing, changed or not listed."""
    listed = (folder / CHECKSUMS).read_text() if (folder / CHECKSUMS).exists() else ""
    if listed != checksums(folder):
        stated, found = set(listed.splitlines()), set(checksums(folder).splitlines())
        names = sorted({line.split("  ", 1)[1] for line in stated ^ found})
        raise PolicyError(
            f"{folder} is not what was shipped: {', '.join(names)} differ from {CHECKSUMS}; restore the "
            "folder from the repository, or make it again with `workbench pretrain`"
        )


def measure(folder: Path, preset: str, num_tasks: int) -> dict[str, Any]:
    """Success of the policy in `folder` on the held-out tasks of a config preset, sampled and greedy, with its random
    and best-known baselines (invariant 12). Which trajectories succeeded is kept, so that policies can be compared in pairs."""
    from workbench.training.config import load_config
    from workbench.training.session import baselines, evaluate, open_session

    session = open_session(
        load_config(preset, {"policy.name": str(folder), "policy.device": "cpu"}), quiet=True
    )
    scores = evaluate(session, name=folder.name, num_tasks=num_tasks)
    rows = {score.mode: score for score in scores}
    rows |= {score.policy: score for score in baselines(session, num_tasks=num_tasks)}
    return {"environment": session.family.label, "num_tasks": num_tasks} | {
        name: {
            "success": round(s.success, 4),
            "low": round(s.success_low, 4),
            "high": round(s.success_high, 4),
            "valid_format": s.valid_format and round(s.valid_format, 4),
            "turns": round(s.turns, 3),
            "tokens": s.tokens and round(s.tokens, 2),
            "successes": "".join(str(int(b)) for b in s.by_task),
        }
        for name, s in rows.items()
    }


def check_shipped(
    name: str,
    preset: str,
    *,
    num_tasks: int,
    remake: Callable[[Path], Path] | None,
    policies: Path = POLICIES,
) -> CheckReport:
    """Check a shipped policy against its own statements; `remake(folder)` runs its recipe and returns the new policy.

    Reproduced means, for sampled and greedy success alike: what is measured here lies within the stated 95 % interval
    (widened for fewer tasks than stated), and the remade policy's success differs from the shipped one's, on the same
    tasks, by no more than its paired 95 % interval and RECIPE_SPREAD allow. PolicyError where files were changed.
    """
    folder = policies / name
    if not folder.is_dir():
        raise PolicyError(
            f"no shipped policy {name!r} in {policies}; make one with `workbench pretrain {name}`"
        )
    verify_checksums(folder)
    stated = json.loads((folder / PROVENANCE).read_text())["success"]
    if stated is None:
        raise PolicyError(
            f"{folder / PROVENANCE} states no success to compare with; make the policy again with "
            "num_tasks > 0"
        )
    here = measure(folder, preset, num_tasks)
    remade = None
    if remake is not None:
        with tempfile.TemporaryDirectory() as scratch:
            remade = measure(remake(Path(scratch)), preset, num_tasks)
    lines, passed = (
        [f"{name}: checksums agree; {here['environment']}, {num_tasks} held-out tasks"],
        True,
    )
    for mode in ("sampled", "greedy"):
        low, high = _interval_for(stated[mode]["success"], stated["num_tasks"], num_tasks)
        fits = low <= here[mode]["success"] <= high
        lines.append(
            f"  {mode}: stated {stated[mode]['success']:.3f} [{low:.3f}, {high:.3f}], "
            f"shipped weights here {here[mode]['success']:.3f}: {'reproduced' if fits else 'NOT reproduced'}"
        )
        passed &= fits
        if remade is not None:
            difference = paired_difference(
                [int(c) for c in here[mode]["successes"]],
                [int(c) for c in remade[mode]["successes"]],
            )
            fits = difference.low - RECIPE_SPREAD <= 0 <= difference.high + RECIPE_SPREAD
            lines.append(
                f"  {mode}: recipe run again {remade[mode]['success']:.3f}, difference {difference}: "
                f"{'reproduced' if fits else 'NOT reproduced'}"
            )
            passed &= fits
    return CheckReport(passed, "\n".join(lines), {"stated": stated, "here": here, "remade": remade})


def _interval_for(stated: float, stated_tasks: int, num_tasks: int) -> tuple[float, float]:
    """The 95 % interval of the stated rate, as wide as the smaller of the two numbers of tasks makes it."""
    n = min(stated_tasks, num_tasks)
    return wilson_interval(round(stated * n), n)
