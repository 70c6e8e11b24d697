"""The bench as a whole: what is claimed holds, and what is claimed falsely does not pass."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from workbench import cli
from workbench.extensions.bias.bench import ERROR, NOT_HERE, bias_bench, measured_row
from workbench.extensions.bias.cell import bias_bench as cell
from workbench.extensions.bias.claims import CLAIMS, Claim
from workbench.extensions.bias.tasks import TASKS
from workbench.extensions.bias.trajectories import templates
from workbench.extensions.bias.view import marker_of, show_bias
from workbench.learn.algorithms import ALGORITHMS, GRPO
from workbench.values.errors import ConfigError
from workbench.values.view import LONGEST_REPR

HONEST = Claim(
    "honest", "unbiased", "", settings={"estimator": {"normalize_std": False}}, correction="G/(G-1)"
)


@pytest.fixture(scope="module")
def report():
    """All claims on all tasks, in groups of 3 or 2 (none larger) and sampled to 10 %; the full count is below."""
    claims = {
        name: [claim for claim in said if not claim.attempts] for name, said in CLAIMS.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.extensions.bias.bench.GROUP_SIZES", (3, 2))
        return cell(claims=claims, error=0.1, traps=False)


@pytest.mark.full
def test_every_claim_of_every_algorithm_holds(report):
    assert report.passed, "\n".join(report.faults)
    assert {row.algorithm for row in report.rows} == set(ALGORITHMS)
    assert {row.task for row in report.rows} == set(TASKS)


@pytest.mark.full
def test_what_must_be_unbiased_is(report):
    """Discounted returns, leave-one-out, centred GRPO times G/(G-1), GAE(1, 1) with any critic: exactly, everywhere."""
    needed = [
        ("reinforce", "turn returns"),
        ("reinforce", "turn returns, gamma 0.9, times gamma^k"),
        ("rloo", "RLOO"),
        ("grpo", "GRPO without std, times G/(G-1)"),
        ("ppo", "GAE(1, 1), perfect critic"),
        ("ppo", "GAE(1, 1), wrong critic"),
        ("turn_ppo", "turn GAE(1, 1), wrong critic"),
        ("bilevel_ppo", "bi-level GAE(1, 1), wrong critic"),
    ]
    for name in needed:
        rows = [row for row in report.rows if (row.algorithm, row.label) == name]
        assert {row.task for row in rows} == set(TASKS), name
        for row in rows:
            assert row.says == "unbiased" and row.exact and row.bias < 1e-9 and row.drawn


@pytest.mark.full
def test_every_claim_holds_when_sampled_to_two_percent_and_both_traps_are_shown():
    report = cell(error=ERROR)
    assert report.passed, "\n".join(report.faults)
    sampled = [row for row in report.rows if row.drawn]
    assert sampled and all(row.error <= ERROR for row in sampled)
    assert all(row.z <= 3 for row in sampled if row.says == "unbiased")


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (replace(HONEST, correction=""), "off by 12.5 %"),  # 1/G of the gradient is missing
        (replace(HONEST, settings={}), "NOT unbiased"),  # divided by the deviation
        (
            Claim(
                "scaled",
                "scaled",
                "",
                settings={"estimator": {"normalize_std": False}},
                correction="G/(G-1)",
                scale="(G-1)/G",
            ),
            "NOT the gradient times 0.875",
        ),
    ],
    ids=["own mean", "deviation", "scale"],
)
def test_negative_control_a_false_claim_is_a_fault(claim, words):
    tasks = {"bandit-0.1": TASKS["bandit-0.1"]}
    report = bias_bench(
        tasks=tasks, claims={"grpo": (claim,)}, algorithms={"grpo": GRPO}, traps=False
    )
    assert not report.passed and words in report.faults[0] and report.rows[0].holds is False


def test_negative_control_a_bias_that_no_task_shows_is_a_fault():
    report = bias_bench(
        tasks={"bandit-0.1": TASKS["bandit-0.1"]},
        claims={"grpo": (replace(HONEST, says="biased"),)},
        algorithms={"grpo": GRPO},
        traps=False,
    )
    assert report.rows[0].verdict == NOT_HERE and "no task here shows it" in report.faults[0]


def test_negative_control_a_sampled_bias_is_seen_by_its_standard_errors(monkeypatch):
    """Where nothing can be enumerated the standard errors decide, to 2 % of the gradient: 12.5 % is many of them."""
    monkeypatch.setattr("workbench.extensions.bias.bench.MOST_UNITS", 0)
    source = templates(TASKS["stop_continue"])
    row = measured_row(source, "grpo", GRPO, HONEST)
    assert row.holds and not row.exact and row.error <= ERROR and row.z <= 3
    row = measured_row(source, "grpo", GRPO, replace(HONEST, correction=""))
    assert not row.holds and "standard errors" in row.verdict


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_an_algorithm_without_a_claim_is_measured_and_a_fault(name):
    report = cell({"newcomer": ALGORITHMS[name]}, tasks="bandit-0.1", traps=False)
    (row,) = report.rows
    assert (row.algorithm, row.says, row.exact) == ("newcomer", "nothing", True) and row.scale < 0
    assert not report.passed and "newcomer does not say" in report.faults[0]
    claims = {
        "newcomer": (
            Claim("whitened", "biased", "", "batch", critic="wrong" if name == "ppo" else ""),
        )
    }
    assert cell(
        {"newcomer": ALGORITHMS[name]}, tasks="bandit-0.1", claims=claims, traps=False
    ).passed


def test_claims_are_about_the_algorithms_of_the_table():
    with pytest.raises(ConfigError, match="none named gone"):
        bias_bench(tasks={}, claims={"gone": ()}, algorithms={}, traps=False)
    assert CLAIMS.keys() == ALGORITHMS.keys() and all(CLAIMS.values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"says": "fine"}, "says is one of"),
        ({"critic": "good"}, "critic is one of"),
        ({"scale": "1/L"}, "names its scale"),
        ({"says": "scaled"}, "names its scale"),
        ({"whole_loss": True}, "looks_at is 'batch'"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(HONEST, **changes)


def test_the_cell_takes_names():
    report = cell("grpo", tasks=["bandit-0.1"], error=0.5, traps=False)
    assert {(row.algorithm, row.task) for row in report.rows} == {("grpo", "bandit-0.1")}
    with pytest.raises(ConfigError, match="no algorithm 'grop'"):
        cell("grop")
    with pytest.raises(ConfigError, match="no task 'chess'"):
        cell(tasks="chess")


@pytest.mark.full
def test_the_report_shows_itself(report):
    view = show_bias(report)
    assert view.text.startswith("✓ bias bench") and "standard error" in view.text
    for row in report.rows:
        assert row.label in view.text and row.task in view.html
    assert view.png.startswith(b"\x89PNG") and len(view.png) < 200_000
    few = replace(report, rows=report.rows[:3])
    assert set(few._repr_mimebundle_()) == {"text/plain", "text/html", "image/png"}
    broken = replace(few, faults=("<b>something</b> is off",))
    assert show_bias(broken).text.startswith("✗") and "<b>something" not in show_bias(broken).html


def test_the_command_prints_writes_and_exits_with_the_answer(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.extensions.bias.bench.CURVE_SIZES", (2,))
    monkeypatch.setattr("workbench.extensions.bias.traps.RISKY_GRID", (0.3,))
    monkeypatch.setattr("workbench.extensions.bias.traps.FILTERED", (4, 2))
    small = bias_bench(
        tasks={"bandit-0.1": TASKS["bandit-0.1"]},
        claims={"grpo": (HONEST,)},
        algorithms={"grpo": GRPO},
    )
    monkeypatch.setattr("workbench.extensions.bias.cell.bias_bench", lambda names: small)
    assert cli.main(["bias", "--json", str(tmp_path / "new" / "bias.json")]) == 0
    assert "shown: normalising per turn index" in capsys.readouterr().out
    written = json.loads((tmp_path / "new" / "bias.json").read_text())
    assert written["passed"] is True and written["rows"][0]["estimate"] == pytest.approx(
        [0.0315], rel=1e-12
    )
    assert len(written["curves"]) == 2 and len(written["traps"]) == 3
    bad = replace(small, faults=("a trap is gone",))
    monkeypatch.setattr("workbench.extensions.bias.cell.bias_bench", lambda names: bad)
    assert cli.main(["bias"]) == 1 and "! a trap is gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"error": 0}, "above zero, such as 0.02; got 0"),
        ({"error": -0.1}, "got -0.1"),
        ({"algorithms": []}, "an empty list of algorithms: leave it out for all"),
        ({"tasks": []}, "an empty list of tasks"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(arguments, words):
    with pytest.raises(ConfigError, match=words):
        cell(**arguments)


@pytest.mark.full
def test_the_picture_colours_by_what_was_found_and_the_report_prints_as_its_text(report):
    """An estimator that is documented as biased, and is not on this task, has no square of a biased one."""
    found = [row for row in report.rows if row.verdict == NOT_HERE]
    assert found and {marker_of(row) for row in found} == {"right"}
    others = {
        row.says for row in report.rows if row.verdict != NOT_HERE and marker_of(row) != row.says
    }
    assert not others and str(report) == report.view.text
    assert (
        report.view.text.startswith(repr(report).removesuffix("…"))
        and len(repr(report)) <= LONGEST_REPR
    )


def test_an_algorithm_of_ones_own_that_claims_nothing_is_not_called_right(report):
    """It has no claim that could fail, so the first line says where it is far from the true gradient."""
    row = replace(report.rows[0], label="my_algo:MINE", says="nothing")
    near = replace(row, bias=0.6, cosine=0.9)
    elsewhere = replace(row, task="three_turns", bias=2.0, cosine=0.04)
    silent = replace(row, task="stop_continue", bias=1.0, cosine=None)
    passed = replace(report, rows=(near, elsewhere, silent), faults=(), traps=(), curves=())
    assert passed.view.text.splitlines()[0] == (
        "! bias bench: no claim fails, but my_algo:MINE, which claims nothing, is far from the true gradient at "
        "three_turns (direction +0.04), stop_continue (no gradient)"
    )
    shipped = replace(elsewhere, label="grpo")
    assert replace(passed, rows=(near, shipped)).view.text.startswith("✓ bias bench")
