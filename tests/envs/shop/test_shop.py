"""The shop: pages and actions, the published reward on worked cases, goals that can be met, chance as it is."""

import json
import pickle
import re

import numpy as np
import pytest

from workbench.extensions.shop.catalogue import NO_LIMIT, Product, ShopGoal, made, price_limit
from workbench.extensions.shop.reward import basic_color, reward_of, token_set_ratio, type_reward
from workbench.tools.action_format import format_action
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.worlds import PRESETS, Shop, split_of, tasks
from workbench.worlds.baselines import play

# Computed by the library itself (thefuzz 0.22, token_set_ratio).
LIKENESS = [
    ("dishwasher safe", "dishwasher-safe", 100),
    ("non slip", "non slip sole", 100),
    ("machine wash", "machine washable", 86),
    ("red", "dark red", 100),
    ("long lasting", "long-lasting battery", 100),
    ("gluten free", "free of gluten", 100),
    ("x large", "xx large", 93),
    ("cotton", "cotton blend", 100),
    ("polyester", "cotton", 27),
    ("5 pack", "6 pack", 83),
    ("blue | white", "white | blue", 100),
    ("usb port", "usb ports", 94),
    ("hand wash", "hand wash only", 100),
    ("water resistant", "water resistent", 93),
    ("", "x", 0),
    ("ab cd", "ab ce", 80),
    ("noise cancelling", "noise canceling", 97),
]
MUG = Product(
    "A1",
    "Norvik coffee mug, easy clean",
    "coffee mug",
    "Home & Kitchen › Dining › coffee mug",
    "For tea, too.",
    ("Easy clean", "Lead free"),
    ("easy clean", "lead free"),
    (("color", ("red", "dark blue")), ("size", ("small", "large"))),
    12.5,
)
GOAL = ShopGoal("A1", "Find a mug", ("easy clean", "lead free"), ("blue", "large"), 20.0)


def does(*actions, family=PRESETS["shop"], task=None):
    env = family.make()
    env.reset(task or family.task(0), 0)
    for action in actions:
        result = env.step(format_action([action], think=family.think))
    return env, result


@pytest.mark.parametrize(("one", "other", "ratio"), LIKENESS)
def test_likeness_is_the_librarys(one, other, ratio):
    assert token_set_ratio(one, other) == token_set_ratio(other, one) == ratio


def changed(product, **fields):
    return Product(
        **{**{name: getattr(product, name) for name in Product.__dataclass_fields__}, **fields}
    )


@pytest.mark.parametrize(
    ("bought", "chosen", "expected"),
    [
        (MUG, {"color": "dark blue", "size": "large"}, 5 / 5),  # a color by its basic color
        (MUG, {"color": "red", "size": "large"}, 4 / 5),
        (MUG, {}, 3 / 5),
        (changed(MUG, price=20.01), {"color": "dark blue", "size": "large"}, 4 / 5),
        (
            changed(MUG, attributes=("easy cleaning",), features=()),
            {},
            2 / 5,
        ),  # alike; in the name, too
        (
            changed(MUG, name="Orlo soup bowl", query="soup bowl"),
            {"size": "large"},
            0.0,
        ),  # no word of the goal's name
        (
            changed(MUG, name="Norvik wool hat", query="hat", path="Clothing"),
            {},
            3 / 10,
        ),  # a fifth, no more: r_type 0.5
        (
            changed(MUG, name="Norvik tea mug", query="x", path="y"),
            {},
            3 / 5,
        ),  # two fifths: r_type 1
    ],
)
def test_the_published_reward_on_worked_cases(bought, chosen, expected):
    assert reward_of(bought, chosen, GOAL, MUG).reward == pytest.approx(expected)


def test_kinds_as_published():
    long = changed(MUG, name="one two three four five six mug", query="x", path="a")
    assert (
        type_reward(changed(MUG, query="z", path="b", name="mug"), long) == 0.5
    )  # a seventh, nothing else
    assert type_reward(changed(MUG, query="x", path="b", name="mug"), long) == 1.0  # the same query
    many = changed(long, name=" ".join(f"word{chr(97 + at)}" for at in range(11)) + " mug")
    assert type_reward(changed(MUG, query="y", name="mug"), many) == 0.1
    assert basic_color("steelivy fuchsia") == "fuchsia"
    assert basic_color("webshop") == "webshop" and basic_color("black forest") == "black"
    size = changed(MUG, options=(("size", ("large", "x-large")),))
    assert reward_of(size, {"size": "x-large"}, GOAL, size).options == 0  # sizes must be the same
    assert (
        reward_of(
            changed(MUG, name="Norvik blue large mug"),
            {"color": "blue", "size": "large", "more": "large"},
            GOAL,
            MUG,
        ).options
        == 2
    )  # never more than asked for


def test_a_purchase_as_a_transcript():
    family = PRESETS["shop"]
    task = family.task(0)
    env = family.make()
    first = env.reset(task, 0).messages[0].text
    assert f"{family.max_turns} answers" in first and first.endswith(
        f"{task.payload['instruction']}\n\nSearch bar: search[words]"
    )
    wanted = family.open().by_id[task.payload["product"]]
    env, page = does(
        f"search[{wanted.name}]", f"CLICK[{wanted.id}]".replace("CLICK", "click"), task=task
    )
    assert page.observation.messages[0].text.startswith(
        f"{wanted.name} ${wanted.price:.2f}\ncolor: ["
    )
    env, page = does(f"search[{wanted.name}]", f"click[{wanted.id}]", "click[features]", task=task)
    assert (
        page.observation.messages[0].text
        == "\n".join(wanted.features) + "\n[< Prev] [Back to Search]"
    )
    env, page = does(
        f"search[{wanted.name}]",
        f"click[{wanted.id}]",
        "click[description]",
        "click[< Prev]",
        f"click[{task.payload['options'][0]}]",
        "click[buy now]",
        task=task,
    )
    assert (
        page.terminated
        and 0 < page.reward < 1
        and not page.info["success"]
        and page.info["bought"] == wanted.id
    )
    with pytest.raises(EnvError, match="over or was never begun"):
        env.step("")


def test_pages_go_forth_and_back():
    env, _ = does("search[size small]", "click[next >]")
    assert env.number == 2 and "< Prev" in env.clicks() and len(env.found) == 50
    env, _ = does(
        "search[size small]", "click[Next >]", "click[Next >]", "click[Next >]", "click[Next >]"
    )
    assert "Next >" not in env.clicks() and env.number == 5
    env, _ = does("search[size small]", "click[Next >]", "click[< Prev]", "click[Back to Search]")
    assert env.page == "search" and not env.clicks()


@pytest.mark.parametrize(
    "action",
    [
        "click[Buy Now]",
        "search[]",
        "search[ ]",
        "buy",
        "click[B000]",
        "search[" + "x" * 300 + "]",
        "search",
        "click[search]",
        "",
    ],
)
def test_what_cannot_be_done_is_answered_and_does_nothing(action):
    family = Shop(format_penalty=-0.1)
    env, result = does(action, family=family)
    assert (
        result.reward == -0.1
        and not result.info["valid_format"]
        and not result.terminated
        and env.page == "search"
    )
    assert "Nothing was done" in result.observation.messages[0].text
    assert does(action)[1].reward == 0.0  # as published


def test_nothing_found_and_an_empty_page():
    env, result = does("search[zzzz]")
    assert result.observation.messages[0].text == "Page 1, 0 found for: zzzz\n[Back to Search]"


def test_every_goal_can_be_met_and_the_solver_meets_it():
    family, rng = PRESETS["shop"], rng_at("solver")
    trajectories = [
        play(family, task, 0, lambda env: family.solver_action(env, rng))
        for task in tasks(family, "held-out", 150)
    ]
    assert np.mean([trajectory.success for trajectory in trajectories]) == 1.0


def alone(family, task, rng):
    """One trajectory at random play, written anew: the walk over pages, and the reward by exact words, which is enough in
    the catalogue that is made here."""
    shop, goal = family.open(), task.payload
    words, place, chosen = re.findall(r"\w+", goal["instruction"]), "search", {}
    for _ in range(family.max_turns):
        if place == "search":
            start = rng.integers(len(words))
            query = " ".join(words[start : start + rng.integers(1, 4)])
            found, number, place = (
                [hit.document.id for hit in shop.searcher.search(query, 50)],
                0,
                "results",
            )
            continue
        if place == "results":
            page = found[number * family.results : (number + 1) * family.results]
            more = ["next"] * ((number + 1) * family.results < len(found))
            choices = page + more + ["prev"] * (number > 0) + ["search"]
            pick = choices[rng.integers(len(choices))]
            number += {"next": 1, "prev": -1}.get(pick, 0)
            if pick in page:
                item, place, chosen = shop.by_id[pick], "item", {}
            elif pick == "search":
                place = "search"
            continue
        if place == "text":
            place = ("item", "search")[rng.integers(2)]
            continue
        choices = [(name, value) for name, values in item.options for value in values]
        choices += ["text", "text", "buy", "prev", "search"]
        pick = choices[rng.integers(len(choices))]
        if pick == "buy":
            said = " ".join([item.name, item.description, *item.features]).lower()
            kind = bool(
                set(re.findall("[a-z]+", shop.by_id[goal["product"]].name.lower()))
                & set(re.findall("[a-z]+", item.name.lower()))
            )
            options = sum(value in goal["options"] or value in said for value in chosen.values())
            hits = (
                sum(each in said for each in goal["attributes"])
                + options
                + (item.price <= goal["price_limit"])
            )
            return kind * hits / (len(goal["attributes"]) + len(goal["options"]) + 1)
        if isinstance(pick, tuple):
            chosen[pick[0]] = pick[1]
        else:
            place = {"text": "text", "prev": "results", "search": "search"}[pick]
    return 0.0


def test_chance_is_what_another_simulation_says():
    family, rng = PRESETS["shop"], rng_at("chance")
    chosen = tasks(family, "held-out", 60) * 20
    ours = np.array(
        [
            play(family, task, 0, lambda env: family.random_action(env, rng)).reward
            for task in chosen
        ]
    )
    theirs = np.array([alone(family, task, rng) for task in chosen])
    error = 1.96 * np.sqrt((ours.var() + theirs.var()) / len(chosen))
    assert abs(ours.mean() - theirs.mean()) < 1.5 * error and ours.mean() > 3 * error
    assert np.mean(ours == 1.0) < 0.01


def test_the_catalogue_is_the_same_for_a_seed_and_goals_are_theirs():
    shop = made(0, 400)
    assert (
        len(shop.products) == 400
        and len(shop.goals) > 1_100
        and len({each.query for each in shop.products}) == 25
    )
    assert made.__wrapped__(0, 400).goals == shop.goals != made(1, 400).goals
    for goal in shop.goals:
        product = shop.by_id[goal.product]
        assert set(goal.attributes) <= set(product.attributes) and product.price < goal.price_limit
    assert (
        price_limit(985.0, rng_at("x")) == NO_LIMIT and 30 <= price_limit(12.5, rng_at("x")) <= 50
    )


def test_splits_by_product_and_snapshots():
    family = PRESETS["shop"]
    held = {task.payload["product"] for task in tasks(family, "held-out", 60)}
    assert not held & {task.payload["product"] for task in tasks(family, "train", 60)}
    assert all(split_of(family, task) == "held-out" for task in tasks(family, "held-out", 10))
    env, _ = does("search[hand wash]", "click[next >]")
    restored = family.make()
    restored.restore(json.loads(json.dumps(env.snapshot())))
    for each in (restored, pickle.loads(pickle.dumps(env))):
        assert each.state_key() == env.state_key()
        assert each.step("<think></think><answer>click[Next >]</answer>").info["effective"]


def test_settings_that_cannot_be():
    with pytest.raises(ConfigError, match="products"):
        Shop(products=5)
    assert Shop(data="x").inert_settings()[0].dead and not Shop().inert_settings()[0].dead
    with pytest.raises(EnvError, match="a goal about a product"):
        PRESETS["shop"].make().reset(Task("t", "shop", 0, {"product": "B000"}), 0)
