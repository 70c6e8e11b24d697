"""A place of a run as a view that needs no script: what the navigator shows there, for a terminal and a saved notebook."""

from __future__ import annotations

import numpy as np

from workbench.notebook.explored import Answers
from workbench.notebook.stored import show_run, show_step
from workbench.run.store import Run
from workbench.types import Source, View
from workbench.types.address import Address
from workbench.types.errors import DataError
from workbench.views import doc, show_groups, show_turn
from workbench.views.html import shown
from workbench.views.values import facts_parts

AROUND = 60  # tokens shown before and after the one that is asked for


def show_place(run: Run, at: str | Address) -> View:
    """The run's curves, the groups of a step, a group, an attempt, a turn, or a token with its numbers, as `at` says.

    Raises DataError for what is no address, and for a place that the run does not have."""
    answers = Answers([run])
    at = answers.address(at)
    if at.step is None:
        return show_run(run)
    if at.task is None:
        return show_groups(answers.step(0, at.step).groups)
    if at.token is not None:
        return _show_token(answers, at)
    if at.turn is not None:
        return show_turn(answers.step(0, at.step).groups[at.task][at.attempt].turns[at.turn])
    return show_step(run, at.step, task=at.task, attempt=at.attempt)


def _show_token(answers: Answers, at: Address) -> View:
    """Author, whether it is trained, and every number that was stored for it, exact; the tokens around it."""
    reply = answers.of(
        {"ask": "attempt", "run": 0, "step": at.step, "task": at.task, "attempt": at.attempt}
    )
    if "texts" not in reply.content:
        raise DataError(f"{at} cannot be shown: {reply.content['error']}")
    texts, lanes, group = reply.content["texts"], reply.content["lanes"], reply.content["group"]
    number, arrays = at.token, reply.arrays
    trained = {0: "no", 1: "yes", 3: "yes, although the policy did not sample it here"}[
        int(arrays["trained"][number])
    ]
    facts = {
        "author": f"{Source(int(arrays['author'][number])).name.lower()}, turn {arrays['turn'][number]}",
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
    facts["reward of the attempt"] = (
        "not scored" if reply.content["reward"] is None else repr(reply.content["reward"])
    )
    facts["its group"] = ", ".join(
        f"{name} {value!r}" for name, value in group.items() if value is not None
    )
    terms = _term_facts(answers, at) if arrays["trained"][number] else {}
    before, after = (
        "".join(texts[max(0, number - AROUND) : number]),
        "".join(texts[number + 1 : number + 1 + AROUND]),
    )
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(f"token {number} of {len(texts)}: {texts[number]}"),
                *facts_parts(facts),
                doc.Heading("its loss term") if terms else None,
                *facts_parts(terms),
                doc.Quoted("around  ", "around", f"{before}⟦{texts[number]}⟧{after}"),
                doc.Note(f"at {at}"),
            )
        )
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
        value = float(reply.arrays[row["array"]][at.token]) if "array" in row else None
        if value is None or np.isfinite(value):
            said = (
                ""
                if value is None
                else row["words"][str(int(value))]
                if "words" in row
                else repr(value)
            )
            facts[row["name"]] = "  ".join(filter(None, (said, row["text"])))
    return facts
