"""What nobody showed: when the demo calls it found, and which policy was never shown what."""
from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from data.make.pretrain import RECIPES, demonstrate, new_model, pretrain
from docs.make.__main__ import DATA, ROOT
from docs.make.evidence import read
from docs.make.plots import PLOTS, digest, draw, drawn_from
from docs.make.transfers import transfer_tables
from experiments import discovery, harder_search, transfer
from workbench.engines.policy import load_policy
from workbench.envs import tasks
from workbench.notebook.demo import Discovery, discovered, discovery_of, goal_of, rivals_of
from workbench.training.config import load_config
from workbench.types.errors import ConfigError
from workbench.types.kinds import ByKind


@pytest.mark.parametrize(("after", "held"), [(0.9, [True, True]), (0.24, [False, False]), (0.2, [False, False])])
def test_a_discovery_is_a_rise_of_thirty_points_that_is_clear_of_twenty(after, held):
    sides = {("untrained", "greedy"): {"3": (0.0,) * 100},
             ("trained", "greedy"): {"3": tuple((np.arange(100) < 100 * after).astype(float))}}
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
    assert not {discovery.content_of(task) for task in chosen} & {discovery.content_of(task) for task in evaluated}


@pytest.mark.parametrize(("recipe", "shown"), [("search-two-hops", False), ("search-tiny", True)])
def test_no_demonstration_shows_what_takes_three_documents(recipe, shown):
    found = [demonstrate(RECIPES[recipe], 0, index) for index in range(0, 6400, 64)]
    read = [message.text for each in found for observation in each.observations for message in observation.messages]
    assert any(" works for " in text or "work?" in text for text in read) is shown
    assert any(" sits in " in text for text in read) is shown


def test_the_harder_world_is_shown_with_four_documents_a_search(tmp_path):
    start = harder_search.shown(tmp_path, 1, 0)
    told = json.loads((tmp_path / "shown-1-seed-0" / "provenance.json").read_text())
    assert start == str(tmp_path / "shown-1-seed-0") and told["recipe"]["env"] == harder_search.ENV and told["begun"] == harder_search.START
    assert harder_search.shown(tmp_path, 0, 0) == harder_search.START, "none shown: the shipped policy itself"
    for env, documents in ((harder_search.ENV, 4), ("world-qa", 1)):
        played = demonstrate(replace(RECIPES[harder_search.START], env=env, contexts=()), 0, 3)
        assert max(len(message.text.splitlines()) for shown in played.observations[1:] for message in shown.messages) == documents


def test_fine_tuning_goes_on_from_the_weights_that_are_there(tmp_path):
    with pytest.raises(ConfigError, match="how many steps more"):
        pretrain("search-two-hops", tmp_path / "none", begun="search-two-hops")
    went_on = pretrain("search-two-hops", tmp_path / "on", seed=1, num_tasks=0, more=1, begun="search-two-hops",
                       say=lambda line: None)
    start = load_policy("search-two-hops")
    on, anew = load_policy(str(went_on)).model, new_model(RECIPES["search-two-hops"], start.tokenizer, 1)
    near, far = (sum(float((found - weight).detach().abs().mean()) for found, weight in
                     zip(model.parameters(), start.model.parameters(), strict=True)) for model in (on, anew))
    assert 0 < near < 0.1 * far
    assert '"begun": "search-two-hops"' in (went_on / "provenance.json").read_text()


def test_a_transfer_is_judged_by_held_out_tasks_that_no_evaluation_asks():
    for world, settings in transfer.WORLDS["frozenlake"].items():
        config = load_config("frozenlake", settings)
        chosen = transfer.test_tasks("frozenlake", world, 64)
        contents = {transfer.content_of(task) for task in chosen}
        assert len(chosen) == len(contents) == 64 and {config.env.split_of(task) for task in chosen} == {"held-out"}
        assert not contents & {transfer.content_of(task) for task in tasks(config.env, "held-out", 512)}


def test_a_transfer_stands_beside_random_play_and_solver_and_its_start(tmp_path, monkeypatch):
    worlds = {"4x4": {}, "5x5": {"env.size": 5, }}
    monkeypatch.setattr(transfer, "WORLDS", {"frozenlake": worlds})
    transfer.test_tasks.cache_clear()
    path = tmp_path / "transfer.json"
    options = ["--out", str(tmp_path / "runs"), "--json", str(path), "--tasks", "4", "--seeds", "0",
               "--set", "train.steps=1", "train.tasks_per_step=2", "train.group_size=2"]
    assert transfer.main([*options, "--train", "5x5"]) == 0
    first = path.read_text()
    assert transfer.main([*options, "--train", "5x5"]) == 0 and path.read_text() == first  # the run is taken as it lies there
    transfer.test_tasks.cache_clear()
    result = json.loads(first)
    assert [row["trained"] for row in result["runs"]] == ["5x5"]
    assert result["worlds"]["4x4"]["solver"]["success"] == 1.0 > result["worlds"]["4x4"]["random"]["success"]
    assert result["start"]["tested"]["5x5"]["greedy"]["difference"][0] == 0
    table = transfer_tables(result)["greedy"]
    assert [row[0] for row in table.rows] == ["random play", "solver", "frozenlake-tiny, the start", "5x5; 0"]
    assert "**" in table.rows[-1][2] and "**" not in table.rows[-1][1]


@pytest.mark.parametrize("name", PLOTS)
def test_a_picture_of_evidence_is_drawn_from_its_data(name, tmp_path):
    result = read(DATA / f"{PLOTS[name][0]}.json")["result"]
    assert drawn_from(ROOT / f"docs/pictures/{name}.png") == digest(result), "run `python -m docs.make plots`"
    assert digest(result) != digest({**result, "runs": result["runs"][1:]})
    assert [path.name for path in draw(tmp_path, DATA)] == [f"{name}.png" for name in PLOTS]
