"""Games of TextArena: one player and two, dice of their own, chance as the package itself plays."""

import random

import numpy as np
import pytest

from tests.counts import reduced
from tests.envs.adapters.trajectories import COUNTS, all_well
from workbench.extensions.adapters.textarena import TextArena, listed_moves, random_move
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.baselines import known, play

arena = pytest.importorskip("textarena", reason="needs the package textarena")
GUESS = TextArena(moves=tuple(f"[{number}]" for number in range(1, 21)), max_turns=12)
CROSSES = TextArena("TicTacToe-v0", players=2)
SECOND = TextArena("TicTacToe-v0", players=2, seat=1)
POKER = TextArena("KuhnPoker-v0", players=2)
FAMILIES = {
    "guess": (GUESS, GUESS.moves),
    "crosses": (CROSSES, tuple(f"[{n}]" for n in range(9))),
    "second": (SECOND, tuple(f"[{n}]" for n in range(9))),
    "poker": (POKER, ("[check]", "[bet]", "[call]", "[fold]")),
}


def answer(text):
    return format_action([text], think=True)


def first_free(said, rng):
    """An opponent of the user's own."""
    return listed_moves(said)[0]


@pytest.mark.parametrize("count", reduced(COUNTS, ("quick",)))
@pytest.mark.parametrize("name", FAMILIES)
def test_many_trajectories_inline_and_in_workers_replay(name, count):
    family, moves = FAMILIES[name]
    all_well(family, [answer(move) for move in moves], COUNTS[count], workers=name == "second")


def alone(seed, rng):
    """TicTacToe by the package itself, both players at random: does the first one win?"""
    game = arena.make("TicTacToe-v0")
    game.reset(num_players=2, seed=seed)
    done = False
    while not done:
        moves = listed_moves(game.get_observation()[1])
        done, _ = game.step(moves[rng.integers(len(moves))])
    return game.close()[0][0] == 1


def test_chance_is_what_the_package_itself_plays():
    rng, act, state = rng_at("textarena"), CROSSES.random_action, random.getstate()
    ours = [
        play(CROSSES, CROSSES.task(seed), seed, lambda env: act(env, rng)).success
        for seed in range(400)
    ]
    assert random.getstate() == state  # Python's generator is as it was
    theirs = [alone(seed, rng) for seed in range(400)]
    error = np.sqrt((np.var(ours) + np.var(theirs)) / 400)
    assert abs(np.mean(ours) - np.mean(theirs)) < 2.6 * error and 0.4 < np.mean(ours) < 0.75


def test_a_group_is_one_game_and_its_dice_differ():
    task = POKER.task(2)

    def played(seed):
        env = POKER.make()
        texts = [env.reset(task, seed).messages[0].text]
        while not env.finished:
            move = random_move(env.said, rng_at("same"), ("[check]",))
            texts.append(env.step(answer(move)).observation.messages[0].text)
        return texts

    seen = [played(seed_of("dice", seed)) for seed in range(8)]
    assert len({texts[0] for texts in seen}) == 1 and len({tuple(texts) for texts in seen}) > 1
    assert seen == [played(seed_of("dice", seed)) for seed in range(8)]


def test_two_games_at_once_do_not_disturb_each_other():
    alone_first = [
        play(POKER, POKER.task(1), 5, lambda env: POKER.random_action(env, rng_at("p"))).reward
    ]
    one, other = POKER.make(), POKER.make()
    one.reset(POKER.task(1), 5), other.reset(POKER.task(9), 6)
    total = 0.0
    while not one.finished:
        if not other.finished:
            other.step(POKER.random_action(other, rng_at("q")))
        total += one.step(POKER.random_action(one, rng_at("p"))).reward
    assert total == alone_first[0]


def test_an_opponent_of_the_users_own_and_a_win():
    family = TextArena("TicTacToe-v0", players=2, opponent=f"{__name__}:first_free")
    env = family.make()
    env.reset(family.task(0), 0)
    for move in ("[8]", "[4]"):
        result = env.step(answer(move))
        assert not result.terminated and result.reward == 0.0
    assert "Player 1 placed their symbol (X) in cell 1." in result.observation.messages[0].text
    env.step(answer("[2]"))
    result = env.step(answer("[6]"))
    assert result.terminated and result.reward == 1.0 and result.info["success"]
    with pytest.raises(EnvError, match="over or was never begun"):
        env.step(answer("[1]"))


def test_bad_text_is_refused_and_the_game_goes_on():
    env = CROSSES.make()
    env.reset(CROSSES.task(0), 0)
    result = env.step("no tags")
    assert result.reward == -0.1 and "Available Moves" in result.observation.messages[0].text
    assert not env.step(answer("[4]")).terminated


def test_what_is_not_known_and_what_cannot_be():
    assert known(GUESS) == ("random",) and known(TextArena("Nim-v0", players=2)) == ()
    assert listed_moves("Available: '[1]'\nno. Available Actions: [up], [down]") == [
        "[up]",
        "[down]",
    ]
    assert random_move("nothing", rng_at("x")) == ""
    with pytest.raises(ConfigError, match="is not one of the 2 seats"):
        TextArena("TicTacToe-v0", players=2, seat=2)
    with pytest.raises(ConfigError, match="module:function"):
        TextArena("TicTacToe-v0", players=2, opponent="clever")
    with pytest.raises(ConfigError, match="cannot make 'Nothing-v0'"):
        TextArena("Nothing-v0").make()
