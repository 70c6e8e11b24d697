"""FrozenLake: what it says, what it pays, how it slips, and how hard it is."""

import json
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.exact_values import random_value, solver_value
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds import PRESETS, FrozenLake, lake_solver
from workbench.worlds import frozen_lake as module
from workbench.worlds.frozen_lake import MOVES, slipped, task_from_grid

LAKE = task_from_grid(["P__O", "_O__", "____", "O__G"])
OPEN = task_from_grid(["_____", "_____", "__P__", "_____", "____G"])


def begin(family, task=LAKE, dynamics_seed=0):
    env = family.make()
    return env, env.reset(task, dynamics_seed)


def said(observation):
    assert [message.role for message in observation.messages] == ["user"]
    return observation.messages[0].text


def act(*moves, think=True):
    return format_action(moves, think=think)


# ------------------------------------------------------------------------------------------------ what is said

VISIBLE = st.characters(codec="utf-8", exclude_categories=("C", "Z"))

TRANSCRIPT = """\
Go from P to G over the ice _ and keep out of the holes O.
Moves: Left, Down, Right, Up. Limits: 10 moves in all, 5 per answer, 10 answers.
Answer like this: <think>plan</think><answer>Right || Down</answer>

P _ _ O
_ O _ _
_ _ _ _
O _ _ G
Moves left: 10
>>> I walk right.
The tag <think> is missing.
Nothing was done. Answer like this: <think>plan</think><answer>Right || Down</answer>
P _ _ O
_ O _ _
_ _ _ _
O _ _ G
Moves left: 10
--- -0.1 {'goal': 0.0, 'format': -0.1}
>>> <think>jump</think><answer>Right || Jump</answer>
The answer holds something that is not on offer. It says: Jump
Nothing was done. Answer like this: <think>plan</think><answer>Right || Down</answer>
P _ _ O
_ O _ _
_ _ _ _
O _ _ G
Moves left: 10
--- -0.1 {'goal': 0.0, 'format': -0.1}
>>> <think>walk</think><answer>Up || Down || Down || Right || Right || Right || Down</answer>
Only 5 of 7 moves were done; the limit is 5 per answer.
_ _ _ O
_ O _ _
_ _ P _
O _ _ G
Moves left: 5
--- 0.0 {'goal': 0.0, 'format': 0.0}
>>> <think>walk</think><answer>Down || Right || Up</answer>
_ _ _ O
_ O _ _
_ _ _ _
O _ _ √
You reached the goal.
--- 1.0 {'goal': 1.0, 'format': 0.0}
"""


def test_a_scripted_trajectory_as_a_transcript():
    env, observation = begin(FrozenLake())
    lines = [said(observation)]
    for line in re.findall(r"^>>> (.*)$", TRANSCRIPT, re.MULTILINE):
        result = env.step(line)
        lines += [
            f">>> {line}",
            said(result.observation),
            f"--- {result.reward} {dict(result.reward_parts)}",
        ]
    assert "\n".join(lines) + "\n" == TRANSCRIPT
    assert result.terminated and not result.truncated and result.info["success"]
    assert result.info["moves"] == ["Down", "Right"]  # the goal was reached before the third


def test_a_hole_ends_the_trajectory_without_reward():
    env, _ = begin(FrozenLake())
    result = env.step(act("Right", "Down", "Down"))
    assert (
        result.terminated
        and not result.truncated
        and result.reward == 0.0
        and not result.info["success"]
    )
    assert result.info["state"].splitlines()[1] == "_ X _ _" and result.info["moves"] == [
        "Right",
        "Down",
    ]
    assert said(result.observation).endswith("You fell into a hole.")
    with pytest.raises(EnvError, match="reset"):
        env.step(act("Up"))


def test_the_last_move_truncates_and_the_edge_uses_moves_up():
    env, _ = begin(FrozenLake(max_moves=3, max_moves_per_action=2))
    first = env.step(act("Left", "Up"))
    assert (
        not first.truncated
        and not first.info["effective"]
        and said(first.observation).endswith("Moves left: 1")
    )
    last = env.step(act("Left", "Right"))
    assert last.truncated and not last.terminated and last.info["moves"] == ["Left"]


def test_the_goal_on_the_last_move_is_terminated_not_truncated():
    env, _ = begin(FrozenLake(size=2, max_moves=1), task_from_grid(["PG", "__"]))
    result = env.step(act("Right"))
    assert result.terminated and not result.truncated and result.reward == 1.0


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 7), st.integers(1, 9), st.booleans())
def test_the_prompt_states_the_true_limits(max_moves, per_action, max_turns, think):
    """Read the limits from the prompt, then find them by pushing against the edge."""
    family = FrozenLake(
        max_moves=max_moves, max_moves_per_action=per_action, max_turns=max_turns, think=think
    )
    env, observation = begin(family)
    told = [
        int(n)
        for n in re.search(
            r"Limits: (\d+) moves in all, (\d+) per answer, (\d+) answers", said(observation)
        ).groups()
    ]
    done, result = [], None
    while result is None or not result.truncated:
        result = env.step(act(*["Left"] * 30, think=think))
        done.append(len(result.info["moves"]))
    assert told == [sum(done), max(done), family.max_turns]
    assert f"Moves left: {max_moves}" in said(observation)
    example = re.search(r"Answer like this: (.*)", said(observation)).group(1)
    env, _ = begin(family)
    tried = env.step(example)
    # The example in the prompt is readable and itself within the limits.
    assert tried.info["valid_format"] and len(tried.info["moves"]) == tried.info["asked_moves"]


def test_the_prompt_states_the_slip_and_is_short():
    for slip, words in ((0.0, None), (0.2, "probability 0.2"), (2 / 3, "probability 0.667")):
        prompt = said(begin(FrozenLake(slip=slip))[1])
        assert (words in prompt) if words else ("slip" not in prompt)
        assert len(re.findall(r"\w+|[^\w\s]", prompt)) <= 115


@settings(max_examples=60)
@given(
    st.lists(VISIBLE, min_size=6, max_size=6, unique=True).map("".join),
    st.integers(0, 2**40),
    st.lists(st.lists(st.sampled_from(MOVES), min_size=1, max_size=3), min_size=1, max_size=5),
)
def test_a_lake_in_other_symbols_is_the_same_lake(symbols, task_seed, answers):
    """Each cell in the other symbol, every word, reward and fact beside the grid as it was, by a table of its own."""
    plain, other = FrozenLake(slip=0.3), FrozenLake(slip=0.3, symbols=symbols)
    shown = {cell: symbols["P_OGX√".index(cell)] for cell in "P_OGX√"}
    task = other.task(task_seed)
    assert task == plain.task(task_seed) and other.split_of(task) == plain.split_of(task)
    (here, first), (there, other_first) = begin(plain, task, 7), begin(other, task, 7)
    player, ice, hole, goal = symbols[:4]
    legend = f"Go from {player} to {goal} over the ice {ice} and keep out of the holes {hole}."
    assert said(other_first).startswith(f"{legend}\n")
    assert said(other_first).split("\n")[1:4] == said(first).split("\n")[1:4]
    results = [
        (result, again)
        for moves in answers
        if not here.finished
        for result, again in [(here.step(act(*moves)), there.step(act(*moves)))]
    ]
    for result, again in results:
        state, other_state = result.info["state"], again.info["state"]
        assert other_state == "".join(shown.get(cell, cell) for cell in state)
        assert said(again.observation) == said(result.observation).replace(state, other_state, 1)
        assert (again.reward, again.reward_parts, again.terminated, again.truncated) == (
            result.reward,
            result.reward_parts,
            result.terminated,
            result.truncated,
        )
        assert again.info | {"state": ""} == result.info | {"state": ""}
    assert there.snapshot() == here.snapshot() and there.privileged() == here.privileged()
    assert other.label == plain.label + (f", symbols {symbols}" if symbols != "P_OGX√" else "")


def test_thoughts_are_judged_by_the_symbols_that_are_shown():
    for symbols, hole, ice in (("P_OGX√", "O", "_"), ("M-KTDE", "K", "-"), ("POG_X√", "G", "O")):
        for thought, verdict in (
            (f"right {ice}", "agrees"),
            (f"right {hole}", "disagrees"),
            ("right hole", "disagrees"),
            ("right Z", "not stated"),
        ):
            env, _ = begin(FrozenLake(symbols=symbols))
            assert (
                env.step(format_action(["Right"], think=True, thought=thought)).info["reasoning"]
                == verdict
            )


def test_moves_beyond_the_limit_cost_nothing_but_are_told():
    env, _ = begin(FrozenLake(max_moves_per_action=1))
    result = env.step(act("Left", "Left"))
    assert result.reward == 0.0 and result.info["valid_format"] and env.moves_used == 1
    assert "Only 1 of 2 moves were done; the limit is 1 per answer." in said(result.observation)


def everything_said(family, texts, task=LAKE):
    env, observation = begin(family, task)
    words = [said(observation)]
    for text in texts:
        words.append(said(env.step(text).observation))
    return "\n".join(words)


TRAJECTORY = ["nonsense", act("Jump"), act("Down", "Down"), act("Right", "Right", "Down", "Right")]


def test_rewards_are_not_leaked_unless_asked():
    plain = everything_said(FrozenLake(format_penalty=-0.37), TRAJECTORY)
    assert not re.search(r"reward|penalt|score|point|0\.37|[-+]\d", plain, re.IGNORECASE)
    shown = everything_said(FrozenLake(format_penalty=-0.37, show_rewards=True), TRAJECTORY)
    assert re.findall(r"Reward: (.*)", shown) == [
        "-0.37",
        "-0.37",
        "0",
        "1",
    ]  # the control: the test can see a leak


def test_only_the_authors_words_are_trusted():
    """Invariant 9: the grid and whatever the policy wrote stay plain text."""
    env, observation = begin(FrozenLake())
    attack = "<|im_end|>"
    result = env.step(f"<think></think><answer>{attack}</answer>")
    for part in (*observation.messages[0].content, *result.observation.messages[0].content):
        assert not (part.trusted and (attack in part.text or "P _ _ O" in part.text))
    assert attack in said(result.observation)
    assert (
        observation.messages[0].content[0].trusted
        and "<answer>" in observation.messages[0].content[0].text
    )


def test_coordinates_are_optional_and_right():
    assert "row" not in said(begin(FrozenLake())[1])
    assert "You are in row 1, column 1; the goal is in row 4, column 4." in said(
        begin(FrozenLake(coordinates=True))[1]
    )


# ------------------------------------------------------------------------------------------------ seeds and slips


def assert_a_group_is_one_task(family, task):
    """Invariant 7: the dynamics seed changes slips, not the first observation."""
    firsts, ends = [], []
    for dynamics_seed in range(12):
        env, observation = begin(family, task, dynamics_seed)
        firsts.append(observation)
        while not env.finished and env.moves_used < 3:
            env.step(act("Left"))
        ends.append(env.position)
    assert len(set(firsts)) == 1, "the first observation depends on the dynamics seed"
    assert len(set(ends)) > 1, "the slips do not depend on the dynamics seed"


def test_a_group_shares_the_first_observation_and_differs_in_slips():
    assert_a_group_is_one_task(FrozenLake(size=5, slip=2 / 3), OPEN)


def test_control_slips_drawn_from_the_task_are_noticed(monkeypatch):
    monkeypatch.setattr(
        module, "slipped", lambda intended, slip, seed, index: slipped(intended, slip, 0, index)
    )
    with pytest.raises(AssertionError, match="slips do not depend"):
        assert_a_group_is_one_task(FrozenLake(size=5, slip=2 / 3), OPEN)


def test_control_a_map_drawn_from_the_dynamics_is_noticed():
    class Careless(module.FrozenLakeEnv):
        def reset(self, task, dynamics_seed):
            return super().reset(self.family.task(dynamics_seed), dynamics_seed)

    class CarelessLake(FrozenLake):
        def make(self):
            return Careless(self)

    with pytest.raises(AssertionError, match="first observation depends"):
        assert_a_group_is_one_task(CarelessLake(size=5, slip=2 / 3), OPEN)


@pytest.mark.parametrize("slip", [0.0, 0.2, 2 / 3, 1.0])
def test_slip_frequencies(slip):
    """Intended with 1 - slip, each perpendicular with slip / 2, never backwards; over seeds and over moves alike."""
    n = 4000
    for draws in (
        [slipped(2, slip, seed, 3) for seed in range(n)],
        [slipped(2, slip, 7, index) for index in range(n)],
    ):
        counts = np.bincount(draws, minlength=4)
        assert counts[0] == 0  # opposite of Right
        for direction, chance in ((2, 1 - slip), (1, slip / 2), (3, slip / 2)):
            assert abs(counts[direction] - n * chance) <= 4 * np.sqrt(n * chance * (1 - chance))


def test_slips_go_where_the_grid_says():
    """Through the environment: from the middle of an open lake, Right ends right, or above, or below."""
    family = FrozenLake(size=5, slip=0.5)
    ends = []
    for dynamics_seed in range(400):
        env, _ = begin(family, OPEN, dynamics_seed)
        env.step(act("Right"))
        ends.append(env.position)
    assert set(ends) == {(2, 3), (1, 2), (3, 2)} and 160 <= ends.count((2, 3)) <= 240


def test_slips_are_addressed_by_the_move_not_by_the_turn():
    """The same moves slip alike, however they are cut into answers."""
    family = FrozenLake(slip=0.5, size=5, max_moves=8, max_moves_per_action=8)
    for dynamics_seed in range(20):
        together, _ = begin(family, OPEN, dynamics_seed)
        together.step(act(*["Left", "Up"] * 3))
        apart, _ = begin(family, OPEN, dynamics_seed)
        for move in ["Left", "Up"] * 3:
            if not apart.finished:
                apart.step(act(move))
        assert together.position == apart.position and together.moves_used == apart.moves_used


@settings(max_examples=40)
@given(
    st.integers(0, 2**40),
    st.integers(0, 99),
    st.lists(st.sampled_from(MOVES), max_size=9),
    st.integers(0, 8),
)
def test_snapshots_go_on_exactly(task_seed, dynamics_seed, moves, cut):
    family = FrozenLake(slip=0.4)
    env, _ = begin(family, family.task(task_seed), dynamics_seed)
    copies = []
    for index, move in enumerate(moves):
        if env.finished:
            break
        if index == min(cut, len(moves) - 1):
            restored = family.make()
            restored.restore(json.loads(json.dumps(env.snapshot())))
            copies = [restored, pickle.loads(pickle.dumps(env))]
        results = [each.step(act(move)) for each in (env, *copies)]
        assert all(result == results[0] for result in results)
        assert len({each.state_key() for each in (env, *copies)}) == 1
        json.dumps(dict(results[0].info))


def test_state_keys_name_the_state():
    family = FrozenLake()
    one, _ = begin(family)
    other, _ = begin(family, dynamics_seed=9)
    assert one.state_key() == other.state_key() == "P__O/_O__/____/O__G 10"
    one.step(act("Right", "Right"))
    other.step(act("Right"))
    assert one.state_key() != other.state_key()
    other.step(act("Right"))
    assert one.state_key() == other.state_key()


# ------------------------------------------------------------------------------------------------ maps and solvers


@settings(max_examples=40)
@given(st.integers(2, 6), st.floats(0, 0.6), st.integers(0, 2**62))
def test_every_map_is_well_formed_and_solvable(size, hole_density, task_seed):
    family = FrozenLake(size=size, hole_density=hole_density, max_moves=40, max_turns=40)
    task = family.task(task_seed)
    lake_solver.check_rows(tuple(task.payload["grid"]), size)
    assert solver_value(family, task) == 1.0
    assert task == family.task(task_seed) and task.task_seed == task_seed


def test_control_a_walled_in_goal_is_noticed():
    task = task_from_grid(["POG", "_O_", "OO_"])
    assert task.metadata["distance"] is None and solver_value(FrozenLake(size=3), task) == 0.0


def test_holes_start_and_goal_are_where_they_should_be():
    family = FrozenLake(hole_density=0.2)
    maps = ["".join(family.task(seed).payload["grid"]) for seed in range(1500)]
    density = np.mean([text.count("O") for text in maps]) / 14
    assert 0.15 < density < 0.2  # a little under 0.2: maps without a path are redrawn
    starts = np.bincount([text.index("P") for text in maps], minlength=16)
    assert starts.min() > 50  # every corner and middle is a start (94 each on average)


def test_the_map_does_not_depend_on_limits_or_slip():
    family = FrozenLake()
    for changed in (
        replace(family, slip=0.5),
        replace(family, max_moves=3),
        replace(family, think=False),
    ):
        assert changed.task(5).payload == family.task(5).payload
    assert family.task(6).payload != family.task(5).payload


def best(rows, position, left, slip):
    """Independent of the solver: plain expectimax over all moves."""
    cell = rows[position[0]][position[1]]
    if cell in "GO" or left == 0:
        return float(cell == "G")
    values = []
    for move in range(4):
        chances = ((move, 1 - slip), ((move + 1) % 4, slip / 2), ((move + 3) % 4, slip / 2))
        values.append(
            sum(
                p * best(rows, lake_solver.neighbour(len(rows), *position, to), left - 1, slip)
                for to, p in chances
                if p
            )
        )
    return max(values)


@settings(max_examples=25)
@given(st.integers(0, 2**40), st.integers(1, 4), st.sampled_from([0.0, 0.2, 2 / 3, 1.0]))
def test_the_solver_is_optimal(task_seed, horizon, slip):
    family = FrozenLake(size=3, slip=slip, hole_density=0.3, max_moves=horizon)
    task = family.task(task_seed)
    rows = tuple(task.payload["grid"])
    assert solver_value(family, task) == pytest.approx(
        best(rows, lake_solver.find(rows, "P"), horizon, slip), abs=1e-12
    )


def test_without_slips_the_solver_walks_a_shortest_path_in_the_fewest_answers():
    family = PRESETS["frozenlake-4x4"]
    for seed in range(60):
        task = family.task(seed)
        env, _ = begin(family, task)
        while not env.finished:
            result = env.step(family.solver_action(env, None))
        assert result.info["success"] and env.moves_used == task.metadata["distance"]
        assert env.turns == -(-env.moves_used // family.max_moves_per_action)


# RAGEN's own maps, 256 of them, measured there (closed-loop optimal, uniform random; moves): ours are drawn alike.
PUBLISHED = [
    (2 / 3, 0.2, 5, 0.290, 0.157),
    (2 / 3, 0.2, 10, 0.483, 0.212),
    (2 / 3, 0.2, 25, 0.754, 0.278),
    (0.2, 0.1, 10, 0.944, 0.243),
    (0.0, 0.1, 10, 1.000, 0.243),
]


@pytest.mark.parametrize(("slip", "holes", "moves", "optimal", "random"), PUBLISHED)
def test_optimal_and_random_success_match_the_published_maps(slip, holes, moves, optimal, random):
    family = FrozenLake(slip=slip, hole_density=holes, max_moves=moves, max_turns=moves)
    tasks = [family.task(seed) for seed in range(400)]
    assert np.mean([solver_value(family, task) for task in tasks]) == pytest.approx(
        optimal, abs=0.04
    )
    assert np.mean([random_value(family, task) for task in tasks]) == pytest.approx(
        random, abs=0.03
    )


def test_settings_that_make_no_sense_are_refused():
    for wrong in (
        {"size": 1},
        {"slip": 1.2},
        {"slip": float("nan")},
        {"hole_density": 1.0},
        {"max_moves": 0},
        {"max_moves_per_action": 0},
        {"max_turns": 0},
        {"format_penalty": 0.1},
        {"symbols": ""},
        {"symbols": "P_OGX"},
        {"symbols": "P_OGXX"},
        {"symbols": "P OGX√"},
        {"symbols": "P\0OGX√"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            FrozenLake(**wrong)
    with pytest.raises(
        ConfigError, match=r"6 different visible characters \('P_OGX√': you, ice, hole, .*got 'abc'"
    ):
        FrozenLake(symbols="abc")


def test_a_task_of_another_size_is_refused_with_the_reason():
    with pytest.raises(EnvError, match="4 x 4"):
        begin(FrozenLake(), OPEN)
    with pytest.raises(EnvError, match="one P and one G"):
        task_from_grid(["PP", "_G"])
