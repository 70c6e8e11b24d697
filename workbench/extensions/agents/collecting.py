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
from workbench.extensions.agents.messages import RefusedCall
from workbench.extensions.agents.program import RETURNED, ProgramTask
from workbench.extensions.agents.runner import BegunAttempt, EndedAttempt, Happening, ProgramRunner
from workbench.extensions.agents.scoring import AttemptScores, ScoredAttempt
from workbench.extensions.agents.tree import CallTree, TreeCall
from workbench.rollouts.collect import Collector, RewardCollector, finished_turn
from workbench.rollouts.config import GREEDY, CollectConfig
from workbench.tools.formats import Hermes
from workbench.values import StepResult, StopReason, Trajectory, Turn
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
        trajectory = self.trajectories.get(call.attempt.key)
        if trajectory is None or trajectory.result is not None or call.answer.done():
            return
        tree = trajectory.conversation
        try:
            if len(tree.calls) >= self.family.max_turns:
                raise RefusedCall(
                    400,
                    "most_calls",
                    f"a trajectory has at most {self.family.max_turns} calls (env.most_calls)",
                )
            asked = tree.ask(call.asked)
            self.submit(trajectory, call, asked)
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
        sampling = GREEDY if trajectory.greedy else self.sampling_of(call, asked)
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
        elif hasattr(self.engine, "note"):  # a witness of what was sampled
            self.engine.note(request, known)
        self.sampling[request.id] = trajectory
        self.asked[request.id] = (call, asked, request)
        if known is not None:
            self.answered(known)

    def sampling_of(self, call: HttpCall, asked: TreeCall) -> dict[str, float]:
        """How a call is sampled; what the program asked for is kept with it."""
        sampling = {"temperature": self.config.temperature, "top_p": self.config.top_p}
        for name in sampling:
            wanted = getattr(call.asked, name)
            if wanted is not None:
                sampling[name] = wanted
                asked.facts[name] = wanted
        if call.asked.most_tokens is not None:
            asked.facts["most_tokens"] = call.asked.most_tokens
        if call.asked.noted:
            asked.facts["not_followed"] = dict(call.asked.noted)
        return sampling

    # -- what the engine does

    def on_completion(self, completion: Completion) -> None:
        request = self.asked[completion.request_id][2]
        if completion.finish != "error":
            self.journal.store(request, completion)  # before anybody is told
        self.answered(completion)

    def answered(self, completion: Completion) -> None:
        trajectory = self.sampling.pop(completion.request_id)
        call, asked, _ = self.asked.pop(completion.request_id)
        if trajectory.result is not None:
            return
        if completion.finish == "error":
            refused = RefusedCall(500, "engine_error", completion.error or "nothing was sampled")
            call.answer.set_exception(refused)
            self.end(trajectory, StopReason.ENGINE_ERROR, completion.error)
            return
        given = trajectory.conversation.answer(asked, completion)
        if not call.answer.done():
            call.answer.set_result(given)
        if call.repeats:
            asked.facts["repeats"] = call.repeats
        ended = self.ending.get(trajectory.key)
        if ended is not None and trajectory not in self.sampling.values():
            self.conclude(trajectory, self.ending.pop(trajectory.key))

    # -- the end

    def conclude(self, trajectory: Any, ended: EndedAttempt) -> None:
        """Its program is over, and all its calls are answered."""
        if trajectory.result is not None:
            return
        tree = trajectory.conversation
        reason = ended.reason
        error = ended.error
        answered = tree is not None and bool(tree.answered)
        if ended.result is not None and not answered:
            reason = StopReason.ENV_ERROR
            error = "agent_silent: the program ended without one call that was answered"
        trajectory.turns = [] if tree is None else tree.turns()
        if ended.result is not None and answered:
            try:
                number, paid = _paid(trajectory.turns, ended.result)
                trajectory.turns[number] = paid
                self.earned[trajectory.key] = ended.result
            except WorkbenchError as refused:
                reason = StopReason.ENV_ERROR
                error = str(refused)
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
        tree = trajectory.conversation
        for segment in range(0 if tree is None else tree.num_segments):
            self.engine.release(f"{trajectory.key}/{segment}")

    def abandon(self) -> None:
        super().abandon()
        self.runner.shutdown()


def _paid(turns: Sequence[Turn], result: StepResult) -> tuple[int, Turn]:
    """(number, turn) of the call that said what was returned, else of the newest, with what the environment says of it. Raises
    EnvError or StoreError for a result that is none."""
    answer = result.info.get("answer")
    by_time = sorted(turns, key=lambda turn: turn.info["call"]["number"], reverse=True)
    saying = (turn for turn in by_time if isinstance(answer, str) and answer in turn.text)
    turn = next(saying, by_time[0])
    paid = finished_turn(turn, result)
    info = {**paid.info, **turn.info}
    return turn.index, replace(paid, reply=turn.reply, info=info, reward=0.0, reward_parts={})


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
    return replace(trajectory, outcome=sum(parts.values()), outcome_parts=parts, success=success)


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
