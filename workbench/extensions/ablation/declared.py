"""What was declared before the first run: sealed beside the runs, and compared with what is asked for later.

    OUT/PLAN.declared.json       arms and what they set, compared pairs, margin, seeds, looks; with a hash

A plan that came to be another is refused with the first difference: a margin that was chosen after looking is none. Only
pairs may be added to `compare`: they are shown as exploratory, and get no verdict.
"""

from __future__ import annotations

from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import json_bytes, plain, read_sealed_json, sealed_json
from workbench.basics.regular_files import read_toml
from workbench.extensions.ablation.cell import source_hash
from workbench.extensions.ablation.plan import Arm, Plan
from workbench.run.writer import claim_file, make_folder
from workbench.values.errors import ConfigError

KIND = "ablation-declared"
VERSION = 1


def declaration(plan: Plan) -> dict[str, Any]:
    """What a plan declares, as JSON values."""
    declared = {
        "title": plan.title,
        "all": plan.all,
        "arms": {arm.name: asdict(arm) | {"base": _base(arm)} for arm in plan.arms},
        "analysis": None if plan.analysis is None else asdict(plan.analysis),
        "seeds": plan.seeds,
        "compare": plan.compare,
        "expect": [asdict(expectation) for expectation in plan.expect],
        "controls": None if plan.controls is None else asdict(plan.controls),
        "notebook": None,
    }
    if plan.notebook:  # the user's own, by what its code cells say
        notebook = Path(plan.notebook)
        declared["notebook"] = f"{notebook.name}, code {source_hash(notebook)}"
    if plan.tuning is not None:
        declared["tuning"] = asdict(plan.tuning)
    if plan.starts:
        declared["starts"] = dict(plan.starts)
    if plan.interactions:
        declared["interactions"] = plan.interactions
    return plain(declared, "a plan")


def _base(arm: Arm) -> str:
    """A preset, or a file of settings by what it sets: wherever it lies, and whatever its comments say."""
    if arm.base_name == arm.base:
        return arm.base
    return f"{arm.base_name}, settings {hash_of(read_toml(Path(arm.base)))}"


def hash_of(declared: dict[str, Any]) -> str:
    return blake2b(json_bytes(declared, "a plan"), digest_size=8).hexdigest()


def declare(plan: Plan, out: Path) -> dict[str, Any]:
    """Seal what the whole plan declares, unless it is already; returns what was declared first. ConfigError, with the
    first difference, where the plan is another now."""
    before = held_against(plan, out)
    if before is not None:
        return before
    path = _path(plan.name, out)
    now = declaration(plan)
    make_folder(path.parent)
    if not claim_file(path, sealed_json({"declared": now}, kind=KIND, version=VERSION)):
        return held_against(plan, out) or now  # another driver declared it meanwhile
    return now


def held_against(plan: Plan, out: Path) -> dict[str, Any] | None:
    """What was declared in a folder, or None; ConfigError as `declare`."""
    before = declared_in(plan.name, out)
    now = declaration(plan)
    if before is None:
        return None
    kept = [pair for pair in now["compare"] if pair in before["compare"]]
    difference = _difference(before, now | {"compare": kept}, "")
    if difference:
        raise ConfigError(
            f"{plan.name} is not what was declared before the first run in {out}: {difference}. Put it "
            "back, or begin in another folder; only pairs may be added to `compare`, as exploratory"
        )
    return before


def declared_in(name: str, out: Path) -> dict[str, Any] | None:
    """What was declared in a folder; None: nothing was, or nothing ran."""
    path = _path(name, out)
    if not path.is_file():
        return None
    return read_sealed_json(path, kind=KIND, version=VERSION)["declared"]


def _path(name: str, out: Path) -> Path:
    return out / f"{name}.declared.json"


def _difference(before: Any, now: Any, where: str) -> str:
    """The first one in words; "" where there is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            here = f"{where}.{key}" if where else key
            if key not in now or key not in before:
                return f"{here} was {'not there' if key not in before else 'there'} then"
            difference = _difference(before[key], now[key], here)
            if difference:
                return difference
        return ""
    return "" if before == now else f"{where} was {before!r}, and is {now!r}"
