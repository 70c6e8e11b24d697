"""Programs that call a model, collected: their trajectories are those of our own environment, and what breaks is named."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.chat import ChatFormat
from workbench.cli import main
from workbench.engines.policy import load_tokenizer
from workbench.engines.recorder import Journal
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents.family import ProgramTasks
from workbench.extensions.agents.program import COMMAND, check_program
from workbench.learn.batch import Batch
from workbench.linting.evidence import Evidence
from workbench.linting.table import lint_evidence
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.run.code import named_code
from workbench.training.config import load_config
from workbench.values import StopReason, trajectories_of
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at
from workbench.worlds import tasks as env_tasks
from workbench.worlds.world_qa import WorldQA

WORLD = WorldQA()
HERE = "tests.extensions.agents.programs"
GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/agents.md"


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))


def family(program: str, **settings) -> ProgramTasks:
    name = program if ":" in program else f"{HERE}:{program}"
    return ProgramTasks(program=name, tasks="world_qa", **settings)


def chance(chat: ChatFormat):
    """A policy that searches first, and then searches or answers by the noise of its request, always in order."""
    backend = chat.encoder.backend
    calls = Counter()

    def script(request):
        rng = rng_at(request.seed)
        text = WORLD.make().format.write_answer("Zumi")
        calls[request.session] += 1
        number = calls[request.session]
        if number == 1 or (number < 4 and rng.random() < 0.6):
            text = WORLD.make().format.write_call("search", {"query": f"Zumi {rng.integers(9)}"})
        ids = backend.encode(text, add_special_tokens=False).ids
        return [*ids, chat.end_of_turn]

    return script


def gather(
    chat,
    tried,
    *,
    count=2,
    group_size=2,
    engine=None,
    on_done=None,
    address=(0, "test", 1),
    **settings,
):
    return collect(
        env_tasks(WORLD, "train", count),
        family=tried,
        engine=engine or ScriptedEngine(chance(chat), context_length=1024),
        chat=chat,
        config=CollectConfig(**{"max_turn_tokens": 48, **settings}),
        group_size=group_size,
        address=address,
        on_done=on_done,
    )


def tokens(groups):
    """Every token with its author, turn and logprob, trajectory by trajectory."""
    return [
        [
            (
                segment.token_ids.tolist(),
                segment.sources.tolist(),
                segment.turns.tolist(),
                np.nan_to_num(segment.logprobs).tolist(),
            )
            for segment in trajectory.segments
        ]
        for trajectory in trajectories_of(groups)
    ]


# ------------------------------------------------------------------------------------------------ the same as our own


@pytest.mark.parametrize(
    "program", ["solve", "solve_streamed", "solve_by_responses", "solve_by_messages"]
)
def test_a_program_is_played_token_for_token_as_our_own_environment(chat, program):
    ours = gather(chat, WORLD)
    theirs = gather(chat, family(program))
    assert tokens(theirs) == tokens(ours)
    assert [t.success for t in trajectories_of(theirs)] == [
        t.success for t in trajectories_of(ours)
    ]
    assert sum(len(t.turns) for t in trajectories_of(ours)) > 8  # it is not one answer each


def test_chance_and_solver_are_those_of_the_tasks(chat):
    tried = family("solve")
    task = tried.task(3)
    assert task == WORLD.task(3) and tried.split_of(task) == WORLD.split_of(task)
    env = tried.make()
    env.reset(task, 0)
    rng = rng_at(0)
    assert "search" in tried.solver_action(env, rng) and tried.random_action(env, rng)


def test_helpers_and_edits_are_segments_and_the_lint_finds_nothing(chat):
    tried = family("with_helpers")
    engine = Journal(ScriptedEngine(chance(chat), context_length=1024))
    groups = gather(chat, tried, engine=engine)
    trajectories = trajectories_of(groups)
    ways = {turn.info["call"]["way"] for t in trajectories for turn in t.turns}
    assert ways >= {"root", "extends", "fork"}
    assert max(len(t.segments) for t in trajectories) >= 3
    config = CollectConfig(max_turn_tokens=48)
    settings = load_config("search", {"train.steps": 1})
    batch = Batch.from_groups(groups)
    evidence = Evidence(
        groups=tuple(map(tuple, groups)),
        batch=batch,
        collect=config,
        chat=chat,
        journal=engine.exchanges,
        context_length=1024,
        family=tried,
        algorithm=settings.algorithm,
        credit=settings.algorithm.credit(batch),
        step=1,
    )
    report = lint_evidence(evidence, when=("step",))
    assert report.ok, str(report)
    # Negative control: without knowing that programs wrote the prompts, the rules find that they are not ours.
    assert not lint_evidence(replace(evidence, family=WORLD), when=("step",)).ok


# ------------------------------------------------------------------------------------------------ the guide, and training


def _block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]


@pytest.fixture
def guide_config(tmp_path, monkeypatch):
    """The guide's program and settings, as files."""
    (tmp_path / "my_agent.py").write_text(_block("python"))
    (tmp_path / "agent.toml").write_text(_block("toml"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda **settings: load_config(tmp_path / "agent.toml", settings)


def test_the_guide_says_what_works(chat, guide_config):
    tried = guide_config().env
    tried.check_files()
    assert tokens(gather(chat, tried)) == tokens(gather(chat, WORLD))


@pytest.mark.full
def test_the_guides_program_trains_and_what_was_stored_is_linted(guide_config, tmp_path, capsys):
    """Two steps of the shipped policy, with the lint's rules as errors."""
    settings = {
        "train.steps": 2,
        "train.tasks_per_step": 4,
        "train.group_size": 4,
        "evaluation.num_tasks": 8,
        "algorithm.minibatches": 1,
    }
    run = wb.train_here(guide_config(**settings), tmp_path / "run")
    groups = run.groups(2)
    assert len(run.steps()) == 2 and len(groups) == 4
    calls = [turn.info["call"]["way"] for t in trajectories_of(groups) for turn in t.turns]
    kept = sorted((tmp_path / "run" / "calls").glob("train-000002-*.jsonl"))
    assert sum(len(path.read_text().splitlines()) for path in kept) == len(calls) > 16
    linted = wb.lint(run)
    assert linted.ok and {f"R{number}" for number in range(40, 47)} <= {
        a.rule for a in linted.report
    }
    table = wb.conversations(run)
    assert [step for step, _ in table.steps] == [1, 2] and table.steps[1][1].calls == len(calls)
    assert table.total.left_out == 0 and table.total.share("exact") == 1.0
    assert main(["conversations", str(run.path)]) == 0
    assert "verbatim" in capsys.readouterr().out
    assert main(["conversations", str(run.path), "--csv"]) == 0
    assert capsys.readouterr().out.startswith("step,trajectories,silent,calls,")


# ------------------------------------------------------------------------------------------------ how it ends


@pytest.mark.parametrize(
    ("program", "settings", "reason", "words"),
    [
        ("raises", {}, StopReason.ENV_ERROR, "agent_raised: KeyError"),
        ("says_nothing", {}, StopReason.ENV_ERROR, "agent_silent"),
        ("hangs", {"idle_s": 0.3}, StopReason.ENV_TIMEOUT, "agent_idle"),
        ("asks_for_ever", {"most_calls": 3}, StopReason.MAX_TURNS, None),
        ("asks_too_long", {}, StopReason.CONTEXT_FULL, None),
        ("is_hot", {}, StopReason.ENV_ERROR, "400 Bad Request"),
        ("command:line false", {}, StopReason.ENV_ERROR, "the command ended with 1"),
    ],
)
def test_whatever_breaks_ends_by_name(chat, program, settings, reason, words):
    [group] = gather(chat, family(program, **settings), count=1, group_size=1)
    [trajectory] = group
    assert trajectory.stop_reason is reason
    assert (trajectory.error or "").startswith(words or "") or words in trajectory.error
    assert (trajectory.reward is None) == reason.is_fault
    if program == "asks_for_ever":
        assert len(trajectory.turns) == 3 and trajectory.error is None


def test_a_number_is_the_reward(chat):
    [group] = gather(chat, family("gives_a_number"), count=1)
    assert [t.reward for t in group] == [0.25, 0.25]


def test_what_is_named_is_noted_and_not_followed(chat):
    tried = family("is_hot", decides=("temperature",), not_followed=("seed",))
    [group] = gather(chat, tried, count=1, group_size=1)
    [turn] = group[0].turns
    assert turn.info["call"]["temperature"] == 0.5
    assert turn.info["call"]["not_followed"] == {"seed": 1}
    [span] = [span for span in group[0].segments[0].spans if span.sampled]
    assert span.sampling.temperature == 0.5


def test_a_command_finds_its_model_its_task_and_its_tools(chat):
    tried = family(f"command:line {sys.executable} -m {HERE}")
    [group] = gather(chat, tried, count=1, group_size=1)
    assert group[0].stop_reason in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED)
    assert len(group[0].turns) == 1 and group[0].error is None


@pytest.mark.parametrize("command", ["./run.sh", "/bin/true", "python my_agent.py", " x"])
def test_a_command_is_code_that_a_run_names(command):
    """So a run from elsewhere starts none without --trust; what is not seen as code is not started either."""
    program = f"command:line {command}"
    assert named_code({"env": {"program": program}}) == {"env.program": program}
    hidden = f"command:{command}"
    assert named_code({"env": {"program": hidden}}) or not hidden.startswith(COMMAND)
    with pytest.raises(ConfigError):
        check_program(hidden)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"program": ""}, "env.program names nothing"),
        ({"program": "command:line "}, "names no command"),
        ({"program": f"{HERE}:NO_PROGRAM"}, "solve"),
        ({"program": f"{HERE}:solve", "tasks": "world-qq"}, "world-qa"),
    ],
)
def test_what_cannot_be_started_is_said_when_the_session_opens(settings, words):
    with pytest.raises((ConfigError, TypeError), match=words):
        ProgramTasks(**{"tasks": "world_qa", **settings}).check_files()
