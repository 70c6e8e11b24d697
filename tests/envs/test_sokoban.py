"""Sokoban: what it says and pays, that its levels are what was promised, and that the solver is optimal."""

import json
import pickle
import re
from collections import Counter, deque
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.rollouts.evaluate import evaluate_baselines
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds import PRESETS, Sokoban, tasks
from workbench.worlds import sokoban_solver as solver
from workbench.worlds.baselines import play
from workbench.worlds.sokoban import MOVES
from workbench.worlds.sokoban_levels import draw, level_from_rows, make_level, read

ONE = level_from_rows(["######", "#__O##", "#_X__#", "#__P_#", "#____#", "######"])
TWO = level_from_rows(["######", "#P___#", "#_XO_#", "#_XO_#", "#____#", "######"])


def begin(family, level=ONE):
    env = family.make()
    return env, env.reset(family.task_of(level), 0)


def said(observation):
    assert [message.role for message in observation.messages] == ["user"]
    return observation.messages[0].text


def act(*moves, think=True):
    return format_action(moves, think=think)


# ------------------------------------------------------------------------------------------------ what is said and paid

TRANSCRIPT = """\
Push the box onto the target.
# wall, _ floor, O target, X box, √ box on target, P you, S you on target.
Moves: Up, Down, Left, Right. Limits: 15 moves in all, 5 per answer, 10 answers.
Answer like this: <think>plan</think><answer>Right || Down</answer>

# # # # # #
# _ _ O # #
# _ X _ _ #
# _ _ P _ #
# _ _ _ _ #
# # # # # #
Moves left: 15
>>> I push.
The tag <think> is missing.
Nothing was done. Answer like this: <think>plan</think><answer>Right || Down</answer>
# # # # # #
# _ _ O # #
# _ X _ _ #
# _ _ P _ #
# _ _ _ _ #
# # # # # #
Moves left: 15
--- -0.1 {'moves': 0.0, 'boxes': 0.0, 'solved': 0.0, 'format': -0.1}
>>> <think>jump</think><answer>Up || Pull</answer>
The answer holds something that is not on offer. It says: Pull
Nothing was done. Answer like this: <think>plan</think><answer>Right || Down</answer>
# # # # # #
# _ _ O # #
# _ X _ _ #
# _ _ P _ #
# _ _ _ _ #
# # # # # #
Moves left: 15
--- -0.1 {'moves': 0.0, 'boxes': 0.0, 'solved': 0.0, 'format': -0.1}
>>> <think>walk</think><answer>Left || Left || Up || Right || Down || Left || Left</answer>
Only 5 of 7 moves were done; the limit is 5 per answer.
# # # # # #
# _ _ O # #
# _ _ X _ #
# _ P _ _ #
# _ _ _ _ #
# # # # # #
Moves left: 10
--- -0.5 {'moves': -0.5, 'boxes': 0.0, 'solved': 0.0, 'format': 0.0}
>>> <think>push</think><answer>Right || Up || Down</answer>
# # # # # #
# _ _ √ # #
# _ _ P _ #
# _ _ _ _ #
# _ _ _ _ #
# # # # # #
The box is on the target.
--- 10.8 {'moves': -0.2, 'boxes': 1.0, 'solved': 10.0, 'format': 0.0}
"""


def test_a_scripted_trajectory_as_a_transcript():
    env, observation = begin(Sokoban())
    lines = [said(observation)]
    for line in re.findall(r"^>>> (.*)$", TRANSCRIPT, re.MULTILINE):
        result = env.step(line)
        lines += [
            f">>> {line}",
            said(result.observation),
            f"--- {result.reward:g} {dict(result.reward_parts)}",
        ]
    assert "\n".join(lines) + "\n" == TRANSCRIPT
    assert result.terminated and not result.truncated and result.info["success"]
    assert result.info["moves"] == ["Right", "Up"]  # solved before the third
    with pytest.raises(EnvError, match="reset"):
        env.step(act("Up"))


def test_boxes_pay_on_and_off_and_the_last_one_solves():
    env, observation = begin(Sokoban(boxes=2), TWO)
    assert said(observation).startswith("Push every box onto a target.")
    first = env.step(act("Down", "Right"))
    assert first.reward_parts == {"moves": -0.2, "boxes": 1.0, "solved": 0.0, "format": 0.0}
    assert first.info["on_targets"] == 1 and not first.terminated
    off = env.step(act("Right"))
    assert off.reward_parts["boxes"] == -1.0 and off.info["on_targets"] == 0
    env, _ = begin(Sokoban(boxes=2), TWO)
    last = env.step(act("Down", "Right", "Left", "Down", "Right"))
    assert last.reward == pytest.approx(11.5) and last.terminated and last.info["success"]
    assert said(last.observation).endswith("All boxes are on targets.")


def test_on_and_off_within_one_answer_add_up_to_nothing():
    level = level_from_rows(["######", "#PXO_#", "#____#", "#____#", "#____#", "######"])
    env, _ = begin(
        Sokoban(boxes=2),
        level_from_rows(["######", "#PXO_#", "#_X__#", "#_O__#", "#____#", "######"]),
    )
    assert env.step(act("Right", "Right")).reward_parts == {
        "moves": -0.2,
        "boxes": 0.0,
        "solved": 0.0,
        "format": 0.0,
    }
    env, _ = begin(Sokoban(), level)
    assert env.step(act("Right", "Right")).info["moves"] == [
        "Right"
    ]  # solved: the second is never made


@pytest.mark.parametrize(
    "rows",
    [
        ["#####", "#PX##", "#__O#", "#___#", "#####"],  # a wall behind the box
        ["######", "#PXX_#", "#_OO_#", "#____#", "#____#", "######"],  # a box behind the box
        ["#####", "#P#X#", "#__O#", "#___#", "#####"],
    ],
)  # a wall before the player
def test_a_blocked_move_is_used_up_and_changes_nothing(rows):
    level = level_from_rows(rows)
    env, _ = begin(Sokoban(size=len(rows), boxes=len(read(rows)[1][1]), max_solution=8), level)
    before = env.draw()
    result = env.step(act("Right"))
    assert env.draw() == before and not result.info["effective"] and result.info["moves_left"] == 14
    assert result.reward == -0.1


def test_the_last_move_truncates_and_a_solution_on_it_terminates():
    short = Sokoban(max_moves=3, max_solution=3, max_moves_per_action=2)
    env, _ = begin(short)
    first = env.step(act("Down", "Down"))
    assert not first.truncated and said(first.observation).endswith("Moves left: 1")
    last = env.step(act("Down", "Up"))
    assert last.truncated and not last.terminated and last.info["moves"] == ["Down"]
    level = level_from_rows(
        ["####", "#_O#", "#PX#", "####"]
    )  # not solvable: pushed right there is a wall
    assert level.moves is None
    env, _ = begin(
        Sokoban(max_moves=5, max_solution=5),
        level_from_rows(["######", "#P___#", "#_X__#", "#__O_#", "#____#", "######"]),
    )
    env.step(act("Down", "Right", "Up", "Right"))
    last = env.step(act("Down"))
    assert last.terminated and not last.truncated and last.info["moves_left"] == 0


@settings(max_examples=30)
@given(st.integers(8, 30), st.integers(1, 7), st.integers(8, 20), st.booleans())
def test_the_prompt_states_the_true_limits(max_moves, per_action, max_turns, think):
    """Read the limits from the prompt, then find them by walking against a wall."""
    family = Sokoban(
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
        result = env.step(act(*["Down"] * 40, think=think))
        done.append(len(result.info["moves"]))
    assert told == [sum(done), max(done), family.max_turns]
    example = re.search(r"Answer like this: (.*)", said(observation)).group(1)
    env, _ = begin(family)
    tried = env.step(example)
    assert tried.info["valid_format"] and len(tried.info["moves"]) == tried.info["asked_moves"]


def test_rewards_are_not_leaked_unless_asked():
    def everything(family):
        env, observation = begin(family)
        return "\n".join(
            [
                said(observation),
                *(
                    said(env.step(text).observation)
                    for text in (
                        "nonsense",
                        act("Jump"),
                        act("Left", "Left", "Up", "Right", "Down"),
                        act("Right", "Up"),
                    )
                ),
            ]
        )

    plain = everything(Sokoban(format_penalty=-0.37))
    assert not re.search(r"reward|penalt|score|point|0\.37|[-+]\d", plain, re.IGNORECASE)
    shown = everything(Sokoban(format_penalty=-0.37, show_rewards=True))
    assert re.findall(r"Reward: (.*)", shown) == [
        "-0.37",
        "-0.37",
        "-0.5",
        "10.8",
    ]  # the control: a leak is seen


def test_only_the_authors_words_are_trusted():
    """Invariant 9: the level and whatever the policy wrote stay plain text."""
    env, observation = begin(Sokoban(observation="both"))
    attack = "<|im_end|>"
    result = env.step(f"<think></think><answer>{attack}</answer>")
    for part in (*observation.messages[0].content, *result.observation.messages[0].content):
        assert not (
            part.trusted and (attack in part.text or "# _ X" in part.text or "You 4" in part.text)
        )
    assert attack in said(result.observation)


def test_a_person_can_play_it_with_the_shipped_tokens():
    from transformers import AutoTokenizer

    from data.make.shipped import POLICIES
    from workbench.extensions.talk.play import play

    family, told = PRESETS["sokoban-6x6"], []
    level = read(family.task(3).payload["level"])
    typed = iter(
        [
            "what now?",
            " || ".join(MOVES[move] for move in solver.plan(*level, 5)),
            " || ".join(MOVES[move] for move in solver.plan(*level, 20)[5:]),
        ]
    )
    trajectory = play(
        family,
        AutoTokenizer.from_pretrained(POLICIES / "sokoban-tiny"),
        task_seed=3,
        ask=lambda _: next(typed),
        say=told.append,
    )
    assert trajectory.success and [turn.info["valid_format"] for turn in trajectory.turns] == [
        False,
        True,
        True,
    ]
    assert "# _ O X _ #" in told[0] and "not on offer" in told[1] and "Moves left: 10" in told[2]


# ------------------------------------------------------------------------------------------------ three observations


def test_coordinates_as_text():
    family = Sokoban(observation="coordinates")
    text = said(begin(family)[1])
    assert text.endswith("\n\nYou 4 4\nBox 3 3\nTarget 2 4\nWall 2 5\nMoves left: 15")
    assert "# wall" not in text and "from 1 at the top left" in text
    both = said(begin(replace(family, observation="both"))[1])
    assert "# _ X _ _ #" in both and "Box 3 3" in both and "# wall" in both
    assert (
        said(begin(Sokoban(boxes=2, observation="coordinates"), TWO)[1])
        .split("\n\n")[1]
        .startswith("You 2 2\nBox 3 3, 4 3\nTarget 3 4, 4 4\nWall none\n")
    )


@settings(max_examples=40)
@given(
    st.sampled_from(["sokoban-6x6", "sokoban-8x8-2"]),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 3), max_size=9),
)
def test_coordinates_say_exactly_what_the_grid_says(preset, task_seed, moves):
    """Rebuilt from the places alone, the grid is the one that is drawn, wherever player and boxes have gone."""
    family = replace(PRESETS[preset], observation="both")
    env = family.make()
    env.reset(family.task(task_seed), 0)
    for move in moves:
        if not env.finished:
            env.step(act(MOVES[move]))
    cells = [
        ["#" if 0 in (r, c) or family.size - 1 in (r, c) else "_" for c in range(family.size)]
        for r in range(family.size)
    ]
    places = {
        name: [
            tuple(int(n) - 1 for n in pair.split()) for pair in rest.split(", ") if pair != "none"
        ]
        for name, rest in (line.split(" ", 1) for line in env.places().split("\n"))
    }
    for name, plain, on_target in (
        ("Wall", "#", "#"),
        ("Target", "O", "O"),
        ("Box", "X", "√"),
        ("You", "P", "S"),
    ):
        for row, column in places[name]:
            cells[row][column] = on_target if cells[row][column] == "O" else plain
    assert "\n".join(" ".join(row) for row in cells) == env.draw()


def test_other_symbols_show_the_same_levels():
    plain, other = PRESETS["sokoban-6x6"], PRESETS["sokoban-6x6-symbols"]
    assert plain.task(7).payload == other.task(7).payload
    env, observation = begin(other)
    assert "W . . G W W\nW . B . . W\nW . . A . W" in said(observation)
    assert "W wall, . floor, G target, B box, C box on target, A you, @ you on target." in said(
        observation
    )
    env.step(act("Left", "Left", "Up", "Right"))
    result = env.step(act("Down", "Right", "Up"))
    assert result.info["success"] and "W . . C W W\nW . . A . W" in said(result.observation)
    env, _ = begin(other)
    assert "@" in env.step(act("Up", "Up")).info["state"]


# ------------------------------------------------------------------------------------------------ state


@settings(max_examples=30)
@given(st.integers(0, 2**40), st.lists(st.sampled_from(MOVES), max_size=16), st.integers(0, 15))
def test_snapshots_go_on_exactly(task_seed, moves, cut):
    family = Sokoban()
    env = family.make()
    env.reset(family.task(task_seed), 3)
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
    one, _ = begin(Sokoban())
    other, _ = begin(Sokoban())
    assert one.state_key() == "######/#__O##/#_X__#/#__P_#/#____#/###### 15" == other.state_key()
    one.step(act("Down", "Up"))
    assert (
        one.state_key() != other.state_key() and one.draw() == other.draw()
    )  # fewer moves are left
    other.step(act("Right", "Left"))
    assert one.state_key() == other.state_key()


# ------------------------------------------------------------------------------------------------ levels


@pytest.mark.parametrize("preset", ["sokoban-6x6", "sokoban-8x8-2"])
def test_every_level_is_solved_by_the_solver_in_as_many_moves_as_it_says(preset):
    family = PRESETS[preset]
    for seed in range(60):
        task = family.task(seed)
        level = level_from_rows(task.payload["level"])
        assert level.moves == task.metadata["solution"] and task == family.task(seed)
        env = family.make()
        env.reset(task, 0)
        while not env.finished:
            result = env.step(family.solver_action(env, None))
        assert result.info["success"] and env.moves_used == level.moves
        assert env.turns == -(-level.moves // family.max_moves_per_action)


@pytest.mark.parametrize(
    "preset", ["sokoban-6x6", pytest.param("sokoban-8x8-2", marks=pytest.mark.full)]
)
def test_solutions_are_as_long_as_stated_and_two_thirds_need_three_moves_or_more(preset):
    """Every length from min to max equally likely: within four standard deviations, on training and held-out levels."""
    family = PRESETS[preset]
    lengths = range(family.min_solution, family.max_solution + 1)
    for chosen in ([family.task(seed) for seed in range(700)], tasks(family, "held-out", 256)):
        counts = Counter(task.metadata["solution"] for task in chosen)
        assert set(counts) == set(lengths)
        share = 1 / len(lengths)
        for length in lengths:
            assert abs(counts[length] - len(chosen) * share) <= 4 * np.sqrt(
                len(chosen) * share * (1 - share)
            )
        assert sum(count for length, count in counts.items() if length >= 3) >= 2 / 3 * len(chosen)


def test_levels_differ_in_rooms_players_and_boxes():
    chosen = tasks(PRESETS["sokoban-6x6"], "held-out", 256)
    levels = [task.payload["level"] for task in chosen]
    assert len({tuple(level) for level in levels}) == 256
    rooms = [read(level) for level in levels]
    assert len({room for room, _ in rooms}) > 220
    assert len({state[0] for _, state in rooms}) == 16  # the player starts on every cell inside
    walls = np.mean(["".join(room).count("#") - 20 for room, _ in rooms]) / 16
    assert 0.08 < walls < 0.16  # a little under wall_density: rooms in several pieces are redrawn


def test_levels_do_not_depend_on_limits_words_or_observation():
    family = Sokoban()
    for changed in (
        replace(family, max_moves=9),
        replace(family, think=False),
        replace(family, observation="both"),
    ):
        assert changed.task(5).payload == family.task(5).payload
    assert family.task(6).payload != family.task(5).payload


def test_random_play_is_far_from_the_solver():
    """What a result must be read beside; the README says the same for 512 levels."""
    family = PRESETS["sokoban-6x6"]
    chosen = tasks(family, "held-out", 200)
    random, solver = evaluate_baselines(chosen, family=family, seed=0)
    assert 0.03 < random.success < 0.15 and solver.success == 1.0


def test_random_play_has_the_whole_horizon():
    """Invariant 12: a baseline that is cut short flatters whatever stands beside it."""
    family = Sokoban(max_moves=20, max_turns=4)
    played = [
        play(
            family,
            family.task(seed),
            0,
            partial(family.random_action, rng=np.random.default_rng(seed)),
        )
        for seed in range(40)
    ]
    assert all(trajectory.success or trajectory.moves == 20 for trajectory in played)
    made = Counter(
        move
        for seed in range(100)
        for move in re.findall(
            "Up|Down|Left|Right", family.random_action(None, np.random.default_rng(seed))
        )
    )
    assert sum(made.values()) == 500 and all(80 < made[move] < 170 for move in MOVES)


# ------------------------------------------------------------------------------------------------ solver


def brute_force(rows):
    """Independent of the solver: forwards, on drawn rows, cell by cell; moves of a shortest solution or None."""

    def moved(grid, down, right):
        text = "".join(grid)
        size = len(grid)
        at = next(i for i, c in enumerate(text) if c in "PS")
        cells = dict(enumerate(text))
        ahead, beyond = at + down * size + right, at + 2 * (down * size + right)
        if cells[ahead] == "#":
            return grid
        if cells[ahead] in "X√":
            if cells[beyond] in "#X√":
                return grid
            cells[beyond] = "√" if cells[beyond] == "O" else "X"
        cells[ahead] = "S" if cells[ahead] in "O√" else "P"
        cells[at] = "O" if cells[at] == "S" else "_"
        text = "".join(cells[i] for i in range(len(text)))
        return tuple(text[i : i + size] for i in range(0, len(text), size))

    seen, queue = {tuple(rows): 0}, deque([tuple(rows)])
    while queue:
        grid = queue.popleft()
        if "X" not in "".join(grid):
            return seen[grid]
        for step in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            following = moved(grid, *step)
            if following not in seen:
                seen[following] = seen[grid] + 1
                queue.append(following)
    return None


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_solver_is_optimal(data):
    """Any small level, solvable or not, one box or two: the same length as brute force, and a plan that keeps it."""
    size, boxes = data.draw(st.sampled_from([(5, 1), (5, 2), (6, 1)]))
    inner = [r * size + c for r in range(1, size - 1) for c in range(1, size - 1)]
    walls = set(data.draw(st.lists(st.sampled_from(inner), max_size=3)))
    free = [cell for cell in inner if cell not in walls]
    targets = data.draw(
        st.lists(st.sampled_from(free), min_size=boxes, max_size=boxes, unique=True)
    )
    player, *cells = data.draw(
        st.lists(st.sampled_from(free), min_size=boxes + 1, max_size=boxes + 1, unique=True)
    )
    text = "".join("O" if i in targets else "_" if i in free else "#" for i in range(size * size))
    room = tuple(text[i : i + size] for i in range(0, len(text), size))
    state = (player, tuple(sorted(cells)))
    shortest = brute_force(draw(room, state))
    assert solver.distance(room, state) == shortest
    plan = solver.plan(room, state, 100)
    assert len(plan) == (shortest or 0)
    for move in plan:
        state = solver.step(room, state, move)
    assert not plan or state[1] == solver.targets_of(room)


def test_all_best_moves_are_found_and_a_limit_cuts_the_search():
    room, state = read(["######", "#___P#", "#____#", "#_XO_#", "#____#", "######"])
    assert solver.best_moves(room, state) == (1, 2) and solver.distance(room, state) == 6
    far = solver.distances(room, 5)
    assert far.max() == 5 and far[(state[0], *state[1])] == solver.UNKNOWN


@pytest.mark.parametrize(
    "rows",
    [
        ["######", "#X___#", "#____#", "#_P__#", "#__O_#", "######"],  # in a corner
        [
            "######",
            "#_X__#",
            "#____#",
            "#_P__#",
            "#__O_#",
            "######",
        ],  # along a wall that holds no target
        ["######", "#_XX_#", "#____#", "#OP__#", "#__O_#", "######"],
    ],
)  # two boxes hold each other at a wall
def test_a_deadlock_is_known_and_the_trajectory_runs_to_its_end(rows):
    level = level_from_rows(rows)
    assert level.moves is None
    family = Sokoban(boxes="".join(rows).count("X"), max_moves=10)
    env, _ = begin(family, level)
    assert solver.best_moves(env.room, env.state) == () == solver.plan(env.room, env.state, 3)
    while not env.finished:
        result = env.step(family.solver_action(env, None))
        assert result.info["valid_format"]
    assert (
        result.truncated
        and not result.terminated
        and not result.info["success"]
        and env.moves_used == 10
    )


def test_a_push_into_a_deadlock_is_noticed():
    room, state = read(["######", "#____#", "#_XP_#", "#_O__#", "#____#", "######"])
    assert solver.distance(room, state) == 3  # around: Up, Left, Down
    assert (
        solver.distance(room, solver.step(room, state, 2)) is None
    )  # at the left wall, where no target is


# ------------------------------------------------------------------------------------------------ refusals


def test_settings_that_make_no_sense_are_refused():
    for wrong in (
        {"size": 3},
        {"size": 10},
        {"boxes": 3},
        {"wall_density": 0.9},
        {"min_solution": 9},
        {"max_solution": 99},
        {"max_moves": 0},
        {"max_moves_per_action": 0},
        {"max_turns": 0},
        {"format_penalty": 0.1},
        {"observation": "picture"},
        {"symbols": "#_OXPS"},
        {"symbols": "#_OXPS√√"},
        {"symbols": "#_OXP S"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Sokoban(**wrong)
    with pytest.raises(ConfigError, match="raise max_moves"):
        Sokoban(max_moves=7)


def test_levels_that_are_none_are_refused_with_the_reason():
    for rows, reason in (
        ("#### #PX# #__# ####", "as many targets"),
        ("#### #PX_ #_O# ####", "walls"),
        ("#### #XO# #__# ####", "one player"),
        ("#### #PZ# #_O# ####", "symbols"),
    ):
        with pytest.raises(EnvError, match=reason):
            level_from_rows(rows.split())
    with pytest.raises(EnvError, match="6 x 6 with 1 box"):
        begin(Sokoban(), TWO)
    with pytest.raises(EnvError, match="solved before"):
        begin(
            Sokoban(size=5, max_solution=4),
            level_from_rows(["#####", "#P√_#", "#___#", "#___#", "#####"]),
        )
    with pytest.raises(EnvError, match="lower max_solution"):
        make_level(4, 1, 0.0, [30], 0)
