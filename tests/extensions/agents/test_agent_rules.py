"""R40 to R46: each names its bug with the turn, is silent about what looks like it, and about programs that are sound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extensions.agents.test_agents import chance, family, gather
from tests.extensions.agents.test_conversations import HERE, chat, evidence_of, played  # noqa: F401
from workbench.basics.findings import ERROR, FOUND, NOTE
from workbench.engines.recorder import Journal
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents.agent_rules import RULES
from workbench.extensions.agents.family import ProgramTasks
from workbench.extensions.agents.tree import CallTree
from workbench.extensions.agents.wires.fields import RequestFields
from workbench.linting.evidence import Evidence
from workbench.linting.rule import check
from workbench.linting.table import lint_evidence
from workbench.values import trajectories_of
from workbench.worlds.world_qa import WorldQA

BAD_CALL = '<tool_call>{"name": "search", "arguments": </tool_call>'


def findings(chat, program, **settings):  # noqa: F811
    groups, tried, _ = played(chat, program, **settings)
    return asked_of(chat, groups, tried)


def asked_of(chat, groups, tried):  # noqa: F811
    """Rule -> its findings."""
    report = check(evidence_of(chat, groups, tried), RULES)
    return {answer.rule: answer.findings for answer in report if answer.status == FOUND}


# ------------------------------------------------------------------------------------------------ bugs and what looks like them


def test_a_history_that_is_rewritten_in_every_call(chat):  # noqa: F811
    said = findings(chat, "has_a_clock")
    assert set(said) == {"R40"}
    [finding] = said["R40"]
    assert finding.severity == NOTE and finding.count == 8  # four of five calls, twice
    assert "message 0 (system) differs from character 6 on" in finding.what
    assert '"It is 0 o\'clock." became "It is 1 o\'clock."' in finding.what
    assert (finding.place.segment, finding.place.turn) == (1, 1)
    assert findings(chat, "summarises_once") == {}


def test_tokens_that_are_lost_by_a_fork(chat, monkeypatch):  # noqa: F811
    """The bug: only the segment that ended last is kept, as where histories are aligned again."""
    segments = CallTree.segments

    def newest(self):
        whole = segments.fget(self)
        return (*(replace(s, spans=s.spans[:1]) for s in whole[:-1]), whole[-1])

    assert "R41" not in findings(chat, "summarises_once")
    monkeypatch.setattr(CallTree, "segments", property(newest))
    [first, *_] = findings(chat, "summarises_once")["R41"]
    assert first.severity == ERROR and first.place.turn == 0
    assert "0 of them stand in its segments as sampled" in first.what


def test_what_is_left_out_otherwise_than_was_said(chat):  # noqa: F811
    groups, tried, _ = played(chat, "has_a_judge", trains=["first"])
    assert asked_of(chat, groups, tried) == {}
    forgot = [replace(s, untrained="") for s in groups[0][0].segments]
    wrong = [[replace(groups[0][0], segments=tuple(forgot))]]
    report = check(Evidence(groups=tuple(map(tuple, wrong))), RULES)
    [finding, *_] = report["R41"].findings
    assert finding.severity == ERROR and "is not trained" in finding.what
    assert finding.place.turn is not None


def test_a_name_that_no_conversation_has(chat):  # noqa: F811
    said = findings(chat, "has_a_judge", trains=["jugde"])
    [finding] = said["R41"]
    assert finding.severity == ERROR and "'jugde'" in finding.what and "judge" in finding.what
    [finding] = findings(chat, "has_a_judge", trains=["first", "jugde"])["R41"]
    assert finding.severity == NOTE
    assert findings(chat, "has_a_judge", trains=["first", "judge"]) == {}


def test_words_that_are_replaced(chat):  # noqa: F811
    said = findings(chat, "improves_the_answer")
    assert set(said) == {"R42"}
    [finding] = said["R42"]
    assert finding.severity == NOTE and finding.place.turn == 1
    assert (
        "than the policy sampled in turn 0: message 1 (assistant) differs from character 0"
        in finding.what
    )
    assert findings(chat, "shows_examples") == {}


def test_calls_that_are_drawn_again(chat):  # noqa: F811
    said = findings(chat, "draws_again")
    assert set(said) == {"R43"}
    [finding] = said["R43"]
    assert finding.severity == NOTE and finding.place.turn == 1 and "of turn 0" in finding.what
    assert findings(chat, "retries") == {}


def test_programs_that_ask_nobody(chat):  # noqa: F811
    groups, tried, _ = played(chat, "asks_nobody")
    report = check(Evidence(groups=tuple(map(tuple, groups)), family=tried), RULES)
    [finding] = report["R44"].findings
    assert finding.severity == ERROR and "2 of 2 programs" in finding.what
    assert finding.place.trajectory == f"{groups[0].task.id}/0"
    others, _, _ = played(chat, "draws_again")
    some = (tuple(groups[0]), tuple(others[0]))
    [finding] = check(Evidence(groups=some, family=tried), RULES)["R44"].findings
    assert finding.severity == NOTE
    assert "R44" not in findings(chat, "retries")


def test_calls_of_tools_that_cannot_be_read(chat):  # noqa: F811
    ids = [*chat.encoder.backend.encode(BAD_CALL, add_special_tokens=False).ids, chat.end_of_turn]

    def said(program):
        tried = ProgramTasks(program=f"{HERE}:{program}", tasks="world_qa")
        engine = ScriptedEngine(lambda request: ids, context_length=1024)
        return asked_of(chat, gather(chat, tried, count=1, engine=engine), tried)

    [finding] = said("offers_tools")["R45"]
    assert finding.severity == NOTE and finding.place.turn == 0
    assert "10 of 10 calls of tools" in finding.what and "JSON" in finding.what
    assert "R45" not in said("offers_none")


def test_a_temperature_of_its_own(chat, monkeypatch):  # noqa: F811
    [finding] = findings(chat, "is_cold", decides=("temperature",))["R46"]
    assert finding.severity == NOTE and "temperature 0.5" in finding.what
    assert finding.place.turn == 0
    assert findings(chat, "says_the_runs_temperature") == {}
    assert findings(chat, "is_cold", not_followed=("temperature",)) == {}
    # The bug: what a program asks for is followed, whoever is to decide.
    monkeypatch.setattr(RequestFields, "sampling", RequestFields.number)
    [finding] = findings(chat, "is_cold")["R46"]
    assert finding.severity == ERROR and "does not leave it to the program" in finding.what


# ------------------------------------------------------------------------------------------------ no false alarm


@pytest.mark.parametrize(
    "program", ["solve", "solve_streamed", "solve_by_responses", "solve_by_messages"]
)
def test_sound_programs_are_not_complained_about(chat, program):  # noqa: F811
    tried = family(program)
    engine = Journal(ScriptedEngine(chance(chat), context_length=1024))
    groups = gather(chat, tried, engine=engine)
    report = check(evidence_of(chat, groups, tried, engine.exchanges), RULES)
    assert [answer.rule for answer in report if answer.findings] == []
    looked = {answer.rule for answer in report if answer.looked}
    assert looked == {rule.id for rule in RULES}  # and it is not for want of looking
    assert sum(len(t.turns) for t in trajectories_of(groups)) > 8


def test_runs_without_programs_are_not_asked(chat):  # noqa: F811
    """They are no line in the report of a run that has no programs."""
    world = WorldQA()
    engine = ScriptedEngine(chance(chat), context_length=1024)
    evidence = evidence_of(chat, gather(chat, world, engine=engine), world)
    asked = {answer.rule for answer in lint_evidence(evidence, when=("step",))}
    assert asked and not asked & {rule.id for rule in RULES}
    groups, tried, _ = played(chat, "retries")
    asked = {answer.rule for answer in lint_evidence(evidence_of(chat, groups, tried), ("step",))}
    assert {rule.id for rule in RULES} <= asked


def test_records_from_elsewhere_are_data(chat):  # noqa: F811
    """Whatever a run folder says of calls: nothing raises, and no rule fails."""
    groups, tried, _ = played(chat, "has_a_judge", group_size=1)
    strange = [None, [], {"number": "x"}, {"number": -1, "from": 10**30, "way": 3}]
    strange += [{"number": 2**70, "differs": {"message": 0, "call": 0}, "sent_back": [1]}]
    strange += [
        {"way": "fork", "from": 99, "differs": {"message": "x"}, "conversation": "<b>\x1b[1m"}
    ]
    trajectory = groups[0][0]
    for odd in strange:
        turns = tuple(replace(turn, info={"call": odd}) for turn in trajectory.turns)
        evidence = Evidence(groups=((replace(trajectory, turns=turns),),), family=tried)
        report = check(evidence, RULES)
        assert not any("rule itself failed" in f.what for a in report for f in a.findings)
