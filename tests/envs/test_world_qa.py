"""Questions about invented worlds as an environment: four ways to ask, honest splits, baselines, and who shows it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from data.make.pretrain import RECIPES, demonstrate
from data.make.search_demonstrator import SearchDemonstrator
from workbench.training.config import load_config
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds import PRESETS, split_of, tasks
from workbench.worlds.baselines import play
from workbench.worlds.qa.contexts import CONTEXTS
from workbench.worlds.qa.worlds import HELD_OUT_WORLDS, split_of_name
from workbench.worlds.world_qa import WorldQA

PLAIN, HARD = PRESETS["world-qa"], PRESETS["world-qa-hard"]
NOBODY_SLIPS = SearchDemonstrator(early=0.0, stray=0.0, misread=0.0, slip=0.0)


def begun(family, task):
    env = family.make()
    return env, env.reset(task, 0)


def the_task(hops=2, family=PLAIN):
    return next(task for task in tasks(family, "held-out", 64) if task.payload["hops"] == hops)


# ------------------------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize("family", [PLAIN, HARD], ids=["plain", "hard"])
def test_the_splits_share_no_name(family):
    for split in ("train", "held-out"):
        for task in tasks(family, split, 40):
            assert split_of(family, task) == split and (
                task.payload["world"] < HELD_OUT_WORLDS
            ) == (split == "held-out")
            names = [each.split("/")[1] for each in task.payload["support"]] + task.payload[
                "answers"
            ]
            assert {split_of_name(name) for name in names} == {split}


def test_a_fifth_of_the_questions_takes_three_documents():
    hops = [task.payload["hops"] for task in tasks(PLAIN, "held-out", 512)]
    assert set(hops) == {2, 3} and abs(hops.count(3) / 512 - PLAIN.long_share) < 0.05
    assert {
        task.payload["hops"] for task in tasks(replace(PLAIN, long_share=1.0), "held-out", 20)
    } == {3}


def test_tasks_are_plain_json_and_the_same_for_ever():
    task = PLAIN.task(11)
    assert (
        json.loads(json.dumps(dict(task.payload)))
        == dict(task.payload)
        == dict(PLAIN.task(11).payload)
    )
    assert PLAIN.task_in(1_234, 5) == PLAIN.task_in(1_234, 5) != PLAIN.task_in(1_235, 5)


# ------------------------------------------------------------------------------------------------ four ways to ask


def test_what_each_context_shows():
    task = the_task()
    person, city = (each.split("/")[1] for each in task.payload["support"])
    shown = {}
    for context in CONTEXTS:
        env, first = begun(replace(PLAIN, context=context), task)
        shown[context] = first.messages[0].text
        assert bool(first.tools) == (context == "search") and env.family.max_turns == (
            5 if context == "search" else 1
        )
    assert (
        f"{city} lies in {task.payload['answers'][0]}." in shown["gold"]
        and f"{person} lives in" in shown["gold"]
    )
    assert (
        f"{person} lives in {city}." in shown["rag"]
        and task.payload["answers"][0] not in shown["rag"]
    )
    assert city not in shown["closed"] + shown["search"]
    assert all(task.payload["question"] in text for text in shown.values())


def test_step_by_step_to_the_answer_and_each_document_found_on_the_way():
    env, _ = begun(PLAIN, the_task(hops=3))
    rewards, found = [], []
    for turn in range(4):
        result = env.step(PLAIN.solver_action(env, np.random.default_rng(0)))
        rewards.append(result.reward)
        found += result.info.get("support_found", [])
        assert turn == 3 or result.observation.messages[0].text.startswith(f"{env.path[turn]}: ")
    assert rewards == [0.0, 0.0, 0.0, 1.0] and result.terminated and result.info["success"]
    assert found == list(env.task.payload["support"])


@pytest.mark.parametrize("family", [PLAIN, HARD], ids=["plain", "hard"])
def test_the_solver_always_wins_and_random_play_almost_never(family):
    held = tasks(family, "held-out", 40)
    assert all(
        play(family, t, 0, lambda env: family.solver_action(env, None)).success for t in held
    )
    rng = np.random.default_rng(0)
    assert (
        np.mean(
            [play(family, t, 0, lambda env: family.random_action(env, rng)).success for t in held]
        )
        < 0.2
    )


def test_the_city_is_no_answer_and_nothing_is_searched_elsewhere():
    env, _ = begun(PLAIN, the_task())
    env.step(env.search(env.path[0]))
    missed = env.step(env.search("Qqq"))
    assert missed.observation.messages[0].text == "Nothing found."
    wrong = env.step(env.format.write_answer(env.path[1]))
    assert wrong.reward == 0.0 and wrong.terminated and not wrong.info["success"]


def test_a_person_may_ask_and_nobody_says_whether_the_answer_is_right():
    task = PLAIN.question_task("Where does Zumi live?", 9)
    env, first = begun(PLAIN, task)
    assert "Where does Zumi live?" in first.messages[0].text and split_of(PLAIN, task) == "held-out"
    result = env.step(env.format.write_answer("Nowhere"))
    assert result.reward is None and "success" not in result.info


def test_settings_that_cannot_be_are_refused():
    for wrong in (
        dict(world="round"),
        dict(context="open"),
        dict(documents=0),
        dict(turns=0),
        dict(long_share=2.0),
    ):
        with pytest.raises(ConfigError, match="WorldQA"):
            WorldQA(**wrong)
    with pytest.raises(EnvError, match="reset"):
        PLAIN.make().task
    with pytest.raises(ConfigError, match="env.turns has no effect"):
        load_config("search", {"env.context": "closed", "env.turns": 3})
    with pytest.raises(ConfigError, match="env.documents has no effect"):
        load_config("search", {"env.context": "gold", "env.documents": 2})
    assert load_config("search", {"env.context": "rag", "env.documents": 2}).env.documents == 2


# ------------------------------------------------------------------------------------------------ who shows it


def test_who_makes_no_mistakes_shows_the_way():
    for hops in (2, 3):
        env, _ = begun(PLAIN, the_task(hops))
        for turn in range(hops + 1):
            text = NOBODY_SLIPS.action(env, np.random.default_rng(0))
            assert text == PLAIN.solver_action(env, None)
            result = env.step(text)
        assert result.info["success"] and turn == hops


@pytest.mark.parametrize(
    "habit, share",
    [
        (dict(early=1.0), lambda env, text: env.format.parse(text).answer is not None),
        (dict(stray=1.0), lambda env, text: bool(env.format.parse(text).calls)),
        (dict(slip=1.0), lambda env, text: not env.format.parse(text).valid or "query" not in text),
    ],
    ids=["early", "stray", "slip"],
)
def test_each_habit_shows_where_it_is_all_there_is(habit, share):
    for seed in range(30):
        env, _ = begun(PLAIN, the_task())
        env.step(env.search(env.path[0]))
        text = replace(NOBODY_SLIPS, **habit).action(env, np.random.default_rng(seed))
        assert share(env, text) and text != env.search(env.path[1])
        assert not env.step(text).info["success"]


def test_what_is_written_is_always_copied_from_what_stands_there():
    """What is invented letter by letter could not be sorted out by rewards."""
    for seed in range(200):
        env, first = begun(PLAIN, the_task(2 + seed % 2))
        read, rng = first.messages[0].text, np.random.default_rng(seed)
        for _ in range(PLAIN.max_turns):
            text = SearchDemonstrator(slip=0.0).action(env, rng)
            parsed = env.format.parse(text)
            assert parsed.valid and (parsed.answer or parsed.calls[0].arguments["query"]) in read
            result = env.step(text)
            if result.terminated or result.truncated:
                break
            read += result.observation.messages[0].text


def test_demonstrations_are_about_worlds_of_their_own_and_often_fail():
    recipe = RECIPES["search-tiny"]
    late = range(recipe.steps * recipe.tuning.batch, recipe.steps * recipe.tuning.batch + 160)
    made = [demonstrate(recipe, 1, index) for index in late]
    assert 0.35 < np.mean([transcript.success for transcript in made]) < 0.65
    assert demonstrate(recipe, 1, late[0]) == made[0] != demonstrate(recipe, 2, late[0])
    assert any(not transcript.observations[0].tools for transcript in made)
    with pytest.raises(ConfigError, match="at most 1"):
        SearchDemonstrator(early=0.7, stray=0.7)
