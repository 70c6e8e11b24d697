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
import math
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.basics.extensions import provided
from workbench.values.errors import WorkbenchError

SECONDS = 20
CALLED = ("Callable", "TokenTexts")  # how an annotation begins of what is called


def wrong_values() -> dict[str, Any]:
    return {
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
    }


@dataclass(frozen=True)
class WrongCall:
    function: str
    argument: str
    value: str
    args: Mapping[str, Any]

    def __str__(self) -> str:
        return f"wb.{self.function}({self.argument} = {self.value})"

    def ended(self, seconds: int = SECONDS) -> str:
        """What is wrong with how it ended; "": nothing."""
        function = getattr(wb, self.function)
        said = io.StringIO()
        before = signal.signal(signal.SIGALRM, _late)
        signal.alarm(seconds)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                made = _called(function, self.args)
                if hasattr(made, "__html__") or hasattr(made, "_repr_html_"):
                    repr(made)
        except WorkbenchError as error:
            words = str(error)
            odd = [letter for letter in words if not letter.isprintable() and letter != "\n"]
            return f"{self}: control characters in {words!r:.200}" if odd else ""
        except TimeoutError:
            return f"{self}: went on for {seconds} s"
        except TypeError as error:
            if _depth(error) == 0 and "argument" in str(error):
                return ""
            return f"{self}: {type(error).__name__}: {error} at {_place(error)}"
        except (Exception, SystemExit) as error:
            return f"{self}: {type(error).__name__}: {error!s:.120} at {_place(error)}"
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
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


def _late(*_: Any) -> None:
    raise TimeoutError


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


def functions() -> list[str]:
    """The public functions and classes."""
    names = sorted({*wb.PUBLIC, *provided("public")})
    return [name for name in names if callable(getattr(wb, name))]


def calls(right: Mapping[str, Mapping[str, Any]], names: list[str]) -> Iterator[WrongCall]:
    """`right`: by function, arguments that are right, the required ones among them."""
    for name in names:
        given = right[name]
        for argument in inspect.signature(getattr(wb, name)).parameters:
            parameter = inspect.signature(getattr(wb, name)).parameters[argument]
            annotation = str(parameter.annotation)
            for words, value in wrong_values().items():
                if value is None and parameter.default is None:
                    continue  # what it is without being given
                if annotation.startswith(CALLED) and callable(value):
                    continue  # what it raises when it is called is the caller's own
                rest = {key: part for key, part in given.items() if key != argument}
                args = {
                    key: value if key == argument else rest[key]
                    for key in inspect.signature(getattr(wb, name)).parameters
                    if key == argument or key in rest
                }
                yield WrongCall(name, argument, words, args)


def cheap(folder: Path) -> dict[str, dict[str, Any]]:
    """For those functions that need neither a run nor a policy, arguments that are right."""
    calculator = wb.tools_named(["calculator"])[0]
    return {
        "CollectConfig": {},
        "Endpoint": {"url": "http://127.0.0.1:9/v1", "model": "x"},
        "attach": {"path": folder / "run"},
        "fresh_path": {"path": folder / "new"},
        "load_config": {"source": "bandit"},
        "open_run": {"path": folder / "run"},
        "progress": {"total": 3, "label": "x"},
        "result": {"success": 0.5},
        "runs": {"folder": folder},
        "schema_of": {"tool": calculator},
        "show_metrics": {"row": {"loss": 1.0}},
        "show_rows": {"rows": [{"a": 1}]},
        "tool": {"function": None, "name": "mine"},
        "tools_named": {"names": ["calculator"]},
    }


def sound(folder: Path) -> dict[str, dict[str, Any]]:
    """For each function arguments that are right; a run of one step lies in `folder`."""
    few = {
        "train.steps": 1,
        "train.tasks_per_step": 1,
        "train.group_size": 2,
        "evaluation.num_tasks": 2,
        "train.evaluate_every": 0,
    }
    config = wb.load_config("bandit", few)
    run = wb.train_here(config, folder / "run", on_note=None)
    session = wb.open_session(config, quiet=True)
    groups = wb.rollout(session, 1, group_size=2)
    rollouts = folder / "rollouts.jsonl"
    rollouts.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    observation = session.family.make().reset(groups[0].task, 0)
    calculator = wb.tools_named(["calculator"])[0]
    of_run = {"run": run}
    of_groups = {"groups": groups}
    right: dict[str, dict[str, Any]] = {
        "mount": {"command": ["true"]},
        "agents": {"program": "my_agent:solve"},
        "attach_trl": {"trainer": None},  # a right one takes a TRL run: tests/extensions/trl_live
        "attach_verl": {},  # ... verl: tests/extensions/verl_live
        "check_rewards": {"policy": None, "words": "answer"},  # tests/extensions/silent_zeros
        "lint_verl": {"data": None},
        "conversations": {"what": groups},
        "envs": {},
        "show_planted": {},
        "ablate": {"plan": "no-such-plan", "out": folder / "grid"},
        "assert_clean": {"what": groups, "session": session},
        "audit": {"what": session, "tasks": 1, "attempts": 1, "syncs": 1},
        "baselines": {"session": session, "num_tasks": 2},
        "bias_bench": {"algorithms": ["rloo"], "tasks": ["bandit-0.1"]},
        "branch": {**of_run, "at": "1/0/0/0"},
        "by_kind": {**of_run, "key": "arms"},
        "check_env": {"env": "bandit", "tasks": 1, "budget_s": 0.1},
        "compare_runs": {"a": run, "b": run},
        "credit_of": {"table": run.credit(1), "trajectory": 0},
        "edit_step": {**of_run, "step": 1},
        "evaluate": {"session": session, "num_tasks": 2},
        "evaluation_report": {"session": session, "scores": []},
        "explore": of_run,
        "export_policy": {**of_run, "folder": folder / "policy"},
        "export_run": {**of_run, "dest": folder / "exported"},
        "facts": {"session": session, **of_groups},
        "group_spread": of_run,
        "groups_equal": {"a": groups, "b": groups},
        "lint": {"what": groups, "session": session},
        "open_run": {"path": folder / "run"},
        "open_session": {"config": config, "quiet": True},
        "paired": {"first": groups},
        "planted": {"name": "x"},
        "play": {
            "family": session.family,
            "tokenizer": session.policy.tokenizer,
            "ask": lambda words: "1",
            "say": lambda words: None,
        },
        "read_rollouts": {"path": rollouts},
        "reopen": of_run,
        "replay_step": {**of_run, "step": 1, "algorithm": config.algorithm},
        "resume": {"path": folder / "nothing"},
        "resume_here": {"path": folder / "run", "on_note": None},
        "retokenize": {"session": session, **of_groups},
        "rollout": {"session": session, "tasks": 1, "group_size": 1},
        "search": {"where": run},
        "show": {"value": run},
        "show_calls": {"tools": calculator, "calls": ("calculator", {"expression": "1"})},
        "show_counts": of_groups,
        "show_estimators": of_groups,
        "show_mask_switches": of_groups,
        "show_masks": of_groups,
        "show_prompt": {"session": session, "observation": observation},
        "show_replay": {**of_run, "step": 1},
        "show_tokens": {"trajectory": groups[0][0], "token_texts": session.chat.token_texts},
        "signals": of_run,
        "step_facts": {**of_run, "step": 1},
        "talk": {"source": session},
        "track": {"run": folder / "run", "to": "tensorboard", "dest": folder / "tracked"},
        "train": {"config": config, "path": folder / "run"},
        "train_here": {"config": config, "path": folder / "run", "on_note": None},
        "train_step": {"session": session, "step": 1},
        "tune_in": {"policy": "frozenlake-tiny", "env": "frozenlake", "tasks": 1, "attempts": 1},
        "warm_start": {"policy": "frozenlake-tiny", "env": "frozenlake", "out": folder / "run"},
    }
    return cheap(folder) | right


def main(words: list[str]) -> int:
    """Every wrong call, or those of the functions that are named."""
    import tempfile

    bad = []
    count = 0
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        right = sound(Path(made))
        for call in calls(right, words or [name for name in functions() if name in right]):
            count += 1
            if wrong := call.ended():
                bad.append(wrong)
                print(wrong, flush=True)
    print(f"{count} wrong calls, {len(bad)} that did not end in words")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
