"""Programs of somebody's own that ask a model over HTTP. Each looks like one that the rules complain about, and is sound.

evidence = collected()          one group for each, collected by the gateway and the collector of `env.kind = "agent"`
"""

from __future__ import annotations

from typing import Any

import httpx

from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.engines.recorder import Journal
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents.family import ProgramTasks
from workbench.learn.batch import Batch
from workbench.linting import Evidence
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.training.config import load_config
from workbench.worlds import tasks as env_tasks
from workbench.worlds.world_qa import WorldQA

CONTEXT = 1024
ROUNDS = 6
WORLD = WorldQA()
ORDER: dict[str, int] = {}  # task -> which of the programs tries it


def ask(model: Any, messages: list[Any], headers: Any = None, name: str = "", **fields: Any) -> Any:
    body = {"model": name or model.name, "messages": messages, **fields}
    authorised = {"authorization": f"Bearer {model.key}", **(headers or {})}
    url = f"{model.openai_url}/chat/completions"
    reply = httpx.post(url, json=body, headers=authorised, timeout=30)
    return reply.raise_for_status().json()["choices"][0]["message"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def trims(task: Any, model: Any) -> Any:
    """It leaves out white space around each answer."""
    messages: list[Any] = []
    for number in range(ROUNDS):
        messages.append(user(f"Go on, {number}."))
        reply = ask(model, messages, name="policy:trimmer")
        reply["content"] = reply["content"].strip()
        messages.append(reply)
    return "done"


def judges(task: Any, model: Any) -> Any:
    """Two drafts and a judge of another name, which is not trained."""
    messages: list[Any] = [user("Write a draft.")]
    for _ in range(2):
        draft = ask(model, messages)
        verdict = ask(model, [user(f"Is it good? {draft['content']}")], name="policy:judge")
        messages += [draft, user(f"The judge says: {verdict['content']}")]
    return draft["content"]


def sends_back(task: Any, model: Any) -> Any:
    """It sends a long answer back as it came."""
    messages: list[Any] = [user("Begin.")]
    messages += [ask(model, messages), user("Go on.")]
    return ask(model, messages)["content"]


def retries(task: Any, model: Any) -> Any:
    """It asks once more, as clients do, and says so."""
    ask(model, [user("Begin.")])
    headers = {"x-stainless-retry-count": "1"}
    return ask(model, [user("Begin.")], headers=headers)["content"]


def thinks_first(task: Any, model: Any) -> Any:
    """It might know the answer, and asks all the same."""
    known = ""
    return known or ask(model, [user("Begin.")])["content"]


def calls_tools(task: Any, model: Any) -> Any:
    """It offers tools in every call, and answers what the model calls."""
    messages: list[Any] = [user("Tools please.")]
    for _ in range(ROUNDS):
        reply = ask(model, messages, tools=task.tools)
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Nothing."})
        messages.append(user("Go on."))
    return "done"


PROGRAMS = (trims, judges, sends_back, retries, thinks_first, calls_tools)


def any_of_them(task: Any, model: Any) -> Any:
    return PROGRAMS[ORDER[task.id]](task, model)


def written(number: int, wants_tools: bool) -> str:
    """What the policy writes."""
    if wants_tools:
        return WORLD.make().format.write_call("search", {"query": f"Zumi {number}"})
    return f" Note {number}, which goes on for a while, so that it is no short one.\n"


def collected() -> Evidence:
    chat = ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))
    count = iter(range(10**6))

    def script(request: Any) -> list[int]:
        wants_tools = "Tools please." in chat.decode(request.prompt_ids)
        text = written(next(count), wants_tools)
        ids = chat.encoder.backend.encode(text, add_special_tokens=False).ids
        return [*ids, chat.end_of_turn]

    tried = ProgramTasks(
        program=f"{__name__}:any_of_them", tasks="world_qa", trains=("first", "trimmer")
    )
    tasks = env_tasks(WORLD, "train", len(PROGRAMS))
    ORDER.update({task.id: number for number, task in enumerate(tasks)})
    config = CollectConfig(max_turn_tokens=48)
    engine = Journal(ScriptedEngine(script, context_length=CONTEXT))
    groups = collect(
        tasks,
        family=tried,
        engine=engine,
        chat=chat,
        config=config,
        group_size=2,
        address=(0, "programs", 1),
    )
    algorithm = load_config("search", {"train.steps": 1}).algorithm
    batch = Batch.from_groups(groups)
    return Evidence(
        groups=tuple(map(tuple, groups)),
        batch=batch,
        collect=config,
        chat=chat,
        journal=engine.exchanges,
        context_length=CONTEXT,
        family=tried,
        algorithm=algorithm,
        credit=algorithm.credit(batch),
        step=1,
    )
