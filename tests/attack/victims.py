"""What is attacked, and with what: five kinds of cases, each a list of operations on something sound.

    run       a run of this package's own writing, changed in some places, and a command that reads it
    rollouts  files of rollouts in the forms that we write, changed in some places, and linted
    model     a policy's folder, changed in some places, and played
    reply     texts of a policy, put together from parts of call formats, and read
    call      a public function with several wrong arguments

An operation is a number: everything that it does is drawn from it, so that a case is a short list of numbers, can be done again,
and can be made smaller by leaving numbers out.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile.folders import HOSTILE
from tests.hostile.mutations import VALUES, mutate
from tests.hostile.soak import HEAVY, QUICK, called
from tests.hostile.wrong_calls import WrongCall, cheap, wrong_values

EXPORTS = ("openai", "dataset", "trl-grpo", "raw")
TEXT_FILES = (".json", ".jinja", ".jsonl")


@dataclass(frozen=True)
class Case:
    """One attack: `operations` done in order, then `number` decides what is done with the result."""

    kind: str
    number: int
    operations: tuple[int, ...]

    def without(self, place: int) -> Case:
        kept = self.operations[:place] + self.operations[place + 1 :]
        return Case(self.kind, self.number, kept)


@dataclass(frozen=True)
class Ground:
    """What is sound: a `run`, `rollouts` by format, a `model`, and a `folder` to work in."""

    run: Path
    rollouts: tuple[Path, ...]
    model: Path
    folder: Path


def lay_ground(folder: Path) -> Ground:
    from tests.hostile.sweep import sound_run
    from workbench.engines.policy import load_policy

    run = sound_run(folder)
    for words in (["export", str(run), str(folder / name), "--to", name] for name in EXPORTS):
        called(words)
    rollouts = [path for name in EXPORTS for path in _files(folder / name)]
    place = Path(load_policy("frozenlake-tiny").model.name_or_path)
    (folder / "work").mkdir()
    return Ground(run, tuple(sorted(rollouts)), place, folder / "work")


def _files(place: Path) -> list[Path]:
    inside = place.rglob("*") if place.is_dir() else place.parent.glob(f"{place.name}*")
    return [path for path in inside if path.is_file() and path.suffix in (".jsonl", ".parquet")]


# ------------------------------------------------------------------------------------------------ what is done


def attack(case: Case, ground: Ground) -> tuple[int, str]:
    """(exit status, all that was said) of the case. Laid out anew for each."""
    work = ground.folder / "case"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    os.chdir(work)
    return KINDS[case.kind](case, ground, work)


def attack_run(case: Case, ground: Ground, work: Path) -> tuple[int, str]:
    run = work / "run"
    shutil.copytree(ground.run, run)
    (work / "outside").mkdir()
    for operation in case.operations:
        _bend_run(run, operation, work)
    rng = random.Random(f"command {case.number}")
    words = rng.choice(QUICK) if rng.random() < 0.9 else rng.choice(HEAVY)
    places = {"RUN": str(run), "SOUND": str(ground.run), "OUT": "out", "OUT.html": "out.html"}
    places["RUN/config.json"] = f"{run}/config.json"
    return called([places.get(word, word) for word in words])


def _bend_run(run: Path, operation: int, work: Path) -> None:
    """What cannot be done to what an earlier operation left is left out."""
    rng = random.Random(f"bend {operation}")
    try:
        if rng.random() < 0.6:
            mutate(run, operation)
        elif rng.random() < 0.3:
            HOSTILE[rng.choice(sorted(HOSTILE))](run, work / "outside")
        else:
            _bend_bytes(rng.choice(sorted(filter(_is_plain, run.rglob("*")))), rng)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError):
        pass


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 22


def attack_rollouts(case: Case, ground: Ground, work: Path) -> tuple[int, str]:
    rng = random.Random(f"rollouts {case.number}")
    source = rng.choice(ground.rollouts)
    path = work / source.name
    shutil.copy(source, path)
    for operation in case.operations:
        inner = random.Random(f"rollouts operation {operation}")
        if path.suffix == ".jsonl" and inner.random() < 0.7:
            _bend_lines(path, inner)
        else:
            _bend_bytes(path, inner)
    words = rng.choice((["lint", str(path)], ["lint", str(path), "--json"]))
    return called(words)


def attack_model(case: Case, ground: Ground, work: Path) -> tuple[int, str]:
    model = work / "model"
    shutil.copytree(ground.model, model)
    for operation in case.operations:
        rng = random.Random(f"model {operation}")
        path = rng.choice(sorted(filter(_is_plain, model.iterdir())))
        if path.suffix == ".json" and rng.random() < 0.7:
            _bend_document(path, rng)
        else:
            _bend_bytes(path, rng)
    few = ["--tasks", "1", "--group", "1", "--set", "env.max_turns=1"]
    return called(["rollout", "frozenlake", "--set", f"policy.name={model}", *few])


PIECES = (
    "<tool_call>",
    "</tool_call>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "<search>",
    "</search>",
    '{"name": "calculator", "arguments": {"expression": "1+1"}}',
    '{"name": "calculator", "arguments": ',
    '{"expression": "9**9**9"}',
    "<function=calculator>",
    "<parameter=expression>",
    "</parameter>",
    "</function>",
    "[TOOL_CALLS]",
    "[{",
    "}]",
    "\n",
    " ",
    "\\",
    '"',
    "\u2028",
    "\ud800",
    "\x00",
    "\x1b[2J",
    "1e999",
    "9" * 5_000,
    "[" * 3_000,
    "{" * 3_000,
    "Infinity",
    "null",
    "<|im_end|>",
    "calculator",
    "\u0661",
    "x" * 20_000,
)


def attack_reply(case: Case, ground: Ground, work: Path) -> tuple[int, str]:
    """Every operation is a reply; each is read in every form of calls."""
    import workbench as wb
    from workbench.tools.formats import format_for, format_names

    tools = wb.tools_named(["calculator"])
    for operation in case.operations:
        rng = random.Random(f"reply {operation}")
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 40)))
        for name in format_names():
            form = format_for(name, tools, think=rng.random() < 0.5)
            form.parse(text)
    return 0, ""


def attack_call(case: Case, ground: Ground, work: Path) -> tuple[int, str]:
    """Every operation makes one more argument wrong."""
    import inspect

    import workbench as wb

    right = cheap(work)
    name = random.Random(f"call {case.number}").choice(sorted(right))
    args = dict(right[name])
    values = wrong_values()
    parameters = [
        parameter
        for parameter in inspect.signature(getattr(wb, name)).parameters.values()
        if not str(parameter.annotation).startswith("Callable")
    ]
    for operation in case.operations:
        rng = random.Random(f"argument {operation}")
        args[rng.choice(parameters).name] = values[rng.choice(sorted(values))]
    said = WrongCall(name, "several", str(case.operations), args).ended(seconds=60)
    return (70 if said else 0), said


KINDS: Mapping[str, Callable[[Case, Ground, Path], tuple[int, str]]] = {
    "run": attack_run,
    "rollouts": attack_rollouts,
    "model": attack_model,
    "reply": attack_reply,
    "call": attack_call,
}


# ------------------------------------------------------------------------------------------------ operations


def _bend_bytes(path: Path, rng: random.Random) -> None:
    """Some bytes are others, gone, twice, or a very great number of them."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 8, 100, 5_000)))
    match rng.randrange(7):
        case 0 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:end]
        case 2:
            data[at:at] = data[at:end]
        case 3:
            del data[at:]
        case 4:
            data[at:end] = rng.choice(
                (b"\xff\xff\xff\x7f", b"\0" * 100, b"[" * 5_000, b"9" * 5_000)
            )
        case 5:
            data[at:at] = b"\x1b]0;title\x07"
        case _:
            data *= 2 if len(data) < 1 << 20 else 1
    path.unlink()
    path.write_bytes(data)


def _bend_lines(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().split(b"\n")
    at = rng.randrange(len(lines))
    how = rng.random()
    if how < 0.1:
        lines[at:at] = lines[at : at + 1] * rng.choice((1, 10, 20_000))
    elif how < 0.2:
        del lines[at]
    else:
        try:
            lines[at] = json.dumps(_bent(json.loads(lines[at]), rng)).encode()
        except ValueError:
            lines[at] = b"{}"
    path.write_bytes(b"\n".join(lines))


def _bend_document(path: Path, rng: random.Random) -> None:
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        return
    path.unlink()
    path.write_text(json.dumps(_bent(value, rng)))


def _bent(value: Any, rng: random.Random) -> Any:
    """One node of a JSON value is another, gone, or under another name."""
    nodes: list[tuple[Any, Any]] = []
    _collect(value, nodes)
    if not nodes:
        return rng.choice(VALUES)
    parent, key = rng.choice(nodes)
    how = rng.random()
    if how < 0.7:
        parent[key] = rng.choice(VALUES)
    elif how < 0.85:
        del parent[key]
    elif isinstance(parent, dict):
        parent[rng.choice(("", "x", "role", "content", "auto_map"))] = parent[key]
    else:
        parent *= 50
    return value


def _collect(value: Any, nodes: list[tuple[Any, Any]]) -> None:
    inside: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inside = tuple(value.items())
    elif isinstance(value, list):
        inside = tuple(enumerate(value[:200]))
    for key, below in inside:
        nodes.append((value, key))
        _collect(below, nodes)
