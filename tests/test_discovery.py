"""Beyond the demonstrations: when the demo calls it found, and which policy was never shown what."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from data.make.grid_games import HELD_BACK, NEVER_SHOWN, OTHER_SYMBOLS, SHOWN
from data.make.pretrain import (
    GRID_GAMES,
    RECIPES,
    demonstrate,
    new_model,
    pretrain,
    stated_recipe,
    tokenizer_of,
    training_task,
)
from docs.make.__main__ import DATA, ROOT
from docs.make.evidence import read
from docs.make.plots import PLOTS, digest, draw, drawn_from
from docs.make.transfers import transfer_tables
from experiments import discovery, harder_search, transfer
from workbench.engines.policy import load_policy
from workbench.extensions.demo.verdict import (
    Discovery,
    discovered,
    discovery_of,
    goal_of,
    rivals_of,
)
from workbench.look.task_types import ByKind
from workbench.training.config import load_config
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at
from workbench.worlds import FrozenLake, Sokoban, tasks


@pytest.mark.parametrize(
    ("after", "held"), [(0.9, [True, True]), (0.24, [False, False]), (0.2, [False, False])]
)
def test_a_discovery_is_a_rise_of_thirty_points_that_is_clear_of_twenty(after, held):
    sides = {
        ("untrained", "greedy"): {"3": (0.0,) * 100},
        ("trained", "greedy"): {"3": tuple((np.arange(100) < 100 * after).astype(float))},
    }
    found = ByKind("run", "hops", (), sides, dict.fromkeys(sides, 1), {})
    assert list(discovered(found, Discovery("hops", "3")).values()) == held


def test_what_was_never_shown_is_known_of_one_policy_only():
    discovery, search = load_config("search-discovery"), load_config("search")
    assert discovery_of(discovery) == Discovery("hops", "3") and discovery_of(search) is None
    assert goal_of(discovery) is None and rivals_of(discovery) == () and goal_of(search) is not None


def test_the_test_asks_three_hops_of_held_out_worlds_that_no_evaluation_asks():
    config = load_config("search-discovery")
    chosen = discovery.test_tasks(config, 64)
    evaluated = tasks(config.env, "held-out", config.evaluation.num_tasks)
    worlds_trained_on = {task.payload["world"] for task in tasks(config.env, "train", 64)}
    assert len(chosen) == 64 == len({discovery.content_of(task) for task in chosen})
    assert {task.payload["hops"] for task in chosen} == {3}
    assert not {task.payload["world"] for task in chosen} & worlds_trained_on
    assert not {discovery.content_of(task) for task in chosen} & {
        discovery.content_of(task) for task in evaluated
    }


@pytest.mark.parametrize(("recipe", "shown"), [("search-two-hops", False), ("search-tiny", True)])
def test_no_demonstration_shows_what_takes_three_documents(recipe, shown):
    found = [demonstrate(RECIPES[recipe], 0, index) for index in range(0, 6400, 64)]
    read = [
        message.text
        for each in found
        for observation in each.observations
        for message in observation.messages
    ]
    assert any(" works for " in text or "work?" in text for text in read) is shown
    assert any(" sits in " in text for text in read) is shown


def test_the_harder_world_is_shown_with_four_documents_a_search(tmp_path):
    start = harder_search.shown(tmp_path, 1, 0)
    told = json.loads((tmp_path / "shown-1-seed-0" / "provenance.json").read_text())
    assert (
        start == str(tmp_path / "shown-1-seed-0")
        and told["recipe"]["env"] == harder_search.ENV
        and told["begun"] == harder_search.START
    )
    assert harder_search.shown(tmp_path, 0, 0) == harder_search.START, (
        "none shown: the shipped policy itself"
    )
    for env, documents in ((harder_search.ENV, 4), ("world-qa", 1)):
        played = demonstrate(replace(RECIPES[harder_search.START], env=env, contexts=()), 0, 3)
        assert (
            max(
                len(message.text.splitlines())
                for shown in played.observations[1:]
                for message in shown.messages
            )
            == documents
        )


NUMBERS = range(0, GRID_GAMES.steps * GRID_GAMES.tuning.batch, 60)


def test_several_games_are_demonstrated_and_none_that_is_held_back():
    played = [training_task(GRID_GAMES, 0, number) for number in NUMBERS]
    families = [family for family, _ in played]
    counts = {name: families.count(family) for name, family in SHOWN.items()}
    assert set(families) == set(SHOWN.values()) and not set(families) & set(HELD_BACK.values())
    assert (
        counts["Sokoban"] > 1.3 * max(counts["lake"], counts["lake, other symbols"])
        and min(counts.values()) > 20
    )
    assert {family.split_of(task) for family, task in played} == {"train"}
    lakes = [family for family in SHOWN.values() if isinstance(family, FrozenLake)]
    assert len(lakes) == 2 and not set(lakes[0].symbols) & set(lakes[1].symbols)
    assert any(isinstance(family, Sokoban) for family in SHOWN.values())
    assert [each["symbols"] for each in map(vars, HELD_BACK.values())][1] == NEVER_SHOWN
    assert (
        json.loads(json.dumps(stated_recipe(GRID_GAMES)))["families"][1]
        == SHOWN["lake, other symbols"].label
    )


def test_what_was_never_shown_stands_in_no_transcript():
    shown = [demonstrate(GRID_GAMES, 0, number) for number in NUMBERS]
    read = [
        message.text
        for each in shown
        for observation in each.observations
        for message in observation.messages
    ]
    texts = [*read, *(action for each in shown for action in each.actions)]
    assert not set("".join(texts)) & set(NEVER_SHOWN)
    assert set(OTHER_SYMBOLS[:4]) <= {
        word for text in texts for word in text.split()
    }  # the check sees what is shown
    grids = [
        set(line.split())
        for text in texts
        for line in text.splitlines()
        if set(map(len, line.split())) == {1}
    ]
    assert not any(
        line & set(OTHER_SYMBOLS) and line & set("P_OGX√") for line in grids
    )  # a mixed lake
    held_back = HELD_BACK["lake, symbols never shown"]
    told = held_back.make().reset(held_back.task(0), 0).messages[0].text
    assert set(told) & set(NEVER_SHOWN) == set(NEVER_SHOWN[:4])


def test_each_symbol_is_a_token_whichever_lake_it_stands_in():
    tokenizer = tokenizer_of(GRID_GAMES)
    for family in (*SHOWN.values(), *HELD_BACK.values()):
        symbols = (
            family.symbols[:4] if isinstance(family, FrozenLake) else family.symbols
        )  # the others end a trajectory
        for row in (symbols, symbols[::-1]):
            assert len(tokenizer.encode(" ".join(row), add_special_tokens=False)) == len(row), (
                family.label
            )


@pytest.mark.parametrize("demonstrator", [lesson.demonstrator for lesson in GRID_GAMES.lessons])
def test_a_demonstrator_plays_a_lake_in_other_symbols_as_it_plays_the_lake(demonstrator):
    """The same moves; what it says of a cell is what the grid shows there."""
    looked = 0
    for seed in range(40):
        texts = []
        for family in (SHOWN["lake"], SHOWN["lake, other symbols"]):
            env, rng, said = family.make(), rng_at(seed, "test"), []
            env.reset(family.task(seed), 0)
            while not env.finished:
                said.append(demonstrator.action(env, rng))
                env.step(said[-1])
            texts.append(said)
        plain, other = texts
        assert other == [
            "".join(other_word(part) for part in re.split(r"(\s|<.*?>)", text)) for text in plain
        ]
        looked += plain != other
    assert looked > 5


def other_word(word: str) -> str:
    """A word of a thought, as the lake in other symbols has it."""
    return SHOWN["lake, other symbols"].in_symbols(word) if len(word) == 1 else word


def test_fine_tuning_goes_on_from_the_weights_that_are_there(tmp_path):
    with pytest.raises(ConfigError, match="how many steps more"):
        pretrain("search-two-hops", tmp_path / "none", begun="search-two-hops")
    went_on = pretrain(
        "search-two-hops",
        tmp_path / "on",
        seed=1,
        num_tasks=0,
        more=1,
        begun="search-two-hops",
        say=lambda line: None,
    )
    start = load_policy("search-two-hops")
    on, anew = (
        load_policy(str(went_on)).model,
        new_model(RECIPES["search-two-hops"], start.tokenizer, 1),
    )
    near, far = (
        sum(
            float((found - weight).detach().abs().mean())
            for found, weight in zip(model.parameters(), start.model.parameters(), strict=True)
        )
        for model in (on, anew)
    )
    assert 0 < near < 0.1 * far
    assert '"begun": "search-two-hops"' in (went_on / "provenance.json").read_text()


def test_a_transfer_is_judged_by_held_out_tasks_that_no_evaluation_asks():
    for table, world in [
        (table, world) for table in ("frozenlake", "grids") for world in transfer.WORLDS[table]
    ]:
        config = transfer.config_of(table, world)
        chosen = transfer.test_tasks(table, world, 64)
        contents = {transfer.content_of(task) for task in chosen}
        assert len(chosen) == len(contents) == 64 and {
            config.env.split_of(task) for task in chosen
        } == {"held-out"}
        evaluated = tasks(config.env, "held-out", config.evaluation.num_tasks)
        assert not contents & {transfer.content_of(task) for task in evaluated}
    played = [transfer.config_of("grids", world).env for world in transfer.WORLDS["grids"]]
    assert played == [*SHOWN.values(), *HELD_BACK.values()]


def test_a_transfer_stands_beside_random_play_and_solver_and_its_start(tmp_path, monkeypatch):
    worlds = {
        "4x4": {},
        "5x5": {
            "env.size": 5,
        },
    }
    monkeypatch.setattr(transfer, "WORLDS", {"frozenlake": worlds})
    transfer.test_tasks.cache_clear()
    path = tmp_path / "transfer.json"
    options = [
        "--out",
        str(tmp_path / "runs"),
        "--json",
        str(path),
        "--tasks",
        "4",
        "--seeds",
        "0",
        "--set",
        "train.steps=1",
        "train.tasks_per_step=2",
        "train.group_size=2",
    ]
    assert transfer.main([*options, "--train", "5x5"]) == 0
    first = path.read_text()
    assert (
        transfer.main([*options, "--train", "5x5"]) == 0 and path.read_text() == first
    )  # the run is taken as it lies there
    transfer.test_tasks.cache_clear()
    result = json.loads(first)
    assert [row["trained"] for row in result["runs"]] == ["5x5"]
    assert (
        result["worlds"]["4x4"]["solver"]["success"]
        == 1.0
        > result["worlds"]["4x4"]["random"]["success"]
    )
    assert result["start"]["tested"]["5x5"]["greedy"]["difference"][0] == 0
    table = transfer_tables(result)["greedy"]
    assert [row[0] for row in table.rows] == [
        "random play",
        "solver",
        "frozenlake-tiny, the start",
        "5x5; 0",
    ]
    assert "**" in table.rows[-1][2] and "**" not in table.rows[-1][1]
    habits = transfer_tables(result)["habits"].rows
    assert [row[0] for row in habits] == ["frozenlake-tiny, the start", "5x5; 0"]
    assert all(
        re.fullmatch(r"[0-9]+; [0-9]+(; [0-9]+)?", cell) for row in habits for cell in row[1:]
    )
    for world in (result["start"]["tested"][name]["sampled"] for name in worlds):
        assert world.pop("habits")["valid_format"] > 0.7
    assert "habits" not in transfer_tables(result)


@pytest.mark.parametrize("name", PLOTS)
def test_a_picture_of_evidence_is_drawn_from_its_data(name, tmp_path):
    result = read(DATA / f"{PLOTS[name][0]}.json")["result"]
    assert drawn_from(ROOT / f"docs/pictures/{name}.png") == digest(result), (
        "run `python -m docs.make plots`"
    )
    assert digest(result) != digest({**result, "runs": result["runs"][1:]})
    assert [path.name for path in draw(tmp_path, DATA)] == [f"{name}.png" for name in PLOTS]
