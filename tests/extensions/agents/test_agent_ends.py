"""How programs end: each failure by a name of its own, with no reward or the one that is declared; and what was made by a
program is read, resumed and edited without it."""

from __future__ import annotations

import sys

import pytest

import workbench as wb
from tests.extensions.agents import end_programs
from tests.extensions.agents.test_agents import HERE, chance, family, gather
from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents import collecting
from workbench.extensions.agents.family import ProgramTasks
from workbench.extensions.agents.journal import StepJournal
from workbench.training.config import from_dict, load_config, to_dict
from workbench.values import StopReason
from workbench.values.errors import ConfigError

ENDS = "tests.extensions.agents.end_programs"


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))


# ------------------------------------------------------------------------------------------------ by name

FAILURES = [
    ("raises", {}, "agent_raised: KeyError", StopReason.ENV_ERROR),
    ("hangs", {"idle_s": 0.3}, "agent_idle: ", StopReason.ENV_TIMEOUT),
    (f"command:line {sys.executable} -m {ENDS}", {}, "agent_killed: ", StopReason.ENV_ERROR),
]


@pytest.mark.parametrize(("program", "settings", "words", "reason"), FAILURES)
def test_a_failed_program_has_no_reward_or_the_declared_one(chat, program, settings, words, reason):
    [[failed]] = gather(chat, family(program, **settings), count=1, group_size=1)
    assert failed.stop_reason is reason and failed.error.startswith(words)
    assert failed.reward is None and len(failed.turns) == 1
    paid = family(program, failed_reward=-0.5, **settings)
    [[declared]] = gather(chat, paid, count=1, group_size=1)
    assert declared.reward == -0.5 and dict(declared.outcome_parts) == {"failed": -0.5}
    assert declared.error.startswith(words) and declared.success is False
    assert declared.stop_reason is StopReason.TERMINATED and not declared.truncated
    assert declared.num_sampled == failed.num_sampled > 0


@pytest.mark.parametrize(
    ("program", "words"),
    [("says_nothing", "agent_silent"), ("command:line false", "agent_exited: the command ended")],
)
def test_one_that_never_called_has_none_whatever_is_declared(chat, program, words):
    for settings in ({}, {"failed_reward": -1.0}):
        [[trajectory]] = gather(chat, family(program, **settings), count=1, group_size=1)
        assert trajectory.reward is None and words in trajectory.error
        assert trajectory.stop_reason is StopReason.ENV_ERROR and not trajectory.turns


def test_what_is_declared_is_a_setting_and_for_failures_alone(chat):
    [[right]] = gather(chat, family("gives_a_number", failed_reward=-1.0), count=1, group_size=1)
    assert right.reward == 0.25
    config = load_config("search", {"env.kind": "agent", "env.program": f"{HERE}:solve"})
    assert config.env.failed_reward is None
    changed = load_config(
        "search",
        {"env.kind": "agent", "env.program": f"{HERE}:solve", "env.failed_reward": -1.0},
    )
    assert from_dict(to_dict(changed)).env.failed_reward == -1.0
    with pytest.raises(ConfigError, match="failed_reward"):
        ProgramTasks(program=f"{HERE}:solve", failed_reward="bad")


def test_a_call_after_the_end_is_refused_and_changes_nothing(chat):
    end_programs.begin_anew()
    [[trajectory]] = gather(
        chat, family(f"{ENDS}:calls_after_its_end", most_calls=9), count=1, group_size=1
    )
    end_programs.threads[0].join(30)
    assert end_programs.late == [410] or trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.stop_reason in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED)
    sampled = [s for segment in trajectory.segments for s in segment.spans if s.sampled]
    assert len(sampled) == len(trajectory.turns) >= 1


def test_a_call_is_on_the_disk_before_anybody_is_told(chat, tmp_path, monkeypatch):
    """The order of events, of every call: its line is whole, then its program has the answer."""
    order = []
    store = StepJournal.store
    tell = collecting.ProgramCollector.tell_program

    def stored(self, request, completion):
        store(self, request, completion)
        order.append(("stored", len(self.path.read_bytes().splitlines())))

    def told(self, call, number, given):
        assert not call.answer.done()
        order.append(("told", number))
        tell(self, call, number, given)

    monkeypatch.setattr(StepJournal, "store", stored)
    monkeypatch.setattr(collecting.ProgramCollector, "tell_program", told)
    tried = family("solve")
    tried.keep_in(tmp_path)
    [[trajectory]] = gather(chat, tried, count=1, group_size=1, address=(0, "train", 1))
    kinds = [kind for kind, _ in order]
    assert kinds == ["stored", "told"] * len(trajectory.turns) and len(trajectory.turns) > 1
    assert [number for kind, number in order if kind == "stored"] == [
        turn.index + 1 for turn in trajectory.turns
    ]


# ------------------------------------------------------------------------------------------------ no barrier


def test_a_program_that_is_asleep_holds_up_nobody(chat):
    """It sleeps until all others have ended: were one of them waiting for it, none would ever end."""
    end_programs.begin_anew()
    done = []

    def on_done(trajectory):
        done.append(trajectory)
        if len(done) == 5:
            end_programs.others_ended.set()

    gather(
        chat,
        family(f"{ENDS}:waits_for_the_others"),
        count=3,
        engine=ScriptedEngine(chance(chat), context_length=1024),
        on_done=on_done,
    )
    assert end_programs.waited == [True] and len(done) == 6
    assert all(trajectory.error is None for trajectory in done)


# ------------------------------------------------------------------------------------------------ without the program

PROGRAM = """
from tests.extensions.agents.programs import solve as asks

def solve(task, model):
    return asks(task, model)
"""


@pytest.mark.full
def test_a_run_is_read_replayed_linted_edited_and_gone_on_with_without_its_program(
    tmp_path, monkeypatch
):
    """The file of the program is gone when the run is opened: what it made is all there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "an_agent_that_goes.py"
    file.write_text(PROGRAM)
    settings = {
        "env.kind": "agent",
        "env.program": "an_agent_that_goes:solve",
        "env.tasks": "world_qa",
        "train.steps": 2,
        "train.tasks_per_step": 2,
        "train.group_size": 4,
        "train.checkpoint_every": 1,
        "evaluation.num_tasks": 2,
        "algorithm.minibatches": 1,
        "lint.start": False,
    }
    run = wb.train_here(load_config("search", settings), tmp_path / "run")
    file.unlink()
    sys.modules.pop("an_agent_that_goes")
    assert wb.lint(run).ok
    assert "steps 1 to 2" in wb.show(run).text
    assert "4 trajectories" in wb.show(run, step=2, task=0).text
    assert wb.explore(run).view().html and wb.edit_step(run, 2) is not None
    assert wb.show_replay(run, 2).text
    # What is done stays done, and nothing of it is asked of the program.
    assert wb.resume_here(run.path).steps() == run.steps()
    # Negative control: what is new needs it, and says so.
    with pytest.raises(ConfigError, match="an_agent_that_goes"):
        wb.resume_here(run.path, {"train.steps": 3}, accept_changed_code=True)
