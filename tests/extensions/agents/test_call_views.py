"""The tree of a trajectory's conversations and the table of a run's calls: as text, as a page, in other views, as a frame."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

import workbench as wb
from tests.extensions.agents.test_conversations import chat, played  # noqa: F401
from workbench.extensions.agents.call_records import GROUNDS, calls_of, segments_of
from workbench.extensions.agents.call_table import RunCalls, counts_of
from workbench.extensions.agents.tree_view import MOST_SEGMENTS, ConversationTree
from workbench.look import trajectory_view
from workbench.values import trajectories_of
from workbench.values.errors import DataError


@pytest.fixture(scope="module")
def judged(chat):  # noqa: F811
    groups, _, _ = played(
        chat, "has_a_judge", count=2, trains=["first"], names={"sums": "You sum up"}
    )
    return groups


def test_the_tree_says_who_called_whom_and_what_is_trained(judged):
    lines = wb.conversations(judged[0][0]).text.splitlines()
    [main] = [line for line in lines if line.startswith("main · segment 1")]
    assert "turns 0, 1 (calls 0, 2)" in main and main.endswith(": trained")
    judges = [line for line in lines if "judge · segment" in line and "─ " in line]
    assert len(judges) == 2
    assert all(line.endswith("conversation 'judge' is not trained") for line in judges)
    assert sum("called during turn" in line for line in lines) >= 3
    assert "5 calls · 3 conversations · 4 segments · 0 forks" in lines[1]


def test_a_fork_says_where_and_why(chat):  # noqa: F811
    [group], _, _ = played(chat, "improves_the_answer", group_size=1)
    text = wb.conversations(group[0]).text
    assert (
        "fork from turn 0: message 1 (assistant) differs from character 0 on, where the policy had said its turn 0"
        in text
    )
    assert "was 'Note" in text and "sent 'A better note" in text
    [group], _, _ = played(chat, "draws_again", group_size=1)
    assert "asked again: the messages of turn 0" in wb.conversations(group[0]).text
    [group], _, _ = played(chat, "judges_in_its_own_history", group_size=1)
    assert "another conversation goes on from there" in wb.conversations(group[0]).text


def test_a_trajectory_of_several_conversations_shows_its_tree_by_itself(judged, chat):  # noqa: F811
    view = wb.show(judged[0][0])
    assert "main · segment 1" in view.text and "judge" in view.html
    assert "called during turn" in view.html
    assert "<script" not in view.html and "onclick" not in view.html
    # One of a single conversation is drawn as ever.
    [group], _, _ = played(chat, "retries", group_size=1)
    assert "segment 1" not in trajectory_view(group[0]).text


def test_the_navigator_is_handed_the_tree(judged, tmp_path):
    from workbench.look.cells.explored import _facts_of
    from workbench.look.cells.step_record import StepRecord  # noqa: F401

    class Step:
        step = 1
        groups = judged

    facts = _facts_of(Step, 0, 0)
    assert "judge · segment 2" in facts["added"]
    assert facts["untrained"][1] == "conversation 'judge' is not trained"
    json.dumps(facts)


def test_foreign_words_act_nowhere(judged):
    """Names and texts of a run folder from elsewhere are text."""
    trajectory = judged[0][0]
    evil = "<script>alert(1)</script>\x1b[31m\n\u202e"
    turns = []
    for turn in trajectory.turns:
        call = dict(turn.info["call"]) | {"conversation": evil, "untrained": evil}
        call |= {"way": "fork", "from": 0, "not_followed": {evil: evil}, "temperature": 0.5}
        call["differs"] = {"message": 1, "role": evil, "character": 3, "was": evil, "is": evil}
        turns.append(replace(turn, info={"call": call}))
    segments = tuple(replace(segment, untrained=evil) for segment in trajectory.segments)
    strange = replace(trajectory, turns=tuple(turns), segments=segments)
    for view in (wb.conversations(strange).view(), trajectory_view(strange)):
        assert "<script" not in view.html and "\x1b" not in view.text + view.html
        assert "\u202e" not in view.text


def test_a_chain_of_many_forks_is_drawn_to_a_bound(chat):  # noqa: F811
    [group], _, _ = played(chat, "has_a_clock", group_size=1)
    trajectory = group[0]
    segment = trajectory.segments[-1]
    turns = []
    segments = []
    for number in range(400):
        spans = tuple(replace(span, turn=number) for span in segment.spans)
        segments.append(replace(segment, spans=spans))
        info = {
            "call": {"number": number, "way": "fork", "from": number - 1, "conversation": "main"}
        }
        turns.append(replace(trajectory.turns[-1], index=number, info=info))
    view = wb.conversations(
        replace(trajectory, turns=tuple(turns), segments=tuple(segments))
    ).view()
    assert f"first {MOST_SEGMENTS} segments shown, {400 - MOST_SEGMENTS} hidden" in view.text
    assert max(map(len, view.text.splitlines())) < 300


def test_parents_come_before_their_children(judged):
    for trajectory in trajectories_of(judged):
        calls = calls_of(trajectory)
        nodes = segments_of(trajectory, calls)
        assert [node.number for node in nodes] == sorted(node.number for node in nodes)
        assert all(node.parent is None or node.parent < node.number for node in nodes)
        assert sum(node.sampled for node in nodes) == trajectory.num_sampled


# ------------------------------------------------------------------------------------------------ the table


def test_counts_are_those_of_the_tokens(judged):
    trajectories = trajectories_of(judged)
    counts = counts_of(trajectories)
    assert counts.calls == sum(len(t.turns) for t in trajectories) == 5 * counts.trajectories
    assert counts.sampled == sum(t.num_sampled for t in trajectories)
    assert counts.sampled == counts.trained + counts.left_out + counts.unscored
    judge = sum(
        int((~segment.eligible & (segment.logprobs == segment.logprobs)).sum())
        for t in trajectories
        for segment in t.segments
    )
    assert counts.left_out == judge > 0
    assert sum(calls for calls, _ in counts.by_name.values()) == counts.calls
    assert sum(tokens for _, tokens in counts.by_name.values()) == counts.sampled
    # Each draft came back once, as it was.
    assert counts.sent_back == Counter(exact=counts.trajectories)
    assert counts.share("exact") == 1.0 and counts_of([]).share("exact") is None


@pytest.mark.parametrize(
    ("program", "ground"),
    [("shows_examples", "foreign"), ("improves_the_answer", "foreign"), ("shows_examples", "ids")],
)
def test_grounds_are_counted(chat, program, ground):  # noqa: F811
    groups, _, _ = played(chat, program)
    assert counts_of(trajectories_of(groups)).sent_back[ground] >= 2


def test_the_table_is_a_view_and_a_frame(judged):
    pandas = pytest.importorskip("pandas")
    table = wb.conversations(judged)
    frame = table.to_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 1
    row = frame.iloc[0]
    assert row.calls == 20 and row.forks == 0 and row.left_out > 0 and row.verbatim == 1.0
    assert set(name.replace(" ", "_") for name in GROUNDS.values()) <= set(frame.columns)
    text = table.text
    assert "conversation" in text and "judge" in text and "100.0 %" in text
    assert "<script" not in table.view().html


def test_many_steps_are_summed_and_some_are_shown(judged):
    counts = counts_of(trajectories_of(judged))
    table = RunCalls("run", tuple((step, counts) for step in range(1, 61)), 90)
    assert table.total.calls == 60 * counts.calls
    assert "first 60 steps shown, 30 hidden" in table.text
    assert len(table.to_frame()) == 60


def test_other_values_are_refused_and_other_trajectories_say_so():
    with pytest.raises(DataError, match="takes what as Run"):
        wb.conversations([1, 2])


def test_a_trajectory_that_no_program_made(chat):  # noqa: F811
    from tests.extensions.agents.test_agents import WORLD, gather

    groups = gather(chat, WORLD, count=1, group_size=1)
    assert isinstance(wb.conversations(groups[0][0]), ConversationTree)
    assert "no program made this trajectory" in wb.conversations(groups[0][0]).text
    assert counts_of(trajectories_of(groups)).trajectories == 0
    assert "no program made a trajectory here" in wb.conversations(groups).text
