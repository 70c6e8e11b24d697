"""An opponent that sees what is hidden from it (E32): its choice goes by the policy's choice of the same moment, or by cards that only the
policy is shown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    is_number,
    play,
    replay,
    text_of,
)
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of

AT_ONCE = re.compile(
    r"\bat the same (?:time|moment)\b|\bat once\b|\bsimultaneous\w*|\bsecret\w*|\bsealed\b"
    r"|\bwithout (?:seeing|knowing)\b|\bface down\b|"
    r"\bneither (?:of us )?(?:sees|knows)\b|\bcannot see\b|\bcan't see\b|\bhidden\b"
    r"|\bblind(?:ly)?\b",
    re.IGNORECASE,
)
CHOICE_AT_ONCE = re.compile(
    r"\bat the same (?:time|moment)\b|\bsimultaneous\w*|\bsealed\b|\bsecret(?:ly)?\b|\b(?:choose"
    r"|pick|bid|decide|play)s? (?:\w+ )?(?:blind(?:ly)?|hidden)\b",
    re.IGNORECASE,
)
WHO = (
    r"(?:I|we|they|it|he|she|(?:the |my |your |our )?(?:opponent|rival|other(?: (?:player|side"
    r"|bidder|one))?|computer|house|dealer|bot|enemy|adversary|goalkeeper|keeper|machine|second "
    r"player))"
)
DID = (
    r"(?:chose|choose|chooses|plays?|played|picks?|picked|shows?|showed|bids?|threw|throws?"
    r"|takes?|took|bet|bets|hid|hides?|guess(?:ed|es)?|went|goes|dives?|dived|jumps?|jumped"
    r"|calls?|folds?|raises?|cooperates?|defects?|cooperated|defected)"
)
THEIRS = re.compile(rf"(?<!\w){WHO}\s*(?::|{DID})\s*:?\s*(?P<what>[A-Za-z]+|\d+)?", re.IGNORECASE)
VERB = re.compile(
    rf"(?<!\w){WHO}\s+(?P<verb>calls?|folds?|raises?|cooperates?|defects?)\b", re.IGNORECASE
)
STATES = 24
FEWEST = 3
MOST_ACTIONS = 4
PLAYS = 160
CHOSEN = 25  # plays in which one choice was made


def check_seen_through(given: CheckInput) -> Iterator[RuleResult]:
    """Where both choose at once, the other's choice is the same whatever is chosen here."""
    if given.why_not_played(baselines=True) is not None or not AT_ONCE.search(given.first_prompt):
        return
    actions = given.common_actions(MOST_ACTIONS)
    if len(actions) < 2:
        return
    if CHOICE_AT_ONCE.search(given.first_prompt):
        matching = list(_reacts(given, actions))
        yield from matching
        if any(isinstance(result, Finding) for result in matching):
            return
    yield from _foretells(given)


def choice_of(text: str) -> str:
    """What a reply says that the other side chose; "" for nothing."""
    if verb := _verb_in(text):
        return verb
    match = THEIRS.search(text)
    return (match["what"] or "").lower() if match else ""


def _verb_in(text: str) -> str:
    match = VERB.search(text)
    return match["verb"].lower().rstrip("s") if match else ""


def _reacts(given: CheckInput, actions: Sequence[str]) -> Iterator[RuleResult]:
    """The same task, chance and past, and another action: the other side's choice of that turn is another one."""
    differ: list[tuple[PlayedTrajectory, int, dict[str, str]]] = []
    asked = 0
    spent = Spent()
    for played in _states(given):
        for k in range(min(len(played.results), 2)):
            if spent.seconds > given.budget_s / 2 or asked >= STATES:
                break
            choices: dict[str, str] = {}
            for action in (*actions, played.texts[k]):
                texts = (*played.texts[:k], action)
                again = replay(given.family, played.script._replace(texts=texts))
                if not again.error and len(again.results) == k + 1:
                    choice = choice_of(text_of(again.results[k].observation))
                    if choice:
                        choices[action] = choice
            if len(choices) < 2:
                continue
            asked += 1
            if len(set(choices.values())) > 1:
                differ.append((played, k, choices))
    yield Checked(asked, "choices that are made at once")
    if len(differ) >= FEWEST and 4 * len(differ) >= asked:
        played, k, choices = differ[0]
        (one, its), (other, others) = _two(choices)
        yield Finding(
            f"both choose at the same time, says the prompt, and the other side's choice goes by "
            f"the policy's: at {played.task.id!r}, turn {k}, with the same "
            f"chance, {shortened(one, 30)} meets {its!r} and {shortened(other, 30)} "
            f"meets {others!r}, so in {len(differ)} of {asked} states. It sees what "
            "is hidden from it, and no policy can do what the prompt's game allows. Draw its "
            "choice before the action is read",
            severity=ERROR,
        )


def _two(choices: dict[str, str]) -> tuple[tuple[str, str], tuple[str, str]]:
    first = next(iter(choices.items()))
    return first, next(item for item in choices.items() if item[1] != first[1])


def _states(given: CheckInput) -> Iterator[PlayedTrajectory]:
    for trajectories in given.own.values():
        yield from [one for one in trajectories if one.results and not one.error][:STATES]


def _foretells(given: CheckInput) -> Iterator[RuleResult]:
    """By random play: one choice of the other side is always followed by a loss, and another one never hides a win."""
    if "random" not in given.own:
        return
    by_action = _rewards_by_choice(given)
    turns = sum(len(paid) for choices in by_action.values() for paid in choices.values())
    yield Checked(turns, "choices of the other side")
    for text, choices in by_action.items():
        enough = {choice: paid for choice, paid in choices.items() if len(paid) >= CHOSEN}
        lost = [choice for choice, paid in enough.items() if max(paid) < 0]
        if len(enough) >= 2 and len(lost) == 1:
            yield _foretold_loss(text, lost[0], len(enough[lost[0]]))
            return


def _rewards_by_choice(given: CheckInput) -> dict[str, dict[str, list[float]]]:
    """By random play: action -> the other side's choice in that turn -> the rewards of such turns."""
    family = given.family
    by_action: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    spent = Spent()
    for number in range(PLAYS):
        if spent.seconds > given.budget_s / 2:
            break
        task = given.tasks[number % len(given.tasks)]
        rng = rng_at("check-env", "foretold", task.id, number)
        seed = seed_of("check-env", "foretold", number)
        one = play(family, task, seed, lambda env, rng=rng: family.random_action(env, rng))
        for text, result in zip(one.texts, one.results):
            choice = _verb_in(text_of(result.observation))
            if choice and is_number(result.reward):
                by_action[text.strip()][choice].append(result.reward)
    return by_action


def _foretold_loss(text: str, choice: str, turns: int) -> Finding:
    return Finding(
        "what is hidden foretells nothing, says the prompt, and whenever the other side says "
        f"{choice!r} to {shortened(text, 30)!r} the policy has lost: in {turns} of {turns} such "
        "turns of random play (were it one in ten otherwise, that came about once in "
        f"{1 / 0.9**turns:.0f}). It may see the policy's cards. "
        "Decide its choice by what it is shown alone",
        severity=NOTE,
    )
