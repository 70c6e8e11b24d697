"""A trajectory turn by turn: what the policy saw, what it wrote, what came of it, what it earned.

    show_trajectory(trajectory)   one attempt
    show_group(group)             all attempts at one task, side by side
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from workbench.types import Group, Message, Trajectory, Turn, View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import capped, visible
from workbench.views.grid import Tile, draw_grid, find_grid, legend
from workbench.views.markup import Html, tag

LONGEST_TEXT = 4000   # characters of one message that are shown
MOST_MOVES = 40       # moves and tool calls of one turn that are shown
ARROWS = {"left": "←", "right": "→", "up": "↑", "down": "↓"}


def show_trajectory(trajectory: Trajectory, *, max_turns: int = 50, tiles: Mapping[str, Tile] | None = None) -> View:
    """What one attempt looked like.

    You will see one row per turn: the state the policy saw (a grid drawn in cells where its text holds one), the text
    it wrote (thought dimmed, answer in a box), the moves that were done, the reward and its parts, and a complaint
    where the format was not accepted. The last row is the state it ended in, with the reason. At most `max_turns` turns
    are shown, first and last, with a notice of how many are hidden.
    """
    hidden = max(0, len(trajectory.turns) - max_turns)
    first = len(trajectory.turns) if not hidden else max_turns - max_turns // 2
    shown = list(trajectory.turns[:first]) + list(trajectory.turns[first + hidden:])
    states = _states(trajectory)
    text = [_headline_text(trajectory), _told_text(trajectory.first_observation.messages)]
    rows: list[list[Html]] = []
    for position, turn in enumerate(shown):
        if hidden and position == first:
            text.append(f"… {words.count(hidden, 'turn')} not shown …")
            rows.append([m.cell(""), m.cell(f"… {words.count(hidden, 'turn')} not shown …"), m.cell(""), m.cell("")])
        text.append(_turn_text(turn, states[turn.index]))
        rows.append(_turn_html(turn, states[turn.index], tiles))
    text.append(_end_text(trajectory, states[-1]))
    rows.append(_end_html(trajectory, states[-1], tiles))
    meanings = legend(grid for state in states if (grid := find_grid(state, tiles)))
    html = m.card(
        _headline_html(trajectory),
        _told_html(trajectory.first_observation.messages),
        m.note(meanings) if meanings else None,
        m.table(rows, m.head_cells(["the policy saw", "and wrote", "moves done", "reward"])))
    return m.finished(html, "\n\n".join(part for part in text if part))


# ------------------------------------------------------------------------------------------------ facts


def _states(trajectory: Trajectory) -> list[str]:
    """Text of the state before each turn, and of the last one: K + 1 texts.

    An environment that fills `info["state"]` (and, before the first turn, the task's `metadata["state"]`) says it
    itself; otherwise the observation's own words are the state.
    """
    messages = trajectory.first_observation.messages
    first = trajectory.task.metadata.get("state")
    states = [str(first) if first else _grid_only(messages[-1].text if messages else "")]
    for turn in trajectory.turns:
        state = turn.info.get("state")
        states.append(str(state) if state else _reply_text(turn))
    return states


def _grid_only(text: str) -> str:
    """The grid of a first observation, whose instructions are shown elsewhere; the whole text where there is none."""
    grid = find_grid(text)
    return "\n".join(" ".join(row) for row in grid.cells) if grid else text


def _reply_text(turn: Turn) -> str:
    """What came back; a tool's words behind its name."""
    return "\n".join(f"{message.name}: {message.text}" if message.role == "tool" and message.name else message.text
                     for message in turn.reply)


def _reply_words(turn: Turn) -> str:
    """What the environment said besides the state that is drawn anyway."""
    reply, state = _reply_text(turn), turn.info.get("state")
    if not state:
        return ""
    return "\n".join(line for line in reply.replace(str(state), "").split("\n") if line.strip())


def _complaint(turn: Turn) -> str:
    """Why the format was not accepted; "" where it was, or where the environment does not say."""
    if turn.info.get("valid_format", True):
        return ""
    return capped(str(turn.info.get("complaint") or "the text could not be read as an action"), 300)


def _moves(turn: Turn) -> tuple[str, ...]:
    """The moves that were carried out, where the environment says; else those that were asked for."""
    done = turn.info.get("moves")
    moves = list(turn.moves if done is None else done)
    more = (f"and {len(moves) - MOST_MOVES} more",) if len(moves) > MOST_MOVES else ()
    return (*(words.name_of(move) for move in moves[:MOST_MOVES]), *more)


def _calls(turn: Turn) -> list[str]:
    """Tool calls as one would write them."""
    def written(arguments: Mapping) -> str:
        return capped(json.dumps(dict(arguments), ensure_ascii=False, default=str), 1000)

    noted = turn.info.get("calls")
    errors = [each.get("error") if isinstance(each, Mapping) else "" for each in noted] if isinstance(noted, list) else []
    said = [f" ! {words.name_of(error)}" if error else "" for error in map(str, (each or "" for each in errors))]
    said += [""] * len(turn.tool_calls)
    return [f"{words.name_of(call.name)}({written(call.arguments)}){error}"
            for call, error in list(zip(turn.tool_calls, said))[:MOST_MOVES]]


def _answered(trajectory: Trajectory) -> str:
    """The answer to a question and the known one, where the environment says them; "" where it is no question."""
    info = trajectory.turns[-1].info if trajectory.turns else {}
    if not isinstance(info.get("ended"), str):
        return ""
    gold = info.get("gold")
    known = [capped(str(each), 200) for each in gold[:5]] if isinstance(gold, list) else []
    said = capped(str(info["answer"]), 300) if "answer" in info else "none"
    return f"{said} · right: {' or '.join(known)}" if known else f"{said} · nobody knows what is right"


def pieces(text: str) -> list[tuple[str, str]]:
    """The policy's text as (kind, text): "think", "answer" or "plain", tags included, nothing left out.

    A block that is never closed runs to the end: that is how a cut-off thought looks.
    """
    found, position = [], 0
    while position < len(text):
        starts = [(text.find(f"<{kind}>", position), kind) for kind in ("think", "answer")]
        start, kind = min(((s, k) for s, k in starts if s >= 0), default=(len(text), ""))
        if start > position:
            found.append(("plain", text[position:start]))
        if not kind:
            break
        closing = text.find(f"</{kind}>", start)
        position = len(text) if closing < 0 else closing + len(f"</{kind}>")
        found.append((kind, text[start:position]))
    return found


# ------------------------------------------------------------------------------------------------ text


def _facts(trajectory: Trajectory) -> list[str]:
    moves = sum(len(turn.info.get("moves", turn.moves)) for turn in trajectory.turns)
    return [f"reward {words.reward_words(trajectory)}", words.count(len(trajectory.turns), "turn"),
            *([words.count(moves, "move")] if moves else []),
            f"{words.count(trajectory.num_sampled, 'token')} sampled",
            *([words.count(len(trajectory.segments), "segment")] if len(trajectory.segments) > 1 else []),
            f"stopped: {trajectory.stop_reason.value} ({words.STOP_WORDS[trajectory.stop_reason]})"]


def _headline_text(trajectory: Trajectory) -> str:
    lines = [f"{words.name_of(trajectory.task.id)} · attempt {trajectory.attempt} · {words.success_words(trajectory)}",
             " · ".join(_facts(trajectory))]
    if trajectory.outcome is not None:
        parts = visible(words.parts_words(trajectory.outcome_parts))
        lines.append(f"outcome {words.signed(trajectory.outcome)} ({parts})")
    if trajectory.error:
        lines.append(f"! {visible(capped(trajectory.error, LONGEST_TEXT))}")
    return "\n".join(lines)


def _told_text(messages: tuple[Message, ...]) -> str:
    return "\n".join(words.quoted(visible(capped(message.text, LONGEST_TEXT)), f"told ({visible(message.role)}) ")
                     for message in messages)


def _turn_text(turn: Turn, state: str) -> str:
    cut = "  (cut: no room left)" if turn.finish == "length" else ""
    lines = [f"turn {turn.index}",
             words.quoted(visible(capped(state, LONGEST_TEXT)), "  saw      "),
             words.quoted(visible(capped(turn.text, LONGEST_TEXT)), "  wrote    ") + cut]
    if _moves(turn):
        lines.append(f"  moves    {visible(', '.join(_moves(turn)))}")
    lines += [f"  calls    {visible(call)}" for call in _calls(turn)]
    parts = f" ({visible(words.parts_words(turn.reward_parts))})" if turn.reward_parts else ""
    lines.append(f"  reward   {words.signed(turn.reward)}{parts}")
    if _complaint(turn):
        lines.append(f"  format   ! {visible(_complaint(turn))}")
    if _reply_words(turn):
        lines.append(words.quoted(visible(capped(_reply_words(turn), LONGEST_TEXT)), "  env said "))
    return "\n".join(lines)


def _end_text(trajectory: Trajectory, state: str) -> str:
    end = f"end: {words.success_words(trajectory)}, {words.STOP_WORDS[trajectory.stop_reason]}\n"
    if _answered(trajectory):
        end += words.quoted(visible(_answered(trajectory)), "  answer   ") + "\n"
    return (end
            + words.quoted(visible(capped(state, LONGEST_TEXT)), "  state    "))


# ------------------------------------------------------------------------------------------------ html


def outcome_badge(trajectory: Trajectory) -> Html:
    """Success, failure, fault or not known: by word and sign first, by colour second."""
    if trajectory.stop_reason.is_fault:
        return m.badge(words.success_words(trajectory), m.INK)
    return m.badge(words.success_words(trajectory),
                   {True: m.GREEN, False: m.ORANGE}.get(trajectory.success, m.GREY))


def _headline_html(trajectory: Trajectory) -> Html:
    outcome = None
    if trajectory.outcome is not None:
        outcome = m.note(f"outcome {words.signed(trajectory.outcome)} ({words.parts_words(trajectory.outcome_parts)})")
    return tag(
        "div",
        m.heading(outcome_badge(trajectory), f"{words.name_of(trajectory.task.id)} · attempt {trajectory.attempt}"),
        m.note(" · ".join(_facts(trajectory))),
        outcome,
        m.warning(capped(trajectory.error, LONGEST_TEXT)) if trajectory.error else None,
    )


def _told_html(messages: tuple[Message, ...]) -> Html | None:
    if not messages:
        return None
    roles = ", ".join(message.role for message in messages)
    blocks = [tag("div", m.badge(message.role, m.GREY), m.block(capped(message.text, LONGEST_TEXT)),
                  style="margin:4px 0") for message in messages]
    return m.folded(f"What the policy was told first ({roles})", *blocks)


def state_html(state: str, tiles: Mapping[str, Tile] | None = None) -> Html:
    grid = find_grid(state, tiles)
    if grid is None:
        return m.block(capped(state, LONGEST_TEXT), style="max-width:420px") if state else tag("span", "—")
    return tag("div", m.block(grid.before) if grid.before.strip() else None, draw_grid(grid),
               m.block(grid.after) if grid.after.strip() else None)


def _written_html(turn: Turn) -> Html:
    styles = {"think": f"color:{m.MUTED};font-style:italic",
              "answer": f"background-color:#d6e9f8;color:#06324f;border-left:3px solid {m.BLUE};padding:1px 4px",
              "plain": f"color:{m.INK}"}
    spans = [tag("span", text, style=styles[kind]) for kind, text in pieces(capped(turn.text, LONGEST_TEXT))]
    return m.block(m.join(spans) if spans else tag("span", "(nothing)", style=styles["think"]))


def _turn_html(turn: Turn, state: str, tiles: Mapping[str, Tile] | None) -> list[Html]:
    complaint, reply = _complaint(turn), _reply_words(turn)
    calls = [m.block(call) for call in _calls(turn)]
    wrote = tag("div", _written_html(turn),
                m.warning("cut: it reached its token limit") if turn.finish == "length" else None, *calls,
                m.warning(f"format: {complaint}") if complaint else None,
                m.note("env: ", capped(reply, LONGEST_TEXT)) if reply else None)
    moves = [m.badge(f"{ARROWS.get(move.lower(), '')} {move}".strip(), "#e6eaee", m.INK) for move in _moves(turn)]
    return [m.cell(m.note(f"turn {turn.index}"), state_html(state, tiles)), m.cell(wrote, style="min-width:240px"),
            m.cell(*moves, style="max-width:180px"), _reward_cell(turn.reward, turn.reward_parts)]


def _reward_cell(reward: float | None, parts: Mapping[str, float]) -> Html:
    colour = m.GREY if words.missing(reward) or reward == 0 else m.BLUE if reward > 0 else "#a01626"
    total = tag("div", words.signed(reward), style=f"font-weight:600;color:{colour}")
    notes = [m.note(words.parts_words({name: value})) for name, value in list(parts.items())[:words.MOST_PARTS]]
    return m.number_cell(m.join([total, *notes]))


def _end_html(trajectory: Trajectory, state: str, tiles: Mapping[str, Tile] | None) -> list[Html]:
    why = tag("div", outcome_badge(trajectory), words.STOP_WORDS[trajectory.stop_reason],
              m.note(f"answer: {_answered(trajectory)}") if _answered(trajectory) else None)
    total = tag("div", words.reward_words(trajectory), style="font-weight:600")
    return [m.cell(m.note("the end"), state_html(state, tiles)), m.cell(why), m.cell(""),
            m.number_cell(m.join([total, m.note("in all")]))]


# ------------------------------------------------------------------------------------------------ groups


def show_group(group: Group, *, max_attempts: int = 64, tiles: Mapping[str, Tile] | None = None,
               kept: Sequence[bool | None] | None = None, remarks: Sequence[str] = ()) -> View:
    """All attempts at one task.

    You will see one row per attempt: success, reward, how far the reward lies from the mean of the group (what GRPO
    learns from), turns, tokens, why it stopped, and the reward of each turn (red below zero, blue above). Unscored
    attempts stand outside of mean and standard deviation (law 5). The deviation is the sample one (n - 1). With `kept`
    (one per attempt; None: there was nothing to keep) also which ones a filter left in. `remarks` are lines above.
    """
    rewards = [t.reward for t in group]
    scored = np.array([reward for reward in rewards if reward is not None], float)
    mean = float(scored.mean()) if len(scored) else None
    std = float(scored.std(ddof=1)) if len(scored) > 1 else None
    summary = _group_facts(group, scored, mean, std)
    shown, hidden = list(group)[:max_attempts], max(0, len(group) - max_attempts)
    notice = f"first {len(shown)} attempts shown, {hidden} hidden" if hidden else ""
    if len(scored) > 1 and std == 0:
        flat = "Every attempt earned the same: nothing to learn from this group."
    else:
        flat = ""
    header = ["attempt", "", "reward", "- mean", "turns", "tokens", "stopped", "reward by turn"]
    cells = [[str(t.attempt), words.success_mark(t.success), words.signed(t.reward),
              words.signed(None if t.reward is None or mean is None else t.reward - mean), str(len(t.turns)),
              str(t.num_sampled), t.stop_reason.value, " ".join(words.signed(turn.reward) for turn in t.turns)]
             for t in shown]
    if kept is not None:
        header.insert(4, "kept")
        for row, left_in in zip(cells, kept):
            row.insert(4, {True: "yes", False: "filtered", None: "—"}[left_in])
    right = tuple(i for i, name in enumerate(header) if name in ("attempt", "reward", "- mean", "turns", "tokens"))
    text = "\n".join(line for line in [
        f"group {words.name_of(group.task.id)}", summary, *map(visible, remarks),
        words.aligned([header, *cells], right=right), flat, notice] if line)
    scale = max((abs(turn.reward) for t in group for turn in t.turns if not words.missing(turn.reward)), default=0.0)
    spread = max((abs(r - mean) for r in rewards if r is not None), default=0.0) if mean is not None else 0.0
    messages = group[0].first_observation.messages
    start = find_grid(messages[-1].text, tiles) if messages else None
    html = m.card(
        m.heading(f"group {words.name_of(group.task.id)}"),
        m.note(summary),
        *map(m.note, remarks),
        draw_grid(start, size=20) if start else None,
        m.table(
            [_attempt_html(t, row, mean, scale, spread) for t, row in zip(shown, cells)],
            m.head_cells(["attempt", "outcome", *header[2:]], right=("attempt", "reward", "- mean", "turns", "tokens")),
        ),
        m.note(flat) if flat else None,
        m.warning(notice) if notice else None,
    )
    return m.finished(html, text)


def _group_facts(group: Group, scored: np.ndarray, mean: float | None, std: float | None) -> str:
    succeeded = sum(1 for t in group if t.success)
    known = sum(1 for t in group if t.success is not None)
    unscored = len(group) - len(scored)
    facts = [words.count(len(group), "attempt"),
             f"{succeeded} of {known} succeeded" if known else "success not known",
             f"reward mean {words.signed(mean)}, std {'—' if std is None else f'{std:.2f}'}",
             *([f"{unscored} not scored (outside of mean and std)"] if unscored else [])]
    return " · ".join(facts)


def _attempt_html(t: Trajectory, row: list[str], mean: float | None, scale: float, spread: float) -> list[Html]:
    away = None if t.reward is None or mean is None else t.reward - mean
    background, foreground = (m.CARD, m.INK) if away is None else m.red_blue(away, spread)
    turns = []
    for turn in t.turns[:40]:
        fill, ink = (m.CARD, m.INK) if words.missing(turn.reward) else m.red_blue(turn.reward, scale)
        turns.append(
            tag(
                "span",
                words.signed(turn.reward),
                title=f"turn {turn.index}: {', '.join(_moves(turn))}",
                style=(
                    f"background-color:{fill};color:{ink};font-family:{m.MONO};font-size:11px;padding:1px 4px;"
                    f"border:1px solid {m.LINE};margin:0 2px 0 0;display:inline-block"
                ),
            )
        )
    if len(t.turns) > 40:
        turns.append(tag("span", f"… {len(t.turns) - 40} more turns"))
    kept = [] if len(row) == 8 else [m.cell(row[4], background="#e9e2ef" if row[4] == "filtered" else m.CARD)]
    return [m.number_cell(row[0]), m.cell(outcome_badge(t)), m.number_cell(row[2]),
            m.number_cell(row[3], background=background, foreground=foreground), *kept, m.number_cell(row[-4]),
            m.number_cell(row[-3]), m.cell(row[-2]), m.cell(*turns)]
