"""What baselines do beside playing (E25): a solver that changes the environment, that goes by what nobody is shown, is beaten by
chance or solves a part of the tasks; random play that always does the same or is not understood."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.basics.findings import NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput, until_a_finding, without_its_seed
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    global_dice,
    play,
    replay,
    shown_results,
    text_of,
)
from workbench.values import Task
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of

LEAST = 3
AGAIN = 6  # trajectories that are played once more
CHANCES = 8  # dynamics seeds at which the solver is asked
DICE = 4  # generators with which it is asked at each
TASKS = 8
BEATEN = 0.25  # of the tasks
ENOUGH = 8  # trajectories of random play
TURNS = 60  # of it
DRAWS = 40  # of random play at one task
FEWEST = 4  # different texts that it says there
TOO_OFTEN = 3.0  # times what chance gives
REFUSED = 0.25  # of what random play says
UNSOLVED = 0.25  # of the tasks: above 1 minus this, it is no solver
KINDS = 4  # values of a field that is a kind of task
MOSTLY = 0.6
MORE = 24  # tasks, where one of a few is unsolved
VOCABULARY = 12  # different actions of a world that has a few of them


def check_baselines_seen(given: CheckInput) -> Iterator[RuleResult]:
    looks = (
        _changes_the_world,
        _draws_elsewhere,
        _goes_by_the_hidden,
        _is_beaten,
        _always_the_same,
        _never_says,
        _is_refused,
        _never_solves,
        _fails_where,
        _knows_too_much,
    )
    yield from until_a_finding(looks, given)


def _changes_the_world(given: CheckInput) -> Iterator[RuleResult]:
    """The same words, while nobody is asked for them, come to something else: asking changes the environment."""
    for name, trajectories in given.own.items():
        different: list[tuple[PlayedTrajectory, PlayedTrajectory]] = []
        asked = 0
        for played in [one for one in trajectories if one.results and not one.error][:AGAIN]:
            unasked = replay(given.family, played.script)
            again = _asked_in_vain(given, name, played)
            once_more = replay(given.family, played.script)
            if shown_results(unasked) != shown_results(once_more):
                return  # chance, or what others left behind: E3 and E22 say so
            asked += 1
            if shown_results(again) != shown_results(unasked) and shown_results(
                again
            ) == shown_results(played):
                different.append((played, unasked))
        yield Checked(asked, f"words of {name} without it")
        if len(different) >= LEAST:
            played, unasked = different[0]
            yield Finding(
                f"{name}_action changes the environment that it is asked about: its words at {played.task.id!r} "
                f"({shortened(', '.join(played.texts), 60)}) earn {_paid(played)} where it says them, and {_paid(unasked)} where the "
                f"same words come from somebody else, so at {len(different)} of {asked} trajectories. A policy that says the same "
                "is paid otherwise. Let it read and copy (list(env.row), sorted(...)), and change nothing"
            )
            return


def _asked_in_vain(given: CheckInput, name: str, played: PlayedTrajectory) -> PlayedTrajectory:
    """The same words, while the family is asked for its own in every turn."""
    family: Any = given.family
    rng = rng_at("check-env", name, played.task.id, 0)
    texts = iter(played.texts)

    def act(env: Any) -> str:
        getattr(family, f"{name}_action")(env, rng)
        return next(texts)

    most = len(played.texts)
    return play(family, played.task, played.seed, act, most=most, past_the_end=True)


def _paid(played: PlayedTrajectory) -> str:
    reward = "nothing known" if played.reward is None else f"{played.reward:.3g}"
    return f"{reward}{' (success)' if played.success else ''}"


def _first_action(given: CheckInput, task: Task, seed: int, number: int) -> tuple[str, str]:
    """(what was shown, what the solver says to it)."""
    family: Any = given.family
    rng = rng_at("check-env", "hidden", task.id, number)
    one = play(family, task, seed, lambda env: family.solver_action(env, rng), most=1)
    return text_of(one.opening), (one.texts[0] if one.texts else "")


def _draws_elsewhere(given: CheckInput) -> Iterator[RuleResult]:
    """With the same generator, handed in, a baseline says something else by the process's own."""
    family: Any = given.family
    for name in given.own:
        different = 0
        asked = 0
        for task in given.tasks[:AGAIN]:
            plays = []
            for number in (1, 2):
                rng = rng_at("check-env", "dice", task.id)
                act = getattr(family, f"{name}_action")
                with global_dice(number):
                    plays.append(
                        play(family, task, 0, lambda env, act=act, rng=rng: act(env, rng), most=3)
                    )
            if any(one.error for one in plays):
                continue
            asked += 1
            different += plays[0].texts[:1] != plays[1].texts[:1]
        yield Checked(asked, f"the dice of {name}")
        if different >= LEAST:
            yield Finding(
                f"{name}_action draws from a generator of the process (random, numpy.random), and not from the one that it is "
                f"handed: at {different} of {asked} tasks it says something else by that. A baseline cannot be had again. Draw from rng",
                severity=NOTE,
            )
            return


def _goes_by_the_hidden(given: CheckInput) -> Iterator[RuleResult]:
    """At the same first prompt it says otherwise by what chance will bring, whatever its own generator draws."""
    if not given.by_chance or "solver" not in given.own:
        return
    hidden: list[tuple[Task, list[str]]] = []
    tasks = given.tasks[:TASKS]
    for task in tasks:
        by_seed: list[set[str]] = []
        shown: set[str] = set()
        for number in range(CHANCES):
            seed = seed_of("check-env", "hidden", number)
            first = [_first_action(given, task, seed, dice) for dice in range(DICE)]
            shown |= {opening for opening, _ in first}
            by_seed.append({text for _, text in first})
            if len(by_seed[-1]) > 1:
                break
        decided = all(len(texts) == 1 for texts in by_seed)
        different = sorted(set().union(*by_seed))
        if decided and len(shown) == 1 and len(different) > 1:
            hidden.append((task, different))
    yield Checked(len(tasks), "a solver that goes by what is shown")
    if len(hidden) >= LEAST:
        task, different = hidden[0]
        yield Finding(
            f"the solver knows what chance will bring: at {len(hidden)} of {len(tasks)} tasks, {task.id!r} for one, its first action "
            f"is another one by dynamics_seed ({shortened(' or '.join(different), 60)}), while the prompt is the same and its own "
            "generator changes nothing. It reads what no policy is shown (cards to come, drawn numbers), so what a policy is "
            "compared with cannot be reached. Let it decide by what was shown, or draw what is hidden anew with its rng",
            severity=NOTE,
        )


def _is_beaten(given: CheckInput) -> Iterator[RuleResult]:
    """Random play earns more than the solver at many tasks, where chance decides nothing."""
    if given.by_chance or set(given.own) != {"solver", "random"}:
        return
    best: dict[str, dict[str, float]] = defaultdict(dict)
    for name, trajectories in given.own.items():
        for played in trajectories:
            if played.reward is not None:
                known = best[played.task.id].get(name, float("-inf"))
                best[played.task.id][name] = max(known, played.reward)
    both = {task: paid for task, paid in best.items() if len(paid) == 2}
    beaten = [task for task, paid in both.items() if paid["random"] > paid["solver"] + NEAR]
    yield Checked(len(both), "solver and random play by task")
    if len(both) >= LEAST and len(beaten) >= max(LEAST, BEATEN * len(both)):
        task = beaten[0]
        yield Finding(
            f"random play earns more than the solver at {len(beaten)} of {len(both)} tasks, {best[task]['random']:.3g} and "
            f"{best[task]['solver']:.3g} at {task!r} for one: the solver solves another problem than this one (that of another "
            "task, from a cache; a cost that is not paid here), or is none. What a policy is compared with is too low",
            severity=NOTE,
        )


def _always_the_same(given: CheckInput) -> Iterator[RuleResult]:
    """Random play says one text at every task and turn; others are understood, too."""
    random = given.acted("random")
    times: Counter[str] = Counter()
    for one in random:
        times.update(one.texts)
    others: set[str] = set()
    for one in given.own.get("solver", ()):
        others.update(one.texts)
    others -= set(times)
    yield Checked(len(random), "random play")
    if len(random) >= ENOUGH and len(times) == 1 and len(others) >= 2:
        (text,) = times
        yield Finding(
            f"random play always says {shortened(text, 60)}, in all {times.total()} turns; the solver says "
            f"{len(others)} other texts. A baseline by chance draws among all actions: rng.choice(actions)",
            severity=NOTE,
        )


def _never_says(given: CheckInput) -> Iterator[RuleResult]:
    """Of a world with few actions: one that the solver often takes, random play never does."""
    by_name: dict[str, Counter[str]] = {}
    for name, trajectories in given.own.items():
        by_name[name] = Counter()
        for one in trajectories:
            by_name[name].update(one.texts)
    random, solver = (by_name.get(name, Counter()) for name in ("random", "solver"))
    few = 2 <= len(random) <= VOCABULARY and 2 <= len(solver) <= VOCABULARY
    if not few or random.total() < TURNS or len(random.keys() & solver.keys()) < 2:
        return
    yield Checked(random.total(), "actions of random play")
    # By chance alone it would have said each of them several times.
    missing = [text for text, times in solver.items() if times >= LEAST and text not in random]
    if missing:
        yield Finding(
            f"random play never says {shortened(missing[0], 50)} in {random.total()} turns, which the solver says {solver[missing[0]]} times; it says "
            f"{len(random)} other texts. Where it is a legal action, an index is off by one (integers(n - 1)), or it is left out of the list: the random "
            "baseline is another one than it is called",
            severity=NOTE,
        )


def _is_refused(given: CheckInput) -> Iterator[RuleResult]:
    """Random play writes what the environment cannot read, and the solver does not."""
    turns, refused = _refused(given.own.get("random", ()))
    solver_turns, solver_refused = _refused(given.own.get("solver", ()))
    yield Checked(turns, "the form of random play")
    if turns < TURNS // 2 or len(refused) < REFUSED * turns:
        return
    if len(solver_refused) > REFUSED / 10 * solver_turns:
        return
    yield Finding(
        f"{len(refused) / turns:.0%} of what random play says in {turns} turns is not understood (info['valid_format'] is false), such as "
        f"{shortened(repr(refused[0]), 60)}: what it draws from is not what may be said (an index off by one, another set of names), and the "
        "baseline by chance is weaker than chance. Draw among legal actions",
        severity=NOTE,
    )


def _refused(trajectories: Sequence[PlayedTrajectory]) -> tuple[int, list[str]]:
    """How many texts an environment said of whether they could be read, and those that could not."""
    is_valid = [
        (text, result.info.get("valid_format"))
        for one in trajectories
        for text, result in zip(one.texts, one.results)
    ]
    judged = [(text, valid) for text, valid in is_valid if isinstance(valid, bool)]
    return len(judged), [text for text, valid in judged if not valid]


def _never_solves(given: CheckInput) -> Iterator[RuleResult]:
    """Where chance decides nothing the solver solves some tasks of several turns, and others not."""
    solver = [one for one in given.own.get("solver", ()) if one.success is not None]
    if given.by_chance or given.family.max_turns < 2:
        return
    failed, solved = _tasks_by_success(solver)
    if len(failed) == 1 and len(solved) >= ENOUGH:  # it may be the only one, or one of many
        further, others = _tasks_by_success(_solver_at_more(given))
        failed += further
        solved += others
    asked = len(failed) + len(solved)
    yield Checked(asked, "tasks that the solver solves")
    if asked >= ENOUGH and len(failed) >= 2 and len(failed) <= (1 - UNSOLVED) * asked:
        yield Finding(
            f"the solver solves {len(solved)} of {asked} tasks and fails at the others, "
            f"{failed[0]!r} for one, where chance decides nothing: either those cannot be solved "
            "(a board of the wrong parity, a goal out of reach, too few turns), teach nothing "
            "and bound every policy's success, or the solver is none. Draw tasks backwards from "
            "their end, or leave out what it cannot solve",
            severity=NOTE,
        )


def _solver_at_more(given: CheckInput) -> list[PlayedTrajectory]:
    """Of its trajectories at further tasks those whose success is known."""
    further = [*given.further_tasks(MORE, "unsolved")]
    played = given.play("solver", given.family.solver_action, further)
    return [one for one in played if one.success is not None]


def _fails_where(given: CheckInput) -> Iterator[RuleResult]:
    """The solver never succeeds where a value of the payload is one of a few, and mostly does
    elsewhere."""
    played = [one for one in given.own.get("solver", ()) if one.success is not None]
    if len(played) < 2 * ENOUGH or not 0 < _successes(played) < len(played):
        return
    if given.by_chance:
        played += _solver_at_more(given)
    yield Checked(len(played), "tasks by the values of their payload")
    for name in without_its_seed(played[0].task):
        by_value: dict[str, list[PlayedTrajectory]] = {}
        for one in played:
            by_value.setdefault(str(one.task.payload.get(name)), []).append(one)
        for value, here in sorted(by_value.items()) if 2 <= len(by_value) <= KINDS else ():
            elsewhere = [one for one in played if one not in here]
            if _only_here_it_fails(here, elsewhere):
                yield _fails_there(name, value, here, elsewhere)
                return


def _only_here_it_fails(
    here: Sequence[PlayedTrajectory], elsewhere: Sequence[PlayedTrajectory]
) -> bool:
    if any(one.success for one in here) or len(here) < ENOUGH:
        return False
    tasks = {one.task.id for one in here}
    return len(tasks) >= LEAST and _successes(elsewhere) >= MOSTLY * len(elsewhere)


def _successes(played: Sequence[PlayedTrajectory]) -> int:
    return sum(bool(one.success) for one in played)


def _fails_there(
    name: str,
    value: str,
    here: Sequence[PlayedTrajectory],
    elsewhere: Sequence[PlayedTrajectory],
) -> Finding:
    return Finding(
        f"the solver never succeeds at tasks whose {name!r} is {shortened(value, 40)} (0 of "
        f"{len(here)} trajectories, {here[0].task.id!r} for one), and at {_successes(elsewhere)} "
        f"of {len(elsewhere)} elsewhere: those cannot be solved, or what is done there is not "
        "judged as it is elsewhere (a reward from another player's view, a name that is spelled "
        "otherwise). A policy learns the opposite there, or nothing",
        severity=NOTE,
    )


def _tasks_by_success(played: Sequence[PlayedTrajectory]) -> tuple[list[str], list[str]]:
    """(tasks that were never solved, tasks that were)"""
    by_task: dict[str, bool] = {}
    for one in played:
        by_task[one.task.id] = by_task.get(one.task.id, False) or bool(one.success)
    tasks: tuple[list[str], list[str]] = ([], [])
    for task, is_solved in by_task.items():
        tasks[is_solved].append(task)
    return tasks


def _knows_too_much(given: CheckInput) -> Iterator[RuleResult]:
    """Of one answer: random play is right far more often than one of so many texts can be."""
    family: Any = given.family
    if family.max_turns != 1 or set(given.own) != {"solver", "random"}:
        return
    right = 0
    expected = 0.0
    asked = 0
    for task in given.tasks[:TASKS]:
        plays = []
        for number in range(DRAWS):
            rng = rng_at("check-env", "random", task.id, number)
            plays.append(play(family, task, 0, lambda env, rng=rng: family.random_action(env, rng)))
        different = {one.texts[0] for one in plays if one.texts}
        successes = {one.texts[0] for one in plays if one.texts and one.success}
        if len(different) < FEWEST or len(successes) > 1:
            continue  # few to choose from; or several are right
        asked += len(plays)
        right += sum(bool(one.success) for one in plays)
        expected += len(plays) / len(different)
    yield Checked(asked, "random play at one task")
    if asked >= LEAST * DRAWS and right >= TOO_OFTEN * expected and right >= 0.2 * asked:
        yield Finding(
            f"random play is right at {right} of {asked} tries at the same tasks, where one of the texts that it says there would be right at {expected:.0f}: it "
            "goes by the right answer (its gold, or a list that holds it several times), and is no play by chance. What a policy is compared "
            "with is too high. Draw evenly among all answers",
            severity=NOTE,
        )
