"""Games of TextArena against another policy, and against a model behind a server: named in settings, never trained."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from tests.envs.adapters.trajectories import all_well
from workbench.extensions.adapters.textarena import TextArena, opponent_of
from workbench.rollouts.opponents import endpoint
from workbench.tools.action_format import format_action
from workbench.values import Source, StopReason
from workbench.values.errors import ConfigError

pytest.importorskip("textarena", reason="needs the package textarena")
POLICY = "workbench.rollouts.opponents:policy(frozenlake-tiny)"
CROSSES = TextArena("TicTacToe-v0", players=2, opponent=POLICY, max_turns=5)
MOVES = [format_action([f"[{n}]"], think=True) for n in range(9)]
ROOT = Path(__file__).resolve().parents[3]


class Corner:
    """Converses; takes the cells from the last one on, and keeps what it was shown."""

    converses = True

    def __init__(self):
        self.shown = []

    def __call__(self, observation, rng):
        self.shown.append([(message.role, message.text) for message in observation.messages])
        turn = sum(message.role == "assistant" for message in observation.messages)
        return (
            format_action([f" [{8 - turn}] "], think=True, thought="corner")
            if turn < 2
            else "no tags"
        )


corner = Corner()


@pytest.mark.full
def test_many_trajectories_against_a_policy_replay():
    groups = all_well(CROSSES, MOVES, 24, workers=False)
    assert any(t.success for group in groups for t in group)


def test_one_that_converses_sees_its_whole_conversation_in_the_policys_format():
    family = replace(CROSSES, opponent=f"{__name__}:corner", seat=1)
    opponent_of(family).shown.clear()
    env = family.make()
    first = env.reset(family.task(0), 0)
    assert "Player 0 placed their symbol (O) in cell 8." in first.messages[0].text, "it began"
    result = env.step(MOVES[0])
    assert "cell 7" in result.observation.messages[0].text
    result = env.step(
        MOVES[1]
    )  # its answer has no tags: it goes to the game as it stands, which refuses it
    one, two, *rest = opponent_of(family).shown
    assert [role for role, _ in one] == ["user"] and [role for role, _ in two] == [
        "user",
        "assistant",
        "user",
    ]
    assert two[:1] == one and one[0][1].startswith(
        "One answer a turn, 5 answers at most. Answer like this: <think>"
    )
    assert (
        two[1][1] == "<think>corner</think><answer> [8] </answer>" and "One answer" not in two[2][1]
    )
    assert len(rest) >= 1 and result.terminated and result.reward == 1.0 and result.info["success"]


@pytest.mark.full
def test_what_it_says_is_never_trained_and_a_policy_is_trained_against_it_and_against_its_earlier_self(
    tmp_path,
):
    config = wb.load_config(
        "frozenlake",
        {
            "train.steps": 1,
            "train.tasks_per_step": 2,
            "train.group_size": 4,
            "evaluation.num_tasks": 2,
            "collect.max_turn_tokens": 24,
        },
    )
    run = wb.train_here(replace(config, env=replace(CROSSES, max_turns=2)), tmp_path / "first")
    spans = [
        span
        for group in run.groups(1)
        for t in group
        for segment in t.segments
        for span in segment.spans
    ]
    assert all(span.source is Source.POLICY for span in spans if span.sampled)
    wb.export_policy(run, tmp_path / "earlier")
    earlier = replace(
        CROSSES,
        max_turns=2,
        opponent=f"workbench.rollouts.opponents:policy({tmp_path / 'earlier'})",
    )
    second = wb.train_here(replace(config, env=earlier), tmp_path / "second")
    assert {t.stop_reason for group in second.groups(1) for t in group} <= {
        StopReason.TERMINATED,
        StopReason.MAX_TURNS,
    }
    report = wb.lint(tmp_path / "second", step=1)
    assert report.ok and report.report["R20"].status == "passed", report.text


@pytest.fixture
def server():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.endpoint_server"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_model_behind_a_server_plays_and_nothing_is_said_to_be_the_same_twice(server):
    pytest.importorskip("openai", reason="needs the package openai")
    family = replace(
        CROSSES, opponent=f"workbench.rollouts.opponents:endpoint({server} any)", seat=1
    )
    assert not family.deterministic and CROSSES.deterministic
    env = family.make()
    env.reset(family.task(0), 0)
    asked = json.loads(urllib.request.urlopen(f"{server}/requests").read())
    first = asked[0]["messages"]
    assert [message["role"] for message in first] == ["user"] and "Tic Tac Toe" in first[0][
        "content"
    ]
    result = env.step(MOVES[0])
    assert result.terminated and result.info["success"], (
        "it answered 'none', twice, and lost before the first turn"
    )


@pytest.mark.parametrize(
    ("opponent", "words"),
    [
        ("workbench.rollouts.opponents:nobody(x)", "nobody"),
        ("workbench.rollouts.opponents:policy(x", "package.module:Name"),
        ("workbench.rollouts.opponents:endpoint(http://127.0.0.1:1/v1)", "URL MODEL"),
        ("workbench.rollouts.opponents:endpoint(a b c d)", "URL MODEL"),
        ("workbench.rollouts.opponents:endpoint(a b)", "http"),
    ],
)
def test_what_cannot_be(opponent, words):
    with pytest.raises(ConfigError, match=words):
        replace(CROSSES, opponent=opponent).make()


def test_the_words_of_an_endpoint():
    made = endpoint("http://127.0.0.1:1/v1 some-model").endpoint
    assert (made.url, made.model, made.key_env) == ("http://127.0.0.1:1/v1", "some-model", "")
