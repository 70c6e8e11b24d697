"""Gymnasium's own environments as text: seeds, names, colors, chance as the package plays, a solver."""

import numpy as np
import pytest

from tests.counts import reduced
from tests.envs.adapters.trajectories import COUNTS, all_well
from workbench.extensions.adapters.gymnasium import Gymnasium, colors_as_words
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.baselines import known, play

gymnasium = pytest.importorskip("gymnasium", reason="needs the package gymnasium")
LAKE = Gymnasium(success_reward=1.0, max_turns=30)
SLIDING = Gymnasium(options={"is_slippery": False}, success_reward=1.0, max_turns=30)
TAXI = Gymnasium("Taxi-v4", success_reward=20.0)
CARDS = Gymnasium("Blackjack-v1", success_reward=1.0)
BABY = Gymnasium("BabyAI-GoToRedBallGrey-v0", success_reward=0.01, max_turns=20)
FAMILIES = {"lake": LAKE, "taxi": TAXI, "blackjack": CARDS, "baby": BABY}


def answer(action):
    return format_action([action], think=True)


@pytest.mark.parametrize("count", reduced(COUNTS, ("quick",)))
@pytest.mark.parametrize("name", FAMILIES)
def test_many_trajectories_inline_and_in_workers_replay(name, count):
    if name == "baby":
        pytest.importorskip("minigrid", reason="needs the package minigrid")
    family = FAMILIES[name]
    all_well(
        family,
        [answer(action) for action in family.make().names],
        COUNTS[count],
        workers=name == "taxi",
    )


def test_chance_is_what_the_package_itself_plays():
    rng, hits = rng_at("gymnasium"), []
    for seed in range(400):
        hits.append(
            play(LAKE, LAKE.task(seed), seed, lambda env: LAKE.random_action(env, rng)).success
        )
    env = gymnasium.make("FrozenLake-v1")
    others = []
    for seed in range(400):
        env.reset(seed=seed)
        total = 0.0
        for _ in range(30):
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(4)))
            total += reward
            if terminated or truncated:
                break
        others.append(total >= 1.0)
    error = np.sqrt((np.var(hits) + np.var(others)) / 400) + 1e-9
    assert abs(np.mean(hits) - np.mean(others)) < 2.6 * error


def test_dice_are_not_shared_by_a_group_and_come_from_the_dynamics_seed():
    task = CARDS.task(5)

    def hands(seed):
        env = CARDS.make()
        return env.reset(task, seed).messages[0].text, env.step(answer("Hit")).observation.messages[
            0
        ].text

    seen = [hands(seed_of("dice", seed)) for seed in range(20)]
    assert len({first for first, _ in seen}) == 1 and len({after for _, after in seen}) > 3
    assert seen == [hands(seed_of("dice", seed)) for seed in range(20)]


def test_a_transcript_with_colors_as_words():
    env = SLIDING.make()
    first = env.reset(SLIDING.task(0), 0).messages[0].text
    assert first.startswith(
        "You play FrozenLake-v1. Actions: Left, Down, Right, Up. One action an answer, 30 answers."
    )
    assert first.endswith("{red:S}FFF\nFHFH\nFFFH\nHFFG\n")
    moved = env.step(answer("down"))
    assert (
        "(Down)\nSFFF\n{red:F}HFH" in moved.observation.messages[0].text
        and moved.info["success"] is False
    )
    refused = env.step(answer("Down || Down"))
    assert (
        refused.reward == -0.1
        and "more than one" in refused.info["complaint"]
        and not refused.terminated
    )
    assert refused.observation.messages[0].text.endswith(env._shown)
    with pytest.raises(EnvError, match="over or was never begun"):
        LAKE.make().step("")


def test_nested_colors_and_control_characters():
    assert (
        colors_as_words("\x1b[35m\x1b[43mY\x1b[0m\x1b[0m|\x1b[34;1mR\x1b[0m")
        == "{magenta yellow:Y}|{blue:R}"
    )
    text = TAXI.make().reset(TAXI.task(3), 0).messages[0].text
    assert "\x1b" not in text and "magenta:" in text and "yellow" in text


@pytest.mark.parametrize(("family", "least"), [(SLIDING, 1.0), (TAXI, 1.0), (LAKE, 0.4)])
def test_the_solver_plans_on_the_table(family, least):
    act, rng = family.solver_action, rng_at("solver")
    count = 60 if family is LAKE else 12
    wins = [
        play(family, family.task(seed), seed, lambda env: act(env, rng)).success
        for seed in range(count)
    ]
    assert np.mean(wins) >= least


def test_what_is_not_known_is_not_there():
    assert known(CARDS) == ("random",) and known(TAXI) == ("random", "solver")
    silent = Gymnasium("CliffWalking-v1")
    result = play(silent, silent.task(0), 0, lambda env: silent.random_action(env, rng_at("x")))
    assert result.success is None


def test_what_cannot_be_played():
    with pytest.raises(ConfigError, match="would import code"):
        Gymnasium("my_module:Env-v0")
    with pytest.raises(ConfigError, match="cannot make 'Nowhere-v0'"):
        Gymnasium("Nowhere-v0").make()
    with pytest.raises(ConfigError, match="only Discrete"):
        Gymnasium("Pendulum-v1").make()
    with pytest.raises(ConfigError, match="has 4 actions"):
        Gymnasium(actions=("a", "b")).make()
