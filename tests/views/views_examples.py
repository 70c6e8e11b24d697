"""Values to look at, written by hand: every piece of text that a view may meet can be replaced by a payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import grid_examples
import numpy as np

from workbench.basics.findings import NOTE, Answer, Finding, LintReport, Place
from workbench.extensions.agents.call_table import conversations
from workbench.extensions.engine_audit.view import show_mismatch
from workbench.extensions.interop.dumps import Imported, RawSequence
from workbench.extensions.interop.view import imported_view
from workbench.extensions.many_runs.table import RunRow, runs_view
from workbench.extensions.what_if.mask_switches import SwitchEffect, mask_switches_view
from workbench.extensions.what_if.retokenize import MaskDamage, TurnTwice, retokenized_view
from workbench.look import (
    config_view,
    credit_table_view,
    credit_view,
    curves_view,
    demo_view,
    evaluation_view,
    facts_view,
    group_view,
    groups_view,
    lint_view,
    observation_view,
    segment_view,
    show_masks,
    show_metrics,
    show_rows,
    show_tokens,
    task_view,
    text_view,
    trajectory_view,
    turn_view,
)
from workbench.look.cells.edits import Edit
from workbench.look.credit import Credited, estimators_view, failed_view
from workbench.look.pairs import pair_groups
from workbench.values import (
    CreditTable,
    Group,
    Message,
    Observation,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    View,
)

START = "P _ _ O\n_ O _ _\n_ _ _ _\nO _ _ G"
MIDDLE = "_ P _ O\n_ O _ _\n_ _ _ _\nO _ _ G"
END = "_ _ _ O\n_ O _ _\n_ _ _ _\nO _ _ √"

# What the tokens of the examples say: ids below 100 are one character each, 100 and up are control tokens.
CONTROL = {100: "<|im_start|>", 101: "<|im_end|>", 102: "\n"}


def token_texts(ids) -> list[str]:
    return [CONTROL.get(i) or chr(i) for i in ids]


def ids_of(text: str) -> list[int]:
    return [ord(c) for c in text]


def logprobs(count: int) -> np.ndarray:
    return -np.arange(1, count + 1, dtype=np.float32) / 8


def spans() -> tuple[Span, ...]:
    """Two turns: prompt, glue, action, reply, glue, action."""
    first, second = [*ids_of("Right"), 101], [*ids_of("D_wn"), 101]
    return (
        Span(Source.SCAFFOLD, 0, [100]),
        Span(Source.PROMPT, 0, ids_of("Go P to G")),
        Span(Source.SCAFFOLD, 0, [101, 102, 100]),
        Span(Source.POLICY, 0, first, logprobs(len(first)), policy_version=3, sampled=True),
        Span(Source.SCAFFOLD, 0, [102, 100]),
        Span(Source.ENV, 0, ids_of("ok, P2")),
        Span(Source.SCAFFOLD, 1, [101, 100]),
        Span(Source.POLICY, 1, second, logprobs(len(second)), policy_version=3, sampled=True),
    )


def rewritten() -> tuple[Segment, ...]:
    """A history rewritten after the first turn: the second segment shows the first action again."""
    first = spans()[:4]
    again = Span(Source.POLICY, 0, first[-1].token_ids)
    return Segment(first), Segment(
        (spans()[0], Span(Source.PROMPT, 0, ids_of("Short")), again, spans()[5], spans()[7])
    )


def trajectory(
    text: str = "go on",
    *,
    attempt: int = 0,
    success: bool | None = True,
    segments=None,
    stop: StopReason = StopReason.TERMINATED,
    error: str | None = None,
) -> Trajectory:
    """Two turns on a lake, the first one complained about; `text` stands wherever foreign text may stand."""
    turns = (
        Turn(
            0,
            f"<think>{text}</think>{text}",
            "length",
            (),
            (),
            (Message("user", f"{text}\n{START}\nMoves left: 10"),),
            -0.1,
            {"goal": 0.0, f"format{text}": -0.1},
            None,
            {
                "valid_format": False,
                "complaint": f"The tag <answer> is missing: {text}",
                "moves": [],
                "state": START,
            },
        ),
        Turn(
            1,
            f"<think>{text}</think>{text}<answer>Right || {text}</answer>",
            "stop",
            ("Right", text),
            (ToolCall(text, {"query": text}),),
            (Message("tool", f"{text}\n{END}", name=text),),
            1.0 if success else 0.0,
            {"goal": 1.0 if success else 0.0},
            None,
            {"valid_format": True, "moves": ["Right", text], "state": END, "success": success},
        ),
    )
    told = f"Go from P to G. {text}\n{START}\nMoves left: 10"
    observation = Observation((Message("system", text), Message("user", told)))
    return Trajectory(
        Task(f"lake/{text}", "frozenlake", 7),
        attempt,
        attempt,
        observation,
        turns,
        segments or (Segment(spans()),),
        stop,
        success=success,
        error=error,
    )


def of_a_program(text: str = "go on") -> Trajectory:
    """Two calls of a program: the second one tells the past in other words, in a conversation of its own."""
    began = {"number": 0, "way": "root", "conversation": text}
    differs = {"message": 1, "role": "assistant", "character": 2, "was": text, "is": f"{text}!"}
    forked = {
        "number": 1,
        "way": "fork",
        "from": 0,
        "conversation": f"sums {text}",
        "differs": differs,
        "temperature": 0.5,
    }
    made = trajectory(text, segments=rewritten())
    calls = (began, forked)
    turns = tuple(
        replace(turn, info={"call": call}) for turn, call in zip(made.turns, calls, strict=True)
    )
    return replace(made, turns=turns)


def no_grid(text: str = "go on") -> Trajectory:
    """An environment without grids, scored at the end, that broke."""
    turn = Turn(
        0, f"<tool>{text}", "stop", (), (), (Message("user", f"found: {text}"),), None, {}, None, {}
    )
    return Trajectory(
        Task(f"search/{text}", "search", 1),
        0,
        0,
        Observation((Message("user", f"Who? {text}"),)),
        (turn,),
        (Segment(spans()),),
        StopReason.ENV_ERROR,
        outcome=0.5,
        outcome_parts={f"judge{text}": 0.5},
        error=f"Traceback: {text}",
    )


def group(text: str = "go on") -> Group:
    faulty = trajectory(
        text, attempt=3, success=None, stop=StopReason.ENV_TIMEOUT, error=f"late: {text}"
    )
    return Group(
        (
            trajectory(text),
            trajectory(text, attempt=1, success=False, stop=StopReason.MAX_TURNS),
            trajectory(text, attempt=2, success=None, stop=StopReason.CONTEXT_FULL),
            faulty,
        )
    )


def credit_table() -> CreditTable:
    """Two trajectories in one table; the second one is the example, its last action has weight 0."""
    segment = Segment(spans())
    eligible = segment.eligible
    weight = np.where(eligible & (segment.turns == 0), 1.0, 0.0)
    advantage = np.where(eligible, np.where(segment.turns == 0, 1.25, -0.5), np.nan)
    ratio = np.where(eligible, 1.5, np.nan).astype(np.float32)
    one = {
        "advantage": advantage,
        "weight": weight,
        "ratio": ratio,
        "clip_state": eligible.astype(np.int8),
    }
    columns = {name: np.concatenate([column, column]) for name, column in one.items()}
    columns["trajectory"] = np.repeat(np.array([0, 1], np.int32), len(segment))
    return CreditTable(4, 0, columns)


def score(policy: str, mode: str, success: float, **more) -> dict:
    return {
        "policy": policy,
        "mode": mode,
        "n": 512,
        "success": success,
        "success_low": success - 0.04,
        "success_high": success + 0.04,
        "reward": success - 0.02,
        "turns": 3.25,
        "tokens": None,
        "valid_format": None,
        "faults": 0,
        **more,
    }


def baseline_rows() -> list[dict]:
    return [
        score("random", "sampled", 0.21),
        score("solver", "greedy", 0.93),
        score("untrained", "sampled", 0.30, tokens=31.0, valid_format=0.97),
        score("untrained", "greedy", 0.38),
    ]


def pair(a: str = "untrained sampled", b: str = "trained sampled") -> dict:
    return {"a": a, "b": b, "difference": 0.33, "low": 0.28, "high": 0.38, "n": 512}


def steps(count: int = 24) -> list[dict]:
    return [
        {
            "step": s,
            "success": 0.2 + s / 60,
            "reward_mean": s / 40,
            "entropy": 1 / s,
            "grad_norm": float(s % 5 + 1),
            "reward_std_in_group": None if s == 3 else 0.3,
            "valid_format": 0.9,
        }
        for s in range(1, count + 1)
    ]


def evaluations(text: str = "trained") -> dict[str, dict]:
    later = [*baseline_rows(), score(text, "sampled", 0.55), score(text, "greedy", 0.58)]
    return {
        "step-00000000": {"step": 0, "rows": baseline_rows()},
        "step-00000024": {"step": 24, "rows": later},
    }


def demo_table(text: str = "trained") -> dict:
    one = {
        "seed": 0,
        "learned": True,
        "checks": {f"rises {text}": True},
        "rise": pair(b=text),
        "training_cpu_seconds": 201.4,
        "rows": [
            *baseline_rows(),
            score("trained", "sampled", 0.55),
            score("trained", "greedy", 0.58),
        ],
        "rivals": [
            {
                "name": f"no tool {text}",
                "rows": [*baseline_rows(), score("trained", "sampled", 0.01)],
            }
        ],
    }
    other = {**one, "seed": text, "learned": False, "checks": {f"rises {text}": False}}
    return {"learned": False, "seeds": [one, other]}


def credited(change: float = 0.0) -> Credited:
    """Credit of the example group: the first trajectory +1.25 (and `change`) in its first turn, the last one filtered."""
    segment, attempts = Segment(spans()), 4
    eligible, first = segment.eligible, segment.turns == 0
    advantage = np.concatenate(
        [
            np.where(eligible, np.where(first, 1.25 + change * (n == 0), -0.5), 0.0)
            for n in range(attempts)
        ]
    )
    weight = np.concatenate([eligible * float(n < 3) for n in range(attempts)])
    reward = np.array([1.0 + change, 0.0, np.nan, 0.5])
    return Credited(
        np.where(weight != 0, advantage, 0.0),
        weight,
        np.where(weight != 0, 0.5, np.nan),
        reward,
        np.array([True, True, False, False]),
        {"groups_flat": 1.0},
    )


def credit_example(text: str = "go on") -> View:
    edit = Edit("grpo", {f"filter.{text}": text}, {(0, 1): 1.25})
    return credit_view(
        [group(text)],
        lambda ids: [text for _ in ids],
        credited(0.25),
        credited(),
        title=f"credit: {edit}",
        attempt=0,
        edited=edit.rewards,
    )


def switches(text: str = "lambda = 1") -> View:
    effects = [
        SwitchEffect(
            "gae_over", largest={text: (1e-16, 1e-17), "lambda = .5": (0.25, 0.5)}, returns=0
        ),
        SwitchEffect(
            "critic_over",
            returns=12,
            largest={text: (0.0, 0.0), "lambda = .5": (0.0, 0.0)},
            denominators={"critic": (30, 42)},
        ),
        SwitchEffect(
            "loss_over", weights=12, error=f"not possible: {text}", set_for_it=f"kl_in = {text}"
        ),
        SwitchEffect("loss_mask", inert=text),
    ]
    return mask_switches_view(
        effects,
        title=f"mask switches: {text}",
        tokens=f"30 action tokens, {text}",
        groups=("loss_mask",),
        sentences=[f"nothing depends on {text}"],
    )


def retokenized(text: str = "go on") -> View:
    turns = [
        TurnTwice(0, 0, (71, 72, 101), (71, 72, 101), -1.0),
        TurnTwice(0, 1, (70, 71, 73, 101), (70, 74, 75, 73, 101), -2.5, -7.25),
        TurnTwice(1, 0, (70,), (), -0.5, None),
    ]
    return retokenized_view(
        turns,
        MaskDamage(5, 2, 3),
        lambda ids: [text for _ in ids],
        title=f"again: {text}",
        max_turns=1,
    )


def lint_example(text: str = "go on") -> View:
    """An error with tokens, a note without, a rule that passed in part, one without evidence."""
    said = {"means": f"it learns {text}", "mend": f"look at {text}"}
    place = Place(f"lake/{text}/0", 0, 0, 1, 33, 3, step=4)
    report = LintReport(
        (
            Answer("R1", f"exact {text}", looked=8, missing=(f"journal {text}",)),
            Answer("R2", "rendered", missing=(f"the chat {text}",)),
            Answer(
                "R6",
                "credit",
                (Finding(f"was given 0 {text}", place, count=3), Finding(text, Place(step=4))),
                5,
                2,
                90,
                **said,
            ),
            Answer(
                "R8", "groups", (Finding(f"flat {text}", Place(update=1), NOTE),), looked=2, **said
            ),
        ),
        f"run {text}",
    )
    return lint_view(report, [trajectory(text)], lambda ids: [text for _ in ids])


def imported_example(text: str = "go on") -> View:
    """A trajectory with ids whose mask is too long, one of texts alone, damage."""
    ids = np.array([71, 72, 101], np.int32)
    with_ids = RawSequence(
        f"line 1 {text}",
        f"group {text}",
        0,
        ids,
        ids,
        np.ones(4),
        np.full(3, -0.5),
        np.ones(3),
        1.0,
        True,
        prompt_mask=np.array([0, 0, 1]),
        sampled=np.array([True, False, True]),
        failed=text,
    )
    texts = RawSequence(
        f"line 2 {text}", None, 0, None, None, prompt_text=text, completion_text=text, advantage=0.5
    )
    found = Imported(
        f"writer {text}",
        text,
        (with_ids, texts),
        missing=(f"ids: {text}",),
        damaged=(f"line 3: {text}",),
        skipped=2,
        left_out=1,
        source=text,
    )
    return imported_view(found, lambda tokens: [text for _ in tokens])


def mismatch_view(text: str = "go on") -> View:
    """One cause named, one declared, a control that failed, tokens with a gap."""
    from workbench.engines.gap import Gap
    from workbench.extensions.engine_audit.attribution import Attribution
    from workbench.extensions.engine_audit.causes import Cause, WaterfallStep
    from workbench.extensions.engine_audit.control import Control
    from workbench.extensions.engine_audit.figures import Ratios, Whole
    from workbench.extensions.engine_audit.report import MismatchReport, PerToken

    gap = np.array([1e-6, -0.4, 0.3, np.nan, 2e-3])
    zeros, ids = np.zeros(5, int), np.array([82, 105, 103, 104, 101])
    control = Control(
        3,
        0.5,
        0.0,
        0.0,
        1,
        True,
        0.2,
        0.3,
        4,
        True,
        (Cause("sync", f"nothing {text}", text),),
        about=text,
    )
    return show_mismatch(
        MismatchReport(
            f"run {text}",
            Gap(0.2, 0.4, 5),
            (1e-4, 0.01),
            f"rounding {text}",
            Ratios.between(gap, np.zeros(5)),
            Whole(0.1, 0.2, 0.01, 0.02, 0.5, 1.0, 5, 491),
            "",
            Gap(4e-7, 2e-6, 5),
            (
                WaterfallStep("dtype", f"declared {text}", 0.2, 0.19, True),
                WaterfallStep("stale weights", text, 0.19, 1e-7),
            ),
            (Cause("stale weights", f"the engine has {text}", f"evidence {text}"),),
            Gap(1e-7, 2e-7, 5),
            12,
            {"a": text},
            PerToken(gap, ids, zeros, zeros, np.array([0, 0, 0, 1, 1]), np.arange(5)),
            control,
            text,
            (trajectory(text),),
            lambda ids: [text for _ in ids],
            Attribution(("staleness",), f"an older version {text}", (f"4 turns {text}",)),
        )
    )


def other_words(made: Group, text: str) -> Group:
    """The same group, whose first trajectory wrote something else in its last turn."""
    first = made[0]
    turns = (*first.turns[:-1], replace(first.turns[-1], text=text + "?"))
    return Group((replace(first, turns=turns), *made.trajectories[1:]))


def runs_example(text: str = "go on") -> View:
    """Of rows as `wb.runs` reads them: two folders, one of them damaged."""
    return runs_view(
        [
            RunRow(text, "done", "3 of 3", text, ("50.0 %", "—", "25.0 %", text)),
            RunRow(text, "damaged", problem=text),
        ]
    )


# Every view of the package, as a function of the foreign text in it.
VIEWS: dict[str, Callable[[str], View]] = {
    **grid_examples.VIEWS,
    "trajectory": lambda x: trajectory_view(trajectory(x)),
    "trajectory-without-grid": lambda x: trajectory_view(no_grid(x)),
    "group": lambda x: group_view(group(x)),
    "tokens": lambda x: show_tokens(trajectory(x), lambda ids: [x for _ in ids]),
    "segment": lambda x: segment_view(
        trajectory(x).segments[0], lambda ids: [x for _ in ids], title=x
    ),
    "tokens-credit": lambda x: show_tokens(
        trajectory(x), lambda ids: [x for _ in ids], np.ones(sum(map(len, spans())))
    ),
    "masks": lambda x: show_masks([group(x)]),
    "curves": lambda x: curves_view(
        steps(), evaluations(x), {"random": 0.2, "untrained": 0.3, "solver": 0.9, x: 0.5}, title=x
    ),
    "evaluation": lambda x: evaluation_view(
        [*baseline_rows(), score(x, "sampled", 0.55, faults=2)],
        [pair(b=x)],
        title=x,
        absent={"solver": x},
    ),
    "evaluation-gap": lambda x: evaluation_view([score(x, x, 0.55)], absent={"solver": x}),
    "demo": lambda x: demo_view(demo_table(x)),
    "metrics": lambda x: show_metrics({x: 0.5, "note": x}, {x: 0.25}, title=x),
    "config": lambda x: config_view({"a": {x: 1, "b": x}}, {"a": {"b": 2}}, title=x),
    "rows": lambda x: show_rows([{x: 1, "b": x}], title=x),
    "text": lambda x: text_view(x, title=x),
    "credit": credit_example,
    "credit-failed": lambda x: failed_view(f"credit: {x}", f"ConfigError: {x}"),
    "estimators": lambda x: estimators_view(
        [group(x)], {x: credited(), "ppo": f"needs {x}"}, title=f"side by side {x}"
    ),
    "mask-switches": switches,
    "retokenized": retokenized,
    "lint": lint_example,
    "imported": imported_example,
    "mismatch": mismatch_view,
    "conversations": lambda x: conversations(of_a_program(x)).view(),
    "calls": lambda x: conversations([Group((of_a_program(x),))]).view(),
    "groups": lambda x: groups_view([group(x), group("another")]),
    "task": lambda x: task_view(Task(x, x, 3, {x: x, "b": {"c": [x]}}, {x: x})),
    "turn": lambda x: turn_view(trajectory(x).turns[0]),
    "observation": lambda x: observation_view(
        Observation(
            (Message("user", x), Message(x, "words")),
            ({"type": "function", "function": {"name": x}},),
        )
    ),
    "facts": lambda x: facts_view(x, {x: x}, (x,)),
    "credit-table": lambda x: credit_table_view(
        CreditTable(4, 1, {**credit_table().columns, x: np.full(68, np.nan)})
    ),
    "runs": runs_example,
    "pairs": lambda x: pair_groups([group(x)], [group(x)], (x, "now")).view(),
    "pair": lambda x: pair_groups([group(x)], [other_words(group(x), x)], (x, "now"))[0].view(),
}
