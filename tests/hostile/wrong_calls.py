"""Wrong calls of everything in `wb`: each public function, each of its arguments, each of a grid of wrong values, all else
being right.

    for call in calls(sound(folder)): call.ended()        "" where it was fine, or was refused in words that name what was wrong

A refusal is an error of ours (`WorkbenchError`), or Python's own TypeError of a call that does not bind. Anything else came out of
the depth of this package, where a user can do nothing with it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import math
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import numpy as np

import workbench as wb
from tests.hostile.odd_values import Refusal, odd_values
from workbench.basics.extensions import provided
from workbench.values.errors import WorkbenchError

SECONDS = 20  # of computing
WAITING = 8  # times as many in all, for what only waits
LONGEST = 2 * WAITING * SECONDS  # until a process is given up
MEGABYTES = 1_000
CALLED = ("Callable", "TokenTexts")  # how an annotation begins of what is called


def wrong_values() -> dict[str, Any]:
    return odd_values() | {
        "None": None,
        "5": 5,
        "-1": -1,
        "0": 0,
        "a trillion": 10**12,
        "31 digits": 10**30,
        "True": True,
        "half": 0.5,
        "nan": math.nan,
        "inf": math.inf,
        "text": "x",
        "no text": "",
        # Nobody can make it: root did make a path at the root of the disk, and other tests met it.
        "a path that is not there": "/dev/null/nowhere",
        "escapes": "\x1b]0;title\a\u202e",
        "5,000 letters": "x" * 5_000,
        "a zero byte": "a\0b",
        "half a character": "\udc80",
        "bytes": b"x",
        "an object": object(),
        "an empty list": [],
        "a list of none": [None],
        "lists in lists": [[[]]],
        "a list of texts": ["x", "\x1b"],
        "an empty dict": {},
        "a dict": {"x": 1},
        "a dict of objects": {3: object()},
        "a set": {1},
        "a tuple": (1, 2),
        "a function": lambda: None,
        "a class": int,
        "a path": Path("nowhere"),
        "a generator": iter(()),
        "a complex number": 1j,
        "numbers without end": itertools.count(),
        "a list in itself": _list_in_itself(),
        "lists 5,000 deep": _deep(5_000),
        "a dict 5,000 deep": _deep_dict(5_000),
        "a million texts": ["x"] * 1_000_000,
        "what has every attribute": Everything(),
        "an array": np.zeros((2, 2)),
        "numbers up to a trillion": range(10**12),
        "a range of nothing": range(0),
        "a type of text": TextOfOurs("x"),
        "a type of bytes": BytesOfOurs(b"x"),
        "a type of number": NumberOfOurs(5),
        "a type of list": ListOfOurs(["x"]),
        "a type of dict": DictOfOurs({"x": 1}),
        "three dots": ...,
        "an error": ValueError("x"),
        "a module": math,
        "the package": wb,
        "a path with a zero byte": Path("a\0b"),
        "a list of paths": [Path("nowhere")],
        "a list of dicts": [{"x": 1}],
        "a dict of lists": {"x": [1, None, "a"]},
        "a dict with no text": {"": None},
        "settings that are none": {"train.steps": "x", "no.such": 1},
        "minus a trillion": -(10**12),
        "1e308": 1e308,
        "a device": "/dev/zero",
        "a folder of the machine's": "/proc/self",
        "a web address": "http://127.0.0.1:9/x",
        "code": "os:system",
    }


def _list_in_itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def _deep(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def _deep_dict(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"x": made}
    return made


class Everything:
    """What has whatever it is asked for, and nothing of it is right."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 5


class TextOfOurs(str):
    """A text of another class."""


class BytesOfOurs(bytes):
    """Bytes of another class."""


class NumberOfOurs(int):
    """A number of another class, whose name acts in a terminal."""

    def __repr__(self) -> str:
        return "\x1b[2J"


class ListOfOurs(list):
    """A list of another class."""


class DictOfOurs(dict):
    """A dict of another class."""


@dataclass(frozen=True)
class WrongCall:
    """`of`: the function itself; None: the public function of this name."""

    function: str
    argument: str
    value: str
    args: Mapping[str, Any]
    of: Callable | None = None

    def __str__(self) -> str:
        return f"wb.{self.function}({self.argument} = {self.value})"

    def ended(self, seconds: int = SECONDS) -> str:
        """What is wrong with how it ended; "": nothing."""
        function = self.of or getattr(wb, self.function)
        said = io.StringIO()
        before = [signal.signal(number, _late) for number in (signal.SIGPROF, signal.SIGALRM)]
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(WAITING * seconds)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                made = _called(function, self.args)
                if hasattr(made, "__html__") or hasattr(made, "_repr_html_"):
                    repr(made)
        except WorkbenchError as error:
            words = str(error)
            odd = [letter for letter in words if not letter.isprintable() and letter != "\n"]
            return f"{self}: control characters in {words!r:.200}" if odd else ""
        except Late:
            return f"{self}: went on for {seconds} s"
        except Refusal as error:
            # What a value of the caller's raises at its use is the caller's; to look at it is none.
            return "" if _depth(error) else f"{self}: it raised when it was looked at"
        except TypeError as error:
            if _depth(error) == 0 and "argument" in str(error):
                return ""
            return f"{self}: {type(error).__name__}: {error} at {_place(error)}"
        except (Exception, SystemExit) as error:
            return f"{self}: {type(error).__name__}: {error!s:.120} at {_place(error)}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before):
                signal.signal(number, handler)
        return ""


def _called(function: Any, values: Mapping[str, Any]) -> Any:
    """Called with arguments by name, those of `*several` and `**more` in their places."""
    values = dict(values)
    parameters = inspect.signature(function).parameters
    kinds = {parameter.kind: name for name, parameter in parameters.items()}
    several = kinds.get(inspect.Parameter.VAR_POSITIONAL)
    args: list[Any] = []
    if several in values:
        before = list(parameters)[: list(parameters).index(several)]
        args = [*(values.pop(name) for name in before), values.pop(several)]
    more = kinds.get(inspect.Parameter.VAR_KEYWORD)
    if more in values:
        values |= {"odd": values.pop(more)}
    return function(*args, **values)


class Late(BaseException):
    """Nothing of what is called takes it for its own."""


def _late(*_: Any) -> None:
    raise Late


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    own = str(Path(__file__).parents[2] / "workbench")
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if frame.filename.startswith(own)]


def _depth(error: BaseException) -> int:
    doors = ("argument_checks.py", "annotated.py", "__init__.py")
    return sum(not frame.filename.endswith(doors) for frame in _frames(error))


def _place(error: BaseException) -> str:
    frames = _frames(error)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "Python"


def without_wrong_calls() -> list[str]:
    """Public functions that take something and have no right arguments here, and so no wrong ones."""
    lacking = [name for name in functions() if name not in RIGHT]
    return [name for name in lacking if inspect.signature(getattr(wb, name)).parameters]


def functions() -> list[str]:
    """The public functions and classes."""
    names = sorted({*wb.PUBLIC, *provided("public")})
    return [name for name in names if callable(getattr(wb, name))]


def calls(
    right: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    values: Callable[[], Mapping[str, Any]] = wrong_values,
) -> Iterator[WrongCall]:
    """`right`: by function, arguments that are right, the required ones among them. `values` makes the wrong ones, anew for each
    argument: some can be used once."""
    for name in names:
        given = dict(right[name])
        function = given.pop(CALLED_ITSELF, None) or getattr(wb, name)
        parameters = inspect.signature(function).parameters
        for argument, parameter in parameters.items():
            annotation = str(parameter.annotation)
            for words, value in values().items():
                if value is None and parameter.default is None:
                    continue  # what it is without being given
                if annotation.startswith(CALLED) and callable(value):
                    continue  # what it raises when it is called is the caller's own
                rest = {key: part for key, part in given.items() if key != argument}
                args = {
                    key: value if key == argument else rest[key]
                    for key in parameters
                    if key == argument or key in rest
                }
                clear_new(given)
                yield WrongCall(name, argument, words, args, function)


def clear_new(given: Mapping[str, Any]) -> None:
    """Take away what a call before wrote where nothing is to lie."""
    for value in given.values():
        if isinstance(value, Path) and value.parent.name == NEW:
            rmtree(value.parent, ignore_errors=True)
            # What an earlier call of `track` started may write there meanwhile.
            value.parent.mkdir(exist_ok=True)


@dataclass(frozen=True)
class Sound:
    """What right arguments are made of. A run of one step lies in `folder / "run"`, and what it trained with is open."""

    folder: Path

    @cached_property
    def config(self) -> Any:
        few = {
            "train.steps": 1,
            "train.tasks_per_step": 1,
            "train.group_size": 2,
            "evaluation.num_tasks": 2,
            "train.evaluate_every": 0,
        }
        return wb.load_config("bandit", few)

    @cached_property
    def run(self) -> Any:
        return wb.train_here(self.config, self.folder / "run", on_note=None)

    @cached_property
    def session(self) -> Any:
        return wb.open_session(self.config, quiet=True)

    @cached_property
    def groups(self) -> Any:
        return wb.rollout(self.session, 1, group_size=2)

    @cached_property
    def scores(self) -> Any:
        return wb.evaluate(self.session, num_tasks=2)

    @cached_property
    def rollouts(self) -> Path:
        path = self.folder / "rollouts.jsonl"
        path.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
        return path

    @cached_property
    def observation(self) -> Any:
        return self.session.family.make().reset(self.groups[0].task, 0)

    @cached_property
    def calculator(self) -> Any:
        return wb.tools_named(["calculator"])[0]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Of another trainer's data: sums, and what they come to."""
        return [{"prompt": f"{k} + {k}?", "answer": str(2 * k)} for k in range(3)]

    @cached_property
    def batch(self) -> Any:
        """In the place of a DataProto of verl."""
        mask = np.ones((4, 2), dtype=np.int64)
        arrays = {"responses": mask, "response_mask": mask, "advantages": mask * 0.5}
        return SimpleNamespace(batch=arrays, non_tensor_batch={"uid": ["a", "a", "b", "b"]})

    @cached_property
    def plan(self) -> Path:
        from tests.ablation.quick import plan_at

        return plan_at(self.folder)

    def new(self) -> Path:
        """Where nothing lies: what a call before this one wrote there is gone."""
        return self.folder / NEW / "x"


def paid(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """A reward function of another trainer."""
    return [float(text == right) for text, right in zip(completions, answer)]


def solve(task: Any, model: Any) -> str:
    """An agent's program."""
    return "3"


NEW = "new"
CALLED_ITSELF = "the method itself"  # among the right arguments of a method
# Those that need neither a run nor a policy.
CHEAP = (
    "CollectConfig Endpoint attach fresh_path load_config open_run progress result runs schema_of show_metrics show_rows tool "
    "tools_named"
).split()
# For each function arguments that are right.
RIGHT: dict[str, Callable[[Sound], dict[str, Any]]] = {
    "CollectConfig": lambda at: {},
    "Endpoint": lambda at: {"url": "http://127.0.0.1:9/v1", "model": "x"},
    "ablate": lambda at: {"plan": at.plan, "out": at.new(), "dry_run": True},
    "agents": lambda at: {"program": solve},
    "assert_clean": lambda at: {"what": at.groups, "session": at.session},
    "attach": lambda at: {"path": at.folder / "run"},
    "attach_trl": lambda at: {"trainer": trl_trainer()},
    "attach_verl": lambda at: {},
    "audit": lambda at: {"what": at.session, "tasks": 1, "attempts": 1, "syncs": 1},
    "baselines": lambda at: {"session": at.session, "num_tasks": 2},
    "bias_bench": lambda at: {
        "algorithms": ["rloo"],
        "tasks": ["bandit-0.1"],
        "error": 1.0,
        "traps": False,
    },
    "branch": lambda at: {"run": at.run, "at": "1/0/0/0"},
    "by_kind": lambda at: {"run": at.run, "key": "arms"},
    "check_env": lambda at: {"env": "bandit", "tasks": 1, "budget_s": 0.1},
    "check_rewards": lambda at: {
        "policy": at.session.policy.tokenizer,
        "words": "answer",
        "rewards": paid,
        "rows": at.rows,
        "budget_s": 0.5,
    },
    "compare_runs": lambda at: {"a": at.run, "b": at.run},
    "conversations": lambda at: {"what": at.groups},
    "credit_of": lambda at: {"table": at.run.credit(1), "trajectory": 0},
    "edit_step": lambda at: {"run": at.run, "step": 1},
    "envs": lambda at: {},
    "evaluate": lambda at: {"session": at.session, "num_tasks": 2},
    "evaluation_report": lambda at: {"session": at.session, "scores": []},
    "explore": lambda at: {"run": at.run},
    "export_policy": lambda at: {"run": at.run, "folder": at.new()},
    "export_run": lambda at: {"run": at.run, "dest": at.new()},
    "facts": lambda at: {"session": at.session, "groups": at.groups},
    "fresh_path": lambda at: {"path": at.new()},
    "group_spread": lambda at: {"run": at.run},
    "groups_equal": lambda at: {"a": at.groups, "b": at.groups},
    "lint": lambda at: {"what": at.groups, "session": at.session},
    "lint_verl": lambda at: {"data": at.batch, "estimator": "grpo", "step": 1},
    "load_config": lambda at: {"source": "bandit"},
    "mount": lambda at: {"command": ["true"]},
    "open_run": lambda at: {"path": at.folder / "run"},
    "open_session": lambda at: {"config": at.config, "quiet": True},
    "paired": lambda at: {"first": at.groups},
    "planted": lambda at: {"name": "x"},
    "play": lambda at: {
        "family": at.session.family,
        "tokenizer": at.session.policy.tokenizer,
        "ask": lambda words: "1",
        "say": lambda words: None,
    },
    "progress": lambda at: {"total": 3, "label": "x"},
    "read_rollouts": lambda at: {"path": at.rollouts},
    "reopen": lambda at: {"run": at.run},
    "replay_step": lambda at: {"run": at.run, "step": 1, "algorithm": at.config.algorithm},
    "result": lambda at: {"success": 0.5},
    "resume": lambda at: {"path": at.folder / "nothing"},
    "resume_here": lambda at: {"path": at.folder / "run", "on_note": None},
    "retokenize": lambda at: {"session": at.session, "groups": at.groups},
    "rollout": lambda at: {"session": at.session, "tasks": 1, "group_size": 1},
    "runs": lambda at: {"folder": at.folder},
    "schema_of": lambda at: {"tool": at.calculator},
    "search": lambda at: {"where": at.run},
    "show": lambda at: {"value": at.run},
    "show_calls": lambda at: {
        "tools": at.calculator,
        "calls": ("calculator", {"expression": "1"}),
    },
    "show_counts": lambda at: {"groups": at.groups},
    "show_estimators": lambda at: {"groups": at.groups},
    "show_mask_switches": lambda at: {"groups": at.groups},
    "show_masks": lambda at: {"groups": at.groups},
    "show_metrics": lambda at: {"row": {"loss": 1.0}},
    "show_planted": lambda at: {},
    "show_prompt": lambda at: {"session": at.session, "observation": at.observation},
    "show_replay": lambda at: {"run": at.run, "step": 1},
    "show_rows": lambda at: {"rows": [{"a": 1}]},
    "show_tokens": lambda at: {
        "trajectory": at.groups[0][0],
        "token_texts": at.session.chat.token_texts,
    },
    "signals": lambda at: {"run": at.run},
    "step_facts": lambda at: {"run": at.run, "step": 1},
    "talk": lambda at: {"source": at.session},
    "tool": lambda at: {"function": None, "name": "mine"},
    "tools_named": lambda at: {"names": ["calculator"]},
    "track": lambda at: {"run": at.folder / "run", "to": "tensorboard", "dest": at.new()},
    "train": lambda at: {"config": at.config, "path": at.folder / "run"},  # is there already
    "train_here": lambda at: {"config": at.config, "path": at.new(), "on_note": None},
    "train_step": lambda at: {"session": at.session, "step": 1},
    "tune_in": lambda at: {
        "policy": "frozenlake-tiny",
        "env": "frozenlake",
        "tasks": 1,
        "attempts": 1,
        "turns": 1,
        "trials": {},
    },
    "warm_start": lambda at: {
        "policy": "frozenlake-tiny",
        "env": "frozenlake",
        "out": at.new(),
        "tasks": 1,
    },
}


def batch_of(at: Sound) -> Any:
    from workbench.learn.batch import Batch

    return Batch.from_groups(at.groups)


def _method(
    of: Callable[[Sound], Any], method: str, /, **given: Any
) -> Callable[[Sound], dict[str, Any]]:
    return lambda at: {CALLED_ITSELF: getattr(of(at), method), **given}


# The same of methods of what the public functions return. What groups share with tuples (an item, a sum, a comparison) ends in
# Python's own errors, as it does of tuples.
RIGHT_OF_METHODS: dict[str, Callable[[Sound], dict[str, Any]]] = {
    **{
        f"Run.{name}": _method(lambda at: at.run, name, step=1)
        for name in (
            "config_of credit groups lint lint_values metrics_line skipped trajectory_bytes updates".split()
        )
    },
    **{
        f"Run.{name}": _method(lambda at: at.run, name)
        for name in ("tokens", "trajectories", "turns")
    },
    "Run.setting": _method(lambda at: at.run, "setting", key="seed", kinds=int),
    "Run.evaluated": _method(lambda at: at.run, "evaluated", name="step-00000000"),
    "Run.save": lambda at: {
        CALLED_ITSELF: wb.show(at.run).save,
        "path": at.folder / "view.html",
    },
    "Batch.describe_token": _method(batch_of, "describe_token", index=0),
    "Batch.select": _method(batch_of, "select", trajectories=[0]),
    "Batch.with_a_token_after": _method(batch_of, "with_a_token_after", trajectories=[0]),
    "Progress.update": _method(lambda at: wb.progress(3, "x"), "update", done=1),
    "Progress.say": _method(lambda at: wb.progress(3, "x"), "say", text="x"),
    "FunctionTool.complaint": _method(
        lambda at: at.calculator, "complaint", arguments={"expression": "1"}
    ),
    "CollectConfig.runs_like": lambda at: {
        CALLED_ITSELF: wb.CollectConfig().runs_like,
        "other": wb.CollectConfig(),
    },
    "RunningRun.wait": _method(lambda at: wb.attach(at.folder / "run"), "wait"),
    "RunningRun.stop": _method(lambda at: wb.attach(at.folder / "run"), "stop"),
    "Session.train_tasks": _method(lambda at: at.session, "train_tasks", step=1),
    "Session.held_out_tasks": _method(lambda at: at.session, "held_out_tasks"),
    "CreditTable.item": _method(lambda at: at.run.credit(1), "__getitem__", name="weight"),
    "Score.pass_at": _method(lambda at: at.scores[0], "pass_at", k=1),
    "Scores.beside": _method(lambda at: at.scores, "beside", known={}),
    "Score.of_row": lambda at: {
        CALLED_ITSELF: type(at.scores[0]).of_row,
        "row": at.scores[0].row(),
    },
    "EditedCredit.after": _method(lambda at: wb.edit_step(at.run, 1), "after"),
    "EditedCredit.view": _method(lambda at: wb.edit_step(at.run, 1), "view"),
    "EditedCredit.outcome": _method(lambda at: wb.edit_step(at.run, 1), "outcome"),
    "Linted.view": _method(lambda at: wb.lint(at.groups, session=at.session), "view"),
    "ByKind.success": _method(lambda at: wb.by_kind(at.run, "arms"), "success", kind="3"),
    "ByKind.difference": _method(lambda at: wb.by_kind(at.run, "arms"), "difference", kind="3"),
    "RunSpread.at": _method(lambda at: wb.group_spread(at.run), "at", step=1),
    "RunSpread.shares": _method(lambda at: wb.group_spread(at.run), "shares", side="won"),
    "PairedGroups.of": _method(lambda at: wb.paired(at.groups, at.groups), "of", change="same"),
    "PairedGroups.view": _method(lambda at: wb.paired(at.groups, at.groups), "view"),
    "Retokenized.view": _method(lambda at: wb.retokenize(at.session, at.groups), "view"),
    "Navigator.save": lambda at: {
        CALLED_ITSELF: wb.explore(at.run).save,
        "path": at.folder / "run.html",
    },
    "MatchTable.explore": _method(lambda at: wb.search(at.run, "1"), "explore"),
    "RunSignals.series": _method(lambda at: wb.signals(at.run), "series", signal="entropy"),
    "Runs.filter": _method(lambda at: wb.runs(at.folder), "filter", text="bandit"),
    "Runs.sort": _method(lambda at: wb.runs(at.folder), "sort", by="success"),
    "Runs.group_by": _method(lambda at: wb.runs(at.folder), "group_by", settings="seed"),
    "Runs.save": lambda at: {
        CALLED_ITSELF: wb.runs(at.folder).save,
        "path": at.folder / "runs.html",
    },
    "Talk.task_of": _method(lambda at: wb.talk(at.session), "task_of", question="x"),
    "Ablation.run": lambda at: {
        CALLED_ITSELF: wb.ablate(at.plan, at.new(), dry_run=True).run,
        "arm": "x",
        "seed": 1,
    },
    "Endpoint.stream": lambda at: {
        CALLED_ITSELF: wb.Endpoint("http://127.0.0.1:9/v1", "x").stream,
        "messages": [{"role": "user", "content": "x"}],
    },
}


def trl_trainer() -> Any:
    """In the place of a GRPOTrainer of TRL, as far as it is looked at when a lint is attached."""
    args = SimpleNamespace(loss_type="grpo", num_generations=2)
    names = ("_generate_and_score_completions", "compute_loss", "add_callback")
    steps = dict.fromkeys(names, lambda *_: None)
    return SimpleNamespace(**steps, reward_funcs=[paid], args=args, model=None)


def sound(folder: Path, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """For each function, or each of these, arguments that are right; what they need is made in `folder`."""
    at = Sound(folder)
    (folder / NEW).mkdir(exist_ok=True)
    return {name: RIGHT[name](at) for name in names or RIGHT}


def cheap(folder: Path) -> dict[str, dict[str, Any]]:
    return sound(folder, CHEAP)


def ends(made: Callable[[], Iterator[WrongCall]]) -> Iterator[str]:
    """As `ended`, of each of these calls in turn, in a process apart, and another one where that ends or hangs; what takes more
    than MEGABYTES beside what was there is wrong, too. `made` makes the same calls each time."""
    total = sum(1 for _ in made())
    done = 0
    while done < total:
        for wrong in _ends_in_a_child(lambda: itertools.islice(made(), done, None)):  # noqa: B023
            yield wrong
            done += 1
        if done < total:
            call = next(itertools.islice(made(), done, None))
            yield f"{call}: its process ended without a word, or went on for {LONGEST} s"
            done += 1


def _ends_in_a_child(made: Callable[[], Iterator[WrongCall]]) -> Iterator[str]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        with contextlib.suppress(BaseException):
            for call in made():
                os.write(
                    writing, (_end_with_memory(call) or "fine").encode(errors="replace") + b"\n"
                )
        os._exit(0)
    os.close(writing)
    try:
        for line in _lines(reading):
            yield "" if line == "fine" else line
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _lines(reading: int) -> Iterator[str]:
    """What comes out of a pipe, line by line, until it ends or nothing comes any more."""
    held = b""
    while select.select([reading], [], [], LONGEST)[0]:
        more = os.read(reading, 1 << 16)
        *whole, held = (held + more).split(b"\n")
        yield from (line.decode() for line in whole)
        if not more:
            return


def _end_with_memory(call: WrongCall) -> str:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is measured anew
    before = _peak_mb()
    wrong = call.ended()
    more = _peak_mb() - before
    if not wrong and more > MEGABYTES:
        wrong = f"{call}: took {more:.0f} MB"
    return wrong.replace("\n", " ")[:4000]


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return max(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main(words: list[str]) -> int:
    """Every wrong call, or those of the functions that are named; after `--odd`, with the values of `odd_values` alone."""
    values = odd_values if "--odd" in words else wrong_values
    names = [word for word in words if word != "--odd"]
    bad = count = 0
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        os.environ["WORKBENCH_PROGRESS"] = "quiet"
        at = Sound(Path(made))
        right_of = RIGHT | RIGHT_OF_METHODS
        for name in names or sorted(right_of):
            (at.folder / NEW).mkdir(exist_ok=True)
            right = {name: right_of[name](at)}
            ended = list(ends(lambda: calls(right, [name], values)))  # noqa: B023
            wrong = [words for words in ended if words]
            print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
            print(
                f"{name}: {len(ended)} wrong calls, {len(wrong)} raw", file=sys.stderr, flush=True
            )
            count += len(ended)
            bad += len(wrong)
    print(f"{count} wrong calls, {bad} that did not end in words")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
