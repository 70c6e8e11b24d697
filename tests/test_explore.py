"""From the curve to the token: addresses, what the navigator is told, and the page that it is saved as, in a real page."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from tests.golden_runs.make import read_record
from tests.golden_runs.record import this_machine
from tests.payloads import PAYLOADS
from tests.store_values import ordinary_step
from workbench import cli
from workbench.basics.findings import Answer, Finding, LintReport, Place
from workbench.look import words
from workbench.look.cells.explore import script, style
from workbench.look.cells.explored import LANES, Answers
from workbench.look.cells.step_record import addressed
from workbench.look.grid import find_grid, squares
from workbench.look.tokens import credit_of
from workbench.run.recording import create_run
from workbench.values import Group, Message, Source, StopReason
from workbench.values.address import Address
from workbench.values.errors import DataError, StoreError

OLD = Path(__file__).resolve().parent / "golden_runs" / "old"
HOSTILE = "</script><img src=x onerror=window.struck=1><b onclick=window.struck=1>\x1b[1m\u202e"
numbers = st.none() | st.integers(0, 10**6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explored")
    for name in ("small-frozenlake", "small-ppo", "window"):
        shutil.copytree(OLD / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def answers(runs):
    return Answers([wb.open_run(runs / "small-ppo"), wb.open_run(runs / "window")])


@pytest.fixture(scope="module", params=["one", pytest.param("all", marks=pytest.mark.full)])
def hostile(request, tmp_path_factory):
    """A run whose every text is an attack: one, or all that the static views are tried with, one after the other."""
    text = HOSTILE if request.param == "one" else HOSTILE + "".join(PAYLOADS.values())

    def struck(group: Group) -> Group:
        def of(trajectory):
            turns = tuple(
                replace(
                    turn,
                    text=text,
                    reply=(Message("user", text),),
                    reward_parts={text: turn.reward or 0.0},
                )
                for turn in trajectory.turns
            )
            return replace(
                trajectory,
                turns=turns,
                task=replace(trajectory.task, id=text),
                first_observation=replace(
                    trajectory.first_observation, messages=(Message("user", text),)
                ),
            )

        return Group(tuple(of(trajectory) for trajectory in group))

    path = tmp_path_factory.mktemp("hostile") / "run"
    with create_run(path, {"policy": {"name": "none"}, "train": {"steps": 1}}) as run:
        run.write_step(1, [struck(group) for group in ordinary_step(1)[:1]])
        run.commit_step(1, {"reward_mean": 0.5, "success": 0.5})
    return path


# ------------------------------------------------------------------------------------------------ addresses


@given(step=numbers, task=numbers, attempt=numbers, turn=numbers, token=numbers)
def test_an_address_is_read_as_it_is_written(step, task, attempt, turn, token):
    try:
        address = Address(step, task, attempt, turn, token)
    except DataError:
        assert (
            task is not None
            and step is None
            or attempt is not None
            and task is None
            or (turn is not None or token is not None)
            and attempt is None
        )
    else:
        assert (
            Address.of(str(address)) == address == Address.of(address)
            and Address.of(f" {address} / ") == address
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step", "'step' is not a valid part of an address"),
        (
            "step 3 task 2",
            "'step 3 task 2' is not a valid part of an address; expected 'step 3 / task 2",
        ),
        ("step 3 / step 4", "'step 4' is not a valid part of an address"),
        ("task 2", "task 2 of which step"),
        ("step 3 / token 1", "token 1 of which attempt"),
        ("step -1", "'step -1' is not a valid part of an address"),
        ("update 3", "'update 3' is not a valid part of an address"),
        ("step 3 / task x", "'task x' is not a valid part of an address"),
    ],
)
def test_what_is_no_address_is_refused(text, said):
    with pytest.raises(DataError, match=re.escape(said)):
        Address.of(text)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("step 1 / task 4", "there is no task 4; they are counted from 0 to 3"),
        ("step 1 / task 0 / attempt 4", "there is no attempt 4"),
        ("step 1 / task 0 / attempt 0 / turn 99", "there is no turn 99"),
        ("step 1 / task 0 / attempt 0 / token 9999", "there is no token 9999"),
        ("step 9", "no committed step 9"),
    ],
)
def test_a_place_that_the_run_does_not_have_is_refused_everywhere(runs, at, said, capsys):
    for look in (
        lambda: wb.explore(runs / "small-ppo", at=at),
        lambda: wb.show(runs / "small-ppo", at=at),
    ):
        with pytest.raises((DataError, StoreError), match=said):
            look()
    assert (
        cli.main(["show", str(runs / "small-ppo"), "--at", at]) == 2
        and said in capsys.readouterr().err
    )


def test_the_terminal_and_the_notebook_show_the_same_place(runs, capsys):
    path = runs / "small-ppo"
    for at in (
        "",
        "step 1",
        "step 1 / task 2",
        "step 1 / task 2 / attempt 1",
        "step 1 / task 2 / attempt 1 / turn 0",
        "step 1 / task 2 / attempt 1 / token 90",
    ):
        assert cli.main(["show", str(path), "--at", at]) == 0
        said = capsys.readouterr().out.rstrip("\n")
        assert (
            said
            == wb.show(path, at=at).text.rstrip("\n")
            == wb.explore(path, at=at).text.rstrip("\n")
            and len(said) > 20
        )
    with pytest.raises(DataError, match="leave step out"):
        wb.show(path, step=1, at="step 1")
    assert (
        cli.main(["show", str(path), "1", "--at", "step 1"]) == 2
        and "leave 1 out" in capsys.readouterr().err
    )


# ------------------------------------------------------------------------------------------------ what it is told


def test_a_step_says_of_every_trajectory_what_is_stored(answers):
    for number, run in enumerate(answers.runs):
        for step in run.steps():
            groups, said = (
                run.groups(step),
                answers.of({"ask": "step", "run": number, "step": step}).content,
            )
            assert [row["task"] for row in said["groups"]] == list(range(len(groups)))
            trajectories = [trajectory for group in groups for trajectory in group]
            assert [
                (row["reward"], row["success"], row["turns"], row["stop"], row["tokens"])
                for row in said["attempts"]
            ] == [
                (t.reward, t.success, len(t.turns), t.stop_reason.value, t.num_sampled)
                for t in trajectories
            ]
            assert [row["mean"] for row in said["groups"]] == [
                float(np.mean([t.reward for t in group])) for group in groups
            ]
            json.dumps(said, allow_nan=False)


def test_every_token_of_every_trajectory_has_its_author_and_its_stored_numbers(answers):
    for number, run in enumerate(answers.runs):
        tables, index = [run.credit(1, update) for update in run.updates(1)], 0
        for task, group in enumerate(run.groups(1)):
            for attempt, trajectory in enumerate(group):
                reply = answers.of(
                    {"ask": "attempt", "run": number, "step": 1, "task": task, "attempt": attempt}
                )
                each = [credit_of(table, index) for table in tables]
                rows, arrays = (
                    next((rows for rows in each if rows["used"].any()), each[0]),
                    reply.arrays,
                )
                assert (
                    reply.content["updates"] == len(each)
                    and each[reply.content["update"]] is not None
                )
                index += 1
                assert (
                    {len(values) for values in arrays.values()}
                    == {len(reply.content["texts"])}
                    == {sum(map(len, trajectory.segments))}
                )
                assert (arrays["author"] == rows["source"]).all() and (
                    arrays["turn"] == rows["turn"]
                ).all()
                assert ((arrays["trained"] > 0) == (rows["weight"] != 0)).all() and not (
                    arrays["trained"] == 3
                ).any()
                assert (arrays["author"][arrays["trained"] > 0] == Source.POLICY).all()
                weighs = rows["weight"] != 0
                assert "advantage" not in arrays or np.array_equal(
                    arrays["advantage"][weighs], rows["advantage"][weighs]
                )
                assert np.array_equal(
                    arrays["logprob"], rows["rollout_logp"].astype(float), equal_nan=True
                )
                assert set(reply.content["lanes"]) == set(arrays) & set(LANES)


def test_a_trajectory_that_ended_before_its_first_prompt_has_no_tokens(tmp_path, monkeypatch):
    first, *others = ordinary_step(1)[0]
    broken = replace(
        first,
        turns=(),
        segments=(),
        outcome=None,
        success=None,
        stop_reason=StopReason.ENV_ERROR,
        error="it broke",
    )
    with create_run(tmp_path / "run", {"policy": {"name": "none"}, "train": {"steps": 1}}) as run:
        run.write_step(1, [Group((broken, *others))])
        run.commit_step(1, {"reward_mean": 0.5})
    told = Answers([wb.open_run(tmp_path / "run")]).of(
        {"ask": "attempt", "run": 0, "step": 1, "task": 0, "attempt": 0}
    )
    assert (told.content["texts"], told.arrays, told.content["error"]) == (
        [],
        {},
        "it broke",
    ) and told.content["ids"]


def test_a_token_that_is_trained_though_nobody_sampled_it_is_marked(answers, monkeypatch):
    """Negative control for the mark: give a token of the prompt a weight."""
    facts = answers.step(0, 1)
    table = facts.table(0)
    weight = table["weight"].copy()
    weight[0] = 1.0
    changed = type(table)(1, 0, {**table.columns, "weight": weight})
    monkeypatch.setattr(
        answers,
        "_step",
        lambda run, step: replace(facts, tables=[lambda: changed] * len(facts.tables), _read={}),
    )
    arrays = answers.of({"ask": "attempt", "run": 0, "step": 1, "task": 0, "attempt": 0}).arrays
    assert arrays["trained"][0] == 3 and set(arrays["trained"][1:]) <= {0, 1}


def test_a_finding_of_the_lint_leads_to_its_token(runs, monkeypatch):
    """Tokens are counted over the segments of a rewritten history, end to end."""
    run = wb.open_run(runs / "window")
    trajectory = run.groups(1)[1][2]
    assert len(trajectory.segments) > 1
    place = Place(f"{trajectory.task.id}/{trajectory.attempt}", segment=1, position=3)
    report = LintReport(
        (
            Answer(
                "R1",
                "authors",
                (Finding("a token of nobody", place), Finding("of all of them", Place(step=1))),
            ),
        )
    )
    monkeypatch.setattr(type(run), "lint", lambda self, step: report)
    told = Answers([run]).of({"ask": "step", "run": 0, "step": 1}).content
    assert [finding["at"] for finding in told["findings"]] == [
        f"step 1 / task 1 / attempt 2 / token {len(trajectory.segments[0]) + 3}",
        "",
    ]
    assert [
        row["findings"] for row in told["attempts"] if (row["task"], row["attempt"]) == (1, 2)
    ] == [1]
    assert sum(row["findings"] for row in told["attempts"]) == 1


def test_the_lint_says_of_a_run_where_to_look(runs, capsys):
    """The address that `workbench lint` prints is one that `workbench show --at` takes, and holds what the finding names."""
    run = wb.open_run(runs / "window")
    table = run.credit(1, 0)
    weight = table["weight"].copy()
    row = int(np.flatnonzero((table["trajectory"] == 9) & ~table["eligible"])[-1])
    weight[row] = 1.0
    found = addressed(
        LintReport(
            (
                Answer(
                    "R1",
                    "authors",
                    (
                        Finding(
                            "trained",
                            Place(
                                "/".join((run.groups(1)[1].task.id, "1")),
                                segment=int(
                                    table["segment"][row]
                                    - table["segment"][table["trajectory"] == 9].min()
                                ),
                                position=int(table["position"][row]),
                                step=1,
                            ),
                        ),
                    ),
                ),
            )
        ),
        1,
        run.groups(1),
    )
    at = f"step 1 / task 1 / attempt 1 / token {row - int((table['trajectory'] == 9).argmax())}"
    assert f"error: {at}, trajectory" in found.text and "step 1," not in found.text
    assert wb.show(run, at=at).text.startswith(f"token {at.rpartition(' ')[2]} of ")
    planted = wb.lint(runs / "window", step=1)
    assert all(
        finding.place.address is None or Address.of(finding.place.address).step == 1
        for answer in planted.report
        for finding in answer.findings
    )


def test_a_run_that_trains_is_followed(tmp_path):
    with create_run(tmp_path / "run", {"policy": {"name": "none"}, "train": {"steps": 3}}) as run:
        told = Answers([wb.open_run(tmp_path / "run")])
        for step in (1, 2):
            assert told.of({"ask": "runs"}).content["runs"][0]["steps"] == list(range(1, step))
            assert (
                "no committed step"
                in told.of({"ask": "step", "run": 0, "step": step}).content["error"]
            )
            run.write_step(step, ordinary_step(step))
            run.commit_step(step, {"reward_mean": 0.5})
            assert told.of({"ask": "step", "run": 0, "step": step}).content["neighbours"] == [
                step - 1 or None,
                None,
            ]
        assert told.of({"ask": "step", "run": 0, "step": 1}).content["neighbours"] == [None, 2]


def test_trajectories_are_found_by_what_is_said_in_them(answers):
    whole = answers.runs[0].groups(1)
    word = whole[2][1].turns[0].text[7:15]
    found = answers.of({"ask": "search", "run": 0, "step": 1, "text": word.upper()}).content[
        "found"
    ]
    expected = [
        [task, number]
        for task, group in enumerate(whole)
        for number, trajectory in enumerate(group)
        if any(
            word in text
            for turn in trajectory.turns
            for text in (turn.text, *(m.text for m in turn.reply))
        )
        or any(word in m.text for m in trajectory.first_observation.messages)
    ]
    assert [2, 1] in found and found == expected
    assert (
        answers.of({"ask": "search", "run": 0, "step": 1, "text": "no such words"}).content["found"]
        == []
    )


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"ask": "steps"},
        {"ask": "step"},
        {"ask": "step", "run": 7, "step": 1},
        {"ask": "step", "run": 0, "step": "x"},
        {"ask": "step", "run": 0, "step": [1]},
        {"ask": "attempt", "run": 0, "step": 1, "task": 0, "attempt": 77},
        {"ask": "runs", "a": 1},
    ],
)
def test_a_question_without_an_answer_is_answered_with_why(answers, question):
    said = answers.of(question).content
    assert set(said) == {"error"} and len(said["error"]) > 10


def test_the_page_reads_no_text_as_anything_but_text():
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?://(?!www\.w3\.org/2000/svg)",
        script(),
    )


# ------------------------------------------------------------------------------------------------ the saved page


def test_no_foreign_text_ends_the_script_of_a_page(hostile, tmp_path):
    page = (
        wb.explore(hostile, at="step 1 / task 0 / attempt 0")
        .save(tmp_path / "page.html")
        .read_text()
    )
    assert page.count("</script") == 1 and page.endswith("</script></html>\n")
    packed = re.search(r'await unpacked\("([^"]*)"\)', page)[1]
    held = gzip.decompress(base64.b64decode(packed)).decode()
    assert "onerror=window.struck" in held and "onerror" not in page
    assert "<img" not in page and not set("\u2028\u2029\u202e\x1b") & set(page)


def opened(page, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector(".wb-plot")


TRAJECTORIES = ".wb-step > .wb-scroll tbody tr"


@pytest.mark.debian("chromium", "fonts-dejavu-core")
@pytest.mark.parametrize("place", ["", "step 2", "step 2 / task 0 / attempt 1"])
def test_the_first_view_needs_no_free_kernel(runs, page, tmp_path, place):
    """As while "Run All" goes on: questions are sent and nobody answers. Without what came with the widget it stays empty."""
    pytest.importorskip("anywidget")
    held = dict(wb.explore(runs / "small-ppo", at=place).widget().first)
    module = (
        script().replace("export default { render };", "").replace("export function", "function")
    )
    path = tmp_path / "busy.html"

    def show(first):
        state = json.dumps({"at": place, "run": 0, "every_s": 0, "first": first})
        state = state.replace("<", "\\u003c")
        path.write_text(
            f'<!doctype html><meta charset="utf-8"><style>{style()}</style><div id="nav"></div>'
            f'<script type="module">{module}; const state = {state}; window.asked = [];'
            "const model = {get: (name) => state[name], set() {}, on() {}, off() {}, save_changes() {},"
            "send: (message) => asked.push(message.question)};"
            "render({model, el: document.getElementById('nav')});</script>",
            encoding="utf-8",
        )
        page.goto(path.as_uri())
        page.wait_for_function("window.asked.length > 0")

    show({})
    assert page.locator(".wb-plot").count() == 0, "negative control"
    show(held)
    page.wait_for_selector(".wb-plot")
    if "step" in place:
        page.wait_for_selector(TRAJECTORIES)
    if "attempt" in place:
        page.wait_for_selector(".wb-trained")
    asked = page.evaluate("window.asked.map((question) => question.ask)")
    assert not {"runs", "step", "attempt"} & set(asked), asked


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_three_clicks_lead_from_the_curve_to_the_token(runs, page, tmp_path):
    navigator = wb.explore([runs / "small-ppo", runs / "small-frozenlake"])
    opened(page, navigator.save(tmp_path / "page.html", steps=[1, 2]))
    assert page.locator(TRAJECTORIES).count() == 0
    page.locator(".wb-plot").click(position={"x": 400, "y": 100})
    page.wait_for_selector(TRAJECTORIES)
    step = int(re.search(r"step (\d+)", page.inner_text(".wb-path"))[1])
    row = page.locator(TRAJECTORIES).nth(5)
    task, attempt = (int(row.locator("td").nth(n).inner_text()) for n in (0, 1))
    row.click()
    page.wait_for_selector(".wb-trained")
    page.locator(".wb-trained").nth(2).click()
    page.wait_for_selector(".wb-term tr")
    place = Address.of(
        " / ".join(button.inner_text() for button in page.locator(".wb-path button").all()[1:])
    )
    assert (place.step, place.task, place.attempt) == (
        step,
        task,
        attempt,
    ) and place.token is not None
    told = dict(
        zip(
            page.locator(".wb-facts th").all_inner_texts(),
            page.locator(".wb-facts td").all_inner_texts(),
        )
    )
    run = wb.open_run(runs / "small-ppo")
    rows = credit_of(
        run.credit(step, run.updates(step)[0]), sum(map(len, run.groups(step)[:task])) + attempt
    )
    assert (
        float(told["advantage"]) == rows["advantage"][place.token] and told["trained"] == "yes"
    ), "to the last bit"
    page.wait_for_selector(".wb-loss tr")
    written = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator(".wb-loss tr").all()
    }
    assert float(written["advantage"][0]) == rows["advantage"][place.token]
    same_machine = read_record("small-ppo")["machine"] == this_machine()
    beginning = ("advantage, weight",) if same_machine else ("advantage, weight", "what is stored")
    assert written["check"][1].startswith(beginning)
    adds = (
        float(written["loss of the token"][0])
        * float(written["weight"][0])
        / float(written["denominator"][1].split(":")[0])
    )
    assert float(written["adds to the loss"][0]) == adds
    assert float(told["logprob"].split()[0]) == float(rows["rollout_logp"][place.token])
    page.screenshot(path=tmp_path / "token.png", full_page=True)
    assert not page.trouble + page.outside, page.trouble + page.outside


@pytest.mark.full
@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_trajectories_are_sorted_and_filtered_and_the_keyboard_reaches_all(runs, page, tmp_path):
    opened(page, wb.explore(runs / "small-ppo", at="step 1").save(tmp_path / "page.html"))
    page.wait_for_selector(TRAJECTORIES)

    def column(number: int) -> list[float]:
        return [
            float(text.replace("−", "-"))
            for text in page.locator(f"{TRAJECTORIES} td:nth-child({number})").all_inner_texts()
        ]

    every = column(3)
    page.click("button[aria-label='sort by reward']")
    assert column(3) == sorted(every)
    page.click("button[aria-label='sort by reward']")
    assert column(3) == sorted(every, reverse=True)
    group = page.locator(".wb-step details tbody tr").nth(3)
    group.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => document.querySelectorAll('{TRAJECTORIES}').length === 4")
    assert set(column(1)) == {3.0}
    page.click(".wb-all")
    run = wb.open_run(runs / "small-ppo")
    word = run.groups(1)[0][0].turns[0].text[8:20]
    found = Answers([run]).of({"ask": "search", "run": 0, "step": 1, "text": word}).content["found"]
    page.fill(".wb-step input[type=search]", word)
    page.wait_for_function(
        f"() => document.querySelectorAll('{TRAJECTORIES}').length === {len(found)}"
    )
    assert sorted(map(list, zip(map(int, column(1)), map(int, column(2))))) == found
    page.fill(".wb-step input[type=search]", "")
    page.fill(".wb-bound[placeholder='at least']", "0")
    page.fill(".wb-bound[placeholder='at most']", "0.5")
    assert sorted(column(3)) == sorted(reward for reward in every if 0 <= reward <= 0.5) and len(
        column(3)
    ) < len(every)
    page.select_option("select[aria-label='number to filter by']", "turns")
    page.fill(".wb-bound[placeholder='at most']", "")
    page.fill(".wb-bound[placeholder='at least']", "3")
    assert (
        column(6)
        and min(column(6)) >= 3
        and len(column(6)) == sum(len(t.turns) >= 3 for group in run.groups(1) for t in group)
    )
    page.fill(".wb-bound[placeholder='at least']", "")
    page.locator(TRAJECTORIES).first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".wb-tokens .wb-token")
    page.focus(".wb-tokens")
    seen = []
    for key in ("n", "ArrowRight", "x", "End", "Home"):
        page.keyboard.press(key)
        seen.append(int(re.search(r"token (\d+)", page.inner_text(".wb-path"))[1]))
    trained = page.locator(".wb-token").count()
    assert seen[1] == seen[0] + 1 and seen[-1] == 0 and seen[-2] > seen[0] and trained > 20
    assert "token 0 of" in page.inner_text(".wb-status") and not page.trouble + page.outside, (
        page.trouble + page.outside
    )


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_foreign_text_is_shown_and_nothing_of_it_is_run(hostile, page, tmp_path):
    opened(page, wb.explore(hostile, at="step 1 / task 0 / attempt 0").save(tmp_path / "page.html"))
    page.wait_for_selector(".wb-message pre", state="attached")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    text = page.inner_text(".wb-nav")
    assert (
        text.count("</script><img src=x onerror=window.struck=1>") > 4
        and "␛[1m⟨U+202E⟩" in text
        and "\x1b" not in text
    )
    page.wait_for_selector(".wb-column", state="attached")
    assert (
        page.locator(
            ".wb-nav :is(img, b[onclick], script, iframe, style, link, object, embed, form)"
        ).count()
        == 0
    )
    assert (
        page.evaluate("window.struck") is None
        and "owned" not in page.title()
        and not page.trouble + page.outside
    ), page.trouble + page.outside


@pytest.mark.debian("chromium", "fonts-dejavu-core")
@pytest.mark.parametrize("width", [640, pytest.param(1900, marks=pytest.mark.full)])
def test_nothing_is_cut_off_on_a_narrow_or_a_wide_page(runs, page, tmp_path, width):
    page.set_viewport_size({"width": width, "height": 900})
    opened(
        page,
        wb.explore(runs / "window", at="step 1 / task 0 / attempt 0 / token 40").save(
            tmp_path / "page.html"
        ),
    )
    page.wait_for_selector(".wb-term tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        page.evaluate(
            "[...document.querySelectorAll('.wb-scroll, .wb-tokens')].filter(e => e.scrollWidth > e.clientWidth).length"
        )
        == 0
    )
    assert page.locator(".wb-token[aria-selected=true]").is_visible()
    page.screenshot(path=tmp_path / f"{width}.png", full_page=True)


def test_a_page_of_one_step_is_small_because_its_answers_are_compressed(runs, tmp_path):
    saved = wb.explore(runs / "small-ppo", at="step 1").save(tmp_path / "page.html").read_text()
    packed = re.search(r'await unpacked\("([^"]*)"\)', saved)[1]
    held = gzip.decompress(base64.b64decode(packed))
    assert len(packed) < len(held) / 4, "negative control: as it stood, it would be this large"
    assert len(saved) < 250_000


def test_a_page_holds_the_steps_that_were_asked_for(runs, tmp_path):
    run = runs / "small-frozenlake"
    few, more = (
        wb.explore(run).save(tmp_path / f"{n}.html", steps=range(1, n + 1)).stat().st_size
        for n in (1, 3)
    )
    assert few < more
    with pytest.raises(StoreError, match="no committed step 9"):
        wb.explore(run).save(tmp_path / "x.html", steps=[9])
    assert not (tmp_path / "x.html").exists()
    with pytest.raises(
        DataError, match=r"a list of runs, each a Run, a RunningRun or a path; got \["
    ):
        wb.explore([])
    with pytest.raises(DataError, match=r"each a Run, a RunningRun or a path; got \[3\]"):
        wb.explore([3])


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_notebook_keeps_the_place_where_it_was(runs, looked_at, shell, monkeypatch):
    """Two outputs: the widget, and the picture that a saved notebook shows; where nobody looks the picture alone."""
    monkeypatch.setattr("workbench.look.cells.explore.has_widgets", lambda: looked_at)
    seen = []
    monkeypatch.setattr(
        shell.display_pub, "publish", lambda data, *args, **kwargs: seen.append(data)
    )
    path = runs / "small-ppo"
    navigator = wb.explore([path, runs / "window"], at="step 1 / task 0")
    navigator._ipython_display_()
    assert (
        [any("widget" in key for key in data) for data in seen] == [True, False]
        if looked_at
        else [False]
    )

    def picture(run, at):
        """The curves of both runs, then the place of the one that is looked at."""
        text = seen[-1]["text/plain"]
        return (
            "success: small-ppo" in text
            and f"{run.name}, {at}" in text
            and text.endswith(wb.show(run, at=at).text)
        )

    assert picture(path, "step 1 / task 0") and "<script" not in seen[-1]["text/html"]
    navigator.widget().at = "step 2 / task 1 / attempt 3"
    assert picture(path, "step 2 / task 1 / attempt 3") and navigator.at.endswith("attempt 3")
    navigator.widget().run = 1
    assert picture(runs / "window", "step 2 / task 1 / attempt 3")
    assert seen[-1]["text/plain"] != seen[-2]["text/plain"]


def test_the_picture_of_several_runs_shows_all_of_them(runs):
    """It once showed the first alone: what a saved notebook keeps of `wb.explore([a, b])` was that of `wb.explore(a)`."""
    paths = [runs / name for name in ("small-frozenlake", "small-ppo", "window")]
    picture = wb.explore(paths).view()
    alone = wb.explore(paths[0]).view()
    assert picture.text != alone.text and picture.png != alone.png and picture.png[:4] == b"\x89PNG"
    for path in paths:
        run = wb.open_run(path)
        first, last = (run.metrics_rows()[at]["success"] for at in (0, -1))
        assert f"{path.name} {words.number(first, 3)} to {words.number(last, 3)}" in picture.text
    names = {trace["name"] for trace in picture.figure.to_dict()["data"]}
    assert {path.name for path in paths} <= names and {"random", "untrained", "solver"} <= names
    # Runs whose baselines differ each have their own: small-frozenlake's untrained policy has 25 %, that of window 50 %.
    assert "untrained 0.25" in picture.text and "untrained, window 0.5" in picture.text
    assert "untrained, small-ppo" not in picture.text
    # Negative control: one run has no other's curve.
    assert "small-ppo" not in alone.text


def test_what_was_spent_at_each_step_is_an_axis(runs, answers):
    told = answers.of({"ask": "runs"}).content["runs"][0]
    run = wb.open_run(runs / "small-ppo")
    tokens = 0
    for step, spent in zip(run.steps(), told["spent"]["tokens"]):
        for group in run.groups(step):
            tokens += sum(trajectory.num_sampled for trajectory in group)
        assert spent == tokens
    clock = run.clock_rows()[1]
    first = sum(clock[name] for name in clock if name.endswith("_s") and "_cpu_" not in name)
    assert told["spent"]["seconds"][0] == pytest.approx(first)
    stops = {t.stop_reason.value for step in run.steps() for g in run.groups(step) for t in g}
    assert set(told["stops"]) == stops


def test_the_navigator_searches_every_step_of_every_run(answers):
    word = answers.runs[1].groups(2)[1][2].turns[0].text
    reply = answers.of({"ask": "search_all", "text": word}).content
    assert [
        match
        for match in reply["matches"]
        if (match["run"], match["at"]) == (1, "step 2 / task 1 / attempt 2")
    ]
    assert answers.of({"ask": "search_all", "text": "no such words"}).content == {
        "matches": [],
        "hidden": 0,
    }
    assert (
        "no stop reason 'x'"
        in answers.of({"ask": "search_all", "text": "", "stop": "x"}).content["error"]
    )


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_curves_have_controls_steps_are_searched_and_a_trajectory_is_copied(runs, page, tmp_path):
    paths = [runs / "small-ppo", runs / "small-frozenlake"]
    opened(page, wb.explore(paths).save(tmp_path / "page.html", steps=[1, 2]))
    drawn = "[...document.querySelectorAll('.wb-mean')].map(each => each.getAttribute('d')).join()"
    ticks = (
        "[...document.querySelectorAll('.wb-plot text')].map(each => each.textContent).join('|')"
    )
    smooth = page.evaluate(drawn)
    page.select_option(".wb-smooth", "1")
    rough = page.evaluate(drawn)
    assert smooth != rough and "step 2" in page.evaluate(ticks)
    page.select_option(".wb-axis", "tokens")
    assert page.evaluate(drawn) != rough and " tokens" in page.evaluate(ticks)
    page.select_option(".wb-axis", "seconds")
    assert " seconds" in page.evaluate(ticks)
    page.select_option(".wb-axis", "step")
    assert page.evaluate(drawn) == rough
    page.check(".wb-log")
    assert page.evaluate(drawn) != rough
    page.uncheck(".wb-log")
    # Keys: listed by a key and by a button, and not while somebody types.
    assert not page.locator(".wb-keys").is_visible()
    page.focus(".wb-plot")
    page.keyboard.press("?")
    assert "next trained span" in page.inner_text(".wb-keys")
    page.click(".wb-keys-button")
    assert not page.locator(".wb-keys").is_visible()
    # The search opens what it finds, in the other run too.
    page.click(".wb-search > summary")
    page.focus(".wb-search input")
    page.keyboard.press("?")
    assert not page.locator(".wb-keys").is_visible()
    group = wb.open_run(paths[1]).groups(2)[3]
    page.fill(".wb-search input >> nth=0", group[1].turns[-1].text)
    page.click(".wb-search-go")
    page.wait_for_selector(".wb-search tbody tr")
    page.locator(".wb-search tbody tr", has_text="small-frozenlake").filter(
        has_text="step 2 / task 3 / attempt 1"
    ).click()
    page.wait_for_selector(".wb-copy")
    assert page.inner_text(".wb-path").startswith("small-frozenlake")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click("text=copy JSON")
    page.wait_for_function("() => window.copied")
    copied = json.loads(page.evaluate("window.copied"))
    assert copied.pop("at") == "step 2 / task 3 / attempt 1"
    assert copied == json.loads(group[1].json)
    page.click("text=copy text")
    page.wait_for_function("() => window.copied[0] !== '{'")
    assert page.evaluate("window.copied") == group[1].text
    assert "characters are in the clipboard" in page.inner_text(".wb-status")
    assert not page.trouble + page.outside, page.trouble + page.outside


# ------------------------------------------------------------------------------------------------ what it looks like


LINES = """() => [...document.querySelectorAll('.wb-line')].sort((a, b) => a.offsetTop - b.offsetTop)
    .map(line => [...line.querySelectorAll('.wb-token')].map(cell => cell.innerText).join(''))"""


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_a_line_feed_in_a_token_ends_a_line_and_a_grid_stands_in_rows(runs, page, tmp_path):
    at = "step 1 / task 0 / attempt 0"
    opened(page, wb.explore(runs / "small-frozenlake", at=at).save(tmp_path / "page.html"))
    page.wait_for_selector(".wb-line")
    trajectory = wb.open_run(runs / "small-frozenlake").groups(1)[0][0]
    rows = trajectory.first_observation.messages[-1].text.split("\n")[-5:]
    assert rows[1] == "G _ _ _" and {len(row) for row in rows[:4]} == {7}
    lines = page.evaluate(LINES)
    first = lines.index(f"{rows[0]}⏎")
    assert lines[first : first + 4] == [f"{row}⏎" for row in rows[:4]]
    assert not any("⏎" in line[:-1] for line in lines), "a line feed ends the line"
    left = "() => [...new Set([...document.querySelectorAll('.wb-line')].map(line => line.querySelector('.wb-token').offsetLeft))]"
    assert len(page.evaluate(left)) == 1, "all lines begin below each other"
    # By keys: a line down, and up again.
    page.locator(".wb-line", has_text=rows[0]).locator(".wb-token").first.click()
    page.focus(".wb-tokens")
    page.keyboard.press("ArrowDown")
    chosen = page.locator(".wb-line", has=page.locator("[aria-selected=true]"))
    assert chosen.inner_text().endswith(f"{rows[1]}⏎")
    page.keyboard.press("ArrowUp")
    assert chosen.inner_text().endswith(f"{rows[0]}⏎")
    assert not page.trouble + page.outside, page.trouble + page.outside


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_a_token_of_several_lines_has_a_piece_in_each_and_only_lines_in_sight_are_drawn(
    runs, page, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "workbench.look.cells.explored.token_texts",
        lambda run: lambda ids: ["ab\ncd\n\nef" for _ in ids],
    )
    at = "step 1 / task 0 / attempt 0 / token 90"
    opened(page, wb.explore(runs / "small-frozenlake", at=at).save(tmp_path / "page.html"))
    page.wait_for_selector(".wb-token[aria-selected=true]")
    pieces = page.locator("[data-token='90']")
    assert pieces.all_inner_texts() == ["ab⏎", "cd⏎", "⏎", "ef"]
    assert pieces.nth(0).is_visible() and pieces.locator("i").count() <= 1, "its number once"
    assert page.locator(".wb-line").count() < 40, "of 300 lines"
    page.evaluate("document.querySelector('.wb-tokens').scrollTop = 1e6")
    page.wait_for_selector("[data-token='101']")
    assert page.locator("[data-token='90']").count() == 0


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_the_boards_of_a_game_are_drawn_from_turn_to_turn(runs, answers, page, tmp_path):
    question = {"ask": "attempt", "run": 1, "step": 1, "task": 0, "attempt": 0}
    boards = answers.of(question).content["boards"]
    trajectory = wb.open_run(runs / "window").groups(1)[0][0]
    assert len(boards) == len(trajectory.turns) + 1
    for board, turn in zip(boards[1:], trajectory.turns):
        letters = "\n".join(" ".join(cell[0] for cell in row) for row in board)
        assert letters == turn.info["state"]
        drawn = squares(find_grid(turn.info["state"])).rows
        assert [list(map(tuple, row)) for row in board] == drawn, "as wb.show(trajectory) has it"
    at = "step 1 / task 0 / attempt 0"
    opened(page, wb.explore(runs / "window", at=at).save(tmp_path / "page.html"))
    page.wait_for_selector(".wb-board")
    shown = page.locator(".wb-board")
    assert shown.count() == len(boards)
    assert [each.split("\n")[-1] for each in shown.all_inner_texts()] == [
        *(f"turn {turn.index}" for turn in trajectory.turns),
        "end",
    ]
    assert shown.nth(0).locator(".wb-square").all_inner_texts() == [
        cell[0] for row in boards[0] for cell in row
    ]
    colour = "each => getComputedStyle(each).backgroundColor"
    player = page.locator(".wb-board .wb-square", has_text="P").first.evaluate(colour)
    assert player == "rgb(0, 114, 178)" and "goal" in page.inner_text(".wb-board-legend")
    shown.nth(2).click()
    page.wait_for_selector(".wb-board[aria-pressed=true]")
    assert "turn 2" in page.inner_text(".wb-path")
    assert page.locator(".wb-board[aria-pressed=true]").all_inner_texts()[0].endswith("turn 2")
    assert not page.trouble + page.outside, page.trouble + page.outside


def test_what_is_no_game_has_no_board(answers, monkeypatch):
    """Negative control of the boards."""
    monkeypatch.setattr("workbench.look.cells.explored.states_of", lambda trajectory: ["no grid"])
    question = {"ask": "attempt", "run": 1, "step": 1, "task": 0, "attempt": 0}
    assert answers.of(question).content["boards"] == [None]


DECIMALS = """selector => [...document.querySelectorAll(selector)].map(each => each.innerText)
    .filter(text => /\\d/.test(text)).map(text => (text.split('.')[1] || '').length)"""


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_numbers_below_each_other_have_the_same_decimals(runs, page, tmp_path):
    opened(page, wb.explore(runs / "small-frozenlake", at="step 1").save(tmp_path / "page.html"))
    page.wait_for_selector(TRAJECTORIES)
    page.click(".wb-editor > summary")
    page.wait_for_selector(".wb-editor tbody tr")
    places = {}
    tables = {
        "group": ".wb-step > details:not(.wb-beside):not(.wb-editor) tbody td",
        "trajectory": f"{TRAJECTORIES} td",
        "credit": ".wb-editor tbody td",
    }
    for name, column in [
        *(("group", number) for number in (4, 5)),
        *(("trajectory", number) for number in (3, 8)),
        *(("credit", number) for number in (3, 4, 5, 6, 7)),
    ]:
        places[name, column] = page.evaluate(DECIMALS, f"{tables[name]}:nth-child({column})")
    assert all(len(set(found)) == 1 and len(found) >= 4 for found in places.values()), places
    assert places["group", 4][0] == 3 and places["trajectory", 3][0] == 1
    look = "each => [getComputedStyle(each).textAlign, getComputedStyle(each).fontVariantNumeric]"
    for number in page.locator(".wb-number").all()[:8]:
        assert number.evaluate(look) == ["right", "tabular-nums"]


def round_steps(texts: list[str]) -> bool:
    """Are these labels evenly spaced, 1, 2, 2.5 or 5 times a power of ten apart, and written alike?"""
    values = [float(text.replace("−", "-")) for text in texts]
    steps = {f"{abs(b - a):.6g}" for a, b in zip(values, values[1:])}
    mantissa = f"{float(next(iter(steps))):e}".split("e")[0].rstrip("0").rstrip(".")
    decimals = {len(text.partition(".")[2]) for text in texts}
    return len(steps) == 1 and mantissa in ("1", "2", "2.5", "5") and len(decimals) == 1


def test_what_is_called_round():
    assert round_steps(["0.0", "2.5", "5.0"]) and round_steps(["−20", "0", "20"])
    assert not round_steps(["0.313", "0.656", "1"]) and not round_steps(["0", "0.25", "0.5"])


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_the_ticks_of_every_curve_are_round(runs, page, tmp_path):
    opened(page, wb.explore(runs / "small-ppo").save(tmp_path / "page.html", steps=[1]))
    titles = page.locator("select[aria-label=curve] option").all_inner_texts()
    assert len(titles) > 5
    ticks = "[...document.querySelectorAll('.wb-plot text[text-anchor=end]')].map(each => each.textContent)"
    for title in titles:
        page.select_option("select[aria-label=curve]", title)
        shown = page.evaluate(ticks)
        assert 3 <= len(shown) <= 7 and round_steps(shown), (title, shown)
    steps = "[...document.querySelectorAll('.wb-plot text[text-anchor=middle]')].map(each => each.textContent)"
    assert all(re.fullmatch(r"step \d+", text) for text in page.evaluate(steps))
