"""Tasks chosen before they are tried: by stored trajectories alone, the same after a kill, and only where something can be chosen."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.golden_runs.make_old import stopped_after
from workbench.linting.drawn import drawn_trajectories
from workbench.look.cells.stored import learning_curves_view
from workbench.look.cells.train import resume_here, train_here
from workbench.look.run_diff import compare_runs
from workbench.run.store import open_run
from workbench.training.config import load_config, to_dict
from workbench.training.session import open_session
from workbench.training.task_choice import TaskChooser, choice_words
from workbench.values import Group, Observation, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError, LearnerError
from workbench.worlds import tasks as env_tasks

CHOICE = {
    "sampling.tasks": "band",
    "sampling.by": "distance",
    "sampling.low": 0.2,
    "sampling.high": 0.8,
}
SMALL = {
    "train.steps": 4,
    "train.tasks_per_step": 3,
    "train.group_size": 3,
    "train.evaluate_every": 0,
    "lint.start": False,
    "train.checkpoint_every": 2,
    "evaluation.num_tasks": 4,
    "sampling.window": 2,
    "sampling.low": 0.45,
    "sampling.high": 0.55,
}


def chooser(**settings) -> TaskChooser:
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    return TaskChooser(load_config("frozenlake", CHOICE | {"train.tasks_per_step": 6} | changed))


def came(kind: int, *successes: bool | None) -> Group:
    """A group at a task of this distance."""
    task = Task(f"lake/{kind}", "frozenlake", kind, {}, {"distance": kind})
    return Group(
        tuple(
            Trajectory(
                task,
                n,
                n,
                Observation(()),
                (Turn(0, "", reward=0.0),),
                (),
                StopReason.ENV_ERROR if success is None else StopReason.TERMINATED,
                success=success,
            )
            for n, success in enumerate(successes)
        )
    )


def kinds(tasks: list[Task]) -> Counter:
    return Counter(task.metadata["distance"] for task in tasks)


# ------------------------------------------------------------------------------------------------ what is chosen


def test_where_nothing_is_known_a_band_takes_the_plain_draw():
    made = chooser().choose(1, 6)
    plain = env_tasks(load_config("frozenlake").env, "train", 6, seed=0, step=1)
    assert made.tasks == plain and len(made.drawn) == 24 and made.believed == {}


def test_a_band_leaves_out_what_is_always_and_what_is_never_done():
    mine = chooser()
    mine.note(
        1,
        [
            came(1, True, True, True, True),
            came(2, True, True, False, False),
            came(3, *[False] * 4),
            came(4, None, None),
        ],
    )
    made = mine.choose(2, 6)
    assert made.believed == {"1": 1.0, "2": 0.5, "3": 0.0}, (
        "what broke off says nothing of its kind"
    )
    assert not {1, 3} & set(kinds(made.tasks)) and {1, 3} <= set(kinds(made.drawn))
    inside = [task for task in made.drawn if task.metadata["distance"] not in (1, 3)]
    assert made.tasks == inside[:6], "in the order in which they were drawn"


def test_where_too_few_lie_inside_the_nearest_are_taken():
    mine = chooser(sampling__candidates=2)
    mine.note(
        1,
        [came(kind, *[True] * 9, False) for kind in range(1, 6)]
        + [came(kind, *[False] * 10) for kind in range(6, 20)],
    )
    made = mine.choose(2, 6)
    assert made.believed["1"] == 0.9 and max(kinds(made.tasks)) < 6, (
        "0.1 above the band is nearer than 0.2 below it"
    )


def test_the_spread_prefers_what_is_done_half_of_the_time():
    mine = TaskChooser(
        load_config("frozenlake", {"sampling.tasks": "spread", "sampling.by": "distance"})
    )
    for step in range(200):
        mine.note(
            step,
            [
                came(1, True, True),
                came(2, True, False),
                *(came(kind, False, False) for kind in range(3, 20)),
            ],
        )
    chosen, drawn = Counter(), Counter()
    for step in range(2, 60):
        made = mine.choose(step, 4)
        chosen += kinds(made.tasks)
        drawn += kinds(made.drawn)
        assert len({id(task) for task in made.tasks}) == 4
    assert chosen[2] / chosen.total() > 2.5 * drawn[2] / drawn.total() and chosen[1] > 0


def test_only_the_newest_steps_count_and_with_staleness_not_the_one_before():
    mine = chooser(sampling__window=2)
    for step, successes in enumerate([(True, True), (True, False), (False, False)], start=1):
        mine.note(step, [came(1, *successes)])
    assert (
        mine.believed(2) == {"1": 1.0}
        and mine.believed(3) == {"1": 0.75}
        and mine.believed(4) == {"1": 0.25}
    )
    assert mine.believed(6) == {}, "a kind that nobody tried may be anything again"
    stale = chooser(sampling__window=2, train__staleness=1, algorithm__sampler_cap=2.0)
    stale._seen = mine._seen
    assert stale.believed(4) == mine.believed(3)


def test_the_choice_is_a_function_of_seed_step_and_trajectories():
    one, two, other = (
        TaskChooser(
            load_config(
                "frozenlake", {"sampling.tasks": "spread", "sampling.by": "distance", "seed": seed}
            )
        )
        for seed in (0, 0, 1)
    )
    for each in (one, two, other):
        each.note(1, [came(2, True, False)])
    assert one.choose(2, 5).tasks == two.choose(2, 5).tasks != other.choose(2, 5).tasks
    assert one.choose(2, 5).tasks != one.choose(3, 5).tasks


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "preset, settings, words",
    [
        ("frozenlake", {"sampling.by": "distance"}, "sampling.by has no effect"),
        (
            "frozenlake",
            {"sampling.tasks": "band", "sampling.by": "distanse"},
            "neither payload nor metadata.*distance",
        ),
        ("frozenlake", CHOICE | {"sampling.low": 0.8}, "no success lies between"),
        (
            "frozenlake",
            {"sampling.tasks": "spread", "sampling.by": "distance", "sampling.low": 0.3},
            "sampling.low has no effect",
        ),
        ("frozenlake", CHOICE | {"sampling.candidates": 1}, "candidates"),
        ("frozenlake", {"sampling.tasks": "hard"}, "sampling.tasks"),
    ],
)
def test_what_does_nothing_or_cannot_be_is_refused(preset, settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config(preset, settings)


def test_rows_that_come_in_an_order_of_their_own_are_refused():
    from workbench.training.task_choice import refuse_what_cannot_choose

    class Rows:
        name = "rows"

        def task_seeds(self, split, first, count, seed):
            return list(range(first, first + count))

    config = load_config("frozenlake", CHOICE)
    object.__setattr__(config, "env", Rows())
    object.__setattr__(config, "kind_of", lambda part: "rows")
    with pytest.raises(ConfigError, match="each once an epoch"):
        refuse_what_cannot_choose(config)


def test_how_tasks_are_chosen_is_stored_with_every_run():
    assert to_dict(load_config("frozenlake"))["sampling"]["tasks"] == "fresh"
    assert to_dict(load_config("frozenlake", CHOICE))["sampling"]["low"] == 0.2


# ------------------------------------------------------------------------------------------------ a run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_here(
        load_config("frozenlake", CHOICE | SMALL), tmp_path_factory.mktemp("runs") / "whole"
    )


def test_a_run_says_what_it_chose_and_why_and_the_lint_knows(whole):
    config = load_config("frozenlake", CHOICE | SMALL)
    again = TaskChooser(config)
    for step in whole.steps():
        made = again.choose(step, 3)
        assert [group.task.id for group in whole.groups(step)] == [task.id for task in made.tasks]
        line = whole.metrics_line(step)
        assert {key: line[key] for key in line if key.startswith("tasks_")} == again.metrics(step)
        again.note(step, whole.groups(step))
    assert any(
        again.choose(step, 3).tasks != again.choose(step, 3).drawn[:3] for step in whole.steps()
    ), "else nothing was chosen"
    assert "tasks were chosen by their success so far" in learning_curves_view(whole).text
    found = choice_words(whole.metrics_rows())
    assert (
        "plain" in found
        and "not of the plain draw" in found
        and choice_words([{"reward_mean": 1.0}]) == ""
    )
    names = drawn_trajectories(
        config.env, 3, seed=0, tasks_per_step=3, group_size=3, chosen=again.choose(3, 3).tasks
    )
    assert set(names) == {f"{t.task.id}#{t.attempt}" for group in whole.groups(3) for t in group}


def test_held_out_tasks_are_the_plain_ones(whole):
    plain = open_session(load_config("frozenlake", {"evaluation.num_tasks": 4}), quiet=True)
    chosen = open_session(load_config("frozenlake", CHOICE | SMALL), quiet=True)
    assert plain.held_out_tasks() == chosen.held_out_tasks()


def test_a_stopped_run_goes_on_with_the_same_choices_to_the_same_bytes(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_here(
            load_config("frozenlake", CHOICE | SMALL), tmp_path / "run", on_step=stopped_after(3)
        )
    resume_here(tmp_path / "run", on_note=None)
    assert compare_runs(whole, open_run(tmp_path / "run"), exact=True).equal


def test_negative_control_a_resume_that_forgets_what_came_before_is_noticed(
    whole, tmp_path, monkeypatch
):
    with pytest.raises(KeyboardInterrupt):
        train_here(
            load_config("frozenlake", CHOICE | SMALL), tmp_path / "run", on_step=stopped_after(3)
        )
    monkeypatch.setattr(TaskChooser, "recall", lambda self, run, last: None)
    with pytest.raises(LearnerError, match="step 3 .* is not reproduced .*tasks_"):
        resume_here(tmp_path / "run", on_note=None)
