"""What is attacked, and with what: six kinds of cases, each a list of operations on something sound.

    run       a run of this package's own writing, changed or made anew in some places, and a command that reads it or goes on
    rollouts  files of rollouts in the forms that we write and that others do, changed or with rows made anew, and linted
    model     a policy's folder, changed in some places or with a template made by a grammar, and played
    reply     turns of a policy, by a grammar or changed from what our own formats write, read in every form and played
    call      a public function with several wrong arguments, those of other functions among them
    words     a command as it is called, with options and words that do not fit

An operation is a number: everything that it does is drawn from it, so that a case is a short list of numbers, can be done again,
and can be made smaller by leaving numbers out.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.attack.grammar import Shape, made, made_table, shape_of, text
from tests.hostile.bad_calls import SETTINGS, WORDS, commands
from tests.hostile.bad_calls import lay_out as lay_words
from tests.hostile.folders import HOSTILE
from tests.hostile.mutations import VALUES, mutate, replace_file, reseal, sealed_line
from tests.hostile.soak import HEAVY, QUICK, called
from tests.hostile.sweep import COMMANDS
from tests.hostile.sweep import SETTINGS as FEW_STEPS
from tests.hostile.wrong_calls import CALLED, WrongCall, sound, wrong_values
from workbench.basics.canonical_json import read_lines

OTHERS = Path(__file__).parents[1] / "imported" / "files"  # rollouts that other frameworks wrote
EXPORTS = {
    "openai": "openai.jsonl",
    "trl-grpo": "trl-grpo.jsonl",
    "trl-sft": "trl-sft.jsonl",
    "verifiers": "verifiers.jsonl",
    "dataset": "dataset",
}
# Commands that serve until they are ended, train a policy from nothing, fetch one, or have no bound to what is asked of them.
NOT_ASKED = ("serve", "retriever", "demo", "demo-model", "pretrain", "bias", "get-model")
# Nothing of the machine's is named where a command may write.
NAMED = tuple(word for word in WORDS if not word.startswith(("/", "~"))) + ("/dev/null/nowhere",)
WRITES_RUNS = ("resume",)
CALLED_S = 60


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
    """What is sound: a `run`, `rollouts` by format, a `model`, and a `folder` to work in. `shapes`: what documents of the run
    and rows of the rollouts look like, by name of the file; `right`: arguments of each public function."""

    run: Path
    rollouts: tuple[Path, ...]
    model: Path
    folder: Path
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    right: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def lay_ground(folder: Path) -> Ground:
    from tests.hostile.sweep import sound_run
    from workbench.engines.policy import load_policy

    run = sound_run(folder)
    for to, name in EXPORTS.items():
        status, said = called(["export", str(run), str(folder / name), "--to", to])
        assert status == 0, said
    rollouts = [path for name in EXPORTS.values() for path in _files(folder / name)]
    rollouts += [path for path in OTHERS.rglob("*") if path.suffix in (".jsonl", ".parquet")]
    model = Path(load_policy("frozenlake-tiny").model.name_or_path)
    shapes = {str(path.relative_to(run)): shape_of(_documents(path)) for path in _texts(run)}
    shapes |= {path.name: shape_of(_rows(path)) for path in rollouts if path.suffix == ".jsonl"}
    shapes |= {path.name: shape_of([json.loads(path.read_bytes())]) for path in _texts(model)}
    (folder / "work").mkdir()
    (folder / "called").mkdir()
    right = sound(folder / "called")
    return Ground(run, tuple(sorted(rollouts)), model, folder / "work", shapes, right)


def _files(place: Path) -> list[Path]:
    inside = place.rglob("*") if place.is_dir() else [place]
    return [path for path in inside if path.is_file() and path.suffix in (".jsonl", ".parquet")]


def _texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".jsonl"))


def _rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()[:20]]


def _documents(path: Path) -> list[Any]:
    """What one of a run's files holds inside its seal."""
    if path.suffix == ".jsonl":
        return [dict(record) for record in read_lines(path).records]
    document = json.loads(path.read_bytes())
    return [document["content"] if "content" in document else document]


# ------------------------------------------------------------------------------------------------ what is done


def attack(case: Case, ground: Ground, begin: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """(exit status, all that was said) of the case. Laid out anew for each. `begin` is called when all is laid out."""
    work = ground.folder / "case"
    shutil.rmtree(work, ignore_errors=True)
    (work / "outside").mkdir(parents=True)
    os.chdir(work)
    return KINDS[case.kind](case, ground, work, begin)


def attack_run(case: Case, ground: Ground, work: Path, begin: Callable) -> tuple[int, str]:
    run = work / "run"
    shutil.copytree(ground.run, run)
    for operation in case.operations:
        _bend_run(run, operation, work, ground)
    rng = random.Random(f"command {case.number}")
    words = rng.choice(QUICK) if rng.random() < 0.85 else rng.choice(HEAVY)
    places = {"RUN": str(run), "SOUND": str(ground.run), "OUT": "out"}
    places |= {"OUT.html": "out.html", "OUT.jsonl": "out.jsonl"}
    places["RUN/config.json"] = f"{run}/config.json"
    before = _kept_of(run)
    begin()
    status, said = called([places.get(word, word) for word in words])
    after = _kept_of(run)
    if words[0] in WRITES_RUNS:
        lost = [line for line in before["lines"] if not _is_somewhere(line, run)]
        return (71, f"LOST {lost[0][:200]!r}") if lost else (status, said)
    if words[0] != "evaluate" and before != after:
        return (
            71,
            f"CHANGED by {words[0]}: {sorted(map(str, before['files'] ^ after['files']))[:4]}",
        )
    return status, said


def _kept_of(run: Path) -> dict[str, Any]:
    """The run's files as they lie there, and the lines of committed steps that are sound."""
    files = set()
    for path in run.rglob("*"):
        about = path.lstat()
        if path.name != ".lock" and not path.is_dir():
            files.add((str(path.relative_to(run)), about.st_size, about.st_mtime_ns))
    metrics = run / "metrics.jsonl"
    lines: list[bytes] = []
    if _is_plain(metrics):
        with suppress(Exception):  # what cannot be read has no lines
            sound_until = len(read_lines(metrics).records)
            lines = metrics.read_bytes().splitlines()[:sound_until]
    return {"files": files, "lines": lines}


def _is_somewhere(line: bytes, run: Path) -> bool:
    """In the run's records, or among what was put aside."""
    return any(line in path.read_bytes() for path in run.rglob("*.jsonl*") if _is_plain(path))


def _bend_run(run: Path, operation: int, work: Path, ground: Ground) -> None:
    """What cannot be done to what an earlier operation left is left out."""
    rng = random.Random(f"bend {operation}")
    how = rng.random()
    try:
        if how < 0.45:
            mutate(run, operation)
        elif how < 0.7:
            _make_part(run, rng, ground)
        elif how < 0.8:
            HOSTILE[rng.choice(sorted(HOSTILE))](run, work / "outside")
        else:
            _bend_bytes(rng.choice(sorted(filter(_is_plain, run.rglob("*")))), rng)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError):
        pass
    except pa.ArrowException:
        pass


def _make_part(run: Path, rng: random.Random, ground: Ground) -> None:
    """A document, a record or a table of the run made anew by what sound ones look like, under seals that fit."""
    tables = sorted(path for path in run.rglob("*.parquet") if _is_plain(path))
    if rng.random() < 0.3 and tables:
        path = rng.choice(tables)
        _make_table(path, rng)
    else:
        name = rng.choice(sorted(key for key in ground.shapes if (ground.run / key).exists()))
        path, shape = run / name, ground.shapes[name]
        if path.exists() and not _is_plain(path):
            return  # an earlier operation left a pipe or a folder there, and reading a pipe waits for ever
        if path.suffix == ".jsonl":
            lines = [made(shape, rng) for _ in range(rng.choice((1, 2, 5)))]
            old = path.read_bytes() if rng.random() < 0.5 else b""
            replace_file(path, old + b"".join(map(sealed_line, lines)))
        else:
            _put_document(path, made(shape, rng))
    reseal(run, path)


def _put_document(path: Path, content: Any) -> None:
    document = json.loads(path.read_bytes())
    if "content" in document:
        body = json.dumps(content, separators=(",", ":")).encode()
        content = {**document, "content": content, "sha256": sha256(body).hexdigest()}
    replace_file(path, json.dumps(content).encode())


def _make_table(path: Path, rng: random.Random) -> None:
    schema = pq.read_schema(path)
    table = pa.table(made_table(schema, rng)).replace_schema_metadata(schema.metadata)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    replace_file(path, sink.getvalue())


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 22


def attack_rollouts(case: Case, ground: Ground, work: Path, begin: Callable) -> tuple[int, str]:
    rng = random.Random(f"rollouts {case.number}")
    source = rng.choice(ground.rollouts)
    path = work / source.name
    shutil.copy(source, path)
    for operation in case.operations:
        inner = random.Random(f"rollouts operation {operation}")
        how = inner.random()
        with suppress(pa.ArrowException, ValueError, OverflowError, OSError, TypeError):
            if how < 0.4:
                _make_rows(path, inner, ground)
            elif how < 0.8 and path.suffix == ".jsonl":
                _bend_lines(path, inner)
            else:
                _bend_bytes(path, inner)
    words = rng.choice((["lint", str(path)], ["lint", str(path), "--json"]))
    begin()
    return called(words)


def _make_rows(path: Path, rng: random.Random, ground: Ground) -> None:
    """Rows made anew, behind those that are there or instead of them."""
    if path.suffix == ".parquet":
        _make_table(path, rng)
        return
    rows = [made(ground.shapes[path.name], rng) for _ in range(rng.choice((1, 3, 8)))]
    old = path.read_bytes() if rng.random() < 0.4 else b""
    replace_file(path, old + b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def attack_model(case: Case, ground: Ground, work: Path, begin: Callable) -> tuple[int, str]:
    model = work / "model"
    shutil.copytree(ground.model, model)
    for operation in case.operations:
        _bend_model(model, random.Random(f"model {operation}"), ground)
    few = ["--tasks", "1", "--group", "1", "--set", "env.max_turns=2"]
    begin()
    return called(["rollout", "frozenlake", "--set", f"policy.name={model}", *few])


def _bend_model(model: Path, rng: random.Random, ground: Ground) -> None:
    how = rng.random()
    path = rng.choice(sorted(filter(_is_plain, model.iterdir())))
    if how < 0.35:
        template = text("template", rng).encode(errors="surrogatepass")
        replace_file(model / "chat_template.jinja", template)
    elif how < 0.5:
        path = rng.choice(sorted(model.glob("*config.json")))
        replace_file(path, json.dumps(made(ground.shapes[path.name], rng)).encode())
    elif path.suffix == ".json" and how < 0.85:
        _bend_document(path, rng)
    else:
        _bend_bytes(path, rng)


# Whose replies are played. Those of code need a sandbox, gymnasium is not everywhere.
PLAYED = (
    "frozenlake-4x4",
    "frozenlake-4x4-slip",
    "bandit",
    "sokoban-6x6",
    "sokoban-6x6-coordinates",
    "world-qa",
    "world-qa-two-hops",
    "countdown",
    "higher-lower",
    "shop-small",
)


def attack_reply(case: Case, ground: Ground, work: Path, begin: Callable) -> tuple[int, str]:
    """Every operation is a reply; each is read in every form of calls, and all are the turns of a trajectory."""
    import workbench as wb
    from workbench.tools.formats import format_for, format_names
    from workbench.values.errors import WorkbenchError
    from workbench.worlds import PRESETS

    tools = wb.tools_named(["calculator"])
    replies = [_reply(random.Random(f"reply {operation}"), tools) for operation in case.operations]
    family = PRESETS[random.Random(f"played {case.number}").choice(PLAYED)]
    env = family.make()
    env.reset(family.task(case.number % 1_000), dynamics_seed=0)
    begin()
    for reply in replies:
        for name in format_names():
            format_for(name, tools, think=len(reply) % 2 == 0).parse(reply)
    with suppress(WorkbenchError):
        for reply in replies:
            result = env.step(reply)
            if result.terminated or result.truncated:
                break
    return 0, ""


def _reply(rng: random.Random, tools: Any) -> str:
    """By the grammar; or what one of our formats writes, changed."""
    from workbench.tools.formats import format_for, format_names

    if rng.random() < 0.5:
        return text("reply", rng)
    form = format_for(rng.choice(format_names()), tools, think=rng.random() < 0.5)
    call = _call(form, rng)
    written = list(call if rng.random() < 0.7 else form.write_answer(text("words", rng)))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(written) + 1)
        written[at : at + rng.choice((0, 1, 5))] = text(rng.choice(("part", "mark", "value")), rng)
    return "".join(written)


def _call(form: Any, rng: random.Random) -> str:
    """A call as a format writes it; not every text can stand in every format, which is said in words: then another one."""
    from workbench.values.errors import ToolError

    for _ in range(20):
        with suppress(ToolError):
            return form.write_call(
                "calculator", {"expression": text("sum", rng)}, text("words", rng)
            )
    return form.write_call("calculator", {"expression": "1 + 2"}, "")


def attack_call(case: Case, ground: Ground, work: Path, begin: Callable) -> tuple[int, str]:
    """Every operation makes one more argument wrong."""
    import workbench as wb

    name = random.Random(f"call {case.number}").choice(sorted(ground.right))
    args = dict(ground.right[name])
    parameters = [
        parameter
        for parameter in inspect.signature(getattr(wb, name)).parameters.values()
        if not str(parameter.annotation).startswith(CALLED)
    ]
    for operation in case.operations if parameters else ():
        rng = random.Random(f"argument {operation}")
        args[rng.choice(parameters).name] = _wrong_value(rng, ground)
    begin()
    said = WrongCall(name, "several", str(case.operations), args).ended(seconds=CALLED_S)
    return (70 if said else 0), said


def _wrong_value(rng: random.Random, ground: Ground) -> Any:
    """One of the list, what another function takes, or such a value inside of others."""
    how = rng.random()
    if how < 0.2:
        given = ground.right[rng.choice(sorted(ground.right))]
        return rng.choice([None, *given.values()])
    if how < 0.35:
        inner = _wrong_value(rng, ground)
        return rng.choice(([inner], (inner, inner), {"x": inner}, [[inner]]))
    values = wrong_values()
    return values[rng.choice(sorted(values))]


def attack_words(case: Case, ground: Ground, work: Path, begin: Callable) -> tuple[int, str]:
    """Every operation puts in an option, or another word for one that is right."""
    shutil.copytree(ground.run, work / "run")
    (work / "run" / "settings.toml").write_text(FEW_STEPS)
    shutil.copytree(work / "run", work / "sound")
    (work / "words").mkdir()
    lay_words(work / "words")
    os.chdir(work / "words")
    asked = [words for words in COMMANDS.values() if words[0] not in NOT_ASKED]
    words = list(random.Random(f"words {case.number}").choice(asked))
    for operation in case.operations:
        _bend_words(words, random.Random(f"word {operation}"))
    places = {"RUN": "../run", "SOUND": "../sound", "OUT": "../out", "NOTEBOOK": "book.ipynb"}
    places["OUT.jsonl"] = "../out.jsonl"
    parts = [word.partition("/") for word in words]
    begin()
    return called([places.get(first, first) + slash + rest for first, slash, rest in parts])


def _bend_words(words: list[str], rng: random.Random) -> None:
    known = commands()[words[0]]
    options = [
        action for action in known._actions if action.option_strings and action.dest != "help"
    ]
    at = rng.randrange(1, len(words) + 1)
    if rng.random() < 0.3 and at < len(words):
        words[at] = rng.choice(NAMED)
    elif options:
        action = rng.choice(options)
        values = (
            SETTINGS if action.dest == "settings" else (*NAMED, "1", "2", *(action.choices or ()))
        )
        words[at:at] = [action.option_strings[0]]
        if action.nargs != 0:
            words[at + 1 : at + 1] = [str(rng.choice(values))]


KINDS: Mapping[str, Callable[[Case, Ground, Path, Callable], tuple[int, str]]] = {
    "run": attack_run,
    "rollouts": attack_rollouts,
    "model": attack_model,
    "reply": attack_reply,
    "call": attack_call,
    "words": attack_words,
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
