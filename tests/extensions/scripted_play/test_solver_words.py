"""R39 and E19: the solver's words, written by this very policy, are paid, and wrong ones are not."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import workbench as wb
from tests.extensions.inspect_worlds.mistakes import NumberEnv, Numbers, PaysEverything
from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.extensions.inspect_worlds.checks import check_family
from workbench.extensions.scripted_play.variations import VARIATIONS, variations_of
from workbench.extensions.scripted_play.words import TextPath, spoken
from workbench.extensions.world_rules.words import ask_before_training, words_report
from workbench.linting import Evidence, check
from workbench.linting.table import all_rules
from workbench.rollouts.config import CollectConfig
from workbench.values.errors import LintError

SMALL = {
    "train.steps": 1,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "evaluation.num_tasks": 2,
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("frozenlake-tiny")


def damaged(tokenizer, **changes):
    """A copy of a tokenizer in which entries of its tokenizer.json are others, with the same chat template."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str()) | changes
    copied = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spec)))
    copied.chat_template = tokenizer.chat_template
    copied.eos_token = tokenizer.eos_token
    return copied


def way_of(tokenizer, **collect) -> TextPath:
    return TextPath(ChatFormat.from_tokenizer(tokenizer), CollectConfig(**collect))


def findings(family, way=TextPath(), tasks=4):
    chosen = [family.task(seed) for seed in range(tasks)]
    return [each for each in spoken(family, chosen, way) if hasattr(each, "what")]


def parts(family, way=TextPath()):
    return {str(getattr(each, "part", "")) for each in spoken(family, [family.task(3)], way)}


# ------------------------------------------------------------------------------------------------ what is right


@pytest.mark.parametrize("name", ["frozenlake", "bandit", "countdown", "sokoban", "search"])
def test_shipped_policies_speak_the_words_of_their_worlds(name):
    session = wb.open_session(wb.load_config(name), quiet=True)
    [answer] = words_report(session).answers
    assert answer.status == "passed" and answer.looked >= 10, answer
    session.close()


def test_it_costs_less_than_a_tenth_of_a_second_and_leaves_global_generators_alone(tokenizer):
    way = way_of(tokenizer)
    family = Numbers()
    random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    began = time.process_time()
    assert findings(family, way) == []
    assert time.process_time() - began < 0.5  # 0.01 s on an idle machine
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


# ------------------------------------------------------------------------------------------------ on the way


def test_a_tokenizer_that_loses_digits_is_named_with_what_the_world_read(tokenizer):
    without_digits = {
        "type": "Replace",
        "pattern": {"Regex": "[0-9]"},
        "content": "",
    }
    [first] = findings(Numbers(), way_of(damaged(tokenizer, normalizer=without_digits)))
    assert first.severity == "error"
    assert "expected 1" in first.what and "they earned 0" in first.what
    assert "the world read '<answer></answer>'" in first.what
    assert "That is no number in tags." in first.what and "tokenizer.json" in first.what
    # Negative control: the tokenizer as it ships.
    assert findings(Numbers(), way_of(tokenizer)) == []


def test_an_answer_that_does_not_fit_into_a_turn_is_named(tokenizer):
    [first] = findings(Numbers(), way_of(tokenizer, max_turn_tokens=2))
    assert "They were cut" in first.what and "collect.max_turn_tokens (2)" in first.what
    assert findings(Numbers(), way_of(tokenizer, max_turn_tokens=12)) == []


def test_a_stop_token_inside_an_answer_is_named(tokenizer):
    way = way_of(tokenizer)
    closing = tokenizer.convert_tokens_to_ids("<answer>")
    way.chat.stop_ids = way.chat.stop_ids | {closing}
    [first] = findings(Numbers(), way)
    assert "They were cut" in first.what and "<answer>" in first.what


def test_a_thought_that_the_prompt_opens_is_not_opened_again(tokenizer):
    """The template ends a prompt by `<think>`: a policy goes on with the thought."""
    opens = damaged(tokenizer)
    closing = "<|im_start|>assistant\n"
    assert closing in opens.chat_template.replace("\\n", "\n")
    opens.chat_template = opens.chat_template.replace(
        "<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n"
    )

    @dataclass(frozen=True)
    class Thinks(Numbers):
        class env(NumberEnv):
            def guess(self, action_text):
                thought, tag, answer = action_text.partition("</think>")
                return super().guess(answer) if tag and "<think>" not in thought else None

        def solver_action(self, env, rng):
            return f"<think>a</think><answer>{env.number}</answer>"

    @dataclass(frozen=True)
    class WantsTheTag(Thinks):
        class env(NumberEnv):
            def guess(self, action_text):
                _, tag, answer = action_text.partition("</think>")
                right = tag and action_text.lstrip().startswith("<think>")
                return super().guess(answer) if right else None

    way = way_of(opens)
    if (
        not way.chat.encoder.backend.decode(
            [
                int(t)
                for span in way.chat.open(Numbers().make().reset(Numbers().task(1), 0))
                for t in span.token_ids
            ],
            False,
        )
        .rstrip()
        .endswith("<think>")
    ):
        pytest.fail("the template of this test does not open a thought")
    [first] = findings(WantsTheTag(), way)
    assert "The prompt has opened the thought" in first.what


# ------------------------------------------------------------------------------------------------ variations


def test_every_variation_is_paid_where_the_world_says_that_it_may_stand_there():
    @dataclass(frozen=True)
    class Lenient(Numbers):
        may_vary: ClassVar[tuple[str, ...]] = (
            "spaces",
            "line breaks",
            "full stop",
            "case",
            "prose",
        )

        class env(NumberEnv):
            def guess(self, action_text):
                inside = action_text.partition("<answer>")[2].partition("</answer>")[0]
                words = inside.strip().rstrip(".")
                return int(words) if words.isdigit() else None

    assert findings(Lenient()) == []
    must, asked = variations_of(Lenient())
    assert must == list(VARIATIONS) and not asked


def test_a_strict_world_that_says_so_is_asked_for_its_plain_words_alone():
    @dataclass(frozen=True)
    class Strict(Numbers):
        may_vary: ClassVar[tuple[str, ...]] = ()

        class env(NumberEnv):
            def guess(self, action_text):
                return super().guess(action_text) if action_text == action_text.strip() else None

    assert findings(Strict()) == [] and "variations" not in parts(Strict())
    undeclared = replace(Strict())
    undeclared.__class__.may_vary = None
    assert "may_vary of Strict" in findings(undeclared)[0].what


def test_a_full_stop_behind_a_number_in_free_text_is_a_note():
    @dataclass(frozen=True)
    class Bare(Numbers):
        class env(NumberEnv):
            def guess(self, action_text):
                words = action_text.strip()
                return int(words) if words.isdigit() else None

        def solver_action(self, env, rng):
            return str(env.number)

    [note] = findings(Bare())
    assert note.severity == "note" and "a full stop at the end of the answer" in note.what


# ------------------------------------------------------------------------------------------------ what cannot be asked


def test_without_a_solver_or_a_world_that_is_the_same_twice_it_says_not_checked():
    class Alone(Numbers):
        solver_action = None

    class Elsewhere(Numbers):
        remote = True

    for family, words in ((Alone(), "a solver of numbers"), (Elsewhere(), "remote")):
        report = check_family(family, only=("E19",), tasks=3).findings["E19"]
        assert report.status == "not checked" and words in report.missing[0]


def test_a_solver_that_is_never_paid_is_nothing_to_compare_with():
    class Unpaid(Numbers):
        class env(NumberEnv):
            def reward(self, guess, right, action_text):
                return 0.0

    [result] = spoken(Unpaid(), [Numbers().task(1)], TextPath())
    assert "that the solver of numbers is paid for" in result.missing


def test_payment_that_is_scored_afterwards_is_asked_of_plain_words_alone():
    class Scored(Numbers):
        def score(self, trajectory):
            return 1.0

    results = list(spoken(Scored(), [Numbers().task(1)], TextPath()))
    assert [str(each) for each in results if hasattr(each, "missing")] == [
        "variations (missing: payment at once: it is scored afterwards, each time anew)"
    ]


# ------------------------------------------------------------------------------------------------ before training


def test_training_does_not_begin_where_the_words_are_not_paid(tmp_path):
    config = wb.load_config("frozenlake", SMALL | {"collect.max_turn_tokens": 3})
    with pytest.raises(LintError, match="(?s)so no step was begun.*R39.*They were cut") as caught:
        wb.train_here(config, tmp_path / "run", on_note=None)
    assert not (tmp_path / "run").exists()
    assert caught.value.report.named == ("R39",)


def test_a_solver_that_says_much_at_once_is_a_note_where_shorter_words_fit():
    """One move fits into eight tokens, the four of the solver do not: who plays move by move can be right."""
    said = []
    session = wb.open_session(
        wb.load_config("frozenlake", SMALL | {"collect.max_turn_tokens": 8}), quiet=True
    )
    ask_before_training(session, said.append)
    session.close()
    assert [words.partition(":")[0] for words in said] == ["R39, note"]
    assert "collect.max_turn_tokens (8)" in said[0]


def test_with_warn_it_is_said_and_without_start_nothing_is_asked():
    said = []
    settings = SMALL | {"collect.max_turn_tokens": 3, "lint.mode": "warn"}
    session = wb.open_session(wb.load_config("frozenlake", settings), quiet=True)
    ask_before_training(session, said.append)
    assert [words.partition(":")[0] for words in said] == ["R39, error"]
    for changes in ({"lint.start": False}, {"lint.mode": "off"}):
        config = wb.load_config("frozenlake", settings | changes)
        ask_before_training(replace(session, config=config), said.append)
    assert len(said) == 1
    session.close()


def test_a_variation_that_a_world_refuses_is_a_note_in_training(tokenizer):
    class ReadsToTheLetter(Numbers):
        class env(NumberEnv):
            def guess(self, action_text):
                return super().guess(action_text) if action_text == action_text.strip() else None

    session = SimpleNamespace(
        config=SimpleNamespace(family=ReadsToTheLetter(), collect=CollectConfig()),
        chat=ChatFormat.from_tokenizer(tokenizer),
        train_tasks=lambda step: [Numbers().task(seed) for seed in range(2)],
    )
    [answer] = words_report(session).answers
    assert not answer.errors and "a line break after the answer" in str(answer.notes)


@pytest.mark.full
def test_the_answer_is_part_of_the_first_steps_lint(tmp_path):
    run = wb.train_here(wb.load_config("frozenlake", SMALL), tmp_path / "run", on_note=None)
    assert run.lint(1)["R39"].status == "passed"
    # Negative control: nobody asks without lint.start.
    settings = SMALL | {"lint.start": False}
    quiet = wb.train_here(wb.load_config("frozenlake", settings), tmp_path / "quiet", on_note=None)
    assert "R39" not in [answer.rule for answer in quiet.lint(1)]


def test_a_world_that_pays_everything_is_named_before_training(tokenizer):
    family = PaysEverything()
    evidence = Evidence(
        ((SimpleNamespace(task=family.task(1)),),),
        family=family,
        chat=ChatFormat.from_tokenizer(tokenizer),
        collect=CollectConfig(),
    )
    answer = check(evidence, [all_rules()["R39"]])["R39"]
    assert "a wrong answer is paid like a right one" in answer.errors[0].what


@pytest.mark.full
def test_check_env_goes_the_way_of_the_policy_that_is_named():
    checked = wb.check_env("frozenlake-4x4", policy="frozenlake-tiny", tasks=4, budget_s=0.3)
    assert checked.findings["E19"].status == "passed"


def test_without_a_policy_check_env_asks_the_world_alone_and_says_so(tokenizer):
    options = {"only": ("E19",), "tasks": 3}
    assert (
        check_family(Numbers(), way=way_of(tokenizer), **options).findings["E19"].status == "passed"
    )
    without = check_family(Numbers(), **options).findings["E19"]
    assert without.status == "partly checked" and "--policy" in without.missing[0]
