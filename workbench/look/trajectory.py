"""A trajectory turn by turn: what the policy saw, what it wrote, what came of it, what it earned.

trajectory_view(trajectory)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from workbench.basics.extensions import has_service, service
from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.grid import Tile, find_grid, legend, squares
from workbench.look.html import view_from
from workbench.look.looks import BLUE, GREEN, GREY, INK, MUTED, ORANGE, RED, Look
from workbench.values import Trajectory, Turn, View

LONGEST_TEXT = 4000  # characters of one message that are shown
MOST_MOVES = 40  # moves and tool calls of one turn that are shown
ARROWS = {"left": "←", "right": "→", "up": "↑", "down": "↓"}
COLUMNS = ("observation", "policy output", "moves", "reward")
SAW, WROTE, MOVES, REWARD = range(4)
WRITTEN = {
    "think": Look(foreground=MUTED, italic=True),
    "plain": Look(foreground=INK),
    "answer": Look("#d6e9f8", "#06324f", left=f"3px solid {BLUE}"),
}


def trajectory_view(
    trajectory: Trajectory, *, max_turns: int = 50, tiles: Mapping[str, Tile] | None = None
) -> View:
    """What one trajectory looked like.

    You will see one row per turn: the state the policy saw (a grid drawn in cells where its text holds one), the text
    it wrote (thought dimmed, answer in a box), the moves that were done, the reward and its parts, and a complaint
    where the format was not accepted. The last row is the state it ended in, with the reason. At most `max_turns` turns
    are shown, first and last, with a notice of how many are hidden.
    """
    turns = trajectory.turns
    hidden = max(0, len(turns) - max_turns)
    first = len(turns) if not hidden else max_turns - max_turns // 2
    states = states_of(trajectory)
    entries = [
        _turn(turn, states[turn.index], tiles)
        for turn in (*turns[:first], *turns[first + hidden :])
    ]
    if hidden:
        entries.insert(first, doc.LedgerEntry(f"… {words.count(hidden, 'turn')} not shown …", ()))
    entries.append(_end(trajectory, states[-1], tiles))
    messages = [
        doc.Quoted(f"prompt ({message.role}) ", message.role, capped(message.text, LONGEST_TEXT))
        for message in trajectory.first_observation.messages
    ]
    roles = ", ".join(message.role for message in trajectory.first_observation.messages)
    return view_from(
        *_headline(trajectory),
        doc.BlankLine(),
        *(
            (
                doc.Fold(f"Initial prompt ({roles})", tuple(messages)),
                doc.BlankLine(),
            )
            if messages
            else ()
        ),
        *added_parts(trajectory),
        legend(grid for state in states if (grid := find_grid(state, tiles))),
        doc.Ledger(COLUMNS, tuple(entries)),
    )


def added_parts(trajectory: Trajectory) -> tuple[doc.Part, ...]:
    """What an extension shows of a trajectory beside its turns: the tree of its conversations, where it has several."""
    name = "trajectory_parts"
    return service(name, "a view of a trajectory")(trajectory) if has_service(name) else ()


def outcome_badge(trajectory: Trajectory) -> doc.Badge:
    """Success, failure, fault or not known: by word and sign first, by colour second."""
    colour = {True: GREEN, False: ORANGE}.get(trajectory.success, GREY)
    return doc.Badge(
        words.success_words(trajectory), INK if trajectory.stop_reason.is_fault else colour
    )


# ------------------------------------------------------------------------------------------------ parts


def _headline(trajectory: Trajectory) -> Iterator[doc.Part]:
    badge = outcome_badge(trajectory)
    name = f"{words.name_of(trajectory.task.id)} · attempt {trajectory.attempt}"
    yield doc.Heading((f"{name} · ", badge))
    yield doc.Note(" · ".join(_facts(trajectory)))
    if trajectory.outcome is not None:
        parts = words.parts_words(trajectory.outcome_parts)
        yield doc.Note(f"outcome {words.signed(trajectory.outcome)} ({parts})")
    if trajectory.error:
        yield doc.WarningLine(capped(trajectory.error, LONGEST_TEXT))


def _turn(turn: Turn, state: str, tiles: Mapping[str, Tile] | None) -> doc.LedgerEntry:
    cut = turn.finish == "length"
    fields = [
        doc.Field(
            "observed", capped(state, LONGEST_TEXT), SAW, state_parts(state, tiles), quoted=True
        ),
        doc.Field(
            "output",
            capped(turn.text, LONGEST_TEXT),
            WROTE,
            (
                doc.Block(written(turn.text)),
                *([doc.WarningLine("cut: it reached its token limit")] if cut else []),
            ),
            quoted=True,
            after="  (cut: no room left)" if cut else "",
        ),
    ]
    if turn.privileged:
        privileged = capped(turn.privileged, LONGEST_TEXT)
        fields.append(
            doc.Field(
                "critic",
                privileged,
                SAW,
                (doc.Note(f"privileged information (critic only): {privileged}"),),
                quoted=True,
            )
        )
    if moves_of(turn):
        badges = tuple(
            doc.Badge(f"{ARROWS.get(move.lower(), '')} {move}".strip(), "#e6eaee", INK)
            for move in moves_of(turn)
        )
        fields.append(doc.Field("moves", ", ".join(moves_of(turn)), MOVES, badges))
    fields += [doc.Field("calls", call, WROTE, (doc.Block(call),)) for call in _calls(turn)]
    fields.append(_reward(turn.reward, turn.reward_parts))
    if complaint := _complaint(turn):
        fields.append(
            doc.Field("format", f"! {complaint}", WROTE, (doc.WarningLine(f"format: {complaint}"),))
        )
    if reply := _reply_words(turn):
        reply = capped(reply, LONGEST_TEXT)
        fields.append(doc.Field("env", reply, WROTE, (doc.Note(f"env: {reply}"),), quoted=True))
    return doc.LedgerEntry(f"turn {turn.index}", tuple(fields))


def _reward(reward: float | None, parts: Mapping[str, float]) -> doc.Field:
    colour = GREY
    if not words.missing(reward) and reward != 0:
        colour = BLUE if reward > 0 else RED
    total = doc.Styled(words.signed(reward), Look(foreground=colour, bold=True, mono=True))
    notes = [
        doc.Note(words.parts_words({name: value}))
        for name, value in list(parts.items())[: words.MOST_PARTS]
    ]
    named = f" ({words.parts_words(parts)})" if parts else ""
    return doc.Field("reward", f"{words.signed(reward)}{named}", REWARD, (total, *notes))


def _end(trajectory: Trajectory, state: str, tiles: Mapping[str, Tile] | None) -> doc.LedgerEntry:
    why = words.STOP_WORDS[trajectory.stop_reason]
    total = words.reward_words(trajectory)
    fields = [
        doc.Field("", "", WROTE, (outcome_badge(trajectory), why)),
        doc.Field(
            "", "", REWARD, (doc.Styled(total, Look(bold=True, mono=True)), doc.Note("total"))
        ),
    ]
    if answered := _answered(trajectory):
        fields.append(
            doc.Field("answer", answered, WROTE, (doc.Note(f"answer: {answered}"),), quoted=True)
        )
    fields.append(
        doc.Field("state", capped(state, LONGEST_TEXT), SAW, state_parts(state, tiles), quoted=True)
    )
    return doc.LedgerEntry(
        f"end: {words.success_words(trajectory)}, {why}", tuple(fields), caption="end"
    )


def state_parts(
    state: str, tiles: Mapping[str, Tile] | None = None
) -> tuple[doc.Part | doc.Inline | None, ...]:
    """A state with its grid drawn, where it has one."""
    grid = find_grid(state, tiles)
    if grid is None:
        return (doc.Block(capped(state, LONGEST_TEXT)) if state else "—",)
    around = [doc.Block(text) if text.strip() else None for text in (grid.before, grid.after)]
    return (around[0], squares(grid), around[1])


# ------------------------------------------------------------------------------------------------ facts


def states_of(trajectory: Trajectory) -> list[str]:
    """Text of the state before each turn, and of the last one: K + 1 texts.

    An environment that fills `info["state"]` (and, before the first turn, the task's `metadata["state"]`) says it
    itself; otherwise the observation's own words are the state.
    """
    messages = trajectory.first_observation.messages
    shown = messages[-1].text if messages else ""
    first = trajectory.task.metadata.get("state")
    states = [str(first) if first else _grid_only(shown)]
    for turn in trajectory.turns:
        state = turn.info.get("state")
        states.append(str(state) if state else _reply_text(turn))
    return states


def _grid_only(text: str) -> str:
    """The grid of a first observation, whose instructions are shown elsewhere; the whole text where there is none."""
    grid = find_grid(text)
    return "\n".join(" ".join(row) for row in grid.cells) if grid else text


def _reply_text(turn: Turn) -> str:
    """What came back; the words of a tool, or of an opponent, behind its name."""
    return "\n".join(
        f"{message.name}: {message.text}" if message.name else message.text
        for message in turn.reply
    )


def _reply_words(turn: Turn) -> str:
    """What the environment said besides the state that is drawn anyway."""
    reply = _reply_text(turn)
    state = turn.info.get("state")
    if not state:
        return ""
    return "\n".join(line for line in reply.replace(str(state), "").split("\n") if line.strip())


def _complaint(turn: Turn) -> str:
    """Why the format was not accepted, or what a lenient reader forgave; "" where all was in order, or where the environment
    does not say."""
    if turn.info.get("valid_format", True):
        forgiven = turn.info.get("forgiven")
        return capped(f"read leniently: {forgiven}", 300) if forgiven else ""
    return capped(str(turn.info.get("complaint") or "the text could not be read as an action"), 300)


def moves_of(turn: Turn) -> tuple[str, ...]:
    """The moves that were carried out, where the environment says; else those that were asked for."""
    done = turn.info.get("moves")
    moves = list(turn.moves if done is None else done)
    more = (f"and {len(moves) - MOST_MOVES} more",) if len(moves) > MOST_MOVES else ()
    return (*(words.name_of(move) for move in moves[:MOST_MOVES]), *more)


def _calls(turn: Turn) -> list[str]:
    """Tool calls as one would write them."""
    noted = turn.info.get("calls")
    facts = noted if isinstance(noted, list) else []
    written = []
    for call, fact in zip_longest(turn.tool_calls[:MOST_MOVES], facts[: len(turn.tool_calls)]):
        error = fact.get("error") if isinstance(fact, Mapping) else None
        complaint = f" ! {words.name_of(error)}" if error else ""
        if call is not None:
            written.append(words.call(call.name, call.arguments) + complaint)
    return written


def _answered(trajectory: Trajectory) -> str:
    """The answer to a question and the known one, where the environment says them; "" where it is no question."""
    info = trajectory.turns[-1].info if trajectory.turns else {}
    if not isinstance(info.get("ended"), str):
        return ""
    gold = info.get("gold")
    answer = capped(str(info["answer"]), 300) if "answer" in info else "none"
    if not isinstance(gold, list) or not gold:
        return f"{answer} · reference answer unknown"
    right = " or ".join(capped(str(known), 200) for known in gold[:5])
    return f"{answer} · reference: {right}"


def written(text: str) -> tuple[doc.Inline, ...]:
    """The policy's text with its thought dimmed and its answer in a box."""
    spans = tuple(
        doc.Styled(part, WRITTEN[kind]) for kind, part in pieces(capped(text, LONGEST_TEXT))
    )
    return spans or (doc.Styled("(nothing)", WRITTEN["think"]),)


def pieces(text: str) -> list[tuple[str, str]]:
    """The policy's text as (kind, text): "think", "answer" or "plain", tags included, nothing left out.

    A block that is never closed runs to the end: that is how a cut-off thought looks.
    """
    parts = []
    position = 0
    while position < len(text):
        starts = [(text.find(f"<{kind}>", position), kind) for kind in ("think", "answer")]
        start, kind = min(((s, k) for s, k in starts if s >= 0), default=(len(text), ""))
        if start > position:
            parts.append(("plain", text[position:start]))
        if not kind:
            break
        closing = text.find(f"</{kind}>", start)
        position = len(text) if closing < 0 else closing + len(f"</{kind}>")
        parts.append((kind, text[start:position]))
    return parts


def _facts(trajectory: Trajectory) -> list[str]:
    moves = sum(len(turn.info.get("moves", turn.moves)) for turn in trajectory.turns)
    return [
        f"reward {words.reward_words(trajectory)}",
        words.count(len(trajectory.turns), "turn"),
        *([words.count(moves, "move")] if moves else []),
        f"{words.count(trajectory.num_sampled, 'token')} sampled",
        *(
            [words.count(len(trajectory.segments), "segment")]
            if len(trajectory.segments) > 1
            else []
        ),
        f"stopped: {trajectory.stop_reason.value} ({words.STOP_WORDS[trajectory.stop_reason]})",
    ]
