"""Many runs: a table to sort, filter and group, a search over all their steps, a comparison of any number."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.payloads import PAYLOADS
from tests.store_values import ordinary_step
from workbench.extensions.many_runs.compare import RunDiffs
from workbench.extensions.many_runs.facts import differing_settings
from workbench.extensions.many_runs.page import script, visible_values
from workbench.look.records import flattened
from workbench.run.recording import create_run
from workbench.values import StopReason
from workbench.values.address import Address
from workbench.values.errors import DataError, StoreError

OLD = Path(__file__).resolve().parent / "golden_runs" / "old"
NAMES = ("search", "small-frozenlake", "small-ppo", "window")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    for name in NAMES:
        shutil.copytree(OLD / name, folder / name)
    shutil.copytree(OLD / "window", folder / "damaged")
    metrics = folder / "damaged" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"step":1', b'"step":7', 1))
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    return wb.runs(folder)


# ------------------------------------------------------------------------------------------------ the table


def test_the_frame_has_a_row_a_run_and_the_settings_that_differ(runs):
    frame = runs.frame().set_index("name")
    assert set(frame.index) == {*NAMES, "damaged"}
    configs = {run.name: run.config for run in runs if run.name != "damaged"}
    assert {name: frame.loc[name, "train.group_size"] for name in configs} == {
        name: config["train"]["group_size"] for name, config in configs.items()
    }
    # Negative control: what is the same in all of them is no column.
    assert "collect.top_p" not in frame.columns and "train.group_size" in frame.columns
    run = wb.open_run(OLD / "small-frozenlake")
    [report] = [each for each in run.evaluations().values() if each["step"] == 2]
    rows = {(row["policy"], row["mode"]): row["success"] for row in report["rows"]}
    here = frame.loc["small-frozenlake"]
    assert here["success"] == rows["trained", "sampled"]
    assert here["random_success"] == rows["random", "sampled"]
    assert here["solver_success"] == rows["solver", "greedy"]
    assert here["train_last"] == run.metrics_line(3)["success"] and here["measured"] == 2
    assert frame.loc["damaged", "state"] == "damaged" and np.isnan(
        frame.loc["small-ppo", "success"]
    )


def test_a_part_without_settings_is_no_setting(runs):
    """An algorithm that has none of its own would show a column of `{}` beside the settings of another."""
    assert {} in flattened(wb.open_run(OLD / "window").config).values()
    assert not [facts for facts in runs.facts() if {} in facts.settings.values()]


def test_runs_are_sorted_filtered_and_put_together(runs):
    names = [run.name for run in runs.sort("train_last")]
    known = runs.frame().set_index("name")["train_last"].dropna()
    assert names[: len(known)] == list(known.sort_values(ascending=False, kind="stable").index)
    assert names[-1] == "damaged", "what has no value comes last"
    up = runs.sort("train_last", descending=False)
    assert up[0].name == known.idxmin() and up[-1].name == "damaged"
    assert {run.name for run in runs.filter("train.group_size=8")} == {"search", "window"}
    assert [run.name for run in runs.filter("train.group_size=8 world_qa")] == ["search"]
    assert [run.name for run in runs.filter("PPO")] == ["small-ppo"] and not runs.filter("no such")
    with pytest.raises(DataError, match="no column 'sucess'.*success"):
        runs.sort("sucess")
    frame = runs.group_by("train.group_size").frame().set_index("train.group_size")
    assert frame["runs"].to_dict() == {"4": 2, "8": 2}
    untrained = [0.125, 0.5]  # search, window
    assert frame.loc["8", "untrained_mean"] == pytest.approx(np.mean(untrained))
    assert frame.loc["8", "untrained_std"] == pytest.approx(np.std(untrained, ddof=1)), "n - 1"
    assert "std (n - 1)" in wb.show(runs.group_by("train.group_size", "env.kind")).text
    for wrong, words in (
        (("train.groupsize",), "did you mean|nearest|train.group_size"),
        ((), "takes a setting"),
    ):
        with pytest.raises(DataError, match=words):
            runs.group_by(*wrong)


def test_the_view_says_state_settings_course_and_baselines(runs):
    text = wb.show(runs).text
    [line] = [line for line in text.splitlines() if " small-frozenlake " in line]
    assert "3 of 4" in line and "50.0 %" in line and "100.0 %" in line and "█" in line
    head = text.splitlines()[1]
    assert all(word in head for word in ("run", "state", "step", "training", "random", "solver"))
    first = differing_settings(runs.facts())[0]
    assert first in head and "settings that differ shown" in text
    assert "damaged" in text and "metrics.jsonl" in text


def test_what_a_run_says_of_itself_does_not_act(tmp_path):
    text = "".join(PAYLOADS.values())
    config = {"policy": {"name": text}, "train": {"steps": 1}}
    for name, seed in (("a", 1), ("b", 2)):
        with create_run(tmp_path / name, config | {"seed": seed, text[:50]: seed}) as run:
            run.write_step(1, ordinary_step(1))
            run.commit_step(1, {"reward_mean": 0.5, "success": 0.5})
    page = wb.runs(tmp_path).save(tmp_path / "page.html").read_text()
    assert page.count("</script") == 1 and "<img" not in page and "\x1b" not in page
    assert not re.search(
        r"innerHTML|outerHTML|document\.write|eval\(|https?://(?!www\.w3\.org/2000/svg)", script()
    )
    assert visible_values({"\x1b": ["\u202e", 1, None]}) == {"␛": ["⟨U+202E⟩", 1, None]}


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_the_page_sorts_filters_groups_and_draws_sparklines(runs, page, tmp_path):
    page.goto(runs.save(tmp_path / "runs.html").as_uri())
    page.wait_for_selector(".wb-runs tbody tr")
    rows = ".wb-runs tbody tr"

    def names():
        return [row.get_attribute("data-run") for row in page.locator(rows).all()]

    assert names() == [run.name for run in runs]
    page.click("button[aria-label='sort by training']")
    assert names() == [run.name for run in runs.sort("train_last")]
    page.click("button[aria-label='sort by training']")
    assert (
        names()[-1] == "damaged" and names()[0] == runs.sort("train_last", descending=False)[0].name
    )
    assert page.locator("tr[data-run=small-frozenlake] svg path").count() == 1
    assert page.locator("tr[data-run=small-frozenlake] svg line").count() == 3, "its baselines"
    spark = page.locator("tr[data-run=small-frozenlake] svg").get_attribute("aria-label")
    assert "random 0.500" in spark and "solver 1" in spark
    page.fill(".wb-runs input[type=search]", "train.group_size=8")
    assert set(names()) == {"search", "window"}
    assert page.inner_text(".wb-count") == "2 of 5 runs"
    page.fill(".wb-runs input[type=search]", "")
    page.select_option(".wb-runs select", "train.group_size")
    cells = [row.locator("td").all_inner_texts() for row in page.locator(rows).all()]
    eight = next(row for row in cells if row[0] == "8")
    assert eight[1] == "2" and float(eight[6]) == pytest.approx(0.3125, abs=1e-3)
    page.screenshot(path=tmp_path / "runs.png")
    assert not page.trouble + page.outside, page.trouble + page.outside


def test_in_a_notebook_it_is_a_widget_above_its_picture(runs, shell, monkeypatch):
    monkeypatch.setattr("workbench.extensions.many_runs.table.has_widgets", lambda: True)
    seen = []
    monkeypatch.setattr(
        shell.display_pub, "publish", lambda data, *args, **kwargs: seen.append(data)
    )
    runs._ipython_display_()
    assert [any("widget" in key for key in data) for data in seen] == [True, False]
    assert seen[-1]["text/plain"] == wb.show(runs).text and "<script" not in seen[-1]["text/html"]


# ------------------------------------------------------------------------------------------------ the search


def all_of(run):
    for step in run.steps():
        for task, group in enumerate(run.groups(step)):
            for attempt, trajectory in enumerate(group):
                yield Address(step, task, attempt), trajectory


def test_a_search_finds_what_a_plain_walk_through_all_steps_finds(folder):
    run = wb.open_run(folder / "search")
    word = next(iter(all_of(run)))[1].turns[0].text[-30:-12]
    plain = [
        str(at)
        for at, trajectory in all_of(run)
        if any(word.lower() in said.lower() for _, said in trajectory.messages())
    ]
    matches = wb.search(run, word.upper())
    assert [row["at"] for row in matches.rows()] == plain and plain
    frame = matches.frame()
    assert list(frame["at"]) == plain and list(frame["step"]) == [
        Address.of(at).step for at in plain
    ]
    assert all(
        word.lower() in excerpt.replace("⏎", "\n").lower() or "\n" in word
        for excerpt in frame["excerpt"]
    )
    assert matches.explore(0).at == plain[0]
    assert not len(wb.search(run, "no such words")) and list(
        wb.search(run, "no such words").frame().columns
    )


def test_a_search_goes_by_stop_reason_over_a_whole_folder(folder):
    readable = [folder / name for name in NAMES]
    matches = wb.search(readable, stop="max_turns")
    plain = []
    for path in readable:
        run = wb.open_run(path)
        for at, trajectory in all_of(run):
            if trajectory.stop_reason is StopReason.MAX_TURNS:
                plain.append((run.name, str(at)))
    assert [(match.run.name, str(match.at)) for match in matches.matches] == plain
    assert len({name for name, _ in plain}) > 1
    few = wb.search(readable, stop="max_turns", most=2)
    assert (len(few), few.hidden) == (2, len(plain) - 2) and "hidden" in few.view().text
    shutil.rmtree(folder.parent / "parent", ignore_errors=True)
    for path in readable:
        shutil.copytree(path, folder.parent / "parent" / path.name)
    whole = wb.search(folder.parent / "parent", stop="max_turns")
    assert {(match.run.name, str(match.at)) for match in whole.matches} == set(plain)


def test_a_search_finds_the_findings_of_the_lint(folder, monkeypatch):
    from workbench.basics.findings import Answer, Finding, LintReport, Place

    run = wb.open_run(folder / "small-frozenlake")
    trajectory = run.groups(2)[1][3]
    place = Place(f"{trajectory.task.id}/{trajectory.attempt}")
    report = LintReport((Answer("R1", "authors", (Finding("a token of nobody", place),)),))
    monkeypatch.setattr(
        type(run), "lint", lambda self, step: report if step == 2 else LintReport(())
    )
    for words in ("r1", "of nobody"):
        [match] = wb.search(run, finding=words).matches
        assert str(match.at) == "step 2 / task 1 / attempt 3" and match.findings == (
            "R1 a token of nobody",
        )
    assert not len(wb.search(run, finding="R2")) and not len(
        wb.search(run, "no such", finding="R1")
    )


def test_a_search_for_nothing_is_refused(folder):
    with pytest.raises(DataError, match="got none of them"):
        wb.search(folder)
    with pytest.raises(DataError, match="no stop reason 'max_turn'.*max_turns"):
        wb.search(folder, stop="max_turn")
    with pytest.raises(DataError, match="takes where as Run .*got 3"):
        wb.search(3, "x")
    with pytest.raises(StoreError):
        wb.search(folder / "nowhere", "x")
    with pytest.raises(DataError, match="no match 0"):
        wb.search(folder / "search", "no such words").explore()


# ------------------------------------------------------------------------------------------------ any number compared


def test_any_number_of_runs_is_compared_with_the_first(folder, tmp_path):
    paths = [folder / name for name in ("small-frozenlake", "small-ppo", "window")]
    difference = wb.compare_runs(*paths)
    assert isinstance(difference, RunDiffs) and not difference.equal
    for path, diff in zip(paths[1:], difference.diffs):
        alone = wb.compare_runs(paths[0], path)
        assert (diff.settings, diff.differences) == (alone.settings, alone.differences)
    settings = difference.settings()
    assert settings["train.group_size"] == [4, 4, 8] and settings["algorithm.kind"] == [
        "grpo",
        "ppo",
        "grpo",
    ]
    text = wb.show(difference).text
    assert text.startswith("different: 2 of 2 runs other than small-frozenlake")
    assert "100.0 %" in text and "random" in text, "no success without its baselines"
    names = {trace["name"] for trace in difference.view().figure.to_dict()["data"]}
    assert {path.name for path in paths} <= names
    assert list(difference.frame()["run"]) == ["small-ppo", "window"]
    # Negative control: copies are equal.
    for name in ("a", "b"):
        shutil.copytree(paths[0], tmp_path / name)
    same = wb.compare_runs(paths[0], tmp_path / "a", tmp_path / "b", exact=True)
    assert same.equal and wb.show(same).text.startswith("equal: 0 of 2 runs")


# ------------------------------------------------------------------------------------------------ copies


def test_a_trajectory_is_text_and_json(folder):
    trajectory = wb.open_run(folder / "search").groups(1)[2][3]
    facts = json.loads(trajectory.json)
    assert (
        facts["reward"] == trajectory.reward
        and facts["stop_reason"] == trajectory.stop_reason.value
    )
    assert [turn["text"] for turn in facts["turns"]] == [turn.text for turn in trajectory.turns]
    assert [message["text"] for message in facts["prompt"]] == [
        message.text for message in trajectory.first_observation.messages
    ]
    for turn in trajectory.turns:
        assert turn.text in trajectory.text
        assert all(message.text in trajectory.text for message in turn.reply)
