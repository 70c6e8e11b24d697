"""Turns of families in their own words, written by hand from what the families publish, and what they mean.

`{city}` is put in with `turn`; each has a thought, where the family writes one, and the control token that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tests.chat.template_kit import tokenizer_of_template
from workbench.chat import ChatFormat
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.families.fitting import fit_calls
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.linting import Evidence, all_rules, check
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.tools.base import tool
from workbench.values import Group, Task
from workbench.worlds.tool_env import CallSettings, ToolEnv

RULES = all_rules()


@dataclass(frozen=True)
class Words:
    """What a policy of a family samples.

    template   whose prompt it follows
    form       of its calls, by name
    call       a turn with the call population(city="Ulm", year=1990), and what ends it
    answer     a turn with <answer>126000</answer>, and what ends it
    thought    the thought in both; "" for none"""

    template: str
    form: str
    call: tuple[str, str]
    answer: tuple[str, str]
    thought: str = "I look it up."


WORDS: dict[str, Words] = {
    "gpt-oss": Words(
        "gptoss",
        "harmony",
        (
            "<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary "
            'to=functions.population <|constrain|>json<|message|>{"city": "Ulm", "year": 1990}',
            "<|call|>",
        ),
        (
            "<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant<|channel|>final<|message|>"
            "<answer>126000</answer>",
            "<|return|>",
        ),
    ),
    "qwen3.5": Words(
        "qwen3_5_think",
        "qwen_xml",
        (
            "I look it up.\n</think>\n\n<tool_call>\n<function=population>\n<parameter=city>\nUlm\n</parameter>\n"
            "<parameter=year>\n1990\n</parameter>\n</function>\n</tool_call>",
            "<|im_end|>",
        ),
        ("I look it up.\n</think>\n\n<answer>126000</answer>", "<|im_end|>"),
    ),
    "glm": Words(
        "glm4moe",
        "glm",
        (
            "\n<think>I look it up.</think>\n<tool_call>population\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n"
            "<arg_key>year</arg_key>\n<arg_value>1990</arg_value>\n</tool_call>",
            "<|observation|>",
        ),
        ("\n<think>I look it up.</think>\n<answer>126000</answer>", "<|user|>"),
    ),
    "gemma4": Words(
        "gemma4_v5",
        "gemma4",
        (
            '<|channel>thought\nI look it up.\n<channel|><|tool_call>call:population{city:<|"|>Ulm<|"|>,year:1990}'
            "<tool_call|>",
            "<|tool_response>",
        ),
        ("<|channel>thought\nI look it up.\n<channel|><answer>126000</answer>", "<turn|>"),
    ),
    "llama3.1": Words(
        "llama3_1",
        "llama_json",
        ('{"name": "population", "parameters": {"city": "Ulm", "year": 1990}}', "<|eom_id|>"),
        ("<answer>126000</answer>", "<|eot_id|>"),
        "",
    ),
    "lfm2": Words(
        "lfm2_2_5",
        "lfm2",
        (
            "<think>I look it up.</think><|tool_call_start|>[population(city='Ulm', year=1990)]<|tool_call_end|>",
            "<|im_end|>",
        ),
        ("<think>I look it up.</think><answer>126000</answer>", "<|im_end|>"),
    ),
    "nemotron3": Words(
        "nemotron_3_super",
        "qwen_xml",
        (
            "I look it up.\n</think>\n<tool_call>\n<function=population>\n<parameter=city>\nUlm\n</parameter>\n"
            "<parameter=year>\n1990\n</parameter>\n</function>\n</tool_call>\n",
            "<|im_end|>",
        ),
        ("I look it up.\n</think>\n<answer>126000</answer>", "<|im_end|>"),
    ),
    "muse": Words(
        "muse_glimmer",
        "muse",
        (
            " to=self<|message|>I look it up.<|eom|><|start|>assistant to=population<|message|><atem:function_calls>\n"
            '<atem:invoke name="population">\n<atem:parameter name="city">Ulm</atem:parameter>\n<atem:parameter '
            'name="year">1990</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
            "<|eot|>",
        ),
        (
            " to=self<|message|>I look it up.<|eom|><|start|>assistant to=user<|message|><answer>126000</answer>",
            "<|eot|>",
        ),
    ),
    "qwen3": Words(
        "qwen3",
        "hermes",
        (
            '<think>\nI look it up.\n</think>\n\n<tool_call>\n{"name": "population", "arguments": {"city": "Ulm", '
            '"year": 1990}}\n</tool_call>',
            "<|im_end|>",
        ),
        ("<think>\nI look it up.\n</think>\n\n<answer>126000</answer>", "<|im_end|>"),
    ),
}
ARGUMENTS: dict[str, Any] = {"city": "Ulm", "year": 1990}


@tool(
    trusted=True,
    description="How many people live in a city.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "which"},
            "year": {"type": "integer", "description": "when"},
        },
        "required": ["city"],
    },
)
def population(city: str, year: int = 2020) -> str:
    return f"{city} {year}: 126000"


@dataclass(frozen=True)
class Asking:
    """A family of one question with a tool."""

    calls: CallSettings = CallSettings(format="template")
    max_turns: int = 3
    name: str = "asking"

    def task(self, task_seed: int) -> Task:
        payload = {"question": "How many people live in Ulm?", "answers": ["126000"], "support": []}
        return Task(f"asking/{task_seed}", self.name, task_seed, payload)

    def make(self) -> ToolEnv:
        return ToolEnv((population,), max_turns=self.max_turns, calls=self.calls)


@lru_cache
def chat_of(template: str) -> ChatFormat:
    return ChatFormat.from_tokenizer(tokenizer_of_template(template))


def rolled(
    chat: ChatFormat, family: Any, turns: Sequence[tuple[str, str]], **settings: Any
) -> tuple[Group, list[list[int]]]:
    """(two trajectories in which the policy says `turns`, the last one again and again; the ids of each of `turns`)."""
    tokenizer = chat.template.tokenizer
    said = [
        tokenizer.encode(text, add_special_tokens=False)
        + tokenizer.encode(stop, add_special_tokens=False)
        for text, stop in turns
    ]
    counts: dict[str, int] = {}

    def script(request):
        count = counts.get(request.session, 0)
        counts[request.session] = count + 1
        return said[min(count, len(said) - 1)]

    config = CollectConfig(**{"max_turn_tokens": 2_000} | settings)
    (group,) = collect(
        [family.task(0)],
        family=family,
        engine=ScriptedEngine(script, context_length=20_000),
        chat=chat,
        config=config,
        group_size=2,
        address=(0, "families"),
    )
    return group, said


def fitted(chat: ChatFormat, family: Any) -> Any:
    """The family as a session has it."""
    return fit_calls(family, chat)[0]


def lint_of(chat: ChatFormat, family: Any, group: Group) -> Any:
    """What the rules of a step and an update say of these trajectories."""
    batch = Batch.from_groups([group])
    evidence = Evidence(
        groups=(group,),
        batch=batch,
        credit=GRPO().credit(batch),
        algorithm=GRPO(),
        collect=CollectConfig(max_turn_tokens=2_000),
        chat=chat,
        family=family,
        policy_version=0,
        step=1,
    )
    return check(evidence, [rule for rule in RULES.values() if rule.when in ("step", "update")])


def with_hermes(family: Asking) -> Asking:
    """The family as it stood before templates were asked."""
    return replace(family, calls=CallSettings(format="hermes"))
