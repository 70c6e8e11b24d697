"""Collecting where programs call: every call is a turn, and a trajectory is the tree of its calls.

The loop is the core's own (`rollouts.collect`): nothing waits for anything but itself. A call is stored before it is
answered; a trajectory ends when its program has, and every call of it that was under way is sampled to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from workbench.chat import ChatFormat
from workbench.engines.base import Completion, Engine, Request
from workbench.extensions.agents.gateway import HttpCall
from workbench.extensions.agents.messages import AskedCall, GivenAnswer, RefusedCall
from workbench.extensions.agents.program import RETURNED, ProgramTask
from workbench.extensions.agents.runner import BegunAttempt, EndedAttempt, Happening, ProgramRunner
from workbench.extensions.agents.scoring import AttemptScores, ScoredAttempt
from workbench.extensions.agents.stopping import cut_at_stop
from workbench.extensions.agents.tree import CallTree, TreeCall
from workbench.rollouts.collect import Collector, RewardCollector, finished_turn
from workbench.rollouts.config import GREEDY, CollectConfig
from workbench.tools.formats import Hermes
from workbench.values import Observation, StepResult, StopReason, Trajectory, Turn, sum_of
from workbench.values.errors import EngineError, WorkbenchError
from workbench.values.seeds import seed_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvRunner
from workbench.worlds.scoring import RewardRunner


class _Calls:
    """The part that is different, for both collectors of the core."""

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        family: EnvFamily,
        config: CollectConfig,
        address: tuple[int | str, ...],
        runner: EnvRunner,
        on_done: Callable[[Trajectory], None] | None,
    ) -> None:
        rules = family.rules(config.temperature, config.top_p)
        own = ProgramRunner(rules, family.idle_s)
        super().__init__(engine, chat, family, config, address, own, on_done)
        self.journal = family.kept.begin(address)
        # Request id -> what it is for.
        self.asked: dict[int, tuple[HttpCall, TreeCall, Request]] = {}
        self.ending: dict[str, EndedAttempt] = {}  # programs that are over, calls of which are not
        self.earned: dict[str, StepResult] = {}  # by trajectories that have ended

    # -- what programs do

    def on_answer(self, happening: Happening) -> None:
        if isinstance(happening, HttpCall):
            self.on_call(happening)
            return
        trajectory = self.trajectories[happening.key]
        if isinstance(happening, BegunAttempt):
            trajectory.first_observation = happening.observation
            trajectory.conversation = self.tree(trajectory, happening)
        elif any(waiting is trajectory for waiting in self.sampling.values()):
            self.ending[happening.key] = happening
        else:
            self.conclude(trajectory, happening)

    def tree(self, trajectory: Any, begun: BegunAttempt) -> CallTree:
        def id_of(number: int, what: str) -> str:
            address = (*self.address, "call id", trajectory.task.id, trajectory.number)
            return blake2b(repr((*address, number, what)).encode(), digest_size=12).hexdigest()

        return CallTree(
            self.chat,
            begun.format or Hermes(),
            context=self.context,
            id_of=id_of,
            issued=begun.observation.messages,
            thoughts_apart=self.family.thoughts == "apart",
            rules=self.family.conversations,
        )

    def on_call(self, call: HttpCall) -> None:
        """Several answers to one call are calls of the tree of their own: each is sampled behind the same prompt."""
        trajectory = self.trajectories.get(call.attempt.key)
        if trajectory is None or trajectory.result is not None or call.answer.done():
            return
        tree = trajectory.conversation
        try:
            if len(tree.calls) + call.asked.choices > self.family.max_turns:
                raise RefusedCall(
                    400,
                    "most_calls",
                    f"a trajectory has at most {self.family.max_turns} calls (env.most_calls)",
                )
            asked = [tree.ask(call.asked) for _ in range(call.asked.choices)]
            for choice in asked:
                self.submit(trajectory, call, choice)
        except RefusedCall as refused:
            call.answer.set_exception(refused)
        except (EngineError, WorkbenchError) as error:
            call.answer.set_exception(RefusedCall(500, "engine_error", str(error)))
            self.end(trajectory, StopReason.ENGINE_ERROR, str(error))

    def submit(self, trajectory: Any, call: HttpCall, asked: TreeCall) -> None:
        """Its seed names the call by its number: the first trajectory of a program that calls one after the other draws the
        same whenever it is sampled again."""
        room = self.context - len(asked.prompt_ids)
        most = min(self.config.max_turn_tokens, room, call.asked.most_tokens or room)
        sampling = {"temperature": self.config.temperature, "top_p": self.config.top_p}
        sampling |= followed_fields(call.asked, asked)
        if trajectory.greedy:
            sampling = GREEDY
        request = Request(
            id=self.requests,
            session=f"{trajectory.key}/{asked.segment}",
            prompt_ids=asked.prompt_ids,
            seed=seed_of(
                *self.address, "engine", trajectory.task.id, trajectory.number, asked.number
            ),
            max_new_tokens=most,
            stop_ids=self.chat.stop_ids,
            **sampling,
        )
        self.requests += 1
        known = self.journal.recall(request, self.engine.policy_version)
        if known is None:
            self.engine.submit(request)
        else:
            self.witness(request, known)
        self.sampling[request.id] = trajectory
        self.asked[request.id] = (call, asked, request)
        if known is not None:
            self.answered(known)

    def witness(self, request: Request, completion: Completion) -> None:
        """Tell who writes down what the engine says, where somebody does, of a turn that it did not say so."""
        if hasattr(self.engine, "note"):
            self.engine.note(request, completion)

    # -- what the engine does

    def on_completion(self, completion: Completion) -> None:
        if completion.request_id not in self.asked:  # of a trajectory that ended in this very poll
            return
        request = self.asked[completion.request_id][2]
        if completion.finish != "error":
            self.journal.store(request, completion)  # whole, and before anybody is told
        self.answered(completion)

    def answered(self, whole: Completion) -> None:
        trajectory = self.sampling.pop(whole.request_id)
        call, asked, request = self.asked.pop(whole.request_id)
        if trajectory.result is not None:
            return
        if whole.finish == "error":
            refused = RefusedCall(500, "engine_error", whole.error or "nothing was sampled")
            if not call.answer.done():
                call.answer.set_exception(refused)
            self.end(trajectory, StopReason.ENGINE_ERROR, whole.error)
            return
        completion = cut_at_stop(whole, call.asked.stops, self.chat.decode)
        if completion is not whole:  # the turn that an engine gives which is asked for so many
            size = len(completion.token_ids)
            self.witness(replace(request, max_new_tokens=size), completion)
        given = trajectory.conversation.answer(asked, completion)
        if given.stopped:
            asked.facts["stopped"] = given.stopped
        if call.repeats:
            asked.facts["repeats"] = call.repeats
        self.tell_program(call, asked.number, given)
        ended = self.ending.get(trajectory.key)
        if ended is not None and trajectory not in self.sampling.values():
            self.conclude(trajectory, self.ending.pop(trajectory.key))

    def tell_program(self, call: HttpCall, number: int, given: GivenAnswer) -> None:
        """Answer its call, once all the answers that it asked for are there, in the order of their numbers."""
        call.choices[number] = given
        if len(call.choices) < call.asked.choices or call.answer.done():
            return
        first, *others = [call.choices[number] for number in sorted(call.choices)]
        call.answer.set_result(replace(first, others=tuple(others)))

    # -- the end

    def conclude(self, trajectory: Any, ended: EndedAttempt) -> None:
        """Its program is over, and all its calls are answered."""
        if trajectory.result is not None:
            return
        tree = trajectory.conversation
        result = ended.result
        reason = ended.reason
        error = ended.error
        answered = tree is not None and bool(tree.answered)
        declared = answered and ended.failed and self.family.failed_reward is not None
        if declared:
            result = failed_result(self.family.failed_reward)
            reason = StopReason.TERMINATED
        if result is not None and not answered:
            reason = StopReason.ENV_ERROR
            error = "agent_silent: the program ended without one call that was answered"
        trajectory.turns = [] if tree is None else tree.turns()
        if result is not None and answered:
            try:
                number, paid = _paid(trajectory.turns, result)
                trajectory.turns[number] = paid
                self.earned[trajectory.key] = result
            except WorkbenchError as refused:
                reason = StopReason.ENV_ERROR
                error = str(refused)
        if declared:  # nothing is left to be scored
            self.stepping -= 1
            Collector.end(self, trajectory, reason, error)
            return
        self.end(trajectory, reason, error)

    def end(self, trajectory: Any, reason: StopReason, error: str | None = None) -> None:
        if trajectory.conversation is not None and not trajectory.turns:
            trajectory.turns = trajectory.conversation.turns()
        self.stepping -= 1
        super().end(trajectory, reason, error)

    def let_go(self, trajectory: Any) -> None:
        """Also: what a program returned is earned by the trajectory as a whole, whichever of its calls came last."""
        earned = self.earned.pop(trajectory.key, None)
        if earned is not None and trajectory.result is not None:
            trajectory.result = _with_outcome(trajectory.result, earned)
        self.runner.close(trajectory.key)
        # What it still has in the engine is dropped there, and never answered.
        under_way = [number for number, other in self.sampling.items() if other is trajectory]
        for number in under_way:
            del self.sampling[number]
            del self.asked[number]
        tree = trajectory.conversation
        for segment in range(0 if tree is None else tree.num_segments):
            self.engine.release(f"{trajectory.key}/{segment}")

    def abandon(self) -> None:
        super().abandon()
        self.runner.shutdown()


def followed_fields(asked: AskedCall, call: TreeCall) -> dict[str, float]:
    """The sampler's settings that the program decides. All that it asked for and that was followed is kept with the call."""
    sampling = {}
    for name in ("temperature", "top_p"):
        wanted = getattr(asked, name)
        if wanted is not None:
            sampling[name] = wanted
    facts: dict[str, Any] = dict(sampling)
    if asked.most_tokens is not None:
        facts["most_tokens"] = asked.most_tokens
    if asked.stops:
        facts["stops"] = list(asked.stops)
    if asked.choices > 1:
        facts["choices"] = asked.choices
    if not asked.reads_calls:
        facts["reads_calls"] = False
    if asked.noted:
        facts["not_followed"] = dict(asked.noted)
    call.facts |= facts
    return sampling


def _paid(turns: Sequence[Turn], result: StepResult) -> tuple[int, Turn]:
    """(number, turn) of the call that said what was returned, else of the newest, with what the environment says of it. Raises
    EnvError or StoreError for a result that is none."""
    answer = result.info.get("answer")
    by_time = sorted(turns, key=lambda turn: turn.info["call"]["number"], reverse=True)
    saying = (turn for turn in by_time if isinstance(answer, str) and answer in turn.text)
    turn = next(saying, by_time[0])
    paid = finished_turn(turn, result)
    info = {**paid.info, **turn.info}
    if (
        isinstance(answer, str) and answer not in turn.text
    ):  # the program's own words: no turn says them
        info["returned"] = info.pop("answer")
    return turn.index, replace(paid, reply=turn.reply, info=info, reward=0.0, reward_parts={})


def failed_result(reward: float) -> StepResult:
    """What a program that failed is paid, where that is declared."""
    info = {"success": False}
    return StepResult(Observation(()), reward, {"failed": reward}, terminated=True, info=info)


def _with_outcome(trajectory: Trajectory, earned: StepResult) -> Trajectory:
    """The trajectory with the program's result as its outcome; unscored where that could not be."""
    success = earned.info.get("success")
    if earned.reward is None:
        words = "what the program returned could not be scored"
        return replace(trajectory, scored=False, success=success, error=words)
    parts = dict(earned.reward_parts) or {"reward": earned.reward}
    if not earned.terminated:
        parts |= dict(earned.if_cut)
    parts = {name: float(part) for name, part in parts.items()}
    return replace(trajectory, outcome=sum_of(parts.values()), outcome_parts=parts, success=success)


class ProgramCollector(_Calls, Collector):
    """For families that pay as a program returns."""


class ScoredProgramCollector(_Calls, RewardCollector):
    """For families that score a trajectory once it has ended, and for programs whose attempts a function scores."""

    def __init__(self, engine: Engine, chat: ChatFormat, family: EnvFamily, *others: Any) -> None:
        super().__init__(engine, chat, family, *others)
        self.begun: dict[str, ProgramTask] = {}  # by trajectories under way
        self.attempts: dict[tuple[str, int], ScoredAttempt] = {}  # by task and number
        judge = family.judge()
        if judge is not None:
            self.runner.judged = True
            self.rewards = RewardRunner(AttemptScores(judge, self.attempts))

    def on_answer(self, happening: Happening) -> None:
        if isinstance(happening, BegunAttempt):
            self.begun[happening.key] = happening.task
        super().on_answer(happening)

    def conclude(self, trajectory: Any, ended: EndedAttempt) -> None:
        """Also: keep what the function is to see."""
        if self.runner.judged and ended.result is not None and trajectory.conversation is not None:
            self.attempts[trajectory.task.id, trajectory.number] = ScoredAttempt.of(
                self.begun[trajectory.key],
                trajectory.conversation,
                ended.returned,
                ended.reason.value,
            )
        super().conclude(trajectory, ended)

    def let_go(self, trajectory: Any) -> None:
        self.begun.pop(trajectory.key, None)
        earned = self.earned.get(trajectory.key)
        if earned is not None and RETURNED in earned.info:  # the function says what it earns
            del self.earned[trajectory.key]
        super().let_go(trajectory)
