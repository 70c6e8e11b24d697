"""What a policy is shown: text that can be read, in roles that are the environment's, that fits, and that tells no answer
(E6 to E9)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_tasks.hints import check_hints
from workbench.extensions.inspect_tasks.oracles import check_oracles
from workbench.extensions.inspect_tasks.told import check_told
from workbench.extensions.scripted_play.given import EMPTY, NONSENSE, CheckInput, inside
from workbench.extensions.scripted_play.leaks import (
    Probe,
    always_there,
    golds,
    holds,
    leak_of,
    rare_parts,
    to_be_read,
    unsure_is_no_answer,
    without,
    without_unsure,
    words_of,
)
from workbench.extensions.scripted_play.playing import PlayedTrajectory, Script, replay, text_of
from workbench.values import Observation, Task
from workbench.values.errors import WorkbenchError, shortened

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
LONE = re.compile(r"[\ud800-\udfff]")
# What Python writes of an object that nobody meant to show.
OF_PYTHON = re.compile(
    r"<[\w.]+ object at 0x[0-9a-f]+>|<(?:function|bound method|built-in function|generator object|class|module) [^>]*>|\bdict_(?:keys|values|items)\(|"
    r"\b(?:array|tensor)\(\[|\bnp\.(?:int|float|str)\w*\(|\bdefaultdict\(|\bCounter\(\{"
)
BLANK = re.compile(
    r"(?<![{$\\\w])\{([a-z_][a-z0-9_]+)(?:![rsa])?\}(?!\})"
)  # of a pattern that was not filled in
MISREAD = re.compile(
    r"Ã[\x80-\xbf©¨¼¶¤±§¡³º]|â€[\x80-\xbf™œ\x9d“”¦]|Â[\xa0°£§]"
)  # UTF-8 that was read as Latin-1
ROLES = ("system", "user", "tool", "assistant")
TOLD = 0.8  # share of tasks whose own answer stands there
MET = 0.25  # share of other tasks' answers that stand there by accident
LEAST_TASKS = 4
CROWDED = 0.9  # of the context


def _observations(given: CheckInput) -> Iterator[tuple[str, Observation, PlayedTrajectory, int]]:
    """Every observation, and where it is from: "the first observation of ...", "the reply to action 2 of ..."."""
    for played in given.played:
        for k, observation in enumerate(played.shown):
            where = "the first observation" if not k else f"the reply to action {k - 1}"
            yield f"{where} of {played.task.id!r} ({played.policy})", observation, played, k


def check_text(given: CheckInput) -> Iterator[RuleResult]:
    """No sequence that colours a terminal, no control character, nothing that has no UTF-8."""
    named: set[str] = set()
    for where, observation, played, _ in _observations(given):
        yield Checked(1)
        text = text_of(observation) + json.dumps(
            [dict(tool) for tool in observation.tools], default=str, ensure_ascii=False
        )
        for name, pattern in (
            ("an ANSI sequence", ANSI),
            ("a control character", CONTROL),
            ("half a surrogate pair", LONE),
        ):
            if (match := pattern.search(text)) and name not in named:
                named.update(
                    (name, "a control character") if name == "an ANSI sequence" else (name,)
                )
                near = text[max(match.start() - 15, 0) : match.end() + 15]
                yield Finding(f"{where} holds {name}, {match[0]!r}: {near!r}")
        yield from _left_over(where, text_of(observation), played, named)
        if "\ufffd" in text and "\ufffd" not in named:
            named.add("\ufffd")
            yield Finding(
                f"{where} holds U+FFFD, the mark of text that was decoded wrongly", severity=NOTE
            )


def _left_over(
    where: str, text: str, played: PlayedTrajectory, named: set[str]
) -> Iterator[RuleResult]:
    """Words that no author wrote for a reader: an object's own name, a blank that was not filled in, a wrong encoding."""
    spoken = " ".join(played.texts)
    for kind, pattern, what, severity in (
        ("object", OF_PYTHON, "what Python calls an object", "error"),
        ("blank", BLANK, "a blank that was not filled in", NOTE),
        ("misread", MISREAD, "UTF-8 that was read as another encoding", NOTE),
    ):
        match = pattern.search(text)
        if match is None or kind in named or match[0] in spoken:
            continue
        named.add(kind)
        is_field = kind == "blank" and match[1] in played.task.payload
        near = text[max(match.start() - 25, 0) : match.end() + 25]
        yield Finding(
            f"{where} holds {what}, {match[0]!r}: {near!r}. Write what is meant (an f of an f-string, .format(...), join)",
            severity="error" if is_field else severity,
        )


def check_messages_said(given: CheckInput) -> Iterator[RuleResult]:
    """Something is said as long as an answer is expected, by the system, the user or a tool."""
    named: set[str] = set()

    def once(kind: str, what: str, severity: str = "error") -> Iterator[RuleResult]:
        if kind not in named:
            named.add(kind)
            yield Finding(what, severity=severity)

    for where, observation, trajectory, k in _observations(given):
        yield Checked(1)
        over = k > 0 and (
            trajectory.results[k - 1].terminated or trajectory.results[k - 1].truncated
        )
        if not over and not text_of(observation).strip():
            yield from once("empty", f"{where} is empty, and an answer to it is expected")
        for message in observation.messages:
            if message.role not in ROLES:
                yield from once(
                    "role",
                    f"{where} has a message by {message.role!r}: roles are {', '.join(ROLES)}",
                )
            elif message.role == "assistant" and k > 0:
                yield from once(
                    "words",
                    f"{where} has a message in the role of the assistant, which is the policy: its own words "
                    "stand in its sequence already, and these would pass for them",
                )
            elif message.role == "tool" and k == 0:
                yield from once(
                    "tool", f"{where} begins with the answer of a tool that nobody called"
                )
            elif message.role == "system" and k > 0:
                yield from once(
                    "system",
                    f"{where} has a message by the system: most chat templates take one only at the "
                    "beginning",
                    NOTE,
                )
        if (
            observation.messages
            and observation.messages[-1].role in ("assistant", "system")
            and not over
        ):
            yield from once(
                "last",
                f"{where} ends with a message by {observation.messages[-1].role!r}: nobody has asked the "
                "policy anything; end it with one by 'user'",
            )


# ------------------------------------------------------------------------------------------------ context


def check_context(given: CheckInput) -> Iterator[RuleResult]:
    """A first prompt that leaves no room for an answer makes a trajectory without a turn."""
    if given.count_tokens is None or given.max_context is None:
        yield NotChecked(
            "a policy, whose tokenizer counts: workbench check-env NAME --policy POLICY"
        )
        return
    sizes = {}
    for name, opening in given.openings.items():
        try:
            sizes[name] = given.count_tokens(opening)
        except WorkbenchError as error:
            yield Finding(f"no prompt can be made of the first observation of {name!r}: {error}")
            return
        yield Checked(1)
    if not sizes:
        return
    longest = max(sizes, key=sizes.get)
    if sizes[longest] >= given.max_context:
        too_long = sum(size >= given.max_context for size in sizes.values())
        yield Finding(
            f"the first prompt of {too_long} of {len(sizes)} tasks does not fit: {sizes[longest]} tokens at "
            f"{longest!r}, and the context is {given.max_context}. Such a trajectory has no turn",
            count=too_long,
        )
        return
    if sizes[longest] + given.max_turn_tokens > given.max_context:
        yield Finding(
            f"the first prompt of {longest!r} has {sizes[longest]} tokens; of a context of {given.max_context} that leaves "
            f"less than the {given.max_turn_tokens} of one turn",
            severity=NOTE,
        )
        return
    yield from _whole_trajectories(given)


def _whole_trajectories(given: CheckInput) -> Iterator[RuleResult]:
    """How long a trajectory becomes by the solver, or else by random play."""
    for name in ("solver", "random"):
        for trajectory in given.own.get(name, ())[:3]:
            size = sum(map(given.count_tokens, trajectory.shown[: len(trajectory.results)]))
            size += sum(
                given.count_tokens(Observation(())) if not text else len(text) // 4
                for text in trajectory.texts
            )
            if size > CROWDED * given.max_context:
                yield Finding(
                    f"a trajectory by {name} at {trajectory.task.id!r} has about {size} tokens in {len(trajectory.results)} "
                    f"turns, and the context is {given.max_context}: it ends because it is full",
                    severity=NOTE,
                )
                return


# ------------------------------------------------------------------------------------------------ the answer


def check_leaks(given: CheckInput) -> Iterator[RuleResult]:
    """No prompt or reply holds the answer before it was earned: the gold answer, or what the solver says."""
    solved = [
        (played.task, "\n".join(played.texts))
        for played in given.own.get("solver", ())
        if played.success
    ]
    as_named = without_unsure if unsure_is_no_answer(solved) else lambda task: task
    begun = [as_named(task) for task in given.tasks if task.id in given.openings]
    probes = [Probe(task, given.openings[task.id]) for task in begun]
    has_gold = any(golds(task) for task in begun)
    if has_gold:
        yield from always_there(probes)
        for played in _not_by_the_solver(given):
            rare = rare_parts(as_named(played.task), probes)
            yield Checked(len(played.results))
            leak = leak_of(given.family, played.trajectory, rare) if rare else None
            if leak is not None and not _looked_up(given, played):
                yield Finding(f"at {played.task.id!r} ({played.policy}), {leak[1]}")
                return
    answers = _answers(given)
    results = list(check_told(given))
    for look in (check_oracles, check_hints):
        if not any(isinstance(result, Finding) for result in results):
            results += look(given)
    yield from results
    if any(isinstance(result, Finding) for result in results):
        return
    if len(answers) >= LEAST_TASKS:
        yield from _answers_shown(given, answers)
    elif not has_gold and not sum(result.count for result in results):
        yield NotChecked(
            "a gold answer in the payload of a task, or a solver whose last action is a value of it"
        )


def _looked_up(given: CheckInput, played: PlayedTrajectory) -> bool:
    """Whether the solver says one of these words at this task before it answers, and nonsense in their place brings nothing of what
    they bring: then the reply to them is what is to be found out."""
    for one in given.own.get("solver", ()):
        for text in one.texts[:-1] if one.task.id == played.task.id and one.success else ():
            if text in played.texts:
                script = Script(one.task, played.seed, (text,))
                shown = replay(given.family, script)
                nonsense = replay(given.family, script._replace(texts=(NONSENSE,)))
                if [text_of(seen) for seen in shown.shown[1:]] != [
                    text_of(seen) for seen in nonsense.shown[1:]
                ]:
                    return True
    return False


def _not_by_the_solver(given: CheckInput) -> Iterator[PlayedTrajectory]:
    for name, trajectories in given.plays.items():
        if name != "solver":
            yield from (played for played in trajectories if played.results)


def _answers(given: CheckInput) -> dict[str, str]:
    """Task -> the answer that solves it, where it is a value of the task that stands under one name alone."""
    answers: dict[str, str] = {}
    for trajectory in given.own.get("solver", ()):
        answer = (
            inside(trajectory.texts[-1])
            if trajectory.texts and trajectory.success is not False
            else ""
        )
        keys = [
            name
            for name, value in trajectory.task.payload.items()
            if answer and _is_answer(value, answer)
        ]
        if keys and not any(
            holds(str(value), answer)
            for name, value in trajectory.task.payload.items()
            if name not in keys
        ):
            answers[trajectory.task.id] = answer
    return answers if len(set(answers.values())) >= LEAST_TASKS else {}


def _is_answer(value: object, answer: str) -> bool:
    return (
        str(value).strip().lower() == answer.lower()
        or isinstance(value, (list, tuple))
        and len(value) == 1
        and _is_answer(value[0], answer)
    )


def _answers_shown(given: CheckInput, answers: dict[str, str]) -> Iterator[RuleResult]:
    """Whether tasks' own answers stand in what is shown, and those of others do not. In a prompt, or in the reply to an
    action that earned nothing: an empty one, a wrong one."""
    prompts = {name: _told_by(opening) for name, opening in given.openings.items()}
    shown: dict[str, dict[str, str]] = {"the first prompt": prompts}
    for policy in (EMPTY, *islice((name for name in given.fixed if name != EMPTY), 4)):
        shown[f"the reply to {policy}"] = _replies(given.fixed[policy], answers)
    tasks = {task.id: task for task in given.tasks}
    for where, texts in shown.items():
        asked = [name for name in texts if name in answers]
        yield Checked(len(asked))
        own: list[str] = []
        others: list[bool] = []
        for name in asked:
            answer = answers[name]
            if holds(_without_payload(tasks[name], texts[name], answer), answer):
                own.append(name)
            others += [holds(texts[name], other) for other in answers.values() if other != answer]
        often = len(asked) >= LEAST_TASKS and len(own) >= TOLD * len(asked)
        if often and sum(others) <= MET * len(others):
            first = own[0]
            near = _around(texts[first], answers[first])
            yield Finding(
                f"{where} holds the answer in {len(own)} of {len(asked)} tasks: {answers[first]!r} at {first!r}, in "
                f"{shortened(near, 80)}"
            )
            return


def _told_by(opening: Observation) -> str:
    """What a first prompt says beside a passage that is there to be read."""
    return without(words_of(opening), to_be_read(opening))


def _replies(trajectories: Sequence[PlayedTrajectory], answers: dict[str, str]) -> dict[str, str]:
    """The replies to actions that earned nothing, as long as another may follow."""
    replies: dict[str, str] = {}
    for played in trajectories:
        task_id = played.task.id
        if len(played.results) > 1 and answers.get(task_id) not in map(inside, played.texts):
            shown = [text_of(result.observation) for result in played.results[:-1]]
            replies[task_id] = "\n".join(shown)
    return replies


def _without_payload(task: Task, text: str, answer: str) -> str:
    """The text without what the task is made of, where that holds the answer."""
    for value in task.payload.values():
        if isinstance(value, str) and value.strip().lower() != answer.lower():
            text = text.replace(value, " ")
    return text


def _around(text: str, words: str) -> str:
    at = text.lower().find(words.lower())
    return text[max(at - 30, 0) : at + len(words) + 30]
