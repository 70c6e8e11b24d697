"""Rollouts with tools by a policy that follows a script: calls side by side, malformed and too many ones, the same call by
several trajectories, answers that are right, wrong, too early and never given.

    evidence = scripted("append")
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from tests.linting.clean_rollouts import chat_of, tokenizer_of_template
from workbench.engines.base import Request
from workbench.engines.recorder import Journal
from workbench.engines.scripted import ScriptedEngine
from workbench.linting import Evidence
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.worlds import WorldQA, tasks
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.tool_env import CallSettings

TRAJECTORIES = 6
SEARCH = '"search"'


def texts_of(family: WorldQA, task: Any, attempt: int) -> list[str]:
    """What the policy writes, turn by turn."""
    env = family.make()
    env.reset(task, 0)
    first, *rest = env.path
    bridge, gold = rest[0], env.path[-1]
    others = [
        name
        for names in family.world_of(task).names.values()
        for name in names
        if name not in env.path
    ]
    call = env.search
    right, wrong = env.format.write_answer(gold), env.format.write_answer(others[0])
    bad = '<tool_call>{"name": "search", "arguments": {"query": </tool_call>'
    return {
        0: [call(first) + call(others[0]), call(bridge) + call(first), right],
        1: [call(others[0]) + bad + call(first), call(first), call(bridge), wrong],
        2: [
            "".join(call(name) for name in (*others[:4], first)),
            "I do not know.",
            '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
            + call(first).replace(SEARCH, '"look_up"'),
            call(others[1]),
            call(bridge),
        ],
        3: [f"<think>{call(first)}</think>{right}"],
        4: [
            f"<think>{gold}?</think>{call(bridge)}{call(bridge)}",
            env.format.write_answer(f"The {gold.upper()}."),
        ],
        5: [
            f"<think>{call(others[0])}</think>{call(first)}",
            f"<think>{bridge}</think>{call(bridge)}",
            wrong,
        ],
    }[attempt]


def scripted(history: str, template: str = "qwen3", answer: str = "em") -> Evidence:
    long = (
        {"documents": 8, "world": "hard"} if history == "fresh" else {"documents": 2}
    )  # results long and short
    family = WorldQA(
        **long,
        turns=5,
        calls=CallSettings(recall=history == "fresh"),
        rewards=AnswerRewards(answer=answer, process=0.2, no_answer=-0.5),
    )
    chat, chosen = chat_of(template), tasks(family, "train", 3, seed=5, step=1)
    planned = {
        f"{task.id}#{attempt}": texts_of(family, task, attempt)
        for task in chosen
        for attempt in range(TRAJECTORIES)
    }
    turns: Counter[str] = Counter()

    def script(request: Request) -> list[int]:
        key = request.session.rpartition("/")[0]
        text = planned[key][min(turns[key], len(planned[key]) - 1)]
        turns[key] += 1
        return [
            *tokenizer_of_template(template).encode(text, add_special_tokens=False),
            min(chat.stop_ids),
        ]

    journal = Journal(ScriptedEngine(script, context_length=8192))
    config = CollectConfig(history=history, max_turn_tokens=512)
    groups = collect(
        chosen,
        family=family,
        engine=journal,
        chat=chat,
        config=config,
        group_size=TRAJECTORIES,
        address=(5, "train", 1),
    )
    return Evidence(
        tuple(map(tuple, groups)),
        collect=config,
        chat=chat,
        journal=journal.exchanges,
        family=family,
        policy_version=0,
        step=1,
        about=f"tools by a script, {history}",
    )


def without_thoughts(evidence: Evidence) -> Evidence:
    """Without the trajectories that think: for templates that drop old thoughts."""
    return replace(
        evidence,
        groups=tuple(tuple(t for t in group if t.attempt < 3) for group in evidence.groups),
    )
