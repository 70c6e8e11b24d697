"""Whether a wrong last answer ends what the prompt says it ends (E13), and whether the turns that a prompt grants are there
(E14)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import (
    NONSENSE,
    CheckInput,
    until_a_finding,
)
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    is_over,
    play,
    replay,
    text_of,
)
from workbench.extensions.scripted_play.written_numbers import NUMBER_WORDS, counted
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at

TASKS = 6
LEAST = 3
MORE_TURNS = 4  # that the solver is given where the turns ran out
OFTEN = 0.25  # of its trajectories that ran out
# What a prompt says where one wrong answer is the end.
ONCE = re.compile(
    r"\b(?:one|a single|only one) (?:answer|try|guess|attempt|chance|shot)\b|\b(?:only |just |exactly )?once\b(?! (?:per|each|in each|a turn))|"
    r"\b(?:wrong|false|bad|incorrect)\b[^.\n]{0,40}\b(?:ends?|sets? (?:it|the \w+) off|loses?|kills?|explodes?|is final|over|fails?)\b|"
    r"\b(?:answer|choice|cut|guess|decision)\b[^.\n]{0,30}\b(?:is final|ends (?:the|it|this))\b",
    re.IGNORECASE,
)
SEVERAL = re.compile(
    rf"\b(\d+|{'|'.join(NUMBER_WORDS[2:])}) (?:\w+ )?(?:tries|guesses|attempts|chances|answers)\b|\btry again\b|\bas often as\b",
    re.IGNORECASE,
)
ENDS_IT = re.compile(
    r"\b(?:ends the|the end of the|is over|game over|you (?:lose|die|drown|fall|are out)|set[s]? (?:it|the \w+) off)\b",
    re.IGNORECASE,
)
GRANTED = re.compile(
    rf"\b(\d+|{'|'.join(NUMBER_WORDS)}) (?:(?:\w+|yes/no|yes-no) )?"
    r"(questions?|looks?|searches|lookups?|calls?|hints?|traits?|tests?|measurements?|peeks?|probes?|queries|clues?|weighings?|"
    r"checks?|experiments?|samples?|inspections?|draws?|requests?|readings?)\b",
    re.IGNORECASE,
)
THEN = re.compile(
    r"\b(?:after (?:that|them|these|this|which)|afterwards|then|at the end|finally|in the end|and (?:one|an) answer|plus)\b",
    re.IGNORECASE,
)
INCLUDED = re.compile(
    r"\b(?:included|including|the last (?:one|of them|turn)|in all|in total|altogether)\b",
    re.IGNORECASE,
)


def check_one_shot(given: CheckInput) -> Iterator[RuleResult]:
    """A wrong answer in the place of the right one, and then the right one."""
    if given.why_not_played() is not None or given.family.max_turns < 2:
        return
    prompt = given.first_prompt
    yield from _wrong_last(given, prompt)
    yield from _nothing_else_ends(given, prompt)


def _wrong_last(given: CheckInput, prompt: str) -> Iterator[RuleResult]:
    once = ONCE.search(prompt)
    several = SEVERAL.search(prompt)
    if bool(once) == bool(several):
        return
    solved = [one for one in given.solved_once() if one.success and one.ended][:TASKS]
    goes_on = 0
    ends = 0
    asked = 0
    for one, wrong in zip(solved, _wrong_answers(given, solved)):
        tried = replay(given.family, one.script.ending(wrong))
        if tried.error or not tried.results or tried.success:
            continue
        asked += 1
        if is_over(tried.results[-1]):
            ends += tried.results[-1].terminated
            continue
        again = replay(given.family, one.script.ending(wrong).then(one.texts[-1]))
        goes_on += bool(again.success)
    yield Checked(asked, "a wrong answer first")
    if once and asked >= LEAST and goes_on == asked:
        yield Finding(
            f"a wrong answer does not end a trajectory, and the right one after it succeeds, at {asked} of {asked} tasks; the "
            f"prompt says {shortened(once[0], 70)}. Trying all answers solves every task. End it (terminated) with the "
            "first one, or say how many are allowed"
        )
    stated = several is not None and several[1] is not None
    if stated and asked >= LEAST and ends == asked and any(len(one.texts) == 1 for one in solved):
        yield Finding(
            f"the first wrong answer ends the trajectory at {asked} of {asked} tasks, and the prompt says "
            f"{shortened(several[0], 60)}: the others are never taken. Go on until they are used up, or state one"
        )


def _wrong_answers(given: CheckInput, solved: Sequence[PlayedTrajectory]) -> Iterator[str]:
    """For each: what ended another task, in other words than its own."""
    for one in solved:
        others = [other.texts[-1] for other in solved if other.texts[-1] != one.texts[-1]]
        yield others[0] if others else NONSENSE


def _nothing_else_ends(given: CheckInput, prompt: str) -> Iterator[RuleResult]:
    """The prompt says what ends it beside success, and nothing ever did."""
    ending = ENDS_IT.search(prompt)
    others = [one for one in given.played if one.results and not one.success and not one.error]
    failed = [one for one in others if one.success is False]
    turns = sum(len(one.results) for one in failed)
    if ending is None or SEVERAL.search(prompt) or "random" not in given.own or turns < 60:
        return
    yield Checked(len(failed), "what ends beside success")
    if failed and not any(one.results[-1].terminated for one in failed):
        where = prompt[max(ending.start() - 40, 0) : ending.end() + 20]
        yield Finding(
            f"the prompt says what ends a trajectory ({shortened(where, 90)}), and none of {len(failed)} that fail, of "
            f"{turns} turns by {len(given.plays)} ways to play, is ever over by itself: all go on to a limit. Say terminated "
            "where it has failed for good",
            severity=NOTE,
        )


# ------------------------------------------------------------------------------------------------ turns that are granted


def check_granted(given: CheckInput) -> Iterator[RuleResult]:
    """The solver can be done in the turns that there are, and so can who uses all that the prompt grants."""
    if given.why_not_played() is None:
        yield from until_a_finding((_ran_out, _answer_after), given)


def _ran_out(given: CheckInput) -> Iterator[RuleResult]:
    """The solver's trajectories that stop at max_turns, unsolved, and are solved with a few turns more."""
    solver = [one for one in given.own.get("solver", ()) if one.results and not one.error]
    stopped = [
        one for one in solver if not one.success and len(one.results) == given.family.max_turns
    ]
    yield Checked(len(solver), "turns of the solver")
    if len(solver) < LEAST or len(stopped) < max(OFTEN * len(solver), LEAST):
        return
    solved = [later for one in stopped[:TASKS] if (later := _with_more_turns(given, one)).success]
    if len(solved) >= LEAST and 2 * len(solved) >= min(len(stopped), TASKS):
        needed = max(len(one.results) for one in solved)
        every = len(stopped) == len(solver)
        yield Finding(
            f"the turns run out before the solver is done, at {len(stopped)} of {len(solver)} trajectories: max_turns is "
            f"{given.family.max_turns}, and with {needed} turns it solves {len(solved)} of {min(len(stopped), TASKS)} of them. Either "
            "nobody can solve such a task in time, or the solver wastes turns and a policy is compared with too little. Raise max_turns (the last turn is for the answer), or draw tasks that can be solved "
            "within it",
            severity=ERROR if every else NOTE,
        )


def _with_more_turns(given: CheckInput, one: PlayedTrajectory) -> PlayedTrajectory:
    """The same task by the solver, past what the family allows."""
    family: Any = given.family
    rng = rng_at("check-env", "solver", one.task.id, 0)
    most = family.max_turns + MORE_TURNS
    return play(family, one.task, one.seed, lambda env: family.solver_action(env, rng), most=most)


def _answer_after(given: CheckInput) -> Iterator[RuleResult]:
    """A prompt grants so many questions and an answer after them; there are no more turns than questions."""
    prompt = given.first_prompt
    granted = GRANTED.search(prompt)
    if granted is None or INCLUDED.search(prompt):
        return
    count = counted(granted[1])
    then = THEN.search(prompt, granted.end(), granted.end() + 200)
    limit = _turns_there_are(given)
    asks = _goes_on(given)
    yield Checked(1, "turns that are granted")
    if then is None or count < 1 or limit != count or not asks:
        return
    yield Finding(
        f"the prompt grants {granted[0]!r} and an answer after them ({shortened(prompt[then.start() : then.end() + 40], 60)}), "
        f"which takes {count + 1} turns, and there are {limit}: who asks all questions never answers. Set max_turns = {count + 1}",
    )


def _turns_there_are(given: CheckInput) -> int:
    played = [one for one in chain.from_iterable(given.plays.values()) if one.results]
    longest = max((len(one.results) for one in played), default=0)
    own_limit = any(one.cut and len(one.results) == longest for one in played)
    return longest if own_limit else given.family.max_turns


def _goes_on(given: CheckInput) -> bool:
    """Whether an action of its own play is answered and ends nothing: a question takes a turn."""
    for one in chain.from_iterable(given.own.values()):
        if one.results and not is_over(one.results[0]) and text_of(one.results[0].observation):
            return True
    return not given.own
