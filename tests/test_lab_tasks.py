"""Ten tasks of a researcher in a real JupyterLab: each in at most five clicks, without an index that is typed."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

import workbench as wb
from tests.lab_kit import finished, open_notebook, output_of, run_cell, write_notebook
from workbench.basics.findings import Answer, Finding, LintReport, Place
from workbench.run.recording import create_run
from workbench.values.address import Address

pytestmark = [pytest.mark.full, pytest.mark.debian("chromium", "fonts-dejavu-core")]

SETTINGS = {
    "algorithm.kind": "starpo_s",
    "train.steps": 7,
    "train.tasks_per_step": 4,
    "train.group_size": 4,
    "train.evaluate_every": 7,
    "evaluation.num_tasks": 12,
    "lint.start": False,
    "env.max_turns": 24,
    "env.max_moves": 40,
}
CELLS = ["import workbench as wb\nwb.explore(['first', 'second'])", "wb.explore('linted')"]
MOST_CLICKS = 5
TRAJECTORIES = ".wb-step > .wb-scroll tbody tr"
LEFT, RIGHT, WIDTH = 56, 150, 900  # of the curves, as they are drawn


@dataclass
class Hand:
    """Clicks in one navigator, and counts them."""

    page: object
    box: object
    clicks: int = 0

    def click(self, selector: str, **how) -> None:
        found = self.box.locator(selector).first
        found.scroll_into_view_if_needed()
        found.click(**how)
        self.clicks += 1

    def step(self, number: int, last: int) -> None:
        """A click on the curve, where the step is."""
        width = self.box.locator(".wb-plot").bounding_box()["width"]
        self.click(
            ".wb-plot",
            position={
                "x": (LEFT + number / last * (WIDTH - LEFT - RIGHT)) * width / WIDTH,
                "y": 80,
            },
        )
        self.box.locator(f".wb-step h3:text-is('step {number}')").wait_for()

    def choose(self, selector: str, option: str) -> None:
        self.box.locator(selector).select_option(label=option)
        self.clicks += 1

    def text(self, selector: str) -> str:
        self.box.locator(selector).first.wait_for()
        return self.box.locator(selector).first.inner_text()

    def column(self, number: int) -> list[str]:
        return self.box.locator(f"{TRAJECTORIES} td:nth-child({number})").all_inner_texts()

    @property
    def place(self) -> Address:
        return Address.of(" / ".join(self.box.locator(".wb-path button").all_inner_texts()[1:]))


@pytest.fixture(scope="module")
def runs(lab):
    """Two seeds, and a run in which the lint found a token."""
    for seed, name in ((1, "first"), (2, "second")):
        wb.train_here(wb.load_config("frozenlake", SETTINGS | {"seed": seed}), lab.folder / name)
    first = wb.open_run(lab.folder / "first")
    trajectory = first.groups(1)[2][1]
    place = Place(f"{trajectory.task.id}/{trajectory.attempt}", segment=0, position=97)
    with create_run(lab.folder / "linted", first.config) as run:
        run.write_step(1, first.groups(1))
        run.write_credit(first.credit(1, 0))
        run.write_lint(
            1,
            LintReport(
                (
                    Answer(
                        "R1", "authors", (Finding("a token that nobody sampled is trained", place),)
                    ),
                )
            ),
        )
        run.commit_step(1, {"success": 0.5, "reward_mean": 0.5})
    return lab.folder


@pytest.fixture(scope="module")
def tasks(lab, runs):
    return write_notebook(lab.folder / "tasks.ipynb", CELLS)


def worst_trajectory_of_step_7(hand: Hand, run) -> None:
    hand.step(7, 7)
    hand.click("button[aria-label='sort by reward']")
    hand.click(TRAJECTORIES)
    place = hand.place
    assert run.groups(7)[place.task][place.attempt].reward == min(
        t.reward for group in run.groups(7) for t in group
    )
    assert "reward" in hand.text(".wb-trajectory .wb-quiet")


def why_this_advantage(hand: Hand, run) -> None:
    hand.step(5, 7)
    trained = next(index for index, text in enumerate(hand.column(9)) if text == "yes")
    hand.click(f"{TRAJECTORIES} >> nth={trained}")
    hand.click(".wb-trained >> nth=2")
    hand.box.locator(".wb-loss tr").first.wait_for()
    written = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in hand.box.locator(".wb-loss tr").all()
    }
    table, place = run.credit(5, 0), hand.place
    number = sum(map(len, run.groups(5)[: place.task])) + place.attempt
    stored = table["advantage"][table["trajectory"] == number][place.token]
    before, after = (
        float(written["before whitening"][0]),
        re.findall(r"[-\d.e]+", written["advantage"][1]),
    )
    assert (
        float(written["advantage"][0])
        == stored
        == (before - float(after[0])) / np.sqrt(float(after[1]) + float(after[2]))
    )
    assert written["check"][1].endswith("to the last bit")


def which_tasks_did_training_lose(hand: Hand, run) -> None:
    lost = wb.paired(run).lost
    hand.click(".wb-pairs > summary")
    hand.click(f".wb-pairs button:text-is('{len(lost)} lost')")
    assert hand.box.locator(".wb-pairs tbody td.wb-name").all_inner_texts() == [
        pair.task.id for pair in lost
    ]


def is_anything_trained_that_the_policy_did_not_write(hand: Hand, run) -> None:
    hand.step(4, 7)
    trained = int((run.credit(4, 0)["weight"] != 0).sum())
    assert hand.text(".wb-authors") == f"all {trained} trained tokens were sampled by the policy"


def what_did_the_filter_remove(hand: Hand, run) -> None:
    hand.step(2, 7)
    table, number = run.credit(2, 0), 0
    left = []
    for group in run.groups(2):
        left += [
            t
            for n, t in enumerate(group)
            if not (table["weight"][table["trajectory"] == number + n] != 0).any()
        ]
        number += len(group)
    assert hand.text(".wb-removed").startswith(
        f"the filter removed {len(left)} trajectories with {sum(t.num_sampled for t in left)} sampled tokens"
    )
    assert left and hand.box.locator(".wb-step details tbody tr:has-text('left out')").count() > 0


def last_turn_of_the_longest_trajectory(hand: Hand, run) -> None:
    step = max(
        run.steps(), key=lambda step: max(len(t.turns) for group in run.groups(step) for t in group)
    )
    longest = max((t for group in run.groups(step) for t in group), key=lambda t: len(t.turns))
    assert len(longest.turns) >= 20
    hand.step(step, 7)
    hand.click("button[aria-label='sort by turns']")
    hand.click(TRAJECTORIES)
    hand.click(".wb-turn:last-of-type > summary")
    assert hand.text(".wb-turn:last-of-type pre").strip() == longest.turns[-1].text.strip()


def first_flat_step_and_its_side(hand: Hand, run) -> None:
    first = wb.group_spread(run).first_flat
    hand.choose("select[aria-label='curve']", "reward std of every group")
    assert f"step {first.step} (" in (said := hand.text(".wb-first-flat")) and first.side in said
    hand.click(".wb-first-flat")
    hand.box.locator(f".wb-step h3:text-is('step {first.step}')").wait_for()
    assert hand.place == Address(first.step, first.task)


def from_a_finding_to_its_token(hand: Hand, run) -> None:
    hand.step(1, 1)
    hand.click(".wb-findings button")
    hand.box.locator(".wb-token[aria-selected=true]").wait_for()
    assert hand.place == Address(1, 2, 1, token=97)


def change_gamma_and_see_what_moves(hand: Hand, run) -> None:
    hand.step(3, 7)
    hand.click(".wb-editor > summary")
    gamma = hand.box.locator(".wb-editor input[aria-label='estimator.gamma']")
    gamma.wait_for()
    gamma.fill("0.9")
    gamma.press("Enter")
    hand.box.locator(".wb-code:has-text('gamma')").wait_for()
    assert (
        "settings={'estimator.gamma': 0.9}" in hand.text(".wb-code")
        and hand.box.locator(".wb-editor td.wb-changed").count() > 0
    )
    assert "tokens differ by up to" in hand.text(".wb-status")


def compare_two_seeds(hand: Hand, run) -> None:
    hand.click(".wb-pairs > summary")
    hand.box.locator("select[aria-label='paired with']").wait_for()
    hand.choose("select[aria-label='paired with']", "second")
    hand.box.locator(".wb-difference:has-text('second − first')").wait_for()
    found = wb.paired(run, wb.open_run(run.path.parent / "second"))
    rows = {
        row.locator("td").first.inner_text(): row.locator("td").nth(1).inner_text()
        for row in hand.box.locator(".wb-pairs tbody tr").all()
    }
    assert rows == {pair.task.id: pair.change for pair in found.pairs}
    assert hand.box.locator(".wb-plot .wb-label").filter(has_text="second").count() == 1, (
        "both are drawn"
    )


TASKS = {
    worst_trajectory_of_step_7: 0,
    why_this_advantage: 0,
    which_tasks_did_training_lose: 0,
    is_anything_trained_that_the_policy_did_not_write: 0,
    what_did_the_filter_remove: 0,
    last_turn_of_the_longest_trajectory: 0,
    first_flat_step_and_its_side: 0,
    from_a_finding_to_its_token: 1,
    change_gamma_and_see_what_moves: 0,
    compare_two_seeds: 0,
}


def test_ten_tasks_take_at_most_five_clicks_each(lab, page, tasks, runs, tmp_path):
    open_notebook(lab, page, tasks)
    taken = {}
    for number, (task, cell) in enumerate(TASKS.items()):
        run_cell(page, 0)  # anew: what one task opened is not there for the next
        finished(page, 0)
        if cell:
            run_cell(page, cell)
            finished(page, cell)
        box = output_of(page, cell).locator(".wb-nav").first
        box.locator(".wb-plot").wait_for()
        hand = Hand(page, box)
        try:
            task(hand, wb.open_run(runs / ("linted" if cell else "first")))
        finally:
            page.screenshot(path=tmp_path / f"{number}-{task.__name__}.png")
        taken[task.__name__] = hand.clicks
    assert max(taken.values()) <= MOST_CLICKS, taken
    assert not page.outside, f"asked another machine: {page.outside[:3]}"
