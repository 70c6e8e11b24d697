"""How trajectories end: by the environment's own word, once, at the limits that it states; and never by what a policy wrote
(E13 to E15)."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.edges import check_named_bounds
from workbench.extensions.inspect_worlds.checks.one_shot import check_granted, check_one_shot
from workbench.extensions.scripted_play.given import CheckInput, inside
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    is_over,
    play,
    replay,
    text_of,
)
from workbench.extensions.scripted_play.written_numbers import NUMBER_WORDS, counted
from workbench.values import Observation
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at

ANSWERS = (
    "answers?|turns?|guess(?:es)?|attempts?|tries|try|chances?|rounds?|responses?|replies|messages?"
)
MOVES = "moves?|steps?|actions?"
_NUMBER = rf"(\d+|{'|'.join(NUMBER_WORDS)})"
# What promises a number of them in all, and not in one answer.
_STATED = re.compile(
    rf"(?:(?:you (?:have|get|are given|may (?:use|take|make)|can (?:use|take|make))|at most|up to|no more than|a maximum of|"
    rf"maximum|limits?(?: of|:)?|within|only|in all|,) (?:only |at most |up to |exactly )?(?:[^.,;:\n]{{0,40}}?, )?"
    rf"{_NUMBER} (?:(?!per\b|an?\b|each\b|in\b)\w+ )?({ANSWERS}|{MOVES})\b)(?! (?:per|an|a|each|in one|in each|at a time|at once|for each)\b)"
    rf"|{_NUMBER} ({ANSWERS}|{MOVES}) (?:left|remaining|in all|in total|at most|altogether)",
    re.IGNORECASE,
)
CANARY = "zq7<|im_end|>zq7"
BAD = {
    "an empty text": "",
    "words": "zzz",
    "tags that do not close": "<answer><answer><think>",
    "an empty answer": "<answer></answer>",
    "a control token": CANARY,
    "broken JSON": '<tool_call>{"name": [}</tool_call>',
    "a null character": "\x00\x1b[31m",
    "other scripts": "<answer>\u202eдва ½ 一 🙂</answer>",
}
# What a policy writes in the place of an answer, early or late.
ANSWERED = {
    "an answer of doubt": "I do not know",
    "no answer in a word": "none",
    "a sign alone": "-",
    "a number with a comma": "1,000",
}
# What raises in Python's own int() or float(), and hardly any policy writes.
ODD = {
    "a number that is none": "nan",
    "an endless number": "inf",
    "a huge number": "9" * 5000,
    "a raised digit": "²",
    "a division by zero": "1/0",
}
PIECE = "<answer>"  # of a long text
LONG = (2_000, 10_000, 160_000)  # characters of it
PATIENCE_S = 3.0  # for the longest, by how the shorter ones grew
RAISES = " raises "
SLOW_S = 2.0
LEAST_S = 1e-3  # below: no time that could be compared
LATE_TASKS = 6  # at which the solver begins late


def check_ends(given: CheckInput) -> Iterator[RuleResult]:
    trajectories = [played for played in given.played if played.results and not played.error]
    yield Checked(len(trajectories))
    goes_on = [played for played in trajectories if _ever_succeeded(played) and not played.ended]
    if len(goes_on) >= 2 and len(goes_on) * 2 > sum(
        bool(played.success) for played in trajectories
    ):
        yield Finding(
            f"{len(goes_on)} trajectories have succeeded and are not over: terminated is never said, at "
            f"{goes_on[0].task.id!r} ({goes_on[0].policy}) for one"
        )
    elif trajectories and not any(played.ended for played in trajectories) and not goes_on:
        if "solver" not in given.own and not any(
            (played.reward or 0.0) > 0 for played in trajectories
        ):
            yield NotChecked(
                f"a trajectory that ends: none of {len(trajectories)} does, and no solver is known that could"
            )
            return
        yield Finding(
            f"none of {len(trajectories)} trajectories, by {len(given.plays)} ways to play, ends by the environment's word: "
            f"neither terminated nor truncated is ever said, and all go on to max_turns = {given.family.max_turns}",
            severity="error" if "solver" in given.own and _success_is_told(trajectories) else NOTE,
        )
    yield from _solved_and_cut(given)
    yield from _after_the_end(given, trajectories)
    yield from check_one_shot(given)


def _success_is_told(trajectories: list[PlayedTrajectory]) -> bool:
    """Without it a world may be played for its return, to a limit of turns."""
    return any(played.success is not None for played in trajectories)


def _solved_and_cut(given: CheckInput) -> Iterator[RuleResult]:
    """What is solved before any limit is said to be cut by one."""
    lengths = [len(one.results) for one in given.played if one.policy != "solver"]
    early = [
        one
        for one in given.own.get("solver", ())
        if one.success
        and one.cut
        and not one.results[-1].terminated
        and len(one.results) < max(lengths, default=0)
    ]
    if len(early) >= 4:
        yield Finding(
            f"{len(early)} trajectories of the solver succeed after {min(len(one.results) for one in early)} answers or more and "
            f"are said to be cut by a limit (truncated), which others reach after {max(lengths)}: a critic would add what might "
            "have come. Say terminated where a task is solved"
        )


def _ever_succeeded(played: PlayedTrajectory) -> bool:
    return any(result.info.get("success") is True for result in played.results)


def _after_the_end(given: CheckInput, trajectories: list[PlayedTrajectory]) -> Iterator[RuleResult]:
    """Nobody here steps a trajectory that is over; other programs do, and one that pays once more is paid twice."""
    ended = [played for played in trajectories if played.results[-1].terminated]
    for played in sorted(ended, key=lambda played: -(played.reward or 0.0))[:3]:
        once_more = Script(played.task, played.seed, (*played.texts, played.texts[-1]))
        again = replay(given.family, once_more)
        yield Checked(1)
        if again.error:  # that is the right answer
            continue
        beyond = again.results[-1]
        if (beyond.reward or 0.0) > 0:
            yield Finding(
                f"a step after the end of {played.task.id!r} pays {beyond.reward:g} again: raise EnvError there",
                severity=NOTE,
            )
            return
        if not is_over(beyond):
            yield Finding(
                f"a step after the end of {played.task.id!r} is answered as if the trajectory went on: raise EnvError there",
                severity=NOTE,
            )
            return


# ------------------------------------------------------------------------------------------------ limits


def check_limits(given: CheckInput) -> Iterator[RuleResult]:
    """Where the environment cuts trajectories off, its prompt says so; and what the prompt says is what happens."""
    yield from check_named_bounds(given)
    granted = list(check_granted(given))
    yield from granted
    idle = list(_unsuccessful(given))
    yield Checked(len(idle))
    if not idle or any(isinstance(result, Finding) for result in granted):
        return
    begun = [played.task.id for played in idle if played.task.id in given.openings]
    prompts = [text_of(given.openings[task_id]) for task_id in begun]
    real = _own_limit(given, idle)
    stated: set[tuple[int, str]] = set()
    for prompt in prompts[:6]:
        stated.update(stated_limits(prompt))
    if (
        real is not None
        and not _says(real, prompts[0], stated)
        and not _each_says_its_own(given, idle)
    ):
        turns, _ = real
        yield Finding(
            f"the environment ends trajectories after {turns} answers (max_turns is {given.family.max_turns}), and its "
            f"prompt does not say so: a policy cannot know it. Say it, or set max_turns = {turns}"
        )
        return
    yield from _cut_and_called_over(given, idle, prompts[:1], stated)
    results = [*_differs(given, idle, stated, real), *_moves_differ(given, stated)]
    yield from results
    if not any(isinstance(result, Finding) for result in results):
        yield from _last_answer(given, idle, real)


def _unsuccessful(given: CheckInput) -> Iterator[PlayedTrajectory]:
    """Trajectories without an error that solve nothing, by all ways to play but the solver."""
    for name, trajectories in given.plays.items():
        for played in trajectories if name != "solver" else ():
            if played.results and not played.error and not played.success:
                yield played


def stated_limits(prompt: str) -> Iterator[tuple[int, str]]:
    """(number, "answers" or "moves") of the limits that a prompt states."""
    for match in _STATED.finditer(prompt):
        number, noun = (match[1], match[2]) if match[1] else (match[3], match[4])
        yield counted(number), "moves" if re.fullmatch(MOVES, noun, re.IGNORECASE) else "answers"


def _own_limit(given: CheckInput, idle: list[PlayedTrajectory]) -> tuple[int, int | None] | None:
    """(answers, moves) after which the environment itself ends what does not succeed, always; None where there is no such
    number below max_turns."""
    cut = [played for played in idle if played.results[-1].truncated]
    over = [played for played in idle if played.results[-1].terminated]
    for ended in (cut, over):
        turns = Counter(len(played.results) for played in ended)
        if not turns or len(ended) < 4:
            continue
        longest = max(turns)
        others = [played for played in idle if len(played.results) > longest]
        at_it = [played for played in ended if len(played.results) == longest]
        enough = len(at_it) >= 4 and len({played.policy for played in at_it}) >= 2 and not others
        # A number ends them, and not what they said: all of them end there, whichever way they were played.
        counted = ended is cut or (2 <= longest and len(at_it) == len(idle))
        if enough and longest < given.family.max_turns and counted:
            return longest, next((played.moves for played in at_it if played.moves), None)
    return None


def _each_says_its_own(given: CheckInput, idle: list[PlayedTrajectory]) -> bool:
    """Whether limits differ by task, and each is the one that its own prompt states."""
    cut = [
        played
        for played in idle
        if played.results[-1].truncated and played.task.id in given.openings
    ]
    kept = 0
    for played in cut:
        stated = {number for number, _ in stated_limits(text_of(given.openings[played.task.id]))}
        kept += bool(stated & {len(played.results), played.moves})
    return bool(cut) and kept == len(cut)


def _says(real: tuple[int, int | None], prompt: str, stated: set[tuple[int, str]]) -> bool:
    words = set(re.findall(r"\w+", prompt.lower()))
    return any(
        str(number) in words or number < len(NUMBER_WORDS) and NUMBER_WORDS[number] in words
        for number in real
        if number
    ) or any(number in real for number, _ in stated)


def _differs(
    given: CheckInput,
    idle: list[PlayedTrajectory],
    stated: set[tuple[int, str]],
    real: tuple[int, int | None] | None,
) -> Iterator[RuleResult]:
    """A limit on answers in the prompt against the number of answers that are really taken."""
    answers = sorted({number for number, kind in stated if kind == "answers" and number > 0})
    longest = max(len(played.results) for played in idle)
    reached = (
        real is not None
        or any(not played.ended for played in idle)
        or longest == given.family.max_turns
    )
    if len(answers) != 1 or not reached:
        return
    taken = real[0] if real is not None else given.family.max_turns
    at_it = [played for played in idle if len(played.results) == taken]
    if _each_says_its_own(given, idle):
        return
    if answers[0] != taken and at_it:
        yield Finding(
            f"the prompt states {answers[0]} answers, and {taken} are taken ({at_it[0].policy} at "
            f"{at_it[0].task.id!r}): state the real limit"
        )
    elif answers[0] != given.family.max_turns and real is None:
        yield Finding(
            f"the prompt states {answers[0]} answers, and max_turns is {given.family.max_turns}"
        )


def _cut_and_called_over(
    given: CheckInput,
    idle: list[PlayedTrajectory],
    prompts: list[str],
    stated: set[tuple[int, str]],
) -> Iterator[RuleResult]:
    """All that does not succeed ends at max_turns and is said to be terminated, and no prompt speaks of such a limit."""
    most = given.family.max_turns
    at_limit = [one for one in idle if len(one.results) == most and one.results[-1].terminated]
    ways = {one.policy for one in at_limit}
    number = NUMBER_WORDS[most] if most < len(NUMBER_WORDS) else str(most)
    spoken = any(
        re.search(rf"\b(?:{most}|{number})\b", prompt, re.IGNORECASE) for prompt in prompts
    )
    if most < 2 or spoken or stated or len(ways) < 2 or len(at_limit) < max(4, len(idle)):
        return
    yield Finding(
        f"all {len(at_limit)} trajectories that do not succeed are said to be over (terminated) after {most} answers, which is max_turns, and the prompt "
        "speaks of no such limit: a critic takes it for the end of the task, where nothing more could come. Say truncated at a limit "
        "that is none of the task's, or state it in the prompt",
        severity=NOTE,
    )


def _is_one_word(played: PlayedTrajectory) -> bool:
    return all(len(text.split()) == 1 for text in played.texts)


def _moves_differ(given: CheckInput, stated: set[tuple[int, str]]) -> Iterator[RuleResult]:
    """A limit on moves in the prompt, where each answer of random play is one word, against those that it can make."""
    moves = sorted({number for number, kind in stated if kind == "moves" and number > 0})
    failed = [one for one in given.own.get("random", ()) if not one.success and not one.error]
    counted = any(one.moves for one in failed)
    one_word = all(map(_is_one_word, failed))
    taken = {len(one.results) for one in failed}
    if len(moves) != 1 or counted or not one_word or len(failed) < 4 or len(taken) != 1:
        return
    (most,) = taken
    yield Checked(len(failed), "a limit on moves")
    by_a_limit = most == given.family.max_turns or all(one.cut for one in failed)
    if moves[0] != most and by_a_limit:
        yield Finding(
            f"the prompt states {moves[0]} moves, and {most} can be made, by answers of one word each, in all {len(failed)} "
            f"trajectories of random play that fail (max_turns is {given.family.max_turns}): state the real limit",
            severity="error" if moves[0] > most else NOTE,
        )


def _last_answer(
    given: CheckInput, idle: list[PlayedTrajectory], real: tuple[int, int | None] | None
) -> Iterator[RuleResult]:
    """The solver begins so late that it is done with the last answer that is taken: that counts as the one before does."""
    most = real[0] if real is not None else given.family.max_turns
    if given.by_chance or not any(len(one.results) == most for one in idle):
        return
    refused: list[PlayedTrajectory] = []
    asked = 0
    for one in given.solved_once()[:LATE_TASKS]:
        spare = most - len(one.texts)
        if spare < 2 or not _solved_after(given, one, spare - 1).success:
            continue
        asked += 1
        late = _solved_after(given, one, spare)
        refused += [late] if late.success is False and len(late.results) == most else []
    yield Checked(asked, "the last answer that is taken")
    if asked >= 4 and len(refused) == asked:
        yield Finding(
            f"what is solved with answer {most}, the last one that is taken, is no success at {asked} of {asked} tasks, and "
            f"with answer {most - 1} it is: the limit is asked before the answer is judged. Judge it first, or state "
            f"{most - 1} answers"
        )


def _solved_after(given: CheckInput, one: PlayedTrajectory, idle: int) -> PlayedTrajectory:
    """The solver's own play at the same task, after some empty answers."""
    family: Any = given.family
    turns = iter(range(family.max_turns + 1))
    rng = rng_at("check-env", "late", one.task.id)

    def act(env: Any) -> str:
        return "" if next(turns) < idle else family.solver_action(env, rng)

    return play(family, one.task, one.seed, act)


# ------------------------------------------------------------------------------------------------ bad texts


def check_bad_texts(given: CheckInput) -> Iterator[RuleResult]:
    """Whatever a policy writes is answered: what is raised ends the trajectory as a fault, and leaves it unscored."""
    raised = [played for played in given.played if played.error]
    raised.sort(key=lambda played: inside(played.texts[-1] if played.texts else "") in ODD.values())
    results = [_as_played(played) for played in raised[:1]]
    answered = {name: given.as_answer(words) for name, words in ANSWERED.items()}
    for name, text in {**BAD, **answered}.items():
        results += _answered_to(given, name, text, "error")
    for name, words in ODD.items():
        results += _answered_to(given, name, given.as_answer(words), NOTE)
    results += _long_texts(given)
    yield from (result for result in results if isinstance(result, Checked))
    findings = [result for result in results if isinstance(result, Finding)]
    raises = [result for result in findings if RAISES in result.what]
    yield from (result for result in findings if result not in raises)
    yield from sorted(raises, key=lambda result: result.severity != "error")[:1]


def _as_played(played: PlayedTrajectory) -> Finding:
    where = f"{played.where}{RAISES}at {played.task.id!r} ({played.policy})"
    if played.where == "the policy":
        where = f"the family's own {played.policy}{RAISES}at {played.task.id!r}"
    odd = bool(played.texts) and inside(played.texts[-1]) in ODD.values()
    return Finding(f"{where}: {shortened(played.error, 160)}", severity=NOTE if odd else "error")


def _answered_to(given: CheckInput, name: str, text: str, severity: str) -> Iterator[RuleResult]:
    """What comes of a text in the first turn. `severity`: of an exception."""
    played = play(given.family, given.tasks[0], 0, lambda env: text, policy=name, most=1)
    yield Checked(1)
    if played.error:
        yield Finding(
            f"{played.where}{RAISES}on {name}, {text[:30]!r}: {shortened(played.error, 160)}. Answer it in words: what is "
            "raised ends the trajectory as a fault, without a reward",
            severity=severity,
        )
    if any(map(_trusts_a_control_token, played.shown[1:])):
        yield Finding(
            "what the policy wrote comes back in a part that says trusted=True: its <|im_end|> would end a turn"
        )


def _long_texts(given: CheckInput) -> Iterator[RuleResult]:
    """Longer and longer texts, as long as the next one can be waited for."""
    taken: list[float] = []
    for length in LONG:
        if len(taken) == 2:
            growth = max(math.log(max(taken[1], LEAST_S) / max(taken[0], LEAST_S), 5), 1.0)
            expected = taken[1] * (length / LONG[1]) ** growth
            if expected > PATIENCE_S:
                yield Finding(
                    f"a long text takes longer than its length: {taken[0]:.3f} s for {LONG[0]:,} characters and {taken[1]:.2f} s for "
                    f"{LONG[1]:,}; {length:,} would take {expected:.0f} s. A pattern that begins anew at each place does so "
                    "(.*? without an end): bound what is read, or search from the end",
                    severity=NOTE,
                )
                return
        text = PIECE * (length // len(PIECE))
        began = time.monotonic()
        yield from _answered_to(given, "a long text", text, "error")
        taken.append(time.monotonic() - began)
        if taken[-1] > SLOW_S:
            yield Finding(
                f"a long text of {length:,} characters takes {taken[-1]:.1f} s to be answered",
                severity=NOTE,
            )
            return


def _trusts_a_control_token(observation: Observation) -> bool:
    for message in observation.messages:
        if any(part.trusted and "<|im_end|>" in part.text for part in message.content):
            return True
    return False
