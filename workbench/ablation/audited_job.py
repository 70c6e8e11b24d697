"""A job of a grid: its notebook beside the sealed record of how it ended, and the key that its name carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from workbench.ablation import work
from workbench.ablation.cell import code_hash, source_hash
from workbench.ablation.numbers import DIFFERENT, TRUST, AuditedNumber, held_against
from workbench.ablation.plan import ONE_RUN, read_settings, written
from workbench.ablation.provenance import INJECTED, injected_parameters
from workbench.ablation.tuning import KIND as TUNED
from workbench.ablation.tuning import VERSION as TUNED_VERSION
from workbench.run.store import Run
from workbench.training.config import load_config, to_dict
from workbench.types.canonical_json import json_bytes, read_sealed_json
from workbench.types.errors import WorkbenchError
from workbench.types.fingerprint import code_fingerprint

RUN_PARAMETERS = {"base", "settings", "seed", "out"}  # of the package's own notebook


def job_of(path: Path) -> dict[str, Any] | None:
    """The record of a job, if this is the notebook of one (OUT/notebooks/NAME.ipynb beside OUT/jobs/NAME.json), and
    `out` and `name`. StoreError where the record was changed."""
    out = path.absolute().parent.parent
    record = out / "jobs" / f"{path.stem}.json"
    if path.absolute().parent.name != "notebooks" or not record.is_file():
        return None
    return read_sealed_json(record, kind=work.KIND, version=work.VERSION) | {
        "out": out,
        "name": path.stem,
    }


def audited_job(
    path: Path, notebook: Mapping[str, Any], job: Mapping[str, Any], runs: Sequence[Run]
) -> tuple[dict[str, str], list[AuditedNumber]]:
    """(how its job ended, what its name, parameters and code come to)."""
    given = injected_parameters(notebook)
    code = [
        *(
            "".join(cell["source"])
            for cell in notebook["cells"]
            if cell["cell_type"] == "code" and INJECTED not in cell["metadata"].get("tags", ())
        )
    ]
    same = job["code"] == code_fingerprint()
    origin = {
        "job": f"{job['name']}, "
        + (f"FAILED: {job['failed']}" if "failed" in job else "came to its end"),
        "code": f"{job['code']}, "
        + ("as here" if same else f"and here it is {code_fingerprint()}"),
        "cells": f"{len(code)}, code {code_hash(code)}",
    }
    numbers = [_key(path, given, code, same), *_chosen(job, given)]
    if {*given} == RUN_PARAMETERS and runs:
        numbers += [
            held_against(
                0, "seed", given["seed"], run.config.get("seed"), f"the settings of run {run.name}"
            )
            for run in runs
            if run.name == job.get("run")
        ]
    return origin, numbers


def _chosen(job: Mapping[str, Any], given: Mapping[str, Any]) -> list[AuditedNumber]:
    """What an arm was judged with beside what it chose before that (`tuning`)."""
    records = [
        path
        for path in (job["out"] / "tuned").glob("*.json")
        if job["name"].startswith(f"{path.stem}-")
    ]
    record = max(records, key=lambda path: len(path.stem), default=None)
    if record is None or job["name"].startswith(f"{record.stem}-try"):
        return []
    point = read_sealed_json(record, kind=TUNED, version=TUNED_VERSION)["point"]
    said = read_settings(given["settings"]) if {*given} == RUN_PARAMETERS else given
    chosen = read_settings(written(point)) if {*given} == RUN_PARAMETERS else point
    return [
        held_against(
            0, name, said.get(name, "nothing"), value, "what its arm chose among its trials"
        )
        for name, value in chosen.items()
    ]


def _key(path: Path, given: Mapping[str, Any], code: Sequence[str], same: bool) -> AuditedNumber:
    """A job's name ends in the hash of all that it is made with."""
    said, where = (
        path.stem.rpartition("-")[2],
        "key of the job: its parameters and the code of its cells",
    )
    ours = {*given} == RUN_PARAMETERS
    try:
        if ours and source_hash(ONE_RUN) == code_hash(code):
            made = to_dict(
                replace(
                    load_config(given["base"], read_settings(given["settings"])), seed=given["seed"]
                )
            )
        else:
            parameters = {name: value for name, value in given.items() if name != "out"}
            made = {"notebook": code_hash(code), "parameters": parameters}
    except (WorkbenchError, OSError) as error:
        return AuditedNumber(0, where, said, TRUST, f"it cannot be made here: {error}")
    found = held_against(
        0, where, said, blake2b(json_bytes(made, "a job"), digest_size=6).hexdigest(), "made anew"
    )
    if found.mark == DIFFERENT and ours and not same:
        return AuditedNumber(
            0, where, said, TRUST, "it was made by other code, which may have other settings"
        )
    return found
