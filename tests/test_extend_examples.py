"""The examples of docs/extend and docs/guides on chance, tools and players, taken at their word."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from tests.test_readme_examples import block_of
from workbench.extensions.bias.cell import bias_bench
from workbench.worlds import ToolTasks, tasks
from workbench.worlds.baselines import play
from workbench.worlds.rows import RowSettings


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a block of a page as a module, and import it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def module(name, comment, page):
        (tmp_path / f"{name}.py").write_text(block_of("python", comment, page))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return module


def replies(family, task, dynamics_seed):
    env = family.make()
    first = env.reset(task, dynamics_seed).messages[0].text
    return first, tuple(env.step("toss").observation.messages[0].text for _ in range(12))


def test_chance_comes_from_the_dynamics_seed_and_nothing_else(written):
    family = written("coins", "chance", "docs/extend/environment.md").Coins()
    task = family.task(3)
    assert task == family.task(3) and replies(family, task, 1) == replies(family, task, 1)
    assert replies(family, task, 1)[0] == replies(family, task, 2)[0]
    assert len({replies(family, task, seed)[1] for seed in range(4)}) == 4


def test_a_family_around_tools_is_solved_by_its_solver(written):
    family = written("sums", "a family around tools", "docs/extend/tool.md").Sums()
    task = family.task(3)
    solved = play(family, task, 0, lambda env: family.solver_action(env, None))
    assert (solved.success, solved.reward, solved.turns) == (True, 1.0, 2)
    with closing(family.make()) as env:
        env.reset(task, 0)
        asked = env.step(family.solver_action(env, None))
        assert asked.observation.messages[0].text == env.golds[0] and asked.reward == 0.0
        wrong = env.step(env.format.write_answer(f"-{env.golds[0]}"))
        assert wrong.info["success"] is False


def test_players_of_a_data_set_are_named_in_settings(written, tmp_path):
    written("my_players", "players", "docs/guides/data.md")
    written("my_tools", "a tool", "docs/extend/tool.md")
    rows = [
        {"question": f"How many people live in Rapoke{n}?", "answer": str(n)} for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    family = ToolTasks(
        RowSettings((str(tmp_path / "rows.jsonl"),)),
        solver="my_players:solve",
        random_play="my_players:guess",
    )
    [task] = tasks(family, "train", 1)
    with closing(family.make()) as env:
        env.reset(task, 0)
        call = env.format.parse(family.solver_action(env, None)).calls[0]
        assert call.name == "population" and call.arguments["city"].startswith("Rapoke")
    solved = play(family, task, 0, lambda env: family.solver_action(env, None))
    assert solved.success is True


def test_a_tool_with_state_is_judged_by_where_it_stands(written):
    family = written("baskets", "a tool with state and a reward", "docs/extend/tool.md").Baskets()
    task = family.task(3)
    solved = play(family, task, 0, lambda env: family.solver_action(env, None))
    assert (solved.success, solved.reward, solved.turns) == (True, 1.0, 2)
    with closing(family.make()) as env:  # each trajectory begins with an empty basket
        env.reset(task, 0)
        env.step(env.format.write_call("Basket", {"apples": task.payload["wanted"] - 1}))
        short = env.step(env.format.write_answer("done"))
        assert short.info["success"] is False and short.reward == 0.0


def test_a_game_with_an_opponent_is_won_by_its_solver_and_lost_by_chance(written):
    family = written("nim", "an opponent", "docs/extend/environment.md").NimFamily()

    def won(action):
        played = [play(family, family.task(seed), seed, action(seed)) for seed in range(60)]
        return sum(each.success for each in played) / len(played)

    by_solver = won(lambda seed: lambda env: family.solver_action(env, None))
    by_chance = won(
        lambda seed: partial(family.random_action, rng=np.random.default_rng(seed)),
    )
    assert by_solver > 0.9 > 0.7 > by_chance > 0.2


def test_an_estimator_with_a_critic_is_not_biased(written):
    written("to_go", "an estimator with a critic", "docs/extend/algorithm.md")
    report = bias_bench(["to_go:TO_GO"], tasks="three_turns", error=0.1, traps=False)
    assert report.passed, report.faults
