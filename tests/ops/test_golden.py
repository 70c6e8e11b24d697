"""Numbers of an independent implementation, by the check that anyone can run on a file; and that the check notices.

`advantages_and_losses.json` was given to us. `golden_edges.json` holds cases at the edges, as the functions of the same
release (verl 0.9.1 from PyPI, float64) compute them: a group of one, zero-variance groups, rows without a masked token, rewards
outside the mask, nothing paid at all, log-ratios far beyond every bound.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from tests import golden

EDGES = golden.FILE.with_name("golden_edges.json")
GIVEN = json.loads(golden.FILE.read_text())
ENTRIES = list(GIVEN["cases"][0]["expected"])


def written(folder, raw) -> str:
    path = folder / "case.json"
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return str(path)


def one_case(**changes) -> dict:
    return copy.deepcopy({**GIVEN, "cases": GIVEN["cases"][2:], **changes})


@pytest.mark.parametrize("finding", golden.check(GIVEN), ids=lambda finding: finding.entry)
def test_every_entry_of_the_given_file_with_our_own_habits(finding):
    assert finding.passed and finding.cases == 3 and not finding.documented, finding.line()


def test_the_edges_and_what_is_documented_there():
    findings = golden.check(json.loads(EDGES.read_text()))
    assert [finding.entry for finding in findings] == ENTRIES and all(
        finding.passed for finding in findings
    )
    needed = {(found.where, found.habits) for finding in findings for found in finding.documented}
    assert needed == {
        ("case 0 (seed 301)", ("alone",)),
        ("case 1 (seed 302)", ("flat",)),
        ("case 3 (seed 304)", ("divisor",)),
    }
    text = golden.documented_differences(findings)
    assert "a group of one: the reference takes its mean as 0" in text and "grpo 1.9e+00" in text


@pytest.mark.parametrize("entry", ENTRIES)
def test_negative_control_a_number_that_is_off_by_two_millionths_fails(entry, tmp_path, capsys):
    raw = one_case()
    expected = raw["cases"][0]["expected"]
    if isinstance(expected[entry], list):
        expected[entry][4][17] += 2e-6  # masked or not, all is compared
    elif isinstance(expected[entry], dict):
        expected[entry]["actor/ppo_kl"] += 2e-6
    else:
        expected[entry] += 2e-6
    assert golden.main([written(tmp_path, raw)]) == 1
    assert f"17 of 18 entries within 1e-06; not: {entry}" in capsys.readouterr().out


@pytest.mark.full
def test_from_the_shell_one_bad_file_among_good_ones_is_enough(tmp_path):
    raw = one_case()
    raw["cases"][0]["expected"]["rloo"][0][2] = None
    told = subprocess.run(
        [sys.executable, "-m", "tests.golden", golden.FILE, written(tmp_path, raw)],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1 and "18 of 18 entries" in told.stdout
    assert "inf  in 1 cases  FAILED, case 0 (seed 13)" in told.stdout


def test_an_entry_that_nobody_knows_fails(tmp_path, capsys):
    raw = one_case()
    raw["cases"][0]["expected"] = {
        "grpo": raw["cases"][0]["expected"]["grpo"],
        "remax": [[0.0]],
        "gspo_loss[max]": 0.0,
    }
    assert golden.main([written(tmp_path, raw)]) == 1
    out = capsys.readouterr().out
    assert (
        "1 of 3 entries within 1e-06; not: remax, gspo_loss[max]" in out
        and "no such entry is known" in out
    )


def test_settings_are_read_not_assumed(tmp_path, capsys):
    """A wider clip in the words of the file is a wider clip in the check; a setting of nothing we do is said aloud."""
    raw = one_case(
        settings={
            **GIVEN["settings"],
            "ppo": "clip low .4 high .5, advantages=grpo",
            "sampler": "greedy",
        }
    )
    assert golden.main([written(tmp_path, raw)]) == 1
    out = capsys.readouterr().out
    assert (
        "ppo_loss[token-mean]" in out.splitlines()[-1] and "cispo_loss" not in out.splitlines()[-1]
    )
    assert "a setting that is not known here and has no part in it: 'greedy'" in out
    del raw["settings"]
    assert golden.main([written(tmp_path, raw)]) == 0  # none given: those of the known file


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda raw: raw.update(cases=[]), "at least one case"),
        (lambda raw: raw["cases"][0].pop("inputs"), "case 0: expected"),
        (lambda raw: raw["cases"][0].update(expected={}), "nothing was checked"),
        (
            lambda raw: raw["cases"][0]["inputs"].pop("vpred"),
            "case 0 (seed 13): an entry needs the input 'vpred'",
        ),
        (
            lambda raw: raw["cases"][0]["inputs"]["logp"].pop(),
            r"input 'logp': expected a table of shape [12, 18]",
        ),
        (
            lambda raw: raw["cases"][0]["inputs"]["values"][0].pop(),
            "expected rows of numbers, all of one length",
        ),
        (lambda raw: raw["cases"][0]["inputs"]["group"].pop(), "a list of 12 groups"),
        (lambda raw: raw["cases"][0]["inputs"].update(mask=[[0.5]]), "'mask' holds 0 and 1"),
        (lambda raw: raw["cases"][0].pop("gamma"), "'gamma' is a number, got None"),
        (
            lambda raw: raw.update(settings={"ppo": "clip low .2 high .28, soft"}),
            "setting 'ppo' reads like",
        ),
        (lambda raw: raw.update(settings={"gae": "not whitened"}), "setting 'gae' is known as"),
    ],
)
def test_what_cannot_be_read_is_said_and_is_no_pass(change, says, tmp_path, capsys):
    raw = one_case()
    change(raw)
    assert golden.main([written(tmp_path, raw)]) == 2
    assert "cannot be checked: " in (err := capsys.readouterr().err) and says in err


def test_no_file_no_json_no_arguments(tmp_path, capsys):
    assert (
        golden.main([str(tmp_path / "none.json")]) == 2
        and "No such file" in capsys.readouterr().err
    )
    assert (
        golden.main([written(tmp_path, "{")]) == 2
        and "cannot be checked" in capsys.readouterr().err
    )
    assert golden.main([]) == 2 and "python -m tests.golden FILE" in capsys.readouterr().err
