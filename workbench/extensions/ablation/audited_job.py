"""A job of a grid: its notebook beside the sealed record of how it ended, and the key that its name carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import json_bytes, read_sealed_json
from workbench.basics.fingerprint import code_fingerprint
from workbench.extensions.ablation import work
from workbench.extensions.ablation.cell import code_hash, source_hash
from workbench.extensions.ablation.numbers import DIFFERENT, TRUST, AuditedNumber, held_against
from workbench.extensions.ablation.plan import ONE_RUN, read_settings, written
from workbench.extensions.ablation.provenance import INJECTED, injected_parameters
from workbench.extensions.ablation.tuning import KIND as TUNED
from workbench.extensions.ablation.tuning import VERSION as TUNED_VERSION
from workbench.run.store import Run
from workbench.training.config import load_config, to_dict
from workbench.values.errors import WorkbenchError

RUN_PARAMETERS = {"base", "settings", "seed", "out"}  # of the package's own notebook


def job_of(path: Path) -> dict[str, Any] | None:
    """The record of a job, if this is the notebook of one (OUT/notebooks/NAME.ipynb beside OUT/jobs/NAME.json), and
    `out` and `name`. StoreError where the record was changed."""
    out = path.absolute().parent.parent
    record = out / "jobs" / f"{path.stem}.json"
    if path.absolute().parent.name != "notebooks" or not record.is_file():
        return None
    job = read_sealed_json(record, kind=work.KIND, version=work.VERSION)
    return job | {"out": out, "name": path.stem}


def audited_job(
    path: Path, notebook: Mapping[str, Any], job: Mapping[str, Any], runs: Sequence[Run]
) -> tuple[dict[str, str], list[AuditedNumber]]:
    """(how its job ended, what its name, parameters and code come to)."""
    given = injected_parameters(notebook)
    code = _sources(notebook)
    same_code = job["code"] == code_fingerprint()
    ending = f"FAILED: {job['failed']}" if "failed" in job else "came to its end"
    here = "as here" if same_code else f"and here it is {code_fingerprint()}"
    origin = {
        "job": f"{job['name']}, {ending}",
        "code": f"{job['code']}, {here}",
        "cells": f"{len(code)}, code {code_hash(code)}",
    }
    numbers = [_key(path, given, code, same_code), *_chosen(job, given)]
    if {*given} == RUN_PARAMETERS:
        for run in runs:
            if run.name == job.get("run"):
                by = f"the settings of run {run.name}"
                numbers.append(held_against(0, "seed", given["seed"], run.config.get("seed"), by))
    return origin, numbers


def _sources(notebook: Mapping[str, Any]) -> list[str]:
    """Of its code cells, without the one that papermill put in."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    own = [cell for cell in cells if INJECTED not in cell["metadata"].get("tags", ())]
    return ["".join(cell["source"]) for cell in own]


def _chosen(job: Mapping[str, Any], given: Mapping[str, Any]) -> list[AuditedNumber]:
    """What an arm was judged with beside what it chose before that (`tuning`)."""
    name = job["name"]
    records = (job["out"] / "tuned").glob("*.json")
    of_arm = [path for path in records if name.startswith(f"{path.stem}-")]
    record = max(of_arm, key=lambda path: len(path.stem), default=None)
    if record is None or name.startswith(f"{record.stem}-try"):
        return []
    chosen = read_sealed_json(record, kind=TUNED, version=TUNED_VERSION)["point"]
    settings = given
    if {*given} == RUN_PARAMETERS:
        settings = read_settings(given["settings"])
        chosen = read_settings(written(chosen))
    by = "what its arm chose among its trials"
    return [
        held_against(0, key, settings.get(key, "nothing"), value, by)
        for key, value in chosen.items()
    ]


def _key(
    path: Path, given: Mapping[str, Any], code: Sequence[str], same_code: bool
) -> AuditedNumber:
    """A job's name ends in the hash of all that it is made with."""
    key = path.stem.rpartition("-")[2]
    where = "key of the job: its parameters and the code of its cells"
    is_ours = {*given} == RUN_PARAMETERS
    try:
        if is_ours and source_hash(ONE_RUN) == code_hash(code):
            config = load_config(given["base"], read_settings(given["settings"]))
            made = to_dict(replace(config, seed=given["seed"]))
        else:
            parameters = {name: value for name, value in given.items() if name != "out"}
            made = {"notebook": code_hash(code), "parameters": parameters}
    except (WorkbenchError, OSError) as error:
        return AuditedNumber(0, where, key, TRUST, f"it cannot be made here: {error}")
    again = blake2b(json_bytes(made, "a job"), digest_size=6).hexdigest()
    audited = held_against(0, where, key, again, "made anew")
    if audited.mark == DIFFERENT and is_ours and not same_code:
        why = "it was made by other code, which may have other settings"
        return AuditedNumber(0, where, key, TRUST, why)
    return audited
