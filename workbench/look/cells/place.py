"""A place of a run as a view that needs no script: what the navigator shows there, for a terminal and a saved notebook."""

from __future__ import annotations

import numpy as np

from workbench.look import doc, groups_view, turn_view, words
from workbench.look.cells.explored import Answers
from workbench.look.cells.stored import learning_curves_view, step_view
from workbench.look.html import view_from
from workbench.look.values import facts_parts
from workbench.run.store import Run
from workbench.values import View
from workbench.values.address import Address
from workbench.values.errors import DataError

AROUND = 60  # tokens shown before and after the one that is asked for


def place_view(run: Run, at: str | Address) -> View:
    """The run's curves, the groups of a step, a group, a trajectory, a turn, or a token with its numbers, as `at` says.

    Raises DataError for what is no address, and for a place that the run does not have."""
    answers = Answers([run])
    at = answers.address(at)
    if at.step is None:
        return learning_curves_view(run)
    if at.task is None:
        return groups_view(answers.step(0, at.step).groups)
    if at.token is not None:
        return _show_token(answers, at)
    if at.turn is not None:
        return turn_view(answers.step(0, at.step).groups[at.task][at.attempt].turns[at.turn])
    return step_view(run, at.step, task=at.task, attempt=at.attempt)


def _show_token(answers: Answers, at: Address) -> View:
    """Author, whether it is trained, and every number that was stored for it, exact; the tokens around it."""
    reply = answers.of(
        {"ask": "attempt", "run": 0, "step": at.step, "task": at.task, "attempt": at.attempt}
    )
    if "texts" not in reply.content:
        raise DataError(f"{at} cannot be shown: {reply.content['error']}")
    texts = reply.content["texts"]
    lanes = reply.content["lanes"]
    group = reply.content["group"]
    number = at.token
    arrays = reply.arrays
    trained = {0: "no", 1: "yes", 3: "yes, although the policy did not sample it here"}[
        int(arrays["trained"][number])
    ]
    facts = {
        "author": f"{words.AUTHORS[int(arrays['author'][number])]}, turn {arrays['turn'][number]}",
        "trained": trained,
    }
    if arrays["version"][number] >= 0:
        facts["weights"] = f"version {arrays['version'][number]}"
    facts |= {
        lane: f"{float(arrays[lane][number])!r} {unit}".strip()
        if np.isfinite(arrays[lane][number])
        else "—"
        for lane, unit in lanes.items()
    }
    facts["reward of the trajectory"] = (
        "not scored" if reply.content["reward"] is None else repr(reply.content["reward"])
    )
    facts["its group"] = ", ".join(
        f"{name} {value!r}" for name, value in group.items() if value is not None
    )
    terms = _term_facts(answers, at) if arrays["trained"][number] else {}
    before = "".join(texts[max(0, number - AROUND) : number])
    after = "".join(texts[number + 1 : number + 1 + AROUND])
    return view_from(
        doc.Heading(f"token {number} of {len(texts)}: {texts[number]}"),
        facts_parts(facts),
        doc.Heading("loss term of this token") if terms else None,
        facts_parts(terms),
        doc.Quoted("around  ", "around", f"{before}⟦{texts[number]}⟧{after}"),
        doc.Note(f"at {at}"),
    )


def _term_facts(answers: Answers, at: Address) -> dict[str, str]:
    """How the token's part of the loss comes about, from the reward on."""
    reply = answers.of(
        {"ask": "terms", "run": 0, "step": at.step, "task": at.task, "attempt": at.attempt}
    )
    if "error" in reply.content:
        return {"not written out": reply.content["error"]}
    facts = {}
    for row in reply.content["rows"]:
        if "array" not in row:
            facts[row["name"]] = row["text"]
            continue
        value = float(reply.arrays[row["array"]][at.token])
        if np.isfinite(value):
            number = row["words"][str(int(value))] if "words" in row else repr(value)
            facts[row["name"]] = f"{number}  {row['text']}" if row["text"] else number
    return facts
