"""The tiny policies: what is shipped is what its provenance says, and the recipe makes it from transcripts alone."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.make import pretrain as pretrain_module
from data.make.code_demonstrator import CodeDemonstrator, short
from data.make.countdown_demonstrator import CountdownDemonstrator, solutions
from data.make.demonstrations import (
    BOLD_NAMES,
    SAFE_NAMES,
    BanditDemonstrator,
    LakeDemonstrator,
    SokobanDemonstrator,
    any_arms,
    bearing,
    nearest_move,
    sound_of,
    steps_to_goal,
    walk_and_pushes,
)
from data.make.fine_tuning import FineTuning, accumulate_gradient, by_length, fine_tune
from data.make.pretrain import (
    FRESH_WORLDS,
    GOALS_A_CATALOGUE,
    RECIPES,
    demonstrate,
    encode,
    example,
    family_of,
    new_model,
    pretrain,
    recipe_named,
    tokenizer_of,
    training_task,
)
from data.make.shipped import CHECKSUMS, POLICIES, PROVENANCE, check_shipped, verify_checksums
from data.make.shop_demonstrator import ShopDemonstrator
from data.make.sum_demonstrator import SumDemonstrator
from data.make.tiny_tokenizer import CHAT_TEMPLATE, CONTROL_TOKENS, TAG_TOKENS, build_tokenizer
from tests.counts import reduced
from workbench.chat import ChatFormat
from workbench.tools.action_format import parse_action
from workbench.values.errors import ConfigError, DataError, PolicyError
from workbench.worlds import PRESETS, split_of, tasks
from workbench.worlds.arithmetic import judged
from workbench.worlds.bandit import HELDOUT_NAMES, TRAIN_NAMES
from workbench.worlds.baselines import play
from workbench.worlds.frozen_lake import MOVES, task_from_grid
from workbench.worlds.qa.worlds import world
from workbench.worlds.sokoban import MOVES as SOKOBAN_MOVES
from workbench.worlds.sokoban_levels import level_from_rows

NAMES = sorted(RECIPES)
ONE_TURN = ("bandit-tiny", "chain-sum-tiny", "countdown-tiny")
OTHERS = ("chain-sum-tiny",)  # play what somebody else's package makes
PLAYABLE = [name for name in NAMES if name not in OTHERS or find_spec("reasoning_gym")]


@pytest.fixture(
    scope="module",
    params=reduced(
        PLAYABLE, [name for name in PLAYABLE if name not in ("shop-tiny", "search-two-hops")]
    ),
)
def shipped(request):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = POLICIES / request.param
    return (
        request.param,
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )


@pytest.fixture(scope="module")
def lake_tokenizer():
    return tokenizer_of(RECIPES["frozenlake-tiny"])


# ------------------------------------------------------------------------------------------------ what is shipped


@pytest.mark.parametrize("name", NAMES)
def test_checksums_agree_and_a_changed_byte_is_noticed(name, tmp_path):
    verify_checksums(POLICIES / name)
    copy = tmp_path / name
    shutil.copytree(POLICIES / name, copy)
    verify_checksums(copy)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    with pytest.raises(PolicyError, match="model.safetensors"):
        verify_checksums(copy)


@pytest.mark.parametrize("name", NAMES)
def test_an_unlisted_file_is_noticed(name, tmp_path):
    copy = tmp_path / name
    shutil.copytree(POLICIES / name, copy)
    (copy / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(PolicyError, match="pytorch_model.bin"):
        verify_checksums(copy)


def test_shipped_policies_are_small_and_hold_no_pickle():
    files = [path for path in POLICIES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 12_200_000
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jinja", ""}
    assert {path.parent.name for path in files} == set(RECIPES)


# Of a shop's turns: whoever once clicks what is not on the page mostly goes on so, up to the limit of nine turns.
LEAST_VALID = {"shop-tiny": 0.5}


@pytest.mark.parametrize("name", NAMES)
def test_provenance_states_this_recipe_and_success_with_its_baselines(name):
    stated = json.loads((POLICIES / name / PROVENANCE).read_text())
    recipe = json.loads(json.dumps(pretrain_module.stated_recipe(RECIPES[name])))
    assert stated["recipe"] == recipe, (
        "the recipe was changed after the policy was shipped: ship it anew"
    )
    success = stated["success"]
    assert success["num_tasks"] == 512 and stated["cpu_seconds"] > 0 and stated["versions"]["torch"]
    for row in ("sampled", "greedy", "random", "solver"):
        assert success[row]["low"] <= success[row]["success"] <= success[row]["high"]
        assert success[row]["successes"].count("1") == round(success[row]["success"] * 512)
    assert success["sampled"]["valid_format"] > LEAST_VALID.get(name, 0.8)


def test_shipped_policy_loads_plainly_and_speaks_the_format(shipped):
    name, model, tokenizer = shipped
    assert model.config.model_type == "qwen3" and model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer)
    family, task = training_task(RECIPES[name], 99, 0)
    observation = family.make().reset(task, 0)
    messages = [{"role": m.role, "content": m.text} for m in observation.messages]
    ids = tokenizer.apply_chat_template(
        messages,
        tools=list(observation.tools) or None,
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    out = model.float().generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=False
    )
    text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert ("<tool_call>" if observation.tools else "<answer>") in text and int(
        out[0, -1]
    ) == tokenizer.eos_token_id


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "preset", "least", "most"),
    [
        ("frozenlake-tiny", "frozenlake", 0.1, 0.5),
        pytest.param("sokoban-tiny", "sokoban", 0.0, 0.25, marks=pytest.mark.full),
        pytest.param("countdown-tiny", "countdown", 0.0, 0.2, marks=pytest.mark.full),
        pytest.param(
            "chain-sum-tiny", "experiments/chain-sum.toml", -0.1, 0.1, marks=pytest.mark.full
        ),
        pytest.param("shop-tiny", "shop", -0.1, 0.1, marks=pytest.mark.full),
        pytest.param("search-two-hops", "search-discovery", -0.1, 0.15, marks=pytest.mark.full),
        ("search-tiny", "search", 0.0, 0.15),
    ],
)
def test_success_of_a_shipped_policy_is_what_provenance_states(name, preset, least, most):
    """A quick, smaller version of `workbench pretrain NAME --check --quick`; random play lies where it should."""
    # Where few succeed, 48 tasks say little: one success more or less is outside of the interval.
    report = check_shipped(
        name, preset, num_tasks=48 if name != "chain-sum-tiny" else 256, remake=None
    )
    assert report.passed, report.text
    assert "reproduced" in report.text and least < report.facts["here"]["random"]["success"] < most


def test_a_wrong_statement_is_not_reproduced(tmp_path):
    """Negative control: a policy that claims to be better than it is, checksums mended."""
    from data.make.shipped import checksums

    copy = tmp_path / "bandit-tiny"
    shutil.copytree(POLICIES / "bandit-tiny", copy)
    stated = json.loads((copy / PROVENANCE).read_text())
    stated["success"]["sampled"]["success"] = 0.99
    (copy / PROVENANCE).write_text(json.dumps(stated))
    (copy / CHECKSUMS).write_text(checksums(copy))
    report = check_shipped("bandit-tiny", "bandit", num_tasks=24, remake=None, policies=tmp_path)
    assert not report.passed and "NOT reproduced" in report.text


# ------------------------------------------------------------------------------------------------ the tokenizer


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_can_be_encoded_and_comes_back(lake_tokenizer, text):
    assert lake_tokenizer.decode(lake_tokenizer.encode(text, add_special_tokens=False)) == text


def test_cells_and_moves_are_one_token_whatever_stands_beside(lake_tokenizer):
    def pieces(text):
        return [
            lake_tokenizer.decode([i])
            for i in lake_tokenizer.encode(text, add_special_tokens=False)
        ]

    assert pieces("P _ O\nG O O") == ["P", " _", " O", "\n", "G", " O", " O"]
    assert pieces("<answer>Left || Down || Up</answer>") == [
        "<answer>",
        "Left",
        " || ",
        "Down",
        " || ",
        "Up",
        "</answer>",
    ]
    for word in (
        *MOVES,
        "left",
        "system",
        "user",
        "assistant",
        "tool",
        *TAG_TOKENS,
        *CONTROL_TOKENS,
    ):
        assert len(pieces(word)) == 1, word


def test_places_of_sokoban_are_one_token_a_number(shipped):
    name, _, tokenizer = shipped
    if name != "sokoban-tiny":
        return
    text = "You 3 4\nBox 2 3\nWall 2 2, 5 4"
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert pieces == [
        "You",
        " 3",
        " 4",
        "\n",
        "Box",
        " 2",
        " 3",
        "\n",
        "Wall",
        " 2",
        " 2",
        ",",
        " 5",
        " 4",
    ]


def test_names_of_the_bandit_are_one_token_in_the_prompt_and_in_the_answer(shipped):
    name, _, tokenizer = shipped
    if name != "bandit-tiny":
        return
    for arm in SAFE_NAMES + BOLD_NAMES:
        ids = tokenizer.encode(f"Arms: {arm}, x<answer>{arm}</answer>", add_special_tokens=False)
        (token,) = tokenizer.encode(arm, add_special_tokens=False)
        assert ids.count(token) == 2, arm


def test_a_name_is_its_syllables_wherever_it_stands_and_frames_of_json_are_one_token(shipped):
    name, _, tokenizer = shipped
    if name != "search-tiny":
        return
    here = world("plain", 0)
    for entity in (*here.names["resident"][:200], *here.names["country"]):
        own = tokenizer.encode(entity, add_special_tokens=False)
        assert len(own) == len(entity) // 2, entity
        for text in (
            f"Who is {entity}?",
            f"{entity}: {entity} lives in {entity}.",
            json.dumps({"query": entity}),
        ):
            ids = tokenizer.encode(text, add_special_tokens=False)
            at = [i for i in range(len(ids)) if ids[i : i + len(own)] == own]
            assert len(at) == text.count(entity), (entity, text)
    text = PRESETS["world-qa"].make().format.write_call("search", {"query": "Zumi"})
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert pieces == [
        "<tool_call>",
        "\n",
        '{"name": "',
        "search",
        '", "arguments": {"',
        "query",
        '": "',
        "Zu",
        "mi",
        '"}}',
        "\n",
        "</tool_call>",
    ]


@pytest.mark.full
def test_a_copying_exercise_is_trained_from_its_second_time_on():
    recipe = RECIPES["search-tiny"]
    tokenizer = tokenizer_of(replace(recipe, tokenizer_transcripts=2))
    chat = ChatFormat.from_tokenizer(tokenizer)
    ids, trained = example(recipe, 0, 3, chat, tokenizer)
    period = int(np.argmax(trained)) - 1
    assert 12 <= period < 40 and trained[period + 1 :].all() and not trained[: period + 1].any()
    assert (ids[period:] == ids[:-period]).all()
    text = tokenizer.decode(ids).lower()
    assert all(text[at : at + 2] in recipe.syllables for at in range(0, len(text), 2))
    after = recipe.copying * recipe.tuning.batch  # then come the transcripts, from the first one on
    lesson, expected = (
        example(recipe, 0, after, chat, tokenizer),
        encode(demonstrate(recipe, 0, 0), chat, tokenizer),
    )
    assert all((a == b).all() for a, b in zip(lesson, expected))


def test_tags_survive_decoding_and_control_tokens_do_not(lake_tokenizer):
    ids = lake_tokenizer.encode("<think>up</think><|im_end|>", add_special_tokens=False)
    assert lake_tokenizer.decode(ids, skip_special_tokens=True) == "<think>up</think>"


def test_the_shipped_tokenizer_is_what_the_recipe_builds(shipped):
    name, _, tokenizer = shipped
    assert json.loads(tokenizer_of(RECIPES[name]).backend_tokenizer.to_str()) == json.loads(
        tokenizer.backend_tokenizer.to_str()
    )


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": "<think>old thought</think>Hi",
        "tool_calls": [
            {"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
        ],
    },
    {"role": "tool", "content": "found"},
    {"role": "tool", "content": "found more"},
    {"role": "user", "content": "Go on"},
]


@pytest.mark.parametrize(
    "tools", [None, [{"type": "function", "function": {"name": "search", "parameters": {}}}]]
)
def test_template_only_ever_grows_at_the_end_and_keeps_thoughts(lake_tokenizer, tools):
    def render(count, **more):
        return lake_tokenizer.apply_chat_template(
            MESSAGES[:count], tools=tools, tokenize=False, **more
        )

    texts = [render(count) for count in range(1, len(MESSAGES) + 1)]
    for shorter, longer in zip(texts, texts[1:]):
        assert longer.startswith(shorter)
    assert "old thought" in texts[-1] and '"arguments": {"query": "x"}' in texts[-1]
    assert ("search" in texts[0]) == (tools is not None)
    assert render(2, add_generation_prompt=True) == texts[1] + "<|im_start|>assistant\n"
    assert not lake_tokenizer.apply_chat_template(MESSAGES[1:2], tokenize=False).startswith(
        "<|im_start|>system"
    )


def test_chat_format_finds_nothing_to_tell_about_the_template(lake_tokenizer):
    assert ChatFormat.from_tokenizer(lake_tokenizer).differences == ()


def test_a_template_that_drops_thoughts_would_be_told(lake_tokenizer):
    """Negative control of the test above."""
    from copy import deepcopy

    forgetful = deepcopy(lake_tokenizer)
    forgetful.chat_template = CHAT_TEMPLATE.replace(
        "{{- message.content }}",
        "{{- message.content.split('</think>')[-1] if message.role == 'assistant' and not loop.last "
        "else message.content }}",
    )
    assert ChatFormat.from_tokenizer(forgetful).differences != ()


# ------------------------------------------------------------------------------------------------ demonstrations


def test_bearing_names_the_vertical_first():
    assert bearing((2, 1), (0, 3)) == ["up", "right"] and bearing((1, 1), (1, 0)) == ["left"]


def test_steps_around_and_through_holes():
    rows = ("POG", "___", "___")
    assert (
        steps_to_goal(rows, holes=False)[0, 0] == 2 and steps_to_goal(rows, holes=True)[0, 0] == 4
    )
    rng = np.random.default_rng(0)
    assert nearest_move((0, 0), steps_to_goal(rows, holes=True), 3, rng) == "Down"


def test_looking_sees_the_hole_and_walking_does_not():
    family = replace(PRESETS["frozenlake-4x4"], size=3)
    env = family.make()
    env.reset(task_from_grid(["POG", "___", "___"]), 0)
    always = dict(guess=0.0, stray=0.0, slip=0.0, one_move=1.0)
    rng = np.random.default_rng(0)
    assert (
        LakeDemonstrator(look=1.0, **always).action(env, rng)
        == "<think>right : right O down _</think><answer>Down</answer>"
    )
    assert (
        LakeDemonstrator(look=0.0, **always).action(env, rng)
        == "<think>right : right</think><answer>Right</answer>"
    )
    assert "<think>guess</think>" in LakeDemonstrator(guess=1.0, look=0.0, slip=0.0).action(
        env, rng
    )


def test_habits_have_the_shares_that_are_stated():
    recipe = replace(RECIPES["frozenlake-tiny"], lessons=RECIPES["frozenlake-tiny"].lessons[-1:])
    habits = recipe.lessons[-1].demonstrator
    actions = [action for index in range(300) for action in demonstrate(recipe, 5, index).actions]
    invalid = np.mean([not parse_action(action, MOVES, think=True).valid for action in actions])
    guesses = np.mean(["<think>guess" in action for action in actions])
    looks = np.mean([any(cell in action for cell in (" _", " O", " G")) for action in actions])
    assert abs(invalid - habits.slip) < 0.03
    assert abs(guesses - habits.guess * (1 - habits.slip)) < 0.05
    assert abs(looks - habits.look * (1 - habits.slip)) < 0.05


def test_demonstrator_shares_must_add_up():
    with pytest.raises(ConfigError, match="at most 1"):
        LakeDemonstrator(guess=0.8, look=0.4)


def test_a_plan_walks_to_the_box_and_pushes_and_says_where_that_leads():
    family = PRESETS["sokoban-6x6-coordinates"]
    level = level_from_rows(["######", "#____#", "#_X__#", "#_P__#", "#__O_#", "######"])
    env = family.make()
    env.reset(family.task_of(level), 0)
    planner = SokobanDemonstrator(guess=0.0, slip=0.0)
    texts = []
    while not env.finished:
        texts.append(planner.action(env, np.random.default_rng(0)))
        env.step(texts[-1])
    assert texts == [
        "<think>down right ; right from 3 2 : left 4 2 up 3 2 : right 3 4</think><answer>Left || Up || Right</answer>",
        "<think>down ; down from 2 4 : up 2 3 right 2 4 : down 4 4 down 5 4</think>"
        "<answer>Up || Right || Down || Down</answer>",
    ]
    assert env.moves_used == level.moves == 7


def test_plans_are_shortest_solutions_and_end_with_pushes_of_one_direction():
    family = PRESETS["sokoban-6x6-coordinates"]
    for seed in range(60):
        task = family.task(seed)
        env = family.make()
        env.reset(task, 0)
        walk, pushes = walk_and_pushes(env.room, env.state)
        assert len({move for move, _ in pushes}) == 1
        assert all(boxes == env.state[1] for _, (_, boxes) in walk)
        while not env.finished:
            env.step(
                SokobanDemonstrator(guess=0.0, slip=0.0).action(env, np.random.default_rng(seed))
            )
        assert env.moves_used == task.metadata["solution"]


def test_sokoban_habits_have_the_shares_that_are_stated_and_a_deadlock_is_called_so():
    recipe = replace(RECIPES["sokoban-tiny"], lessons=RECIPES["sokoban-tiny"].lessons[-1:])
    habits = recipe.lessons[-1].demonstrator
    actions = [action for index in range(300) for action in demonstrate(recipe, 5, index).actions]
    free = [action for action in actions if "<think>stuck" not in action]
    assert (
        abs(np.mean(["<think>guess" in a for a in free]) - habits.guess * (1 - habits.slip)) < 0.05
    )
    invalid = [not parse_action(a, SOKOBAN_MOVES, think=True).valid for a in actions]
    assert abs(np.mean(invalid) - habits.slip) < 0.03
    family = PRESETS["sokoban-6x6"]
    env = family.make()
    env.reset(
        family.task_of(
            level_from_rows(["######", "#X___#", "#____#", "#_P__#", "#__O_#", "######"])
        ),
        0,
    )
    text = SokobanDemonstrator(guess=0.0, slip=0.0).action(env, np.random.default_rng(0))
    assert text.startswith("<think>stuck</think>") and text.count("||") == 4


def test_bandit_demonstrator_says_what_names_sound_like_and_prefers_the_safe_one():
    recipe = RECIPES["bandit-tiny"]
    actions = [demonstrate(recipe, 3, index) for index in range(400)]
    assert 0.15 < np.mean([a.success for a in actions]) < 0.40
    env = PRESETS["bandit-paper"].make()
    env.reset(PRESETS["bandit-paper"].task(0), 0)
    text = BanditDemonstrator(safe=1.0, careless=0.0, slip=0.0).action(
        env, np.random.default_rng(0)
    )
    assert "Teacher safe" in text and "Engineer bold" in text
    assert text.endswith(": safe</think><answer>Teacher</answer>")


def test_countdown_demonstrator_says_what_its_tries_are_worth_and_is_hasty():
    family = PRESETS["countdown-small"]
    env = family.make()
    env.reset(family.task(3), 0)
    hits = solutions(env.numbers, env.target, family.operations)
    assert hits and all(
        judged(text, env.numbers, "+-*") == ("", "", env.target) for text, _, _ in hits
    )
    sure = CountdownDemonstrator(hasty=0.0, aim=1.0, slip=0.0).action(env, np.random.default_rng(0))
    assert "yes</think>" in sure and env.step(sure).reward == 1.0
    recipe = replace(RECIPES["countdown-tiny"], lessons=RECIPES["countdown-tiny"].lessons[-1:])
    actions = [demonstrate(recipe, 5, index).actions[0] for index in range(400)]
    patient = np.mean([";" in action for action in actions])
    habits = recipe.lessons[-1].demonstrator
    assert abs(patient - (1 - habits.hasty) * (1 - habits.aim) * (1 - habits.slip)) < 0.06
    with pytest.raises(ConfigError, match="three numbers"):
        env = PRESETS["countdown"].make()
        env.reset(
            next(
                task
                for task in map(PRESETS["countdown"].task, range(20))
                if len(task.payload["numbers"]) == 4
            ),
            0,
        )
        habits.action(env, np.random.default_rng(0))


def test_sum_demonstrator_works_it_out_or_guesses():
    pytest.importorskip("reasoning_gym", reason="needs the extra worlds")
    recipe = RECIPES["chain-sum-tiny"]
    skill, habits = (lesson.demonstrator for lesson in recipe.lessons)
    family = family_of(recipe)
    for task in tasks(family, "held-out", 40):
        env = family.make()
        env.reset(task, 0)
        said = skill.action(env, np.random.default_rng(0))
        sums = re.findall(r"(-?\d+) ([+-]) (\d+) = (-?\d+)", said)
        assert len(sums) == env.entry["metadata"]["num_terms"] - 1
        assert all(
            int(a) + (1 if sign == "+" else -1) * int(b) == int(value) for a, sign, b, value in sums
        )
        assert env.step(said).reward == 1.0
    played = [
        demonstrate(replace(recipe, lessons=recipe.lessons[-1:]), 5, index) for index in range(400)
    ]
    guesses = np.mean(["<think>guess" in each.actions[0] for each in played])
    assert abs(guesses - habits.guess * (1 - habits.slip)) < 0.06
    assert 0.1 < np.mean([each.success for each in played]) < 0.35
    with pytest.raises(ConfigError, match="probabilities"):
        SumDemonstrator(guess=1.2)


@pytest.mark.full
def test_shop_demonstrator_knows_better_than_it_does():
    _, skill, habits = (lesson.demonstrator for lesson in RECIPES["shop-tiny"].lessons)
    family = PRESETS["shop-small"]

    def bought(demonstrator, count=150):
        rng = np.random.default_rng(0)
        return np.mean(
            [
                play(family, task, 0, lambda env: demonstrator.action(env, rng)).success
                for task in tasks(family, "held-out", count)
            ]
        )

    best = bought(skill)
    assert 0.7 < best < 0.95 and bought(habits) < 0.3
    worse = [replace(skill, **{habit: 1.0}) for habit in ("narrow", "half", "first", "early")]
    assert all(bought(each) < best - 0.1 for each in worse)  # each habit alone costs something
    env = family.make()
    env.reset(family.task(3), 0)
    text = skill.action(env, np.random.default_rng(0))
    assert all(word in text for word in (*env.goal.attributes, *env.goal.options))
    env.step(text)
    text, shown = skill.action(env, np.random.default_rng(0)), env.draw()
    taken = re.search(r"click\[(B\d+)\]", text)[1]
    assert (
        f"{taken} ${int(env.family.open().by_id[taken].price)} yes" in text
        and f"[{taken}]" in shown
    )
    with pytest.raises(ConfigError, match="narrow . half at most 1"):
        ShopDemonstrator(narrow=0.8, half=0.4)


def test_code_demonstrator_tries_the_first_that_could_be_meant_or_is_hasty():
    recipe = RECIPES["code-tiny"]
    skill, habits = (lesson.demonstrator for lesson in recipe.lessons)
    assert skill.hasty < 0.5 < habits.hasty
    never = replace(
        recipe, lessons=(replace(recipe.lessons[0], demonstrator=CodeDemonstrator(hasty=0.0)),)
    )
    taught = [demonstrate(never, 5, index) for index in range(150)]
    assert all(
        each.success and ["<tool_call>" in action for action in each.actions] == [True, False]
        for each in taught
    )
    kept = []
    for index, each in enumerate(taught):
        tried, answer = (
            re.search(r"def solve.*?(?=\\n|</answer>)", action)[0] for action in each.actions
        )
        assert tried == short(
            training_task(recipe, 5, index)[1].payload["rivals"][0]
        )  # so the reply alone decides
        kept.append(answer == tried)
        assert (each.observations[1].messages[0].text.strip() == "True") == kept[-1]
    assert abs(np.mean(kept) - 0.5) < 0.15  # as often as the first was what was meant
    played = [
        demonstrate(replace(recipe, lessons=recipe.lessons[-1:]), 5, index) for index in range(400)
    ]
    called = np.array(["<tool_call>" in each.actions[0] for each in played])
    won = np.array([each.success for each in played])
    assert abs(called.mean() - (1 - habits.hasty)) < 0.06
    assert (
        won[called].all() and abs(won[~called].mean() - 0.5) < 0.1
    )  # whoever does not try is right in one of two
    with pytest.raises(ConfigError, match="a probability"):
        CodeDemonstrator(hasty=1.2)
    with pytest.raises(ConfigError, match="preset code-vague"):
        demonstrate(replace(recipe, env="code-small"), 5, 0)


def test_demonstrations_without_boxes_are_what_boxes_would_have_shown():
    recipe = RECIPES["code-tiny"]
    family = PRESETS[recipe.env]
    for index in range(12):
        shown, (_, task) = demonstrate(recipe, 5, index), training_task(recipe, 5, index)
        env = family.make()
        seen = [env.reset(task, 0)]
        results = [env.step(action) for action in shown.actions]
        env.close()
        assert (*seen, *(result.observation for result in results[:-1])) == shown.observations
        assert results[-1].info["success"] == shown.success


def test_names_are_known_fresh_and_unambiguous():
    assert not set(SAFE_NAMES) & set(BOLD_NAMES)
    assert {n for pair in TRAIN_NAMES + HELDOUT_NAMES for n in pair} <= set(SAFE_NAMES + BOLD_NAMES)
    pairs = [any_arms(np.random.default_rng(i))[0] for i in range(300)]
    assert all(a.lower() != b.lower() for a, b in pairs)
    assert len(set(pairs)) > 200 and any(sound_of(a) == "new" for a, _ in pairs)


@pytest.mark.parametrize("name", ["frozenlake-tiny", "sokoban-tiny", "countdown-tiny"])
def test_no_held_out_map_is_demonstrated(name):
    family = PRESETS[RECIPES[name].env]
    for index in range(200):
        played, task = training_task(RECIPES[name], 0, index)
        assert played is family and split_of(family, task) == "train"


@pytest.mark.full
def test_a_shop_is_demonstrated_in_catalogues_of_its_own():
    """Ask for what the training split may ask for, in catalogues that no preset sells from, a new one now and then."""
    recipe = RECIPES["shop-tiny"]
    played = [
        training_task(recipe, 0, index)
        for index in range(0, 4 * GOALS_A_CATALOGUE, GOALS_A_CATALOGUE // 2)
    ]
    assert all(split_of(family, task) == "train" for family, task in played)
    seeds = [family.catalogue_seed for family, _ in played]
    assert (
        len(set(seeds)) == 4 and min(seeds) >= FRESH_WORLDS > PRESETS["shop-small"].catalogue_seed
    )


def test_demonstrations_are_addressed():
    recipe = RECIPES["frozenlake-tiny"]
    assert demonstrate(recipe, 0, 7) == demonstrate(recipe, 0, 7) != demonstrate(recipe, 1, 7)


# ------------------------------------------------------------------------------------------------ fine-tuning


@pytest.mark.parametrize("name", reduced(PLAYABLE, ("frozenlake-tiny",)))
def test_exactly_what_the_demonstrator_wrote_is_trained(name):
    recipe = RECIPES[name]
    tokenizer = tokenizer_of(recipe)
    chat = ChatFormat.from_tokenizer(tokenizer)
    transcript = next(
        t
        for t in (demonstrate(recipe, 0, i) for i in range(50))
        if name in ONE_TURN or len(t.actions) > 1
    )
    ids, trained = encode(transcript, chat, tokenizer)
    written = tokenizer.decode(ids[trained])
    assert written == "".join(action + "<|im_end|>" for action in transcript.actions)
    rendered = [{"role": m.role, "content": m.text} for m in transcript.observations[0].messages]
    for action, shown in zip(transcript.actions, (*transcript.observations[1:], None)):
        rendered.append({"role": "assistant", "content": action})
        if shown is not None:
            rendered += [{"role": m.role, "content": m.text} for m in shown.messages]
    expected = tokenizer.apply_chat_template(
        rendered, tools=list(transcript.observations[0].tools) or None, tokenize=False
    )
    assert tokenizer.decode(ids) + "\n" == expected


def test_micro_batches_do_not_change_the_gradient(lake_tokenizer):
    recipe = RECIPES["frozenlake-tiny"]
    chat = ChatFormat.from_tokenizer(lake_tokenizer)
    examples = [encode(demonstrate(recipe, 0, i), chat, lake_tokenizer) for i in range(5)]
    gradients, values = [], []
    for tokens in (1, 100_000):
        model = new_model(recipe, lake_tokenizer, 0)
        values.append(accumulate_gradient(model, examples, tokens))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert len(list(by_length(examples, 1))) == 5 and len(list(by_length(examples, 100_000))) == 1
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 1e-4


def test_a_step_without_anything_to_train_is_refused(lake_tokenizer):
    model = new_model(RECIPES["frozenlake-tiny"], lake_tokenizer, 0)
    with pytest.raises(DataError, match="no token to train"):
        accumulate_gradient(model, [(np.arange(4, dtype=np.int32), np.zeros(4, bool))], 100)


def test_rate_warms_up_stays_and_falls():
    tuning = FineTuning(warmup=10, fall=0.5)
    rates = [tuning.rate_at(step, 100) for step in range(100)]
    assert rates[0] == 0.1 and rates[9:50] == [1.0] * 41 and rates[99] == 0.05
    assert all(a >= b for a, b in zip(rates[50:], rates[51:]))


@pytest.mark.full
def test_fine_tuning_is_reproducible_and_lowers_the_loss(lake_tokenizer):
    recipe = RECIPES["frozenlake-tiny"]
    chat = ChatFormat.from_tokenizer(lake_tokenizer)
    examples = [encode(demonstrate(recipe, 0, i), chat, lake_tokenizer) for i in range(4)]
    runs = []
    for _ in range(2):
        model = new_model(recipe, lake_tokenizer, 0)
        runs.append(fine_tune(model, lambda i: examples[i % 4], 12, FineTuning(batch=2, warmup=2)))
    assert runs[0] == runs[1] and runs[0][-1] < runs[0][0] - 1


@pytest.mark.full
def test_a_shortened_recipe_writes_a_whole_policy(tmp_path):
    from transformers import AutoModelForCausalLM

    out = pretrain(
        "bandit-tiny", tmp_path / "mine", seed=3, num_tasks=16, steps=3, say=lambda line: None
    )
    verify_checksums(out)
    stated = json.loads((out / PROVENANCE).read_text())
    assert stated["seed"] == 3 and stated["success"]["num_tasks"] == 16
    assert AutoModelForCausalLM.from_pretrained(out).num_parameters() < 800_000
    assert not [path for path in out.iterdir() if path.suffix in (".bin", ".pt", ".pkl", ".pickle")]
    with pytest.raises(ConfigError, match="not empty"):
        pretrain("bandit-tiny", out, steps=1, num_tasks=0)


def test_unknown_policy_names_the_known_ones():
    with pytest.raises(ConfigError, match="frozenlake-tiny"):
        recipe_named("frozenlake-large")
    with pytest.raises(PolicyError, match="workbench pretrain"):
        check_shipped("nobody", "frozenlake", num_tasks=2, remake=None)


def test_vocabulary_limit_holds():
    assert len(build_tokenizer(["some text " * 50], vocab_size=300)) <= 300
