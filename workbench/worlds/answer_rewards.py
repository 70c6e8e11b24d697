"""What a turn of a question with tools pays, and on which turn: every part lands on the turn that earned it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from workbench.basics.settings import at_least, at_most, check_settings, one_of
from workbench.tools.base import ToolResult
from workbench.tools.turns import ParsedTurn
from workbench.values import sum_of
from workbench.values.errors import ConfigError
from workbench.worlds.qa.answers import exact_match, f1


@dataclass(frozen=True)
class AnswerRewards:
    """Rewards of a question: what is paid for, and how much.

    Rule "agent-r1" is Eq. 6 of arXiv 2511.14460, all of it paid at the end: the exact match where every turn was in order
    and the last one an answer; else, whatever was answered, (answer in order + calls in order) / 2 - 1, each 0 or 1; so
    the values are -1, -0.5, 0 and 1.
    """

    answer: Annotated[
        str, one_of("em", "f1"), "em: 1 for an exact match, else 0; f1: the F1 over words"
    ] = "em"
    format_penalty: Annotated[
        float,
        at_most(0, why="more would pay for garbage"),
        "for a turn that is not wholly in order",
    ] = -0.1
    process: Annotated[
        float,
        at_least(0),
        "for each supporting document that a turn's calls bring for the first time",
    ] = 0.0
    no_answer: Annotated[
        float,
        at_most(0, why="more would pay for silence"),
        "where the turns run out without an answer",
    ] = 0.0
    rule: Annotated[
        str, one_of("sum", "agent-r1"), "sum: the parts as above; agent-r1: its paper's equation 6"
    ] = "sum"

    def __post_init__(self) -> None:
        check_settings(self, "rewards")
        if self.rule == "agent-r1":
            default = AnswerRewards()
            for name in ("answer", "format_penalty", "no_answer"):
                if getattr(self, name) != getattr(default, name):
                    raise ConfigError(
                        f"rewards.{name} has no effect under rewards.rule = 'agent-r1', which pays exact "
                        "match and format by its own formula; leave it out"
                    )

    def parts(
        self,
        parsed: ParsedTurn,
        results: Sequence[ToolResult],
        golds: Sequence[str],
        *,
        new_documents: int,
        in_order: bool,
        finished: bool,
    ) -> dict[str, float] | None:
        """The parts of a turn's reward; None where it is the last one and the answer is not known (invariant 5).

        `golds`: the gold answer and its aliases; `new_documents`: supporting ones that this turn found first;
        `in_order`: every turn before this one; `finished`: this is the last one.
        """
        if finished and not golds:
            return None
        if self.rule == "agent-r1":
            parts = {"answer": 0.0, "format": 0.0}
            if finished:
                parts = self._equation_6(parsed, golds, in_order)
        else:
            parts = {
                "answer": self._answer_value(parsed, golds) if finished else 0.0,
                "format": 0.0 if parsed.valid else float(self.format_penalty),
            }
        if self.process:
            parts["process"] = float(self.process * new_documents)
        paid_by_tools = [result.reward for result in results if result.reward is not None]
        if paid_by_tools:
            parts["tool"] = float(sum_of(paid_by_tools))
        return parts

    def if_cut(self, in_order: bool) -> dict[str, float]:
        """Rewards due for the missing answer, should the context be full before the turns run out: no way out of a
        penalty."""
        if self.rule == "agent-r1":
            return {"format": in_order / 2 - 1.0}
        return {"answer": float(self.no_answer)} if self.no_answer else {}

    def _equation_6(
        self, parsed: ParsedTurn, golds: Sequence[str], in_order: bool
    ) -> dict[str, float]:
        answers = parsed.answer is not None
        answer_in_order = answers and parsed.valid
        calls_in_order = in_order and (answers or parsed.valid)
        if answer_in_order and calls_in_order:
            return {"answer": float(exact_match(parsed.answer, golds)), "format": 0.0}
        return {"answer": 0.0, "format": (answer_in_order + calls_in_order) / 2 - 1.0}

    def _answer_value(self, parsed: ParsedTurn, golds: Sequence[str]) -> float:
        if parsed.answer is None:
            return float(self.no_answer)
        measure = exact_match if self.answer == "em" else f1
        return float(measure(parsed.answer, golds))
