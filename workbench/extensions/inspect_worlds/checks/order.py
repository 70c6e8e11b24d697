"""What was played before (E22): trajectories in one order in a fresh process, and in the other order in another one.

Here everything is warm: a class that counts, or a cache whose key is too coarse, answers as it did the first time. In a
fresh process the first who asks fills it, and whoever asks next is given what the first one got. Calls of tools are made
up from their schemas, since neither random play nor a solver need call them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from workbench.basics.findings import Checked, Finding, NotChecked, RuleResult
from workbench.basics.plugins import name_of, not_importable
from workbench.extensions.inspect_worlds.checks.scores import check_score_order
from workbench.extensions.scripted_play.given import SLOW_S, CheckInput
from workbench.extensions.scripted_play.playing import (
    CUT_OFF,
    Script,
    Spent,
    parting,
    play,
    played_at_once,
    same,
    unplayable,
)
from workbench.extensions.scripted_play.tool_calls import tool_scripts
from workbench.values import Task
from workbench.values.errors import WorkbenchError, shortened
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.workers.env_runner import ProcessRunner
from workbench.worlds.workers.env_wire import reset_call

SCRIPTS = 16
LONGEST = 12  # actions of each
DRAWN = 200  # tasks among which pairs are looked for
DRAWING_S = 0.5
WORKER_S = 20.0
POLLS = int(2 * WORKER_S / 0.2)  # for an answer that does not come


def check_order(given: CheckInput) -> Iterator[RuleResult]:
    """A trajectory is answered alike, whatever was played before it in the same process."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    scored = list(check_score_order(given))
    yield from scored
    if any(isinstance(result, Finding) for result in scored):
        return
    if why := not_importable(name_of(type(family))):
        yield NotChecked(f"a family that a worker process can make ({why})")
        return
    calls = tool_scripts(given)
    scripts = [*calls, *_played_scripts(given)]
    if given.step_s > SLOW_S:
        yield NotChecked(f"steps that take less than {SLOW_S:g} s, to be played in both orders")
        return
    if len(scripts) < 2:
        yield NotChecked("two trajectories that could be played")
        return
    try:
        reset_call(family, given.tasks[0], 0)
        forward = _played_in_turn(family, scripts)
        backward = _played_backward(family, scripts, len(calls))
    except WorkbenchError as error:
        yield NotChecked(f"worker processes that can run it: {error}")
        return
    yield Checked(len(scripts))
    for script, one, other in zip(scripts, forward, backward):
        if CUT_OFF in (*one[-1:], *other[-1:]):
            continue
        if not same(one, other):
            calls = ", ".join(shortened(text, 120) for text in script.texts[:2])
            yield Finding(
                f"what is answered at {script.task.id!r} (to {calls}) depends on what was played before it in the same "
                f"process: played in another order, {parting(one, other)}; expected the same in every order. Something "
                "outlives its trajectory: state of a class or module, or a cache whose key leaves out what the answer "
                "depends on. Make it in reset (of a tool: in __init__, tool(Class) gives each trajectory its own), or put all "
                "that was asked into the key"
            )
            return


def _played_backward(family: Any, scripts: Sequence[Script], calls: int) -> list[list[Any]]:
    """The answers to each script. Calls come first both times, each part in its other order: what the solver asks at the same
    task would bring a cache into one state."""
    turned = [*range(calls)[::-1], *range(calls, len(scripts))[::-1]]
    answers = _played_in_turn(family, [scripts[place] for place in turned])
    return [answer for _, answer in sorted(zip(turned, answers), key=itemgetter(0))]


def _played_in_turn(family: Any, scripts: Sequence[Script]) -> list[list[Any]]:
    """The answers to each script, one after the other, in a worker process that begins with the first."""
    runner = ProcessRunner(deadline_s=WORKER_S, workers=1)
    answers = []
    try:
        for number, script in enumerate(scripts):
            played = played_at_once(runner, family, {str(number): script}, patience=POLLS)
            answers.append(played[str(number)])
    finally:
        runner.shutdown()
    return answers


def _played_scripts(given: CheckInput) -> list[Script]:
    """Trajectories of the family's own play: at tasks that agree in part of their payload, and at others."""
    scripts = list(_at_related_tasks(given))
    for trajectories in given.own.values() or [given.played[:SCRIPTS]]:
        for played in trajectories[: SCRIPTS // 4]:
            if played.texts and not played.error:
                scripts.append(played.script._replace(texts=played.texts[:LONGEST]))
    return scripts[:SCRIPTS]


def _at_related_tasks(given: CheckInput) -> Iterator[Script]:
    """The solver's words, or random play's, at pairs of tasks that have one value in common and another one not."""
    family: Any = given.family
    if not given.baselines or hasattr(family, "task_seeds"):
        return
    act = getattr(family, f"{given.baselines[-1]}_action")
    pairs = 0
    first: dict[tuple[str, str], Task] = {}
    spent = Spent()
    for number in range(DRAWN):
        if pairs == SCRIPTS // 4 or spent.seconds > DRAWING_S:
            return
        task = family.task(seed_of("check-env", "related", number))
        for name, value in task.payload.items():
            other = first.setdefault((name, repr(value)), task)
            if other is not task and dict(other.payload) != dict(task.payload):
                pairs += 1
                for one in (other, task):
                    rng = rng_at("check-env", "related", one.id)
                    played = play(family, one, 0, lambda env, rng=rng: act(env, rng), most=LONGEST)
                    if not played.error:
                        yield played.script
                break
