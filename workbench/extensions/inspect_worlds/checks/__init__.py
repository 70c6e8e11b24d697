"""Playing an environment to see what is wrong with it: `workbench check-env NAME`.

    report = check_family(Guessing())      EnvReport: findings and how to fix them, what play earns, what a step costs

What it finds it has seen: trajectories that part, a reward that was paid, a limit that ended them. What cannot be seen here (no
solver, no tokenizer, an environment that is not the same twice) is said to be not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import (
    Answer,
    Finding,
    LintReport,
    NotChecked,
    RuleResult,
    answered,
    heard_out,
)
from workbench.extensions.inspect_worlds.checks.chance import (
    check_chance,
    check_isolation,
    check_replays,
)
from workbench.extensions.inspect_worlds.checks.clock import check_clock
from workbench.extensions.inspect_worlds.checks.earned import check_rewards, check_success
from workbench.extensions.inspect_worlds.checks.edges import check_other_side
from workbench.extensions.inspect_worlds.checks.ends import (
    check_bad_texts,
    check_ends,
    check_limits,
)
from workbench.extensions.inspect_worlds.checks.farm import (
    PolicyEstimate,
    all_earned,
    check_farming,
)
from workbench.extensions.inspect_worlds.checks.felt import check_felt
from workbench.extensions.inspect_worlds.checks.idle_settings import check_settings_do
from workbench.extensions.inspect_worlds.checks.late import check_keys, check_replies
from workbench.extensions.inspect_worlds.checks.order import check_order
from workbench.extensions.inspect_worlds.checks.players import check_players
from workbench.extensions.inspect_worlds.checks.reached import check_pitfalls, check_reached
from workbench.extensions.inspect_worlds.checks.scores import check_scores
from workbench.extensions.inspect_worlds.checks.stated_chance import check_stated_chance
from workbench.extensions.inspect_worlds.checks.swallowed import check_swallowed
from workbench.extensions.inspect_worlds.checks.upkeep import (
    StepCost,
    check_cost,
    check_left_behind,
    check_workers,
    cost_of,
)
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.words import TextPath
from workbench.values import Observation
from workbench.worlds.base import EnvFamily
from workbench.worlds.baselines import BASELINES, NONE_KNOWN


class EnvCheck(NamedTuple):
    """A check of an environment, with what a finding of it means and how to fix it."""

    id: str
    title: str
    means: str
    mend: str
    check: Callable[[CheckInput], Iterator[RuleResult]]


def _of_another(
    table: str, missing: str, check_id: str
) -> Callable[[CheckInput], Iterator[RuleResult]]:
    """A check that another extension has, in a table by ids."""

    def check(given: CheckInput) -> Iterator[RuleResult]:
        if not has_service(table):
            yield NotChecked(missing)
            return
        yield from service(table, "workbench check-env")[check_id](given)

    return check


_of_tasks = partial(
    _of_another, "task_checks", "the extension inspect_tasks, which looks at tasks and answers"
)
_of_replies = partial(
    _of_another,
    "reply_checks",
    "the extension inspect_replies, which compares words with what happens",
)


def _beside_replies(
    check_id: str, *own: Callable[[CheckInput], Iterator[RuleResult]]
) -> Callable[[CheckInput], Iterator[RuleResult]]:
    """Checks of this extension, then those of `inspect_replies`."""

    def check(given: CheckInput) -> Iterator[RuleResult]:
        for look in (*own, _of_replies(check_id)):
            yield from look(given)

    return check


_of_tools = partial(_of_another, "tool_checks", "the extension inspect_tools, which calls tools")


CHECKS: tuple[EnvCheck, ...] = (
    EnvCheck(
        "E1",
        "a task is a function of its seed",
        "the same step draws other tasks in another process or after a resume, and "
        "a stored trajectory cannot be played again",
        "Draw everything in task(task_seed) from rng_at('my_env', task_seed) (workbench.values.seeds), put plain JSON values "
        "that make the problem into the payload, and read nothing else in reset.",
        _of_tasks("E1"),
    ),
    EnvCheck(
        "E2",
        "held-out tasks are not training tasks",
        "evaluation tells what was remembered, not what was learned",
        "Let split_of(task) decide by what the task asks (content_split of workbench.worlds.splits), never by its seed.",
        _of_tasks("E2"),
    ),
    EnvCheck(
        "E3",
        "the same task, chance and actions go the same way",
        "a group compares trajectories of different problems; what was stored cannot be replayed",
        "Draw all chance from rng_at('my_env', dynamics_seed, turn) or a generator made of "
        "dynamics_seed in reset; let the first observation depend on the task alone. Of an environment that cannot be the "
        "same twice, the family says deterministic = False.",
        check_replays,
    ),
    EnvCheck(
        "E4",
        "chance comes from dynamics_seed",
        "trajectories of a group differ in nothing but the policy's words, and luck "
        "belongs to the task: no baseline averages over it",
        "Seed what is drawn in step() with dynamics_seed, and draw what "
        "belongs to the problem in task(task_seed). Use a generator of the environment's own, never random or numpy.random.",
        check_chance,
    ),
    EnvCheck(
        "E5",
        "trajectories do not act on each other",
        "replies and rewards belong to somebody else's actions",
        "Make everything that changes in __init__ or reset, never in the class, the module or the family.",
        check_isolation,
    ),
    EnvCheck(
        "E6",
        "what is shown can be read",
        "tokens are spent on codes that say nothing, and foreign text acts in a terminal",
        "Strip or translate codes where the observation is built; decode bytes with their own encoding.",
        _of_tasks("E6"),
    ),
    EnvCheck(
        "E7",
        "every observation says something, in a role that it may have",
        "the policy answers nobody, or is shown words as its own that it did not sample",
        "End every observation with a message by 'user' (or 'tool', after a call) that "
        "says what is the case now.",
        _of_tasks("E7"),
    ),
    EnvCheck(
        "E8",
        "prompts fit the context",
        "trajectories end without a turn, or in the middle",
        "Shorten prompts and replies, or raise collect.max_context.",
        _of_tasks("E8"),
    ),
    EnvCheck(
        "E9",
        "no answer is shown before it is earned",
        "the policy is paid for reading it off: success rises at once, and "
        "nothing of it is left elsewhere",
        "Keep the answer out of prompts, refusals and hints; info is for people and is "
        "shown to no policy.",
        _of_tasks("E9"),
    ),
    EnvCheck(
        "E10",
        "success is said, and agrees with the reward",
        "what is learned is not what is reported",
        "Put info={'success': bool} into every StepResult, true from where the task is solved on, and pay most for it.",
        check_success,
    ),
    EnvCheck(
        "E11",
        "rewards are numbers, within their bounds",
        "a trajectory ends as a fault, or one outlier decides the update",
        "Return a finite number, or None where the reward could not be computed; let reward_parts sum to it; state the "
        "bounds of a whole trajectory as reward_range = (low, high), or fix what exceeds them.",
        check_rewards,
    ),
    EnvCheck(
        "E12",
        "the reward cannot be farmed",
        "the policy will find it: its return rises and it solves nothing",
        "Pay for what solves the task, once; compare the whole answer and not words in it; pay nothing for form, length or "
        "turns alone, or far less than for success.",
        check_farming,
    ),
    EnvCheck(
        "E13",
        "a trajectory ends, once",
        "trajectories go on after they are over, and turns are paid that mean nothing",
        "Return terminated=True with the last reward, and raise EnvError in a step after it.",
        _beside_replies("E13", check_ends),
    ),
    EnvCheck(
        "E14",
        "limits are said, and are the real ones",
        "the policy is cut off by something that it could not know",
        "State the number of answers and moves in the first prompt, from the same settings that enforce them.",
        check_limits,
    ),
    EnvCheck(
        "E15",
        "bad texts are answered, not raised",
        "early in training most trajectories would be faults, without a reward",
        "Say in words what was expected; quote the policy's words in a Text that is not trusted.",
        check_bad_texts,
    ),
    EnvCheck(
        "E16",
        "time and memory",
        "training waits for the environment, or runs out of memory",
        "Make what is costly once for each family (functools.cache), keep nothing of a trajectory in class or module, and "
        "step slow ones in workers.",
        check_cost,
    ),
    EnvCheck(
        "E17",
        "what a trajectory held is given back",
        "the machine runs out of threads, processes or files in the middle of a "
        "run, or the process never ends",
        "Define close(): end threads and processes that the trajectory started, close files "
        "and connections.",
        check_left_behind,
    ),
    EnvCheck(
        "E18",
        "worker processes can run it",
        "collect.env_runner = 'processes' fails, or plays something else",
        "Define the family in a file, as a frozen dataclass whose fields are plain values; use no hash() of a text and no "
        "order of a set.",
        check_workers,
    ),
    EnvCheck(
        "E19",
        "the solver's words are paid, harmless variations of them too, and wrong ones are not",
        "a right answer earns nothing because of a line break, so that format is learned and not the task, or nothing at "
        "all; or every answer earns",
        "Read answers by searching for them, white space stripped; or say what may vary: may_vary = ('spaces', 'line "
        "breaks', 'full stop', 'case', 'prose'), those that the world accepts, () for none. Plain words are always paid.",
        _of_tasks("E19"),
    ),
    EnvCheck(
        "E20",
        "rewards do not go by the clock",
        "a busy machine teaches something else, and no reward can be had again",
        "Pay for turns, moves or tokens in place of seconds; where the time belongs to the task, draw it in task(task_seed).",
        check_clock,
    ),
    EnvCheck(
        "E21",
        "a score that could not be computed is none",
        "right answers are taught to be wrong while a server is down or a program crashes, and a curve shows a dip",
        "Let score or step raise, or return None as the reward: the trajectory is left out (invariant 5). Catch what a wrong "
        "answer raises, and nothing else.",
        check_swallowed,
    ),
    EnvCheck(
        "E22",
        "what was played before changes nothing",
        "replies and rewards depend on who asked before, so a group compares what cannot be compared",
        "Make what changes in reset, or in the __init__ of a tool's class; a cache's key holds all that the answer depends on.",
        check_order,
    ),
    EnvCheck(
        "E23",
        "a reply shows what its action did",
        "the policy always acts on a state that is one action old",
        "Change the state first and build the observation after it; say in the prompt if replies are delayed.",
        check_replies,
    ),
    EnvCheck(
        "E24",
        "a state key names one state",
        "turns of different states are compared as if they were one (GiGPO), and what is told of states is wrong",
        "Put all that the rest of the trajectory depends on into state_key().",
        check_keys,
    ),
    EnvCheck(
        "E25",
        "the baselines play the game",
        "what a policy is compared with is lower than it should be, or a move that the world names is never made",
        "Let random_action and solver_action write in the format that step reads, and decide by the state where they stand; "
        "compare whole words.",
        check_players,
    ),
    EnvCheck(
        "E26",
        "a score goes by what the policy wrote",
        "what is paid is not what was done, or failures are left out of everything that is counted",
        "Score trajectory.turns[-1].text, whatever it is: zero for what is wrong or cannot be read, None only where the score "
        "itself failed.",
        check_scores,
    ),
    EnvCheck(
        "E27",
        "a wrong answer is not paid like the right one",
        "the policy learns what is easier than the task: to list, to begin an answer, to copy the question",
        "Compare the whole answer with the right one after strip() and what may_vary says; numbers by their value, lists item by "
        "item with their length.",
        _of_tasks("E27"),
    ),
    EnvCheck(
        "E28",
        "tools do what they say",
        "the policy is told of what is not there, and learns to leave it out or to call again in vain",
        "Hold a tool's description and schema against its code: parameters, defaults, limits, order.",
        _of_tools("E28"),
    ),
    EnvCheck(
        "E29",
        "each turn is paid what it earned, and each part of it can be felt",
        "credit goes to a turn that did nothing for it, or a part of the reward is there and changes nothing",
        "Compute a turn's reward from the state before and after its own action; look at the scale of its parts.",
        check_felt,
    ),
    EnvCheck(
        "E30",
        "a right answer may be written as the prompt writes",
        "who follows the prompt's own example is told that a right answer is wrong, and learns the form that the code expects",
        "Compare numbers by their value and words without case; or let the prompt's example have the form that is read.",
        _of_tasks("E30"),
    ),
    EnvCheck(
        "E31",
        "what is shown is what is the case",
        "the policy decides by numbers that are not so, reads the answer off an example, or is asked what no text says",
        "Build observations last, from the state that the next action meets; draw examples from other problems; keep what answers "
        "when a text is cut.",
        _of_replies("E31"),
    ),
    EnvCheck(
        "E32",
        "words say what happens",
        "who does what the prompt and the replies say goes the wrong way; the baselines, which go by the code, notice nothing",
        "Let one table have a word and what it does; try each word by hand against what is shown afterwards.",
        _beside_replies("E32", check_other_side, check_stated_chance),
    ),
    EnvCheck(
        "E33",
        "what is right is called right",
        "a policy that is right is told that it is wrong, or the other way round, and no curve shows it",
        "Make the gold answer by a second way and compare; judge what was asked for in place of comparing with one solution.",
        _of_tasks("E33"),
    ),
    EnvCheck(
        "E34",
        "a setting does something",
        "runs are compared that differ in nothing",
        "Use each field of the family where it belongs, or leave it out; make what a prompt says of the same field.",
        check_settings_do,
    ),
    EnvCheck(
        "E35",
        "every branch of the code is taken by some play",
        "a rule, a part of the reward or an answer that stands in the code never happens",
        "Play by hand what should take the branch; correct the condition or the name by which it is looked up, or take it out.",
        check_reached,
    ),
    EnvCheck(
        "E36",
        "expressions do what they look like",
        "a scorer takes what is wrong, a draw leaves something out, a cost is not paid",
        "Write it so that it says what you mean: strict=True, brackets, abs(), removeprefix().",
        check_pitfalls,
    ),
)


@dataclass(frozen=True)
class EnvReport:
    """Findings and measurements of an environment. `baselines`: name -> "none known", of those that the family does not have."""

    findings: LintReport
    earned: tuple[PolicyEstimate, ...] = ()
    cost: StepCost | None = None
    baselines: dict[str, str] | None = None
    problems: tuple[int, int] = (0, 0)  # different ones, of so many tasks

    @property
    def ok(self) -> bool:
        """No error; notes are no error."""
        return self.findings.ok


def check_family(
    family: EnvFamily,
    *,
    count_tokens: Callable[[Observation], int] | None = None,
    max_context: int | None = None,
    max_turn_tokens: int = 0,
    tasks: int = 12,
    budget_s: float = 3.0,
    way: TextPath = TextPath(),
    only: tuple[str, ...] = (),
) -> EnvReport:
    """Play `family` and ask every check (or those of `only`, by id).

    `count_tokens(observation)`: tokens of a prompt that begins with it; with `max_context` and `max_turn_tokens` it says
    whether prompts fit. `tasks`: how many are played; `budget_s`: seconds for each way to play. `way`: from a policy's words to the world.
    """
    # A family may have questions of its own: what a program of somebody's does, say.
    checks = (*CHECKS, *getattr(family, "own_checks", tuple)())
    given = CheckInput(family, count_tokens, max_context, max_turn_tokens, tasks, budget_s, way)
    about = f"{getattr(family, 'label', family.name)}: {tasks} tasks"
    missing = {name: NONE_KNOWN for name in BASELINES if name not in given.baselines}
    try:
        given.tasks
    except Exception as error:
        first = CHECKS[0]
        what = Finding(f"task(task_seed) raises: {type(error).__name__}: {error}")
        return EnvReport(LintReport((_answer(first, [what]),), about), baselines=missing)
    answers = tuple(
        _answer(check, heard_out(check.check, given, "the check itself failed"))
        for check in checks
        if not only or check.id in only
    )
    return EnvReport(
        LintReport(answers, about),
        tuple(all_earned(given)),
        cost_of(given),
        missing,
        (len(set(given.problems)), len(given.tasks)),
    )


def _answer(check: EnvCheck, results: list[RuleResult]) -> Answer:
    return answered(check.id, check.title, results, (), check.means, check.mend)
