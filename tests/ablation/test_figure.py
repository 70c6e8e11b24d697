"""`workbench figure`: one command from a folder to a figure for a paper."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.extensions.ablation.figure_command import figure_view
from workbench.values.errors import DataError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "views"))

OLD = Path(__file__).resolve().parents[1] / "golden_runs/old"


def test_the_figure_of_a_run_is_as_wide_as_a_column(tmp_path, capsys):
    out = tmp_path / "run.pdf"
    status = main(["figure", str(OLD / "search"), "-o", str(out), "--width", "3.3"])
    assert status == 0 and capsys.readouterr().out.strip() == str(out)
    pdf = out.read_bytes()
    assert pdf.startswith(b"%PDF") and b"/MediaBox [ 0 0 237.6 " in pdf and b"/FontFile2" in pdf


def test_a_grid_without_a_report_says_what_writes_one(tmp_path):
    (tmp_path / "mine.declared.json").write_text("{}")
    with pytest.raises(DataError, match=r"mine\.json is not there: `workbench ablate`"):
        figure_view(tmp_path)


def test_the_figure_of_a_grid_is_its_paired_differences(tmp_path):
    import grid_examples

    facts = grid_examples.table("mine")
    (tmp_path / "mine.declared.json").write_text("{}")
    (tmp_path / "mine.json").write_text(json.dumps(facts))
    view = figure_view(tmp_path)
    assert "within the margin" in view.text and "mine" in view.text
    assert view.save(tmp_path / "grid.svg", width=3.3).read_text().count("<path") > 50
