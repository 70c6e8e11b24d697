"""The page of a grid loads itself again while a driver is at it, and no longer."""

from __future__ import annotations

import re
import time

import pytest

from tests.ablation import quick
from tests.ablation.test_drive import HERE
from workbench.ablation import door
from workbench.ablation import page as live
from workbench.ablation.drive import drive
from workbench.ablation.leases import Leases

REFRESH = '<meta http-equiv="refresh" content="5">'


def test_a_page_stands_beside_the_jobs_while_they_are_done_and_stays_when_they_are(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "EVERY_S", 0.1)
    monkeypatch.setattr(live, "SHARE", 1)
    asked, seen = door.ask(quick.plan_at(tmp_path), tmp_path / "out"), []
    (tmp_path / "fail").write_text("0.1")

    def look(line):
        until = time.monotonic() + 10
        while line.startswith("[2/") and "1 failed" not in seen[-1] and time.monotonic() < until:
            time.sleep(0.05)
            seen.append((asked.out / "quick.html").read_text())
        seen.append((asked.out / "quick.html").read_text())

    door.carry_out(asked, HERE, look)
    assert "6 jobs: 6 waiting" in seen[0] and any(
        "1 failed" in text and "ValueError: no" in text for text in seen
    )
    assert all('http-equiv="refresh"' in text for text in seen)
    last = (asked.out / "quick.html").read_text()
    assert "6 jobs: 3 done, 3 failed" in last and "refresh" not in last
    assert not re.search(r"(src|href|url)\s*[=(]", seen[-1] + last), (
        "it would ask for something else"
    )


def test_the_page_goes_on_where_another_driver_is_at_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = door.ask(
        quick.plan_at(tmp_path, quick.PLAN.replace('"Quick"', '"<b>Quick"')), tmp_path / "out"
    )
    made = live.LivePage(
        tmp_path / "out/quick.html", asked.plan.title, lambda: door.Ablation(asked).states()
    )
    with Leases(asked.out / "jobs") as leases:
        leases.take(door.Ablation(asked).states()[0].name)
        made.write(goes_on=False)
        assert REFRESH in made.path.read_text() and "1 running" in made.path.read_text()
    made.write(goes_on=False)
    assert "refresh" not in made.path.read_text() and "<b>" not in made.path.read_text()


@pytest.mark.full
def test_a_browser_sees_the_jobs_go_on_and_asks_nobody_else(tmp_path, monkeypatch, page):
    monkeypatch.setattr(live, "EVERY_S", 1)
    asked = door.ask(quick.plan_at(tmp_path), tmp_path / "out")
    made = live.LivePage(
        tmp_path / "out/quick.html", asked.plan.title, lambda: door.Ablation(asked).states()
    )
    with made:
        page.goto(f"file://{made.path}")
        assert "6 jobs: 6 waiting" in page.inner_text("body")
        drive(asked.plan, asked.seeds, asked.out, tmp_path, HERE, lambda line: None)
        page.wait_for_selector("text=6 jobs: 6 done")
    loads: list[str] = []
    page.wait_for_timeout(2500)  # the last one that loads itself again finds the one that does not
    page.on("load", lambda _: loads.append("again"))
    page.wait_for_timeout(2500)
    assert (
        not loads and not page.outside and not page.trouble and "6 done" in page.inner_text("body")
    )


def test_the_page_of_a_report_stays_where_no_job_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = door.ask(quick.plan_at(tmp_path), tmp_path / "out")
    door.carry_out(asked, HERE, lambda line: None)
    (asked.out / "quick.html").write_text("the report")
    door.carry_out(asked, HERE, lambda line: None)
    assert (asked.out / "quick.html").read_text() == "the report"
