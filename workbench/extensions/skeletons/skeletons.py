"""A first environment, tool or algorithm of one's own: a module, its test, and a file of settings that trains with it.

    write_skeleton("env", "number_game", ".")      number_game.py, test_number_game.py, number_game.toml

Each works as it is written: its test passes, `workbench train number_game.toml` trains. Nothing is written over.
"""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template

from workbench.look import text_view
from workbench.run.writer import make_folder, write_file
from workbench.values import View
from workbench.values.errors import ConfigError, StoreError

_SMALL = """
[train]
steps = 2
tasks_per_step = 4
group_size = 4
evaluate_every = 0

[evaluation]
num_tasks = 8
"""

_ENV = '''"""$words: what is to be done, and what is paid for it. See docs/extend/environment.md."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from workbench.values import Message, Observation, StepResult, Task, Text
from workbench.values.errors import EnvError
from workbench.basics.settings import at_least, check_settings


@dataclass
class ${Name}Env:
    """One trajectory: messages in, messages out."""

    max_turns: int
    over: bool = True

    def reset(self, task, dynamics_seed):
        self.number, self.over = task.payload["number"], False
        words = (f"Guess my number, {task.payload['low']} to {task.payload['high']}. You have {self.max_turns} guesses. "
                 "Answer like this: <answer>7</answer>")
        return Observation((Message("user", (Text(words, trusted=True),)),))

    def step(self, action_text):
        if self.over:
            raise EnvError("this trajectory is over")
        answer, closed, rest = action_text.partition("<answer>")[2].partition("</answer>")
        once = bool(closed) and "<answer>" not in rest  # who may answer often is paid for all numbers at once
        right = self.over = once and answer.strip() == str(self.number)
        reply = () if right else (Message("user", "Wrong, guess again."),)
        return StepResult(Observation(reply), float(right), {"answer": float(right)}, terminated=right, info={"success": right})


@dataclass(frozen=True)
class $Name:
    """The kind of problem; its fields are its settings."""

    high: Annotated[int, at_least(1), "the largest number"] = 99
    max_turns: Annotated[int, at_least(1), "guesses"] = 2

    name: ClassVar[str] = "$name"

    def __post_init__(self):
        check_settings(self, "env")

    def task(self, task_seed):  # the same problem for the same seed, in every process and for good
        payload = {"number": task_seed % (self.high + 1), "low": 0, "high": self.high}
        return Task(f"$name/{task_seed}", "$name", task_seed, payload)

    def make(self):
        return ${Name}Env(self.max_turns)

    def random_action(self, env, rng):
        return f"<answer>{rng.integers(self.high + 1)}</answer>"

    def solver_action(self, env, rng):  # leave it out where nobody knows how: tables then say "none known"
        return f"<answer>{env.number}</answer>"
'''
_ENV_TEST = """import workbench as wb
from $name import $Name


def test_it_does_what_it_says():
    found = wb.check_env($Name(), budget_s=0.5)  # chance, limits, leaks, what can be earned without solving anything ...
    assert found.ok, found


def test_a_seed_makes_one_problem_and_only_the_right_answer_is_paid():
    family = $Name()
    task, env = family.task(7), family.make()
    first = env.reset(task, 0)
    assert first == family.make().reset(family.task(7), 1), "the first observation depends on the task's seed alone"
    wrong = env.step("<answer>8</answer>")
    right = env.step(family.solver_action(env, None))
    assert (wrong.reward, wrong.terminated, wrong.info["success"]) == (0.0, False, False)
    assert (right.reward, right.terminated, right.info["success"]) == (1.0, True, True)
"""
_ENV_TOML = (
    """# workbench train $name.toml --out runs/$name
[env]
kind = "$name:$Name"

[policy]
name = "frozenlake-tiny" # it knows a lake and no numbers: put a model of yours here, by name or folder

[collect]
max_turn_tokens = 16
"""
    + _SMALL
)

_TOOL = '''"""$words, as a tool. What a policy is told of it is made from signature and docstring; see docs/extend/tool.md."""
from __future__ import annotations

LENGTHS = {"Rhine": 1233, "Danube": 2850}


def $name(river: str) -> str:
    """How long a river is, in kilometres."""
    if river not in LENGTHS:
        return f"Not known: {river}. Known are {', '.join(LENGTHS)}."
    return f"{LENGTHS[river]} km"
'''
_TOOL_TEST = """import workbench as wb
from $name import $name


def test_it_answers_and_its_schema_says_what_it_takes():
    assert $name("Rhine") == "1233 km" and "Known are" in $name("Thames")
    [mounted] = wb.tools_named(["$name:$name"])
    function = wb.schema_of(mounted)["function"]
    assert function["name"] == "$name" and function["description"]
    assert function["parameters"]["required"] == ["river"]
"""
_TOOL_TOML = """# workbench train $name.toml --out runs/$name
base = "search" # questions about invented worlds, with a search beside the tool

[env]
tools = ["search", "$name:$name"]
""" + _SMALL.replace("steps = 2", "steps = 2\nmax_empty_steps = 2")

_ALGORITHM = '''"""$words: the advantage of a token, and its reference implementation. See docs/extend/algorithm.md.

`workbench bias --algorithm $name:$NAME` asks it for what an estimator must not do.
"""
from __future__ import annotations

from typing import Annotated

import numpy as np

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.estimators import Estimator
from workbench.basics.settings import above


def estimate(inputs: CreditInputs, *, scale: Annotated[float, above(0), "of the advantages"] = 1.0) -> Advantages:
    """A_i = (others of the group that earned less - others that earned more) / others, times `scale`."""
    other_NN = (inputs.group_N[:, None] == inputs.group_N) & inputs.kept_N
    ahead_NN = (inputs.reward_N[:, None] - inputs.reward_N).sign().nan_to_num()  # NaN: a trajectory that is left out
    beaten_N = (ahead_NN * other_NN).sum(1)
    return Advantages(inputs.of_rows(scale * beaten_N / (other_NN.sum(1) - 1).clamp(min=1)))


def plain_estimate(lines, *, scale):
    """The same, one trajectory at a time: the lint holds the one against the other."""
    advantages = []
    for line in lines:
        others = [other for other in lines if other.group == line.group and other is not line]
        ahead = sum(np.sign(line.reward - other.reward) for other in others)
        advantages.append(np.full(len(line.paid), scale * ahead / max(len(others), 1)))
    return advantages, None


$NAME = Algorithm("$name", Estimator(estimate, plain_estimate, compares=True, ignores_shifts=True))
'''
_ALGORITHM_TEST = """import workbench as wb
from workbench.learn.batch import Batch
from workbench.values import trajectories_of


def test_a_higher_reward_in_a_group_gives_a_higher_advantage():
    config = wb.load_config("frozenlake", {"algorithm.kind": "$name:$NAME"})
    session = wb.open_session(config, quiet=True)
    groups = wb.rollout(session, 4, group_size=4)
    batch = session.learner.facts(Batch.from_groups(groups))  # with what a KL term or a critic needs
    credit = config.algorithm.credit(batch)
    row_T = batch.trajectory_of_segment_S.repeat_interleave(batch.segment_offsets.diff())
    trajectories = trajectories_of(groups)
    worth = [float(credit.advantage_T[(row_T == n) & batch.eligible_T].mean()) for n in range(len(trajectories))]
    for a, more in zip(trajectories, worth):
        for b, less in zip(trajectories, worth):
            assert a.task.id != b.task.id or a.reward <= b.reward or more > less
"""
_ALGORITHM_TOML = (
    """# workbench train $name.toml --out runs/$name
base = "frozenlake"

[algorithm]
kind = "$name:$NAME"
"""
    + _SMALL
)

SKELETONS = {
    "env": (_ENV, _ENV_TEST, _ENV_TOML),
    "tool": (_TOOL, _TOOL_TEST, _TOOL_TOML),
    "algorithm": (_ALGORITHM, _ALGORITHM_TEST, _ALGORITHM_TOML),
}


def write_skeleton(kind: str, name: str, folder: str | Path = ".") -> View:
    """Write `name`.py, test_`name`.py and `name`.toml into a folder; says how to go on.

    `kind`: env, tool or algorithm. Raises ConfigError for what is no name of a Python module, StoreError where one of
    the files is there already (then none is written).
    """
    if kind not in SKELETONS:
        raise ConfigError(f"a skeleton is of {', '.join(SKELETONS)}; got {kind!r}")
    if (
        not name.isidentifier()
        or keyword.iskeyword(name)
        or name != name.lower()
        or not name.isascii()
    ):
        raise ConfigError(
            f"a name such as my_{kind} is expected (small letters, digits, _), since it names a Python "
            f"module; got {name!r}"
        )
    folder = Path(folder)
    names = {
        "name": name,
        "NAME": name.upper(),
        "Name": "".join(part.title() for part in name.split("_")),
        "words": name.replace("_", " ").capitalize(),
    }
    files = dict(
        zip(
            (f"{name}.py", f"test_{name}.py", f"{name}.toml"),
            (Template(text).substitute(names) for text in SKELETONS[kind]),
            strict=True,
        )
    )
    there = [file for file in files if (folder / file).exists()]
    if there:
        raise StoreError(
            f"{folder / there[0]} is there already, and nothing is written over; choose another name"
        )
    make_folder(folder.absolute())
    for file, text in files.items():
        write_file(folder / file, text.encode())
    before_training = {
        "env": f"workbench check-env {name}.toml, and when it has trained ",
        "algorithm": f"workbench bias --algorithm {name}:{name.upper()}, and when it has trained ",
    }
    check = before_training.get(kind, "")
    return text_view(
        f"wrote {', '.join(files)} in {folder}\n"
        f"try it there: python -m pytest test_{name}.py\n"
        f"train it:     workbench train {name}.toml --out runs/{name}\n"
        f"check it:     {check}workbench lint runs/{name}",
        title=f"a new {kind}",
    )
