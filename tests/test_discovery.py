"""What nobody showed: when the demo calls it found, and which policy was never shown what."""
from __future__ import annotations

import numpy as np
import pytest

from data.make.pretrain import RECIPES, demonstrate
from experiments import discovery
from workbench.envs import tasks
from workbench.notebook.demo import Discovery, discovered, discovery_of, goal_of, rivals_of
from workbench.training.config import load_config
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
