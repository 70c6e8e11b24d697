"""Every planted fault is named by its rule and by no other; the files as they were written are clean."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.imported.planted import (
    FILES,
    PLANTED,
    RESULTS,
    TABLE,
    TEXTS,
    TRACES,
    VERL,
    VERL_IDS,
    rows_of,
    write,
)
from tests.imported.planted_dumps import FAULTS
from workbench.extensions.interop.importers import read_rollouts
from workbench.extensions.interop.raw import RAW_CHECKS
from workbench.linting import Evidence, check
from workbench.linting.table import RULES, all_rules

CLEAN = sorted(
    str(path.relative_to(FILES))
    for path in FILES.rglob("*")
    if path.suffix in (".jsonl", ".parquet") and not path.name.startswith("nemo_gym")  # test_dumps
)


# What may speak of each file: what the README's table says.
SPEAKS = {
    RESULTS: "R1 R3 R4 R5 R6 R7 R8 R12 R16 R22",
    "verifiers_results_text/results.jsonl": "R7 R8 R16",
    TRACES: "R3 R4 R5 R6 R7 R8 R12 R16 R22",
    "verifiers_traces_text.jsonl": "R8 R16",
    TEXTS: "R6 R8 R16",
    TABLE: "R3 R4 R5 R6 R8 R12 R16 R22",
    VERL: "R7 R8 R16",
    "verl_generations_v0.jsonl": "R8 R16",
    VERL_IDS: "R3 R4 R5 R8 R12 R16 R22",
}


def of_arrays(path: Path):
    """What the rules say of a file."""
    return check(Evidence(raw=read_rollouts(path).sequences), list(RULES.values()), RAW_CHECKS)


@pytest.mark.parametrize("file", CLEAN)
def test_clean_files_give_no_error(file):
    assert wb.lint(FILES / file).named == ()


@pytest.mark.parametrize("file", CLEAN)
def test_a_rule_passes_only_what_the_file_tells(file):
    """Through the door: no mask is taken for provenance, no made-up group for one that was written."""
    report = wb.lint(FILES / file).report
    assert " ".join(answer.rule for answer in report if answer.looked) == SPEAKS[file]
    assert all(answer.missing for answer in report if not answer.looked)


@pytest.mark.parametrize(
    "planted", PLANTED, ids=lambda planted: f"{planted.file.split('.')[0]}: {planted.name}"
)
def test_a_planted_fault_is_named_by_its_rule(planted, tmp_path):
    rows = rows_of(planted.file)
    planted.plant(rows)
    report = of_arrays(write(rows, tmp_path / Path(planted.file).name))
    assert report.named == (planted.rule,), report.text
    found = report[planted.rule].errors[0]
    assert planted.words in found.what and found.place.trajectory


def test_the_lint_of_a_file_names_it_too(tmp_path):
    for planted in {planted.file: planted for planted in PLANTED}.values():
        rows = rows_of(planted.file)
        planted.plant(rows)
        assert wb.lint(write(rows, tmp_path / Path(planted.file).name)).named == (planted.rule,)


def test_every_rule_over_arrays_has_a_planted_fault():
    assert {planted.rule for planted in (*PLANTED, *FAULTS)} == RAW_CHECKS.keys()
    assert RAW_CHECKS.keys() <= all_rules().keys()


def test_rules_without_their_evidence_say_what_is_missing():
    report = of_arrays(FILES / "verl_generations.jsonl")
    for rule in ("R1", "R3", "R4", "R5", "R12"):
        assert report[rule].status == "not checked" and report[rule].missing == (
            "token ids: the file has none",
        )
    assert report["R22"].status == "not checked" and report["R6"].status == "not checked"
    assert report["R7"].status == report["R8"].status == "passed"


def test_text_tables_without_group_ids_are_not_passed_by_r7():
    assert of_arrays(FILES / "trl_completions.parquet")["R7"].missing == ("group ids",)
