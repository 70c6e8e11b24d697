"""A run followed by its folder alone: what is new is read once, and nothing is missed when lines are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store_values import credit_of, ordinary_step
from workbench.basics import canonical_json
from workbench.look import progress
from workbench.look.live import Status
from workbench.look.watch import follow
from workbench.run import writer
from workbench.run.follow import LineFollower, RunFollower
from workbench.run.recording import create_run, reopen_run
from workbench.run.store import open_run
from workbench.training.config import load_config, to_dict
from workbench.training.step import Clock
from workbench.values.errors import StoreError


def commit(run, step: int, **metrics) -> None:
    run.write_step(step, ordinary_step(step))
    run.commit_step(step, {"reward_mean": step / 4, "success": None, **metrics})


def test_a_run_is_followed_from_before_its_folder_to_its_end(tmp_path):
    path, seen, follower = tmp_path / "run", [], RunFollower(tmp_path / "run")

    def look():
        with progress(2, "run", mode="quiet") as bar:
            follow(bar, follower, 2)
            seen.append((bar.done, bar.note))

    look()
    with create_run(path, to_dict(load_config("frozenlake", {"train.steps": 2}))) as run:
        look()
        run.write_evaluation("step-00000000", {"step": 0, "rows": []})
        look()
        for step in (1, 2):
            run.write_step(step, ordinary_step(step))
            phase = (follower.read(), follower.phase())
            assert phase == (False, f"step {step}: learning")
            run.commit_step(step, {"reward_mean": step / 4, "success": None})
            look()
        assert not follower.done
        run.write_evaluation("step-00000002", {"step": 2, "rows": []})
        look()
    measuring = "measuring random play, the solver and the untrained policy"
    assert seen == [
        (0, "starting"),
        (0, measuring),
        (0, "step 1: playing"),
        (1, "reward 0.25"),
        (2, "measuring the trained policy"),
        (2, "reward 0.50"),
    ]
    assert follower.done and follower.phase() == "done"
    assert follower.rows == [
        {"step": step, "reward_mean": step / 4, "success": None} for step in (1, 2)
    ]
    assert follower.evaluations == open_run(path).evaluations()


def test_each_line_is_read_once_however_often_one_looks(tmp_path, monkeypatch):
    """The known shortfall of asking `Run.metrics()` again and again: n steps cost n * n / 2 lines."""
    parsed, parse = [], canonical_json._parse_line
    monkeypatch.setattr(
        canonical_json, "_parse_line", lambda line: parsed.append(line) or parse(line)
    )
    with create_run(tmp_path / "run", to_dict(load_config("frozenlake"))) as run:
        follower = RunFollower(tmp_path / "run")
        follower.read()
        parsed.clear()
        for step in range(1, 21):
            commit(run, step)
            before = len(parsed)  # what the writer itself reads
            assert follower.read() and not follower.read() and follower.step == step
            assert len(parsed) - before <= 2, "its metrics line and its line in the clock"


def test_a_setting_that_is_changed_later_is_seen(tmp_path):
    with create_run(
        tmp_path / "run", to_dict(load_config("frozenlake", {"train.steps": 2}))
    ) as run:
        follower = RunFollower(tmp_path / "run")
        follower.read()
        assert follower.steps == 2 and not follower.read()
        run.change_settings({"train.steps": [2, 5]})
        assert follower.read() and follower.steps == 5


@given(
    st.lists(
        st.one_of(
            st.integers(0, 5).map(lambda n: ("append", n)),
            st.integers(0, 8).map(lambda n: ("cut", n)),
            st.just(("replace", 0)),
            st.just(("look", 0)),
            st.just(("torn", 0)),
        ),
        max_size=14,
    )
)
def test_whatever_is_done_to_the_file_the_follower_has_what_a_reader_has(tmp_path_factory, acts):
    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    follower, number = LineFollower(path), 0
    for act, amount in acts:
        if act == "append":
            for _ in range(amount):
                writer.append_line(path, {"number": (number := number + 1)})
        elif act == "cut" and path.exists():
            writer.cut_lines(path, keep=amount)
        elif act == "replace" and path.exists():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data[len(data) // 2 :] and data)
        elif act == "torn" and path.exists():
            with path.open("ab") as file:
                file.write(b'{"half')
        elif act == "look":
            follower.read()
            assert tuple(follower.records) == (
                canonical_json.read_lines(path).records if path.exists() else ()
            )
    follower.read()
    assert tuple(follower.records) == (
        canonical_json.read_lines(path).records if path.exists() else ()
    )


def test_lines_that_were_taken_back_and_said_again_are_read_anew(tmp_path):
    """A resumed run cuts off what its dead process had said of a step that was never committed."""
    with create_run(tmp_path / "run", to_dict(load_config("frozenlake"))) as run:
        commit(run, 1)
        run.write_step(2, ordinary_step(2))
        run.write_credit(credit_of(ordinary_step(2), 2), skipped="a long reason " * 9)
    follower = RunFollower(tmp_path / "run")
    follower.read()
    assert [event["step"] for event in follower.events] == [2]
    with reopen_run(tmp_path / "run") as run:
        follower.read()
        assert follower.events == []
        run.event({"kind": "note", "step": 2})
        commit(run, 2)
    follower.read()
    assert [event["kind"] for event in follower.events] == ["note"] and follower.step == 2


def test_damage_is_named_and_not_taken_for_news(tmp_path):
    with create_run(tmp_path / "run", to_dict(load_config("frozenlake"))) as run:
        commit(run, 1)
        commit(run, 2)
    path = tmp_path / "run/metrics.jsonl"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="line 1 is damaged"):
        RunFollower(tmp_path / "run").read()


def test_who_waited_is_the_mean_of_the_last_steps_where_two_work_side_by_side(tmp_path):
    for name, settings in (
        ("alone", {}),
        ("ahead", {"train.staleness": 1, "algorithm.sampler_cap": 2.0}),
    ):
        with create_run(
            tmp_path / name, to_dict(load_config("frozenlake", {"train.steps": 3, **settings}))
        ) as run:
            follower = RunFollower(tmp_path / name)
            follower.read()
            assert follower.idle() is None
            for step, waited in ((1, 0.4), (2, 0.2)):
                commit(run, step)
                run.write_clock(
                    step,
                    Clock(
                        {
                            "collect_s": waited,
                            "sync_s": 0.1,
                            "update_s": 0.9 - waited,
                            "update_cpu_s": 5.0,
                            "sampling_s": 0.75,
                        }
                    ).idle(),
                )
            follower.read()
        assert (follower.idle() is None) == (name == "alone")
    assert follower.idle() == pytest.approx(
        {"learner_idle": 0.4, "engine_idle": 0.25, "sync_share": 0.1}
    )
    status = Status("ahead", "running", 2, 3, "step 3: playing", idle=follower.idle())
    assert "idle: learner 40%, engine 25%; sync 10%" in status.view().text


def test_what_samples_in_turn_with_the_learner_is_idle_while_it_learns():
    assert Clock({"collect_s": 3.0, "update_s": 1.0}).idle() == {
        "learner_idle": 0.75,
        "engine_idle": 0.25,
        "sync_share": 0.0,
    }
    assert Clock({}).idle() == {}
