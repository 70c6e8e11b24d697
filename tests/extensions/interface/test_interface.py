"""Every shipped environment with its full prompt and its lenient reader; the defaults change nothing."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import ClassVar

import pytest

from workbench import show
from workbench.extensions.interface.answers import read_moves
from workbench.extensions.interface.wrapping import MANNERS
from workbench.rollouts.evaluate import evaluate_baselines
from workbench.rollouts.metrics import rollout_metrics
from workbench.training.config import PRESETS, from_dict, load_config, to_dict
from workbench.values import Group, Observation, StepResult, Task
from workbench.values.errors import ConfigError
from workbench.worlds import ENVS, tasks
from workbench.worlds.baselines import trajectory_of
from workbench.worlds.interface import InterfaceConfig, interfaced
from workbench.worlds.runners import InlineRunner
from workbench.worlds.shared import opened
from workbench.worlds.tool_env import ToolEnv

FULL = {"interface.prompt": "full", "interface.format": "lenient"}
WORLDS = ("bandit", "frozenlake", "sokoban", "countdown", "search", "shop", "code", "code-vague")
# An answer in other words that each world reads.
LOOSE = {
    "frozenlake": "I choose Right.",
    "sokoban": "Move Right, Up",
    "shop": "I will search[blue mug] first.",
    "search": 'Sure: {"name": "search", "parameters": {"query": "Zumi"}}',
    "code": '```json\n{"name": "python", "arguments": {"code": "print(1)"}}\n```',
}


def begun(config):
    """(the first observation, the environment) of a training task."""
    env = config.family.make()
    return env.reset(tasks(config.family, "train", 1)[0], 3), env


@pytest.mark.parametrize("name", PRESETS)
def test_by_default_the_environment_is_itself(name):
    config = load_config(name)
    assert config.family is config.env
    assert config.interface == InterfaceConfig()


@pytest.mark.parametrize("name", WORLDS)
def test_a_full_prompt_says_the_rules_and_an_example_that_is_in_order(name):
    short, _ = begun(load_config(name))
    observation, env = begun(load_config(name, FULL))
    text = observation.messages[0].text
    before = short.messages[0].text
    assert len(text) > 1.5 * len(before)
    assert before.splitlines()[-1] in text, "the task itself is shown as it was"
    assert "Example" in text or "like this" in text
    family = load_config(name).env
    written = (
        text.partition("ike this, and nothing else:\n")[2]
        or text.partition("Example")[2].partition("\n")[2]
    )
    example = written.partition("\n")[0]
    env = family.make()
    env.reset(tasks(family, "train", 1)[0], 3)
    if isinstance(env, ToolEnv):
        assert env.format.parse(example).valid
    else:
        assert not env.step(example).info["complaint"].startswith(("The tag", "There is text"))


@pytest.mark.parametrize("name", LOOSE)
def test_an_answer_in_other_words_is_read_and_counted(name):
    with opened(load_config(name, FULL).family) as env:
        env.reset(tasks(env.family, "train", 1)[0], 3)
        result = env.step(LOOSE[name])
    assert result.info["valid_format"] and result.info["forgiven"]
    with opened(load_config(name).family) as env:
        env.reset(tasks(env.family, "train", 1)[0], 3)
        strict = env.step(LOOSE[name])
    assert not strict.info["valid_format"] and "forgiven" not in strict.info


@pytest.mark.parametrize("name", ("bandit", "frozenlake", "sokoban", "countdown", "search", "shop"))
def test_the_solver_plays_through_the_interface_as_it_plays_without(name):
    plain = load_config(name)
    config = load_config(name, FULL)
    held_out = tasks(plain.env, "held-out", 3)
    scores = [evaluate_baselines(held_out, family=f, seed=0) for f in (plain.family, config.family)]
    for one, other in zip(*scores, strict=True):
        assert (one.by_task, one.reward) == (other.by_task, other.reward)


def test_a_system_message_comes_first():
    observation, _ = begun(load_config("frozenlake", {"interface.system": "You are careful."}))
    roles = [message.role for message in observation.messages]
    assert roles == ["system", "user"]
    assert observation.messages[0].content[0].trusted
    assert observation.messages[1] == begun(load_config("frozenlake"))[0].messages[0]


def test_a_readable_turn_earns_its_share():
    config = load_config("frozenlake", {**FULL, "interface.format_reward": 0.5})
    with opened(config.family) as env:
        env.reset(tasks(config.family, "train", 1)[0], 3)
        paid = [
            env.step(text).reward_parts["readable"]
            for text in ("<think></think><answer>Left</answer>", "Left", "?")
        ]
    assert paid == [0.05, 0.025, 0.0]


def test_what_two_answers_say_is_named_and_not_done():
    with opened(load_config("frozenlake", FULL).family) as env:
        env.reset(tasks(env.family, "train", 1)[0], 3)
        result = env.step("<answer>Left</answer><answer>Right</answer>")
    assert result.info["moves"] == [] and result.info["doubt"] and not result.info["valid_format"]


def test_words_of_tools_stay_untrusted():
    """Invariant 9: names and descriptions of tools, and the question, are somebody else's."""
    observation, env = begun(load_config("search", FULL))
    trusted = "".join(part.text for part in observation.messages[0].content if part.trusted)
    assert env.tools[0].description not in trusted
    question = env.task.payload["question"]
    assert "Question: " in trusted and question not in trusted
    assert question in observation.messages[0].text


def test_a_refused_turn_with_tools_is_told_how_to_call():
    with opened(load_config("search", FULL).family) as env:
        env.reset(tasks(env.family, "train", 1)[0], 3)
        assert "<tool_call>" in env.step("Hm.").observation.messages[-1].text
    with opened(load_config("search").family) as env:
        env.reset(tasks(env.family, "train", 1)[0], 3)
        assert "<tool_call>" not in env.step("Hm.").observation.messages[-1].text


def test_what_was_forgiven_is_counted_and_shown():
    """A scripted policy answers in prose; the same words are refused where the reader is strict."""
    shown = {}
    for reader in ("lenient", "strict"):
        config = load_config("frozenlake", {"interface.format": reader})
        with opened(config.family) as env:
            task = tasks(config.family, "train", 1)[0]
            first = env.reset(task, 3)
            result = env.step("I choose Right.")
        ended = trajectory_of(task, 3, first, [("I choose Right.", result)])
        shown[reader] = (rollout_metrics([Group((ended,))]), show(ended).text)
    metrics, text = shown["lenient"]
    assert (metrics["forgiven"], metrics["valid_format"]) == (1.0, 1.0)
    assert "read leniently" in text and "no answer tags" in text
    metrics, text = shown["strict"]
    assert "forgiven" not in metrics and metrics["valid_format"] == 0.0
    assert "read leniently" not in text


def test_every_kind_of_environment_has_its_manner_or_says_why_not():
    without = set(ENVS) - set(MANNERS)
    own = {"verifiers", "openenv", "agent", "higher_lower"}
    assert without == own, "those bring their own prompts and readers"


# ------------------------------------------------------------------------------------------------ as a setting


def test_a_config_with_an_interface_is_stored_and_read_again():
    config = load_config("frozenlake", FULL)
    assert from_dict(to_dict(config)) == config
    old = to_dict(config)
    del old["interface"]  # a run of before
    assert from_dict(old).interface == InterfaceConfig()
    with pytest.raises(ConfigError, match=r"did you mean 'interface\.prompt'"):
        load_config("frozenlake", {"env.prompt": "full"})
    with pytest.raises(ConfigError, match="strict or lenient"):
        load_config("frozenlake", {"interface.format": "loose"})


def test_the_family_goes_to_a_worker_process():
    family = pickle.loads(pickle.dumps(load_config("frozenlake", FULL).family))
    runner = InlineRunner()
    runner.reset("a", family, tasks(family, "train", 1)[0], 1)
    (answer,) = runner.poll()
    assert "frozen lake" in answer.observation.messages[0].text
    assert family == load_config("frozenlake", FULL).family
    assert family != load_config("frozenlake", {"interface.prompt": "full"}).family


# ------------------------------------------------------------------------------------------------ of one's own


@dataclass(frozen=True)
class Gate:
    """Left or right."""

    name: ClassVar[str] = "gate"
    max_turns: ClassVar[int] = 1
    full_instructions: ClassVar[str] = (
        "Choose a side. Answer <answer>Left</answer> or <answer>Right</answer>.\n"
    )

    def task(self, task_seed: int) -> Task:
        return Task(f"gate/{task_seed}", self.name, task_seed, {"seed": task_seed})

    def make(self):
        return GateEnv()

    def lenient(self, env, text):
        return read_moves(text, ("Left", "Right"), think=False)


class GateEnv:
    def reset(self, task, dynamics_seed):
        from workbench.values import Message

        return Observation((Message("user", "Left or right?"),))

    def step(self, action_text):
        valid = action_text in ("<answer>Left</answer>", "<answer>Right</answer>")
        return StepResult(Observation(()), float(valid), {}, True, info={"valid_format": valid})


@dataclass(frozen=True)
class Bare(Gate):
    full_instructions = lenient = property(lambda self: getattr(self, "nothing"))


def test_an_environment_of_ones_own_says_its_prompt_and_reads_its_answers():
    family = interfaced(Gate(), InterfaceConfig("full", "lenient"))
    env = family.make()
    assert env.reset(family.task(0), 0).messages[0].text == Gate.full_instructions
    assert env.step("I choose Right.").reward == 1.0
    assert Gate().make().step("I choose Right.").reward == 0.0


@pytest.mark.parametrize(
    ("interface", "lacks"),
    [
        (InterfaceConfig(prompt="full"), "full_instructions"),
        (InterfaceConfig(format="lenient"), "lenient"),
    ],
)
def test_one_that_has_neither_says_what_it_lacks(interface, lacks):
    with pytest.raises(ConfigError, match=lacks):
        interfaced(Bare(), interface)
    assert interfaced(Bare(), InterfaceConfig(system="Hello.")).make()  # the control
