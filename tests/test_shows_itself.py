"""What public functions return shows itself: the last line of a cell draws what `wb.show` draws, and no repr is long."""

import importlib
import pkgutil
import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from IPython.display import display

import workbench as wb
import workbench.extensions.branching
import workbench.extensions.many_runs
import workbench.look
from workbench.basics.extensions import provided
from workbench.basics.plugins import load_named
from workbench.extensions.branching.branch import Branch, BranchedTrajectory
from workbench.extensions.collapse.signals import RunSignals
from workbench.learn.batch import Batch
from workbench.look.cells.live_run import attach
from workbench.look.cells.replay import replay
from workbench.look.cells.show import run_view
from workbench.look.cells.stored import step_view
from workbench.look.view_of import view_of
from workbench.rollouts.evaluate import Scores
from workbench.values import CreditTable, Group, Groups, Message, Turn, View
from workbench.values.errors import DataError, StoreError
from workbench.values.view import LONGEST_REPR, Shown, bounded_repr


def subclasses(cls):
    """All classes below it."""
    for below in cls.__subclasses__():
        yield below
        yield from subclasses(below)


PACKAGES = (workbench.look, workbench.extensions.many_runs, workbench.extensions.branching)
for package in PACKAGES:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)  # classes are known once they are imported
# Whatever shows itself: by a function for its type, by one that an extension names, by a method `view`.
REGISTERED = {cls for cls in view_of.registry if cls not in (object, list, tuple, View)}
ADDED = {load_named(name, "kind") for name in provided("views")}
OWN = {
    cls
    for cls in subclasses(Shown)
    if callable(getattr(cls, "view", None))
    # Which classes of other extensions are known depends on what other tests imported.
    and not (
        cls.__module__.startswith("workbench.extensions.")
        and not cls.__module__.startswith(tuple(package.__name__ for package in PACKAGES))
    )
}
KINDS = {cls.__name__: cls for cls in (*REGISTERED, *ADDED, *OWN, RunSignals)}

OLD = Path(__file__).resolve().parent / "golden_runs" / "old"
IMPORTED = OLD.parents[1] / "imported" / "files" / "verifiers_traces.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two whole runs, one damaged, and what is no run."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(OLD / "small-frozenlake", folder / "lake")
    shutil.copytree(OLD / "small-ppo", folder / "ppo")
    shutil.copytree(OLD / "small-ppo", folder / "damaged")
    (folder / "damaged" / "metrics.jsonl").write_text("{\n{}\n")
    (folder / "notes").mkdir()
    return folder


@pytest.fixture(scope="module")
def values(folder):
    """One value of every kind that shows itself."""
    session = wb.open_session(
        wb.load_config("frozenlake", {"train.tasks_per_step": 1, "train.group_size": 2})
    )
    groups = wb.rollout(session, 2)
    batch, run = Batch.from_groups(groups), wb.open_run(folder / "lake")
    scores = wb.baselines(session, num_tasks=2)
    trajectory, report = groups[0][0], wb.lint(groups, session=session).report
    every = (
        groups,
        groups[0],
        trajectory,
        trajectory.turns[0],
        trajectory.task,
        trajectory.first_observation,
        trajectory.segments[0],
        run.credit(1, 0),
        report,
        session.config,
        session,
        wb.train_step(session, 1),
        scores,
        scores[0],
        batch,
        session.config.algorithm.credit(batch),
        replay(run, 1)[0],
        wb.compare_runs(run, wb.open_run(folder / "ppo")),
        run,
        attach(run.path),
        wb.compare_runs(run, wb.open_run(folder / "ppo"), run),
        wb.runs(folder),
        wb.runs(folder).group_by("algorithm.kind"),
        wb.search(run, "go"),
        paired := wb.paired(groups, groups[:1]),
        paired[0],
        wb.read_rollouts(IMPORTED),
        wb.group_spread(folder / "lake"),
        wb.by_kind(folder / "lake", "grid"),
        wb.signals(folder / "lake"),
        BranchedTrajectory(
            "step 1",
            trajectory,
            (Branch(0, "x", 0.0, None, None, {"grpo": 0.5}, groups[0]),),
            "now",
            2,
        ),
    )
    return {type(value).__name__: value for value in every}


def test_every_kind_that_has_a_view_was_made(values):
    assert KINDS.keys() | {"RunningRun"} == values.keys()


@pytest.mark.parametrize("name", sorted({*KINDS, "RunningRun"}))
def test_a_value_as_the_last_line_of_a_cell_is_what_show_draws(name, values, shell, monkeypatch):
    if name == "RunningRun":
        return  # draws a widget that follows it: tests/test_live.py
    drawn = wb.show(values[name])
    shell.user_ns |= {"value": values[name], "drawn": drawn, "display": display}
    published = {"value": [], "display(drawn)": []}
    for cell, seen in published.items():
        monkeypatch.setattr(
            shell.display_pub, "publish", lambda data, *args, seen=seen, **kwargs: seen.append(data)
        )
        shell.run_cell(cell).raise_error()
    assert (
        published["value"] == published["display(drawn)"]
        and drawn.text.strip()
        and len(repr(values[name])) <= LONGEST_REPR
    )
    assert published["value"] and all(data["text/plain"].strip() for data in published["value"])


@pytest.mark.parametrize("name", sorted({*KINDS, "RunningRun"}))
def test_every_value_is_a_page_words_and_a_picture(name, values, tmp_path):
    drawn = wb.show(values[name])
    assert (
        drawn.html.startswith("<div") and drawn.text.strip() and drawn.png.startswith(b"\x89PNG")
    ), name
    for ending in ("html", "png", "txt"):
        assert drawn.save(tmp_path / f"x.{ending}").stat().st_size > 40
    bundle = values[name]._repr_mimebundle_() if name != "RunningRun" else drawn._repr_mimebundle_()
    assert set(bundle) >= {"text/plain", "text/html", "image/png"}


def test_no_representation_is_long_whatever_is_in_it(values):
    trajectory = values["Trajectory"]
    long = replace(
        trajectory.turns[0], text="x" * 10_000, reply=(Message("user", "y" * 10_000),) * 300
    )
    assert (
        max(
            len(repr(value))
            for value in (
                long,
                View("", "x" * 10_000),
                replace(trajectory, turns=(long,) * 300),
                Group(tuple(replace(trajectory, attempt=number) for number in range(300))),
                Groups([Group((trajectory,))] * 3000),
                CreditTable(1, 0, {f"column {n}": np.zeros(9) for n in range(999)}),
                Scores(values["Scores"] * 900),
            )
        )
        <= LONGEST_REPR
    )
    assert repr(long).startswith("Turn(index=0, text='xxx") and repr(wb.open_session).startswith(
        "<function"
    )


def test_a_class_that_shows_itself_has_a_bounded_repr_of_its_own():
    """A dataclass made without `repr=False` gets one that prints everything."""
    for name, cls in KINDS.items():
        assert (
            not is_dataclass(cls)
            or cls.__repr__ is not None
            and "__create_fn__" not in cls.__repr__.__qualname__
        ), name
        if issubclass(cls, Shown) and is_dataclass(cls) and cls.__repr__ is Shown.__repr__:
            assert fields(cls)
    assert bounded_repr(Turn(0, "a", 0.0)).startswith("Turn(index=0, text='a'")


def test_lists_are_shown_as_what_they_hold(values):
    groups, scores = values["Groups"], values["Scores"]
    assert wb.show(list(groups)).text == wb.show(groups).text == wb.show(tuple(groups)).text
    assert (
        wb.show([groups[0][0]]).text.startswith("1 group")
        and wb.show(list(scores)).text == wb.show(scores).text
    )
    assert isinstance(groups[:1], Groups) and wb.show(groups[:1]).text.startswith("1 group")


def test_a_run_is_shown_from_its_curves_to_its_tokens(folder, values):
    run, path = values["Run"], folder / "lake"
    assert (
        wb.show(path).text
        == wb.show(run).text
        == wb.show(str(path)).text
        == wb.show(attach(path)).text
    )
    trajectories = run.groups(1)
    assert wb.show(run, step=1).text == wb.show(trajectories).text
    assert wb.show(run, step=1, task=1, attempt=0).text == step_view(run, 1, task=1, attempt=0).text
    assert "[TRAIN turn 0" in wb.show(run, step=1, tokens=True).text


def test_a_running_run_is_taken_where_a_run_is(folder):
    running = attach(folder / "lake")
    assert wb.show(running).text == wb.show(running.run).text
    assert wb.open_run(running).path == folder / "lake"


@pytest.mark.parametrize(
    ("value", "how", "said"),
    [
        (3, {}, r"no view of a int \(3\).*Config"),
        ({}, {}, "no view of a dict"),
        ([], {}, "no view of a list"),
        ([1, "a"], {}, "no view of a list"),
        (None, {}, "no view of a NoneType"),
        ("Groups", {"step": 1}, "the view of a Groups has no option 'step'"),
        ("Run", {"stepp": 1}, "no option 'stepp'; .*step"),
        ("Run", {"task": 1}, "task of which step.*steps 1 to"),
        ("Run", {"tokens": True, "attempt": 0}, "attempt and tokens of which step"),
        ("Run", {"step": 99}, "99"),
        ("Score", {"a": 1}, "has no option 'a'; it has no options"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_what_can(value, how, said, values):
    with pytest.raises((DataError, StoreError), match=said):
        wb.show(values.get(value, value) if isinstance(value, str) else value, **how)


def test_a_path_without_a_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="nothing|no run|not a run"):
        wb.show(tmp_path)
    with pytest.raises(
        StoreError, match=r"there is no folder .*runs are where `wb.train\(config, path\)`"
    ):
        wb.runs(tmp_path / "nowhere")


def test_runs_of_a_folder_are_listed_with_success_beside_its_baselines(folder):
    found = wb.runs(folder)
    assert (
        {run.name for run in found}
        == {"lake", "ppo", "damaged"}
        == {run.name for run in wb.runs(folder.parent)} & {"lake", "ppo", "damaged"}
    )
    text = wb.show(found).text
    assert "damaged" in text and "line" in text  # said below its row, not raised
    report = max(
        (each for each in wb.open_run(folder / "lake").evaluations().values()),
        key=lambda each: each["step"],
    )
    [trained] = [
        row for row in report["rows"] if (row["policy"], row["mode"]) == ("trained", "sampled")
    ] or [None]
    [row] = [line for line in text.splitlines() if "lake" in line]
    assert trained is None or f"{100 * trained['success']:.1f} %" in row
    assert [run.name for run in wb.runs(folder / "lake")] == ["lake"] and not wb.runs(
        folder / "notes"
    )
    assert (
        "3 runs" in repr(found)
        and run_view(found[-1] if found[-1].name != "damaged" else found[0]).text
    )
