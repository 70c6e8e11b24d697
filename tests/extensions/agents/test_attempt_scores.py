"""Functions that score a finished attempt; tasks from files and from environments that are handed over; `wb.agents`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

import workbench as wb
from tests.extensions.agents import programs
from tests.extensions.agents.test_agents import HERE, WORLD, chat, family, gather  # noqa: F401
from workbench.basics.findings import Checked, Finding
from workbench.extensions.agents.family import ProgramTasks
from workbench.extensions.agents.messages import RefusedCall
from workbench.extensions.agents.scoring import judge_of
from workbench.extensions.agents.trial import check_program_runs
from workbench.extensions.agents.wires import anthropic_messages, openai_chat, openai_responses
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.extensions.inspect_worlds.checks import check_family
from workbench.training.config import from_dict, load_config, to_dict
from workbench.values import StopReason
from workbench.values.errors import ConfigError
from workbench.worlds import tasks as env_tasks
from workbench.worlds.tool_tasks import ToolTasks
from workbench.worlds.world_qa import WorldQA

ROWS = [{"question": f"Where is {name}?", "place": name.lower()} for name in ("Ada", "Bob", "Eve")]


def scored(chat, function, program="gives_facts"):  # noqa: F811
    [group] = gather(chat, family(program, scored_by=f"{HERE}:{function}"), count=1)
    return group


# ------------------------------------------------------------------------------------------------ scoring


def test_a_function_reads_what_was_returned_and_every_call(chat):  # noqa: F811
    for trajectory in scored(chat, "judge"):
        assert (trajectory.outcome_parts, trajectory.success) == ({"asked": 2.0}, True)
        assert trajectory.reward == 2.0 and trajectory.stop_reason is StopReason.TERMINATED
        kept = [turn.info["returned"] for turn in trajectory.turns if "returned" in turn.info]
        assert [value["answer"] for value in kept] == ["Zumi"]


def test_it_may_be_a_coroutine_and_say_true_or_false(chat):  # noqa: F811
    for trajectory in scored(chat, "judge_later"):
        assert (trajectory.reward, trajectory.success) == (1.0, True)


@pytest.mark.parametrize(
    ("function", "words"),
    [("judge_raises", "the attempt is over"), ("judge_knows_nothing", "returned None")],
)
def test_a_score_that_failed_leaves_the_trajectory_unscored(chat, function, words):  # noqa: F811
    for trajectory in scored(chat, function):
        assert trajectory.reward is None and not trajectory.scored and words in trajectory.error


def test_what_cannot_be_stored_is_a_named_fault(chat):  # noqa: F811
    for trajectory in scored(chat, "judge", "gives_a_file"):
        assert trajectory.stop_reason is StopReason.ENV_ERROR and trajectory.reward is None
        assert "as JSON values" in trajectory.error
    # Negative control: without the function it is no result at all.
    [group] = gather(chat, family("gives_facts"), count=1)
    assert all("returns a number" in trajectory.error for trajectory in group)


def test_a_function_beside_the_program_scores_unless_the_tasks_are_to(monkeypatch):
    module = ModuleType("with_a_score")
    module.solve = programs.solve
    module.score = programs.judge
    monkeypatch.setitem(sys.modules, "with_a_score", module)
    assert judge_of("with_a_score:solve", "") is programs.judge
    assert judge_of("with_a_score:solve", "tasks") is None
    assert judge_of(f"{HERE}:solve", "") is None
    assert judge_of("command:line true", "") is None
    assert wb.agents("with_a_score:solve", tasks="world_qa").scored_by.endswith(":judge")
    with pytest.raises(ConfigError, match="score\\(attempt\\)"):
        judge_of(f"{HERE}:solve", f"{HERE}:solve")


# ------------------------------------------------------------------------------------------------ tasks, by whatever name


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "places.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_rows_are_tasks_and_a_scored_program_needs_no_answers(rows):
    tried = wb.agents(f"{HERE}:gives_facts", tasks=rows, score=programs.judge)
    tasks = [tried.task(seed) for seed in range(len(ROWS))]
    assert {task.payload["row"]["place"] for task in tasks} == {"ada", "bob", "eve"}
    assert isinstance(tried.inside, ToolTasks) and tried.scored_by == f"{HERE}:judge"
    # Negative control: without a score the answers are asked for.
    with pytest.raises(Exception, match="answer"):
        wb.agents(f"{HERE}:gives_facts", tasks=rows).task(0)


def test_an_environment_is_taken_by_name_and_as_a_value():
    named = wb.agents(programs.solve, tasks="world-qa-hard")
    handed = wb.agents(programs.solve, tasks=WorldQA(world="hard", turns=6))
    assert named.program == handed.program == f"{HERE}:solve"
    assert handed.inside == WorldQA(world="hard", turns=6) and named.inside.world == "hard"
    config = load_config("search", {"env": handed})
    assert from_dict(json.loads(json.dumps(to_dict(config)))).env.inside == handed.inside


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"program": lambda task, model: None}, "top level"),
        ({"tasks": [{"question": "?"}]}, "jsonl"),
        ({"tasks": "world-qq"}, "world-qa"),
        ({"tasks": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"most_call": 3}, "most_calls"),
    ],
)
def test_what_cannot_be_taken_is_said_at_once(arguments, words):
    with pytest.raises(ConfigError, match=words):
        wb.agents(**{"program": programs.solve, "tasks": "world_qa", **arguments})


# ------------------------------------------------------------------------------------------------ tried without a policy


def asked_of(tried) -> list:
    return list(
        check_program_runs(SimpleNamespace(family=tried, tasks=env_tasks(WORLD, "train", 3)))
    )


def test_check_env_starts_the_program():
    assert asked_of(family("solve")) == [Checked(3)]
    assert [check.id for check in family("solve").own_checks()] == ["P1"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("is_hot", "'temperature' = 0.5 is not followed"),
        ("raises", "somebody's bug"),
        ("says_nothing", "no call came in 3 of 3"),
        ("asks_for_ever", "at most 4 calls"),
    ],
)
def test_check_env_names_what_a_program_does_wrong(program, words):
    found = [
        result.what
        for result in asked_of(family(program, most_calls=4))
        if isinstance(result, Finding)
    ]
    assert any(words in what for what in found), found


@pytest.mark.full
def test_check_env_asks_programs_and_no_others():
    report = check_family(family("solve"), only=("P1",), tasks=2, budget_s=0.5)
    assert report.findings["P1"].status == "passed"
    with pytest.raises(KeyError):
        check_family(WORLD, only=("P1",), tasks=2, budget_s=0.5).findings["P1"]


# ------------------------------------------------------------------------------------------------ strict tools


def _strict(wire):
    function = {"name": "search", "parameters": {"type": "object", "properties": {}}}
    message = {"role": "user", "content": "Where?"}
    return {
        openai_chat: {
            "messages": [message],
            "tools": [{"type": "function", "function": function | {"strict": True}}],
        },
        openai_responses: {
            "input": [message],
            "tools": [{"type": "function", "strict": True} | function],
        },
        anthropic_messages: {
            "messages": [message],
            "max_tokens": 9,
            "tools": [{"name": "search", "input_schema": {}, "strict": True}],
        },
    }[wire]


@pytest.mark.parametrize("wire", [openai_chat, openai_responses, anthropic_messages])
def test_strict_tools_are_refused_or_noted_and_never_shown(wire):
    with pytest.raises(RefusedCall, match="strict") as refused:
        wire.read(_strict(wire), FieldRules())
    assert refused.value.field == "strict"
    asked = wire.read(_strict(wire), FieldRules(not_followed=("strict",)))
    assert asked.noted == {"strict": ["search"]} and "strict" not in str(asked.tools)
    body = json.loads(json.dumps(_strict(wire)).replace("true", "false"))
    assert wire.read(body, FieldRules()).tools == asked.tools


# ------------------------------------------------------------------------------------------------ talking through it


def test_a_talk_goes_through_the_program(chat):  # noqa: F811
    from tests.extensions.agents.test_agents import chance
    from workbench.engines.scripted import ScriptedEngine
    from workbench.extensions.talk.events import ToolCallEvent, ToolResultEvent, TurnEvent
    from workbench.extensions.talk.talk import Talk

    config = load_config("search", {"env": family("solve"), "collect.max_turn_tokens": 48})
    talk = Talk(config)
    talk.session = _Session(ScriptedEngine(chance(chat), context_length=1024), chat)
    exchange = talk.ask("In which country does Zumi live?")
    kinds = [type(event) for event in exchange.events]
    assert kinds.count(TurnEvent) == len(exchange.trajectory.turns) >= 2
    assert kinds.count(ToolCallEvent) == kinds.count(ToolResultEvent) == kinds.count(TurnEvent) - 1
    assert exchange.answer == "Zumi" and exchange.reason == "terminated"
    assert all("call" in turn.info for turn in exchange.trajectory.turns)
    for keep, endpoint in ((True, None), (False, wb.Endpoint("http://127.0.0.1:9/v1", "x"))):
        with pytest.raises(ConfigError, match="program"):
            Talk(config, None, endpoint, keep=keep)
    Talk(replace(config, env=WORLD), None, keep=True)  # negative control: without a program it may


class _Session:
    def __init__(self, engine, chat):  # noqa: F811
        self.engine = engine
        self.chat = chat


def test_the_settings_are_an_environments_own():
    assert ProgramTasks(program="a:b", scored_by="c:d").label.endswith("scored by c:d")
