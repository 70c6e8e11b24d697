"""Programs with a bug each, and beside each one that looks like it and is sound. Named by the tests of the rules."""

from __future__ import annotations

from typing import Any

import httpx

ROUNDS = 5  # calls of a program in its main conversation


def ask(model, messages, headers=None, name="", **fields) -> dict[str, Any]:
    """The message of an answer."""
    body = {"model": name or model.name, "messages": messages, **fields}
    reply = httpx.post(
        f"{model.openai_url}/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {model.key}", **(headers or {})},
        timeout=30,
    )
    return reply.raise_for_status().json()["choices"][0]["message"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chats(model, messages, rounds=ROUNDS, before=lambda messages, number: messages) -> str:
    """A conversation; `before` makes of it what is sent."""
    reply: dict[str, Any] = {}
    for number in range(rounds):
        messages.append(user(f"Go on, {number}."))
        reply = ask(model, before(messages, number))
        messages.append(reply)
    return reply["content"]


# ------------------------------------------------------------------------------------------------ R40


def has_a_clock(task, model):
    """The bug: the system prompt tells the time."""

    def before(messages, number):
        return [{"role": "system", "content": f"It is {number} o'clock."}, *messages]

    return chats(model, [], before=before)


def summarises_once(task, model):
    """Sound: in the middle the past becomes a summary, once, and the conversation goes on from there."""
    messages: list[Any] = []
    chats(model, messages, 3)
    return chats(model, [user("So far: three notes."), *messages[-2:]], 3)


# ------------------------------------------------------------------------------------------------ R42


def improves_the_answer(task, model):
    """The bug: what the model said is corrected before it is sent back."""
    messages = [user("Begin."), ask(model, [user("Begin.")])]
    messages[1]["content"] = messages[1]["content"].replace("Note", "A better note")
    return ask(model, [*messages, user("Go on.")])["content"]


def shows_examples(task, model):
    """Sound: assistant messages that the policy never said, as examples; and white space that is trimmed."""
    messages = [user("Two and two?"), {"role": "assistant", "content": "Four."}, user("Begin.")]
    reply = ask(model, messages)
    reply["content"] = f" {reply['content']}\n"
    return ask(model, [*messages, reply, user("Go on.")])["content"]


# ------------------------------------------------------------------------------------------------ R43


def draws_again(task, model):
    """The bug: the very same call once more, since the first answer did not please."""
    ask(model, [user("Begin.")])
    return ask(model, [user("Begin.")])["content"]


def retries(task, model):
    """Sound: the same call once more, as a client retries."""
    ask(model, [user("Begin.")])
    headers = {"x-stainless-retry-count": "1"}
    return ask(model, [user("Begin.")], headers=headers)["content"]


# ------------------------------------------------------------------------------------------------ R44 R45 R46


def asks_nobody(task, model):
    """The bug: it talks to a model of its own."""
    return "an answer out of thin air"


def offers_tools(task, model):
    """The tools of the task in every call. Whether its calls can be read is the policy's."""
    messages: list[Any] = [user(task.question)]
    for _ in range(ROUNDS):
        messages += [ask(model, messages, tools=task.tools), user("Go on.")]
    return "done"


def offers_none(task, model):
    """Sound: whatever the policy writes, it is text."""
    messages: list[Any] = [user(task.question)]
    return chats(model, messages)


def is_cold(task, model):
    """A temperature of its own."""
    return ask(model, [user("Begin.")], temperature=0.5)["content"]


def says_the_runs_temperature(task, model):
    return ask(model, [user("Begin.")], temperature=1.0)["content"]


# ------------------------------------------------------------------------------------------------ conversations


def has_a_judge(task, model):
    """Two drafts, each judged by another conversation, which says its name; and a summary, known by its first words."""
    messages: list[Any] = [user("Write a draft.")]
    for _ in range(2):
        draft = ask(model, messages)
        verdict = ask(model, [user(f"Is it good? {draft['content']}")], name="policy:judge")
        messages += [draft, user(f"The judge says: {verdict['content']}")]
    summary = [{"role": "system", "content": "You sum up. Be brief."}, user("All of it.")]
    return ask(model, summary)["content"]


def judges_in_its_own_history(task, model):
    """The judge goes on from the very history of the writer."""
    messages = [user("Write a draft.")]
    messages += [ask(model, messages), user("Is it good?")]
    ask(model, messages, name="policy:judge")
    return ask(model, messages)["content"]


def plans_with_helpers(task, model):
    """A planner with two helpers at once in each round, which say their names; and in the second round its past is rewritten."""
    from concurrent.futures import ThreadPoolExecutor

    messages: list[Any] = [user(f"Plan this. {task.question}")]
    with ThreadPoolExecutor(2) as pool:
        for number in range(2):
            plan = ask(model, messages)
            asked = {
                name: [user(f"{name}, round {number}: {plan['content']}")]
                for name in ("finder", "checker")
            }
            answers = {
                name: pool.submit(ask, model, sent, name=f"policy:{name}")
                for name, sent in asked.items()
            }
            results = [f"{name}: {answer.result()['content']}" for name, answer in answers.items()]
            if number:
                plan["content"] = plan["content"].replace("Note", "My better note")
            messages += [plan, user("\n".join(results))]
    return ask(model, messages)["content"]
