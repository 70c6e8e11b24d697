"""An OpenEnv server of its own package is played: sessions, seeds, chance, what it refuses, what it breaks at.

openenv insists on other versions than ours, so its servers run in an environment of their own: `make test-readers` makes one
and runs this file in ours. Servers that answer something else are played by websockets' own, in ours.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.beside import environment_beside, python_beside
from tests.counts import reduced
from tests.envs.adapters.trajectories import COUNTS, all_well, some_trajectories
from workbench.extensions.adapters.openenv import OpenEnv
from workbench.extensions.world_rules.replayed import RULES as R20
from workbench.linting import Evidence, check
from workbench.tools.action_format import format_action
from workbench.values import StopReason
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.baselines import known, play

websockets = pytest.importorskip("websockets.sync.server", reason="needs the extra worlds")
PLACE, VARIABLE = ".venv-readers-openenv", "WORKBENCH_OPENENV_PYTHON"
STARTS_S = 240  # a first import of openenv takes minutes on a busy machine
WAYS = ("Left", "Down", "Right", "Up")
GUESSES = tuple(str(number) for number in range(1, 21))
NUMBERS = OpenEnv(
    action="number",
    shown=("words", "inner.left"),
    dynamics_seed="dice",
    deterministic=True,
    success_reward=1.0,
    moves=GUESSES,
    max_turns=8,
    instructions="Find the number.",
)


def served_by_openenv(kind, sessions):
    """The Popen of a real server, and its URL."""
    server = subprocess.Popen(
        [
            python_beside(VARIABLE, PLACE),
            Path(__file__).with_name("openenv_server.py"),
            kind,
            str(sessions),
        ],
        env=environment_beside(),
        stdout=subprocess.PIPE,
        text=True,
    )
    return server, f"http://127.0.0.1:{int(server.stdout.readline())}"


@contextmanager
def ended(server):
    try:
        yield
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.fixture(scope="module")
def numbers():
    server, url = served_by_openenv("numbers", 120)
    with ended(server):
        yield replace(NUMBERS, url=url)


@pytest.fixture(scope="module")
def echo():
    server, url = served_by_openenv("echo", 1)
    with ended(server):
        yield OpenEnv(url, action="text", shown=("words",), max_turns=3)


def answer(text):
    return format_action([text], think=True)


def begun(family, seed=0, dynamics=0):
    env = family.make()
    try:
        return env, env.reset(family.task(seed), dynamics).messages[0].text
    except EnvError:
        env.close()
        raise


def active(family):
    """Sessions that the server holds."""
    connection = http.client.HTTPConnection(family.url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/sessions")
    return json.loads(connection.getresponse().read())["active"]


@pytest.mark.parametrize("count", reduced(COUNTS, ("quick",)))
def test_many_trajectories_inline_and_in_workers_replay(numbers, count):
    all_well(
        numbers,
        [answer(text) for text in (*GUESSES, "0", "100", "many")],
        COUNTS[count],
        at_once=100,
    )
    assert active(numbers) == 0


def alone(seed, rng):
    """The game by itself, at random: is the number found within six guesses?"""
    secret = random.Random(seed).randint(1, 20)
    return any(int(rng.integers(1, 21)) == secret for _ in range(6))


def test_chance_is_what_the_game_itself_pays(numbers):
    rng, act = rng_at("openenv"), numbers.random_action
    ours = [
        play(numbers, numbers.task(seed), seed, lambda env: act(env, rng)) for seed in range(200)
    ]
    theirs = [alone(seed, rng) for seed in range(2_000)]
    error = np.sqrt(np.var(theirs) / 200 + np.var(theirs) / 2_000)
    assert abs(np.mean([result.success for result in ours]) - np.mean(theirs)) < 2.6 * error
    assert all(result.reward == result.success for result in ours) and 0.15 < np.mean(theirs) < 0.4


def test_a_group_is_one_problem_and_its_dice_differ(numbers):
    def heard(family, dynamics):
        env, first = begun(family, 3, dynamics)
        texts = [
            first,
            *(
                env.step(answer(text)).observation.messages[0].text
                for text in ("1", "20", "1", "20", "1")
            ),
        ]
        env.close()
        return tuple(texts)

    seen = [heard(numbers, dynamics) for dynamics in range(8)]
    assert (
        len({texts[0] for texts in seen}) == 1
        and len(set(seen)) > 1
        and seen == [heard(numbers, n) for n in range(8)]
    )


def test_a_transcript(numbers):
    env, first = begun(replace(numbers, options={"most": 1}, fields={"loud": True}))
    assert first == (
        "Find the number.\n\nOne answer a turn, 8 answers at most. Answer like this: "
        "<think>plan</think><answer>your action</answer>\n\nA number from 1 to 1.\n6"
    )
    for text, words in (
        ("no tags", "is missing"),
        (answer("hundred"), "does not take this action. It says: Input should be"),
        (answer("100"), "less than or equal to 99"),
    ):
        refused = env.step(text)
        assert (
            refused.reward == -0.1 and not refused.terminated and refused.info["success"] is False
        )
        words_seen = refused.observation.messages[0].text
        assert words in words_seen and words_seen.endswith("A number from 1 to 1.\n6"), (
            "nothing was done"
        )
    missed = env.step(answer("0"))
    assert missed.observation.messages[0].text in ("HIGHER\n5", "lower\n5") and missed.reward == 0.0
    found = env.step(answer(" 1 "))
    assert (found.reward, found.terminated, found.info["success"], found.info["moves"]) == (
        1.0,
        True,
        True,
        ["1"],
    )
    with pytest.raises(EnvError, match="over or was never begun"):
        env.step(answer("1"))
    env.close()


def test_the_whole_action_as_json_and_the_whole_observation(numbers):
    family = replace(numbers, action="", shown=())
    env, first = begun(family)
    assert '<answer>{"field": "value"}</answer>' in first and first.endswith(
        '{"words": "A number from 1 to 20.", "inner": {"left": 6}}'
    )
    assert "no JSON object" in env.step(answer("[1]")).info["complaint"]
    assert "does not take" in env.step(answer('{"nummer": 1}')).info["complaint"], (
        "the policy's own mistake"
    )
    assert json.loads(
        env.step(answer('{"number": 0, "loud": false}')).observation.messages[0].text
    )["inner"] == {"left": 5}
    env.close()


def test_what_the_server_breaks_at_is_a_fault_of_the_trajectory(numbers):
    groups = some_trajectories(numbers, [answer("77")], 4)
    stops = {
        (t.stop_reason, "seventy-seven breaks it" in (t.error or ""))
        for group in groups
        for t in group
    }
    assert stops == {(StopReason.ENV_ERROR, True)} and active(numbers) == 0
    env, _ = begun(replace(numbers, deadline_s=0.5))
    with pytest.raises(EnvError, match="did not answer step within 0.5 s"):
        env.step(answer("66"))
    env.close()
    env, _ = begun(replace(numbers, action="guess"))
    with pytest.raises(
        EnvError, match="takes other fields in an action than guess: .*Name them in env.action"
    ):
        env.step(answer("1"))
    env.close()
    with pytest.raises(
        EnvError, match="env.shown: the observation has no 'text'; it has inner, metadata, words"
    ):
        begun(replace(numbers, shown=("text",)))


def test_a_server_with_one_session_says_so_and_gives_it_back(echo):
    env, first = begun(echo)
    assert first.endswith("\n\nSpeak.")
    with pytest.raises(EnvError, match="no session left .*max_concurrent_envs"):
        begun(echo)
    env.close()
    again, _ = begun(echo)  # the session of the trajectory before is free
    again.close()
    with pytest.raises(EnvError, match="over before it began"):
        begun(replace(echo, options={"over": True}))


def test_no_reward_is_not_zero(echo):
    for said, rewards in (
        (("a", "b", "c"), [0.0, 0.0, None]),
        (("a", "bye"), [0.0, None]),
        (("paid", "a", "bye"), [1.0, 0.0, 0.0]),
        (("a", "b", "paid"), [0.0, 0.0, 1.0]),
    ):
        env, _ = begun(echo)
        results = [env.step(answer(text)) for text in said]
        env.close()
        assert [result.reward for result in results] == rewards and "success" not in results[
            -1
        ].info
    env, _ = begun(echo)
    assert [env.step("no tags").reward for _ in range(3)] == [-0.1, -0.1, -0.1], (
        "which is no reward that is missing"
    )
    env.close()


def test_the_lint_replays_what_says_that_it_is_the_same_twice_and_is_here(numbers, echo):
    groups = tuple(map(tuple, some_trajectories(numbers, [answer(text) for text in GUESSES], 8)))

    def status(family):
        return check(Evidence(groups, family=family), R20)["R20"].status

    assert (
        status(numbers) == "passed"
        and status(replace(numbers, deterministic=False)) == "not checked"
    )
    assert status(replace(numbers, dynamics_seed="")) == "found", (
        "the dice are others: a false claim is found"
    )
    elsewhere = [
        OpenEnv(url, deterministic=True).remote
        for url in ("https://a.b", "ws://10.0.0.1:8", "http://127.0.0.1.a.b")
    ]
    assert all(elsewhere) and not any(
        OpenEnv(url).remote for url in ("http://localhost:1", "ws://[::1]:2", numbers.url)
    )


def test_a_policy_is_trained_on_it(tmp_path):
    server, url = served_by_openenv("ways", 48)  # those of the step before may not be free yet
    with ended(server):
        family = OpenEnv(
            url, action="way", shown=("board",), max_turns=1, deterministic=True, moves=WAYS
        )
        config = wb.load_config(
            "frozenlake",
            {
                "train.steps": 2,
                "train.tasks_per_step": 2,
                "train.group_size": 8,
                "evaluation.num_tasks": 4,
            },
        )
        run = wb.train_here(replace(config, env=family), tmp_path / "run")
        assert {0.0, 1.0} <= {
            t.reward for step in (1, 2) for group in run.groups(step) for t in group
        }
        report = wb.lint(tmp_path / "run", step=2)
        assert report.ok and report.report["R20"].status == "passed", report.text
        assert max(run.metrics()["grad_norm"]) > 0


@contextmanager
def pretended(handler):
    """The URL of something that speaks WebSocket, but not as OpenEnv does."""
    with websockets.serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def says(*answers):
    def handler(connection):
        for text in answers:
            connection.recv()
            connection.send(text)

    return handler


def seen(**data):
    return json.dumps(
        {
            "type": "observation",
            "data": {"observation": {"words": "hello"}, "reward": None, "done": False} | data,
        }
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "expected a JSON object"),
        ("[1]", "expected a JSON object"),
        ("[" * 100_000, "expected a JSON object"),
        ('{"type": "welcome"}', "expected the type 'observation'"),
        (seen(observation="hi"), "expected an observation"),
        (seen(reward="much"), "expected an observation"),
        (seen(reward=float("nan")), "finite number"),
        (seen(done=1), "true or false"),
        (" " * 4_000_001, "ended the session"),
        ('{"type": "error", "data": {"code": "X", "message": "no\\u001b[31m"}}', "X: no .31m"),
        ('{"type": "error"}', "says of reset"),
        (None, "ended the session at reset"),
    ],
)
def test_what_is_no_answer_is_named(text, words):
    with (
        pretended(says(*[] if text is None else [text])) as url,
        pytest.raises(EnvError, match=words),
    ):
        begun(OpenEnv(url, deadline_s=5.0))


def test_what_is_no_server_is_named_before_a_policy_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match="127.0.0.1:9 cannot be reached"):
        OpenEnv("http://127.0.0.1:9").check_files()
    with pytest.raises(ConfigError, match="cannot be reached"):
        wb.train_here(
            replace(wb.load_config("frozenlake"), env=OpenEnv("http://127.0.0.1:9")),
            tmp_path / "never",
        )
    with (
        pretended(lambda connection: connection.recv() and connection.recv()) as url,
        pytest.raises(ConfigError, match="did not answer state within 0.3 s"),
    ):
        OpenEnv(url, deadline_s=0.3).check_files()


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "127.0.0.1:80"},
        {"url": "http://a:b"},
        {"url": "ftp://a"},
        {"url": "http://me@a"},
        {"url": "http://a?key=1"},
        {"deadline_s": 0.0},
        {"format_penalty": 1.0},
        {"fields": {"message": 1}},
        {"options": {"seed": 1}},
        {"dynamics_seed": "seed"},
    ],
)
def test_what_cannot_be(settings):
    with pytest.raises(ConfigError):
        OpenEnv(**settings)


def test_what_is_not_known():
    assert known(OpenEnv()) == () and known(NUMBERS) == ("random",)
