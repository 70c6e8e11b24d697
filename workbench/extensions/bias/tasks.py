"""Tasks so small that every trajectory can be written down, and the policy gradient is a sum over all of them.

A policy is a table: in each node of a tree of decisions one token is drawn from a softmax over a few choices. The logit
of a node's first choice is held at zero, so the parameters (the logits of the other choices, node after node) say each
thing once. An outcome is one whole trajectory: its tokens turn by turn, what each turn paid, and the chance with which the
environment lets it happen, given the tokens.

    stop_continue   two turns; only the second one pays, and only who continues gets there
    bandit          one turn; a safe arm, and a risky one that pays more on average but rarely
    three_turns     rewards in every turn, states that are met again, a segment per turn; the earlier turn pays later
    lengths         one turn; a short answer of one token, or a long one of four that earns more

Axis letters: K turns · D parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, product
from math import log, prod

from workbench.values.errors import DataError


@dataclass(frozen=True)
class Node:
    """A decision: one token out of `choices`. `logits` are those of all choices but the first, whose logit is 0."""

    name: str
    choices: tuple[str, ...]
    logits: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.logits) != len(self.choices) - 1:
            raise DataError(
                f"node {self.name!r} has {len(self.choices)} choices, so {len(self.choices) - 1} free "
                f"logits, got {len(self.logits)}"
            )


@dataclass(frozen=True)
class TaskTurn:
    """One turn of an outcome: (node, choice) per token, what the turn paid, and the state it was taken in."""

    tokens: tuple[tuple[str, str], ...]
    reward: float
    state: str


@dataclass(frozen=True)
class TaskOutcome:
    """One whole trajectory, and the probability of the environment's part in it; `drawn` numbers what the environment had
    drawn before the first token, where that is told apart (`told_apart`)."""

    steps: tuple[TaskTurn, ...]
    chance: float = 1.0
    drawn: int = 0

    def worth(self, gamma: float) -> float:
        """sum over turns of gamma^k times what turn k paid"""
        return sum(gamma**k * step.reward for k, step in enumerate(self.steps))


@dataclass(frozen=True)
class ExactTask:
    """A task, its policy, and all there is to know about them.

    `fresh`: every turn stands in a segment of its own, as where a history is rewritten; else a trajectory is one segment.
    """

    name: str
    label: str
    nodes: tuple[Node, ...]
    outcomes: tuple[TaskOutcome, ...]
    fresh: bool = False

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the free logits are called, in their order [D]."""
        names = []
        for node in self.nodes:
            names += [f"{node.name}: {choice}" for choice in node.choices[1:]]
        return tuple(names)


def logit(probability: float) -> float:
    return log(probability / (1 - probability))


# ------------------------------------------------------------------------------------------------ the tasks


def stop_continue(continues: float = 0.574442516811659) -> ExactTask:
    """Stop (nothing is paid) or continue to a second turn (1 is paid). J = p gamma, dJ/dlogit = gamma p (1 - p).

    The default is a logit of 0.3: the gradient is 0.2445 at gamma = 1. Nothing in the first turn's *rewards*, and
    nothing among those who reached the second turn, tells one trajectory from another; only their whole returns do.
    """
    nodes = (Node("first", ("stop", "continue"), (logit(continues),)), Node("second", ("answer",)))
    stop = TaskOutcome((TaskTurn((("first", "stop"),), 0.0, "first"),))
    both = TaskOutcome(
        (
            TaskTurn((("first", "continue"),), 0.0, "first"),
            TaskTurn((("second", "answer"),), 1.0, "second"),
        )
    )
    return ExactTask("stop_continue", "stop or continue", nodes, (stop, both))


def bandit(safe_payout: float, risky: float = 0.3, risky_chance: float = 0.25) -> ExactTask:
    """The safe arm pays `safe_payout`, the risky one 1 with probability `risky_chance`, else nothing; the policy pulls
    the risky one with probability `risky`. dJ/dlogit = p (1 - p) (chance - safe), whatever gamma.

    Source: RAGEN (arXiv 2504.20073): the paper says 0.15, its code 0.1.
    """
    node = Node("arm", ("safe", "risky"), (logit(risky),))

    def pull(arm: str, payout: float, chance: float = 1.0) -> TaskOutcome:
        return TaskOutcome((TaskTurn((("arm", arm),), payout, "arms"),), chance)

    outcomes = (
        pull("safe", safe_payout),
        pull("risky", 1.0, risky_chance),
        pull("risky", 0.0, 1 - risky_chance),
    )
    return ExactTask(
        f"bandit-{safe_payout:g}", f"bandit, safe arm {safe_payout:g}", (node,), outcomes
    )


def lengths(goes_long: float = 0.4, careful: float = 0.6, short_payout: float = 0.4) -> ExactTask:
    """A short answer is one token and pays `short_payout`; a long one is four tokens and pays 1 if its second token is
    "careful", else nothing. J = (1 - p) s + p u: dJ/dlogit_p = p (1 - p) (u - s), dJ/dlogit_u = u (1 - u) p.

    Everything happens in one turn, so a mean over tokens gives a long answer four times the say of a short one.
    """
    nodes = (
        Node("start", ("short", "long"), (logit(goes_long),)),
        Node("effort", ("careless", "careful"), (logit(careful),)),
        Node("filler", ("more",)),
    )

    def answer(effort: str, payout: float) -> TaskOutcome:
        tokens = (("start", "long"), ("effort", effort), ("filler", "more"), ("filler", "more"))
        return TaskOutcome((TaskTurn(tokens, payout, "question"),))

    short = TaskOutcome((TaskTurn((("start", "short"),), short_payout, "question"),))
    return ExactTask(
        "lengths", "short or long", nodes, (short, answer("careful", 1.0), answer("careless", 0.0))
    )


# Of three_turns: what a turn pays.
REST_LOW = 0.1
REST_HIGH = 1.0
REST = {"low": REST_LOW, "high": REST_HIGH}
CLIMB = -0.3


def three_turns(climbs_low: float = 0.35, climbs_high: float = 0.2) -> ExactTask:
    """Three turns, each in the state "low" or "high" and each paid: climbing costs 0.3 and leads high, resting pays 0.1
    below and 1 above and leads low; the first turn is low. What a climb is good for is paid a turn later.

    Two parameters, shared by the turns: p = P(climb | low), q = P(climb | high). Climbing takes two tokens, of which
    only the first is a choice. Trajectories meet in the same states in the same turns: anchors for GiGPO.
    """
    nodes = (
        Node("low", ("rest", "climb"), (logit(climbs_low),)),
        Node("high", ("rest", "climb"), (logit(climbs_high),)),
        Node("effort", ("effort",)),
    )

    def outcome(climbs: tuple[bool, ...]) -> TaskOutcome:
        steps = []
        state = "low"
        for up in climbs:
            if up:
                steps.append(TaskTurn(((state, "climb"), ("effort", "effort")), CLIMB, state))
            else:
                steps.append(TaskTurn(((state, "rest"),), REST[state], state))
            state = "high" if up else "low"
        return TaskOutcome(tuple(steps))

    return ExactTask(
        "three_turns",
        "three turns",
        nodes,
        tuple(map(outcome, product((False, True), repeat=3))),
        fresh=True,
    )


def told_apart(task: ExactTask) -> ExactTask:
    """The same task, whose environment draws all it will draw before the first token: one outcome for each such draw and each
    way to choose. Nothing that a policy can see or earn is another; but a critic may be told of the draw."""
    ways: dict[tuple, list[TaskOutcome]] = {}
    for outcome in task.outcomes:
        tokens = tuple(chain.from_iterable(step.tokens for step in outcome.steps))
        ways.setdefault(tokens, []).append(outcome)
    outcomes = []
    for number, draw in enumerate(product(*ways.values())):
        chance = prod(outcome.chance for outcome in draw)
        outcomes += [replace(outcome, chance=chance, drawn=number) for outcome in draw]
    return replace(task, outcomes=tuple(outcomes))


SAFE_PAYOUTS = (0.1, 0.15)  # of RAGEN's code and of its paper
TASKS = {
    task.name: task
    for task in (stop_continue(), *map(bandit, SAFE_PAYOUTS), three_turns(), lengths())
}
