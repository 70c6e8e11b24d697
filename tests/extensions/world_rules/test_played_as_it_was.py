"""Right code is not called wrong: what is played again is played as it was, with its score, its deadline, and what an
environment knows at each turn. Each false alarm has a negative control that is still found."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest

from tests.extensions.world_rules.test_isolation import LAKE, recorded, replayed
from tests.extensions.world_rules.test_tool_results_rule import ask, played, said, where
from workbench.basics.findings import Finding, NotChecked
from workbench.extensions.inspect_worlds.checks import check_family
from workbench.extensions.scripted_play.playing import Script, script_of
from workbench.extensions.scripted_play.sharing import among_others, played_alone
from workbench.extensions.world_rules.evaluations import held_out
from workbench.linting import Evidence, all_rules, check
from workbench.linting.evidence import EvaluationFacts
from workbench.rollouts.config import CollectConfig
from workbench.rollouts.evaluate import evaluate_baselines, report
from workbench.values import Message, Observation, StepResult, StopReason, Task
from workbench.worlds import FrozenLake, baselines
from workbench.worlds.frozen_lake import FrozenLakeEnv
from workbench.worlds.rows import RowSettings
from workbench.worlds.runners import ThreadRunner
from workbench.worlds.tool_tasks import ToolTasks

RULES = all_rules()
SEED = 3
THREADS = CollectConfig(env_runner="threads", env_deadline_s=0.5)


def evaluated(family, runner=None) -> EvaluationFacts:
    """Random play and the solver at four held-out tasks, as an evaluation stores them."""
    scores = evaluate_baselines(held_out(family, 4), family=family, seed=SEED, runner=runner)
    return EvaluationFacts("step-00000000", 0, report(scores), {}, seed=SEED)


def with_row(facts: EvaluationFacts, policy: str, **changes) -> EvaluationFacts:
    rows = [
        dict(row) | (changes if row["policy"] == policy else {}) for row in facts.report["rows"]
    ]
    return facts._replace(report=dict(facts.report) | {"rows": rows})


def asked(facts: EvaluationFacts, family, collect=None):
    evidence = Evidence(evaluations=(facts,), family=family, collect=collect)
    return check(evidence, [RULES["R25"]])["R25"]


# ------------------------------------------------------------------------------------------------ with its score


class Guess:
    def reset(self, task, dynamics_seed):
        self.number = task.payload["number"]
        return Observation((Message("user", "Guess my number, 0 to 99. Say the number alone."),))

    def step(self, action_text):
        right = action_text.strip() == str(self.number)
        reply = "Right." if right else "Wrong, guess again."
        return StepResult(Observation((Message("user", reply),)), 0.0, terminated=right)


@dataclass(frozen=True)
class Judged:
    """Whether a guess was right is known to `score` alone."""

    max_turns: int = 5
    name: ClassVar[str] = "guess"

    def task(self, task_seed):
        return Task(f"guess/{task_seed}", "guess", task_seed, {"number": task_seed % 100})

    def make(self):
        return Guess()

    def random_action(self, env, rng):
        return str(rng.integers(100))

    def solver_action(self, env, rng):
        return str(env.number)

    async def score(self, trajectory):
        right = trajectory.turns[-1].text.strip() == str(trajectory.task.payload["number"])
        return {"judge": float(right), "success": right}


def test_a_baseline_that_is_judged_afterwards_is_judged_when_it_is_played_again():
    facts = evaluated(Judged())
    answer = asked(facts, Judged())
    assert not answer.findings and answer.looked == 8, answer


def test_negative_control_a_table_that_the_judge_contradicts():
    facts = with_row(evaluated(Judged()), "solver", by_task=[0.0, 1.0, 1.0, 1.0])
    (found,) = asked(facts, Judged()).errors
    assert "the table says 0, and played once more it is 1" in found.what


@dataclass(frozen=True)
class JudgedLake(FrozenLake):
    """The judge has the last word on success, whatever the environment said."""

    def score(self, trajectory):
        return {"judge": 1.0, "success": True}


def test_a_success_that_a_score_gave_is_no_contradiction_of_the_environment():
    """R20 and R29: the last turn says that it failed, the score that it succeeded."""
    groups = recorded()
    lost = next(t for group in groups for t in group if t.success is False)
    judged = ((replace(lost, success=True, outcome=1.0, outcome_parts={"judge": 1.0}),),)
    family = JudgedLake(**{own.name: getattr(LAKE, own.name) for own in fields(LAKE)})
    for answer in (
        replayed(judged, family),
        check(Evidence(judged, family=family), [RULES["R29"]])["R29"],
    ):
        assert not answer.errors and answer.looked, answer
    # Without a score the same is an error, by both.
    assert replayed(judged).errors
    assert check(Evidence(judged, family=LAKE), [RULES["R29"]])["R29"].errors


class Paying:
    """Pays in parts, moves, and owes something to who is cut by the limit on turns."""

    def reset(self, task, dynamics_seed):
        return Observation((Message("user", "Go."),))

    def step(self, action_text):
        return StepResult(
            Observation((Message("user", "On."),)),
            0.75,
            {"form": 0.25, "way": 0.5},
            info={"moves": ["on"], "success": False},
            if_cut={"late": -1.0},
        )


@dataclass(frozen=True)
class Paid:
    max_turns: int = 2
    name: ClassVar[str] = "paid"

    def task(self, task_seed):
        return Task(f"paid/{task_seed}", "paid", task_seed, {})

    def make(self):
        return Paying()


@dataclass(frozen=True)
class PaidByParts(Paid):
    def score(self, trajectory):
        parts = sum(turn.reward_parts["way"] + len(turn.moves) for turn in trajectory.turns)
        return {"read": parts + trajectory.outcome_parts["late"]}


def test_a_score_reads_of_a_baseline_what_it_reads_of_a_policy():
    result = baselines.play(PaidByParts(), PaidByParts().task(1), 0, lambda env: "")
    assert result.reward == 2 * 0.75 - 1.0 + (2 * (0.5 + 1) - 1.0)
    assert result.success is False


def test_a_limit_pays_a_baseline_what_it_pays_a_policy():
    assert baselines.play(Paid(), Paid().task(1), 0, lambda env: "").reward == 2 * 0.75 - 1.0


# ------------------------------------------------------------------------------------------------ with its deadline


class HangingEnv(FrozenLakeEnv):
    """Hangs in its second turn under odd seeds, where its family says so."""

    def step(self, action_text):
        if self.turns == 1 and self.family.hangs and self.dynamics_seed % 2:
            time.sleep(1.2)
        return super().step(action_text)


@dataclass(frozen=True)
class Hanging(FrozenLake):
    hangs: bool = True

    def make(self):
        env = HangingEnv(self)
        env.family = self
        return env


def test_a_baseline_has_the_deadline_that_it_had():
    """What hung then hangs again, and is no success either time."""
    runner = ThreadRunner(THREADS.env_deadline_s)
    try:
        facts = evaluated(Hanging(), runner)
    finally:
        runner.shutdown()
    (random,) = [row for row in facts.report["rows"] if row["policy"] == "random"]
    assert random["faults"]
    answer = asked(facts, Hanging(), THREADS)
    assert not answer.findings and answer.looked, answer


def test_a_difference_that_a_deadline_explains_is_named_as_such():
    """It hung then and does not now, as an overloaded server."""
    calm = Hanging(hangs=False)
    facts = with_row(evaluated(calm), "solver", by_task=[0.0, 1.0, 1.0, 1.0], faults=1)
    answer = asked(facts, calm, THREADS)
    assert not answer.findings and answer.status == "partly checked"
    assert any("it cut off 1 trajectories of solver play" in words for words in answer.missing)


@pytest.mark.parametrize(("faults", "collect"), [(0, THREADS), (1, None)])
def test_negative_control_a_difference_that_no_deadline_explains(faults, collect):
    calm = Hanging(hangs=False)
    facts = with_row(evaluated(calm), "solver", by_task=[0.0, 1.0, 1.0, 1.0], faults=faults)
    assert asked(facts, calm, collect).errors


def test_trajectories_that_a_runner_cuts_off_do_not_act_on_each_other():
    """R14 and E5: alone they had all the time that they wanted."""
    family = Hanging(hangs=False, slip=0.0)
    texts = tuple("<answer>Left</answer>" for _ in range(3))
    scripts = [Script(family.task(seed), seed, texts) for seed in (1, 3)]
    alone = played_alone(family, scripts)

    def beside_each_other():
        hanging = Hanging(slip=0.0)
        return list(among_others(lambda: ThreadRunner(0.4), hanging, scripts, alone, patience=9))

    (gap,) = beside_each_other()
    assert isinstance(gap, NotChecked) and "cut off 3 of 3 trajectories" in gap.missing
    # What differs before the deadline is found.
    alone[0][0] = (Observation((Message("user", "another opening"),)), None)
    assert any(isinstance(result, Finding) for result in beside_each_other())


def test_an_action_that_a_deadline_left_unanswered_is_not_waited_for_again():
    trajectory = recorded()[0][0]
    hung = replace(trajectory, stop_reason=StopReason.ENV_TIMEOUT)
    assert script_of(hung).texts == script_of(trajectory).texts[:-1]
    broken = replace(trajectory, stop_reason=StopReason.ENV_ERROR)
    assert script_of(broken).texts == script_of(trajectory).texts


def with_an_error(error: str):
    def change(turn):
        calls = turn.info.get("calls")
        tools = [message for message in turn.reply if message.role == "tool"]
        if not calls or len(calls) != 1 or len(tools) != 1 or calls[0].get("error"):
            return None
        reply = tuple(
            said(message, "Error: no answer within 5 s.") if message.role == "tool" else message
            for message in turn.reply
        )
        info = dict(turn.info) | {"calls": [dict(calls[0]) | {"error": error}]}
        parts = {name: value for name, value in turn.reward_parts.items() if name != "process"}
        return replace(turn, reply=reply, info=info, reward_parts=parts)

    return change


def test_a_call_that_a_deadline_cut_off_may_well_be_answered_another_time():
    answer = where(with_an_error("timeout"))
    assert not answer.errors and any("cut off 1 calls" in words for words in answer.missing)
    assert not ask(played()).missing


def test_negative_control_a_call_that_failed_of_itself_and_does_not_fail_again():
    assert where(with_an_error("")).errors


# ------------------------------------------------------------------------------------------------ what is known when


def by_the_answer(trajectory):
    return trajectory.answer == trajectory.row["answer"]


def after_a_call(trajectory):
    """Right is who calculated."""
    return bool(trajectory.calls) and by_the_answer(trajectory)


@pytest.fixture
def sums(tmp_path):
    """A data set of sums, as the documentation has it."""
    rows = [
        {"question": f"How many are {n} pears and {n} pears?", "answer": f"{2 * n} ripe pears"}
        for n in range(40)
    ]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ToolTasks(
        data=RowSettings(files=(str(path),)),
        tools=("calculator",),
        reward=f"{__name__}:by_the_answer",
    )


def test_success_that_a_reward_function_says_at_the_end_is_not_wanted_before(sums):
    """E10, of kind = "tools" with a reward: it is asked once, when the trajectory is over."""
    findings = check_family(sums, only=("E10",), budget_s=0.3).findings
    assert not findings.errors, findings.text


def test_negative_control_success_that_is_not_even_said_at_the_end(sums, monkeypatch):
    monkeypatch.setitem(globals(), "by_the_answer", lambda trajectory: 0.5)
    findings = check_family(sums, only=("E10",), budget_s=0.3).findings
    assert any("success" in finding.what for _, finding in findings.notes), findings.text


def test_a_gold_answer_is_right_only_where_answers_alone_are_judged(sums):
    """R30: a reward function may want more of who answers."""
    strict = replace(sums, reward=f"{__name__}:after_a_call")
    answer = check(Evidence(family=strict), [RULES["R30"]])["R30"]
    assert not [found for found in answer.errors if "gold answer" in found.what], answer.errors
    assert answer.looked
