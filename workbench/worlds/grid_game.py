"""What FrozenLake and Sokoban have in common: an answer of several moves on a grid, within limits, and its reply.

An answer that cannot be read does nothing and pays `format_penalty`. Of one that can, the first `max_moves_per_action`
moves are carried out, until the trajectory is over. A game says what a move does, what it pays, and how its state looks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from workbench.basics.settings import Inert
from workbench.tools.action_format import (
    ParsedAction,
    format_action,
    limit_notice,
    parse_action,
    refusal,
    user_message,
)
from workbench.values import Observation, StepResult, Text, sum_of
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds import reasoning
from workbench.worlds.game_settings import check_game


class GridFamily:
    """What the families have in common; their fields hold the settings of `game_settings`."""

    moves: ClassVar[tuple[str, ...]]  # by the names that an answer gives them
    standard: ClassVar[
        str
    ]  # the symbols that levels are written in, in the order of the setting `symbols`
    cells: ClassVar[str]  # what they mean, in the same order

    def __post_init__(self) -> None:
        check_game(self)
        if not len(self.symbols) == len(set(self.symbols)) == len(self.standard) or any(
            not symbol.isprintable() or symbol.isspace() for symbol in self.symbols
        ):
            raise ConfigError(
                f"{type(self).__name__}.symbols are {len(self.standard)} different visible characters "
                f"({self.standard!r}: {self.cells}), got {self.symbols!r}"
            )

    def in_symbols(self, text: str) -> str:
        """A text of standard symbols in this family's own."""
        return text.translate(str.maketrans(self.standard, self.symbols))

    def inert_settings(self) -> list[Inert]:
        """Settings that cannot act beside the others."""
        return [
            Inert(
                "max_moves_per_action",
                self.max_moves_per_action > self.max_moves,
                "env.max_moves ends the trajectory before that many moves are made",
            )
        ]

    @property
    def moves_per_answer(self) -> int:
        """As many as can be carried out."""
        return min(self.max_moves_per_action, self.max_moves)

    @property
    def limits(self) -> str:
        """The moves and the limits that are enforced, for the prompt."""
        return (
            f"Moves: {', '.join(self.moves)}. Limits: {self.max_moves} moves in all, {self.moves_per_answer} per "
            f"answer, {self.max_turns} answers.\n"
        )

    @property
    def label_of_limits(self) -> str:
        return f"{self.max_moves} moves, {self.max_moves_per_action} per answer, {self.max_turns} answers"

    @property
    def label_of_rest(self) -> str:
        """Symbols and pay for reasoning, where they are not the usual ones."""
        symbols = "" if self.symbols == self.standard else f", symbols {self.symbols}"
        return symbols + reasoning.label(self.reasoning_bonus)

    @property
    def example(self) -> str:
        """How an answer looks."""
        return format_action(
            ("Right", "Down")[: self.moves_per_answer], think=self.think, thought="plan"
        )


class GridEnv(ABC):
    """One trajectory. Holds nothing but numbers and strings: picklable, and rebuilt by (family, task, dynamics_seed)."""

    reward_parts: ClassVar[
        tuple[str, ...]
    ]  # what a turn pays for, in the order in which it is added up

    def __init__(self, family: Any) -> None:
        self.family = family
        self.moves_used = 0
        self.turns = 0
        self.finished = True

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        self.turns += 1
        parsed = parse_action(action_text, self.family.moves, think=self.family.think)
        parts = dict.fromkeys(self.reward_parts, 0.0)
        if not parsed.valid:
            parts["format"] = float(self.family.format_penalty)
            notices = refusal(parsed.complaint, parsed.quote, self.family.example)
            return self._result(notices, parts, [], parsed, [self._position()])
        wanted = parsed.moves[: self.family.max_moves_per_action]
        done: list[str] = []
        positions = [self._position()]
        for move in wanted:
            for part, paid in self._move(self.family.moves.index(move)).items():
                parts[part] += paid
            self.moves_used += 1
            self.finished = self._over() or self.moves_used >= self.family.max_moves
            done.append(move)
            positions.append(self._position())
            if self.finished:
                break
        # Moves left over because the trajectory ended need no word; those beyond the limit do.
        notices = [] if self.finished else limit_notice(len(wanted), len(parsed.moves))
        return self._result(notices, parts | self._price(len(done)), done, parsed, positions)

    def _result(
        self,
        notices: Sequence[Text],
        parts: dict[str, float],
        done: list[str],
        parsed: ParsedAction,
        positions: Sequence[Any],
    ) -> StepResult:
        agreement = ""  # of an answer that could not be read
        if self.family.think and parsed.valid:
            agreement = reasoning.verdict(self._statements(parsed.thought, positions[0]))
        bonus = self.family.reasoning_bonus
        if bonus:
            parts = parts | {"reasoning": reasoning.payment(agreement, bonus)}
        reward = sum_of(parts.values())
        texts = list(notices)
        if self.family.show_rewards:
            texts.append(Text(f"Reward: {reward:g}\n"))
        info = {
            "success": self._won(),
            "moves": done,
            "effective": self._effective(positions),
            "valid_format": parsed.valid,
            "complaint": parsed.complaint,
            "asked_moves": len(parsed.moves),
            **self._facts(positions[0]),
            "moves_left": self._moves_left(),
        }
        if agreement:
            info["reasoning"] = agreement
        return StepResult(
            user_message(*texts, Text(self._state_words())),
            reward,
            parts,
            self._over(),
            self.finished and not self._over(),
            info,
        )

    def _begun(self) -> Observation:
        """Nothing is used up yet; the first observation."""
        self.moves_used = 0
        self.turns = 0
        self.finished = False
        return user_message(Text(self.family.instructions, trusted=True), Text(self._state_words()))

    def _moves_left(self) -> int:
        return self.family.max_moves - self.moves_used

    def _counters(self) -> dict[str, Any]:
        """The part of a snapshot that both games have."""
        return {"moves_used": self.moves_used, "turns": self.turns, "finished": self.finished}

    def _set_counters(self, snapshot: Mapping[str, Any]) -> None:
        self.moves_used = snapshot["moves_used"]
        self.turns = snapshot["turns"]
        self.finished = snapshot["finished"]

    # -------------------------------------------------------------------------------------------- what a game says

    @abstractmethod
    def _position(self) -> Any:
        """The state that moves change, as a value."""

    @abstractmethod
    def _move(self, move: int) -> Mapping[str, float]:
        """Carry out one move; what it pays, by part of the reward."""

    def _price(self, count: int) -> Mapping[str, float]:
        """The price of `count` moves, whatever they do."""
        return {}

    def _effective(self, positions: Sequence[Any]) -> bool:
        """Whether the moves did anything, by the positions before them and after each of them."""
        return positions[-1] != positions[0]

    @abstractmethod
    def _won(self) -> bool: ...

    def _over(self) -> bool:
        """Whether the game itself has ended, rather than its moves."""
        return self._won()

    @abstractmethod
    def _statements(self, thought: str, before: Any) -> list[bool]:
        """Which statements of a thought are true, in the position in which it was thought."""

    @abstractmethod
    def _facts(self, before: Any) -> dict[str, Any]:
        """The game's own part of a turn's info."""

    @abstractmethod
    def _state_words(self) -> str:
        """How the state is shown to the agent."""
