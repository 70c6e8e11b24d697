"""Whether the family's own random play and solver play the game (E25), by what is answered to them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from workbench.basics.findings import (
    NOTE,
    Checked,
    Finding,
    NotChecked,
    RuleResult,
)
from workbench.extensions.inspect_worlds.checks.baselines_seen import check_baselines_seen
from workbench.extensions.inspect_worlds.checks.edges import check_random_range
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput
from workbench.extensions.scripted_play.paid import known_success
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    replay,
    shown_results,
    text_of,
)
from workbench.values.errors import shortened

LEAST = 4
SHORTEST = 3  # letters of a word that is no abbreviation
STATES = 6  # at which two words are compared
MOST_WORDS = 16


def check_players(given: CheckInput) -> Iterator[RuleResult]:
    """Random play is understood, each of its words is read as itself, and a solver looks at what came of its words."""
    if (why := given.why_not_played(baselines=True)) is not None:
        yield NotChecked(why)
        return
    yield from _never_understood(given)
    yield from _read_by_the_beginning(given)
    yield from _plays_blindly(given)
    yield from check_baselines_seen(given)
    yield from check_random_range(given)


# ------------------------------------------------------------------------------------------------ never understood


def _never_understood(given: CheckInput) -> Iterator[RuleResult]:
    """Every word of random play is answered as nonsense is, and a solver's word in the wrong place is not."""
    random = [
        played for played in given.own.get("random", ())[:8] if played.texts and not played.error
    ]
    solver = given.acted("solver")
    if len(random) < LEAST or len(solver) < LEAST:
        return
    for played in random:
        nonsense = replay(
            given.family, played.script._replace(texts=(NONSENSE,) * len(played.texts))
        )
        yield Checked(1, "random play")
        if _answers(played) != _answers(nonsense) and _answers(played, True) != _answers(
            nonsense, True
        ):
            return
    if _misplaced_are_understood(given, solver):
        played = random[0]
        yield Finding(
            f"random play is never understood: each of its words ({shortened(repr(played.texts[0]), 50)}) is answered as "
            f"{NONSENSE!r} is, {shortened(repr(text_of(played.results[0].observation)), 90)}, in {len(random)} of "
            f"{len(random)} trajectories, and the solver's words at other tasks are not. The random baseline is what an "
            "unreadable text earns. Let random_action write in the format that the environment reads (its tags)"
        )


def _misplaced_are_understood(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> bool:
    """Whether the solver's first words, said at another task, are mostly answered otherwise than nonsense is."""
    understood = 0
    asked = 0
    for one, other in zip(solver, [*solver[1:], solver[0]]):
        if one.task.id == other.task.id or one.texts[0] == other.texts[0] or other.success is False:
            continue
        script = Script(one.task, one.seed, other.texts[:1])
        misplaced = replay(given.family, script)
        nonsense = replay(given.family, script._replace(texts=(NONSENSE,)))
        asked += 1
        understood += not misplaced.success and _answers(misplaced) != _answers(nonsense)
    return asked >= LEAST and 2 * understood >= asked


def _answers(
    played: PlayedTrajectory, own_words: bool = False
) -> list[tuple[str, float | None, bool]]:
    """What was answered, without the policy's own words, or with them."""
    answers = []
    for text, result in zip(played.texts, shown_results(played)):
        shown = result.text if own_words or not text else result.text.replace(text, "")
        answers.append((shown, result.reward, result.terminated))
    return answers


# ------------------------------------------------------------------------------------------------ misread words


def _read_by_the_beginning(given: CheckInput) -> Iterator[RuleResult]:
    """A word that begins with another legal one does what that one does, everywhere."""
    words: dict[str, None] = {}
    for played in given.own.get("random", ()):
        words |= dict.fromkeys(played.texts)
    if not 2 <= len(words) <= MOST_WORDS:
        return
    pairs = []
    for word in words:
        shorter = [
            other
            for other in words
            if len(other) >= SHORTEST and word != other and word.startswith(other)
        ]
        pairs += [(max(shorter, key=len), word)] if shorter else []
    places = [played for played in given.own["random"] if len(played.texts) > 1][:STATES]
    if not pairs or len(places) < LEAST:
        return
    yield Checked(len(pairs), "words that begin alike")
    misread = [pair for pair in pairs if _does_the_same(given, *pair, places)]
    if misread:
        named = ", ".join(f"{word!r} as {other!r}" for other, word in misread[:4])
        yield Finding(
            f"actions are read by their beginning: {named}, in all of {len(places)} states, so that a word of the world's own "
            "is never carried out. Compare whole words, or try the longest first",
            severity="error" if len(misread) > 1 else NOTE,
        )


def _does_the_same(
    given: CheckInput, other: str, word: str, places: Sequence[PlayedTrajectory]
) -> bool:
    moved = 0
    for number, played in enumerate(places):
        k = number % len(played.texts)
        script = played.script._replace(texts=played.texts[:k])
        answered = {
            text: _answers(replay(given.family, script.then(text)))[k:]
            for text in (other, word, f"{other}zq", NONSENSE)
        }
        if not answered[other] == answered[word] == answered[f"{other}zq"]:
            return False
        moved += answered[other] != answered[NONSENSE]
    return 2 * moved >= len(places)


# ------------------------------------------------------------------------------------------------ a solver that does not look


def _plays_blindly(given: CheckInput) -> Iterator[RuleResult]:
    """By chance the world answers otherwise, and the solver goes on with the same words and fails."""
    solver = given.acted("solver")
    solved = known_success(solver)
    by_task: dict[str, list[PlayedTrajectory]] = defaultdict(list)
    for played in solver:
        by_task[played.task.id].append(played)
    blind = 0
    asked = 0
    for trajectories in by_task.values():
        if len(trajectories) < 2:
            continue
        one, other = trajectories[:2]
        shared = min(len(one.texts), len(other.texts))
        parted = _parted(one, other)
        if parted + 1 >= shared or len(set(one.texts[:shared])) < 2:
            continue
        asked += 1
        blind += one.texts[:shared] == other.texts[:shared]
    yield Checked(asked, "a solver that looks")
    fails = len(solved) >= LEAST and sum(solved) < 0.95 * len(solved)
    if asked >= LEAST and blind == asked and fails:
        yield Finding(
            f"the solver says the same words whatever came of them, at {asked} of {asked} tasks that chance answers otherwise, "
            f"and succeeds at {sum(solved) / len(solved):.0%}: it follows a plan made at the start, and a policy that looks "
            "may do better than the best known. Let solver_action decide by the state where it stands",
            severity=NOTE,
        )


def _parted(one: PlayedTrajectory, other: PlayedTrajectory) -> int:
    """The first turn whose replies differ."""
    for k, (a, b) in enumerate(zip(one.results, other.results)):
        if re.sub(r"\s+", " ", text_of(a.observation)) != re.sub(
            r"\s+", " ", text_of(b.observation)
        ):
            return k
    return max(len(one.results), len(other.results))
