"""A checkpoint that lies although its seals hold: refused in words before anything is taken over, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.counts import reduced
from tests.faults import killing
from tests.learning_data import tiny_model
from workbench.basics import extensions
from workbench.learn.algorithms import GRPO
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.look.run_diff import compare_runs
from workbench.run import writer
from workbench.run.store import open_run
from workbench.training import checkpoint
from workbench.values.errors import LearnerError, StoreError

F8 = torch.float8_e4m3fn
RUN = {
    "train__steps": 2,
    "train__evaluate_every": 0,
    "train__checkpoint_every": 1,
    "train__tasks_per_step": 1,
    "train__group_size": 2,
    "evaluation__num_tasks": 2,
}


def bent(tensors, part: str, name: str, change) -> dict:
    """A copy of the tensors of a state, one of them changed; None: it is gone."""
    parts = {key: dict(value) for key, value in tensors.items()}
    value = change(parts[part].pop(name))
    if value is not None:
        parts[part][name] = value
    return parts


def with_nan(tensor):
    tensor = tensor.clone()
    tensor.view(-1)[0] = torch.nan
    return tensor


# What is changed: part, key of the tensor (of moments: of the first parameter), how; and what the refusal says.
BENDS = {
    "weights of i32": ("model", "", lambda t: t.to(torch.int32), "float32, got torch.int32"),
    "weights of f16": ("model", "", lambda t: t.half(), "float32, got torch.float16"),
    "weights of f8": ("model", "", lambda t: t.to(F8), "float32, got torch.float8_e4m3fn"),
    "weights of u8": ("model", "", lambda t: t.to(torch.uint8), "float32, got torch.uint8"),
    "weights of f64": ("model", "", lambda t: t.double(), "float32, got torch.float64"),
    "weights that are NaN": ("model", "", with_nan, "finite numbers"),
    "weights that are infinite": ("model", "", lambda t: t / 0, "finite numbers"),
    "weights of another shape": ("model", "", lambda t: t[:1].clone(), "differs in shape"),
    "weights turned over": ("model", "", lambda t: t.mT.contiguous(), "differs in shape"),
    "weights that are missing": ("model", "", lambda t: None, "missing on one side"),
    "moments of i32": ("optimizer", "exp_avg", lambda t: t.to(torch.int32), "got torch.int32"),
    "moments of f16": ("optimizer", "exp_avg_sq", lambda t: t.half(), "got torch.float16"),
    "moments of f8": ("optimizer", "exp_avg", lambda t: t.to(F8), "got torch.float8_e4m3fn"),
    "moments of u8": ("optimizer", "exp_avg_sq", lambda t: t.to(torch.uint8), "got torch.uint8"),
    "moments that are NaN": ("optimizer", "exp_avg", with_nan, "finite numbers"),
    "squares below 0": ("optimizer", "exp_avg_sq", lambda t: t - 1, "nothing below 0"),
    "moments of another shape": ("optimizer", "exp_avg", lambda t: t[:1].clone(), "the shape"),
    "moments turned over": ("optimizer", "exp_avg", lambda t: t.mT.contiguous(), "the shape"),
    "moments that are missing": ("optimizer", "exp_avg_sq", lambda t: None, "a tensor beside"),
    "a count of -1": ("optimizer", "step", lambda t: t * 0 - 1, "nothing below 0"),
    "a count of -10^30": ("optimizer", "step", lambda t: t * 0 - 1e30, "nothing below 0"),
    "a count of 10^30": ("optimizer", "step", lambda t: t * 0 + 1e30, "a count, got 1e.30"),
    "a count that is NaN": ("optimizer", "step", with_nan, "finite numbers"),
    "a count of i32": ("optimizer", "step", lambda t: t.to(torch.int32), "got torch.int32"),
    "a count of f64": ("optimizer", "step", lambda t: t.double(), "got torch.float64"),
    "several counts": ("optimizer", "step", lambda t: t.repeat(3), "the shape"),
}


@pytest.fixture(scope="module")
def saved():
    """A learner after two steps of its optimizer, and its state."""
    learner = Learner(tiny_model(), GRPO(), LearnerConfig())
    policy = learner.models.policy
    for _ in range(2):
        for parameter in policy.parameters:
            parameter.grad = torch.ones_like(parameter)
        policy.step(1e-3)
    return learner, *learner.state()


def tensor_of(tensors, part: str, key: str) -> str:
    """The name of the first matrix among the weights, or of one of its moments."""
    if part == "optimizer":
        matrix = next(
            name for name, t in tensors[part].items() if name.endswith("exp_avg") and t.ndim == 2
        )
        return f"{matrix.partition('.')[0]}.{key}"
    return next(
        name for name, t in tensors[part].items() if t.ndim == 2 and t.shape[0] != t.shape[1]
    )


@pytest.mark.parametrize("name", BENDS)
def test_a_state_that_lies_is_refused_before_anything_is_taken_over(saved, name):
    learner, tensors, state = saved
    part, key, change, words = BENDS[name]
    odd = bent(tensors, part, tensor_of(tensors, part, key), change)
    with pytest.raises(LearnerError, match=words):
        learner.load_state(odd, state)
    after, after_state = learner.state()
    assert after_state == state
    for part in tensors:
        assert all(torch.equal(after[part][key], value) for key, value in tensors[part].items())


@pytest.mark.parametrize("name", ["9999.exp_avg", "-1.step", "x", "٣.step", "0.exp_avg.more", ""])
def test_a_moment_too_many_is_refused(saved, name):
    learner, tensors, state = saved
    odd = tensors | {"optimizer": tensors["optimizer"] | {name: torch.zeros(())}}
    with pytest.raises(LearnerError, match="moments of .* parameters, got one more"):
        learner.load_state(odd, state)


def test_a_state_of_this_process_is_not_looked_through(saved, monkeypatch):
    """The lint puts its own copy back several times a step; reading all numbers for it was the dearest guard of a run."""
    learner, tensors, state = saved
    looked = []
    monkeypatch.setattr("workbench.learn.learner.service", lambda *_: lambda *a: looked.append(a))
    learner.load_state(tensors, state, is_own=True)
    assert looked == []
    learner.load_state(tensors, state)  # negative control: what a file says is
    assert len(looked) == 1


def test_a_file_too_few_and_versions_that_are_none_are_refused(saved):
    learner, tensors, state = saved
    for part in tensors:
        odd = {key: value for key, value in tensors.items() if key != part}
        with pytest.raises(LearnerError, match=f"{part}.safetensors.*a file, got none"):
            learner.load_state(odd, state)
    with pytest.raises(LearnerError, match="'slowed' of its state"):
        learner.load_state(tensors, state | {"slowed": ["x"]})
    with pytest.raises(LearnerError, match="the critic of its state.*its trunk"):
        learner.load_state(tensors, state | {"critic": {"trainable": []}})


def test_a_state_without_what_every_learner_keeps_is_refused_when_it_is_read(saved, tmp_path):
    """By every reader of a checkpoint: to go on, to evaluate, to export, to audit."""
    _, tensors, state = saved
    checkpoint.save(tmp_path, 1, tensors, {"learner": state})
    assert checkpoint.load(tmp_path, 1).state["learner"] == state  # negative control
    for step, name in enumerate(("version", "bad_in_a_row", "empty_updates", "trainable"), 2):
        less = {key: value for key, value in state.items() if key != name}
        checkpoint.save(tmp_path, step, tensors, {"learner": less})
        with pytest.raises(StoreError, match=f"not what a state looks like, at learner.{name}"):
            checkpoint.load(tmp_path, step)
    checkpoint.save(tmp_path, 9, {}, {})
    empty = checkpoint.load(tmp_path, 9)
    for held, name in ((empty.state, "learner"), (empty.tensors, "model")):
        with pytest.raises(StoreError, match=f"holds no '{name}'"):
            held[name]


def test_negative_control_what_a_run_saves_is_taken_over(saved):
    """In whatever order, with moments of either precision, or of some parameters only."""
    learner, tensors, state = saved
    turned = {part: dict(reversed(held.items())) for part, held in tensors.items()}
    learner.load_state(turned, state)
    rounded = {
        key: value if key.endswith("step") else value.bfloat16()
        for key, value in tensors["optimizer"].items()
    }
    learner.load_state(tensors | {"optimizer": rounded}, state)
    some = {key: value for key, value in tensors["optimizer"].items() if not key.startswith("0.")}
    learner.load_state(tensors | {"optimizer": some}, state)
    learner.load_state(tensors | {"optimizer": {}}, state)
    learner.load_state(tensors, state)
    assert torch.equal(
        learner.state()[0]["optimizer"]["0.exp_avg"], tensors["optimizer"]["0.exp_avg"]
    )


def test_negative_control_without_the_guard_a_lie_is_taken_over(saved, monkeypatch):
    learner, tensors, state = saved
    monkeypatch.setattr("workbench.learn.learner.has_service", lambda name: False)
    assert extensions.has_service("check_state")
    odd = bent(
        tensors, "optimizer", tensor_of(tensors, "optimizer", "step"), lambda t: t * 0 + 1e30
    )
    learner.load_state(odd, state)
    learner.load_state(tensors, state)


# ------------------------------------------------------------------------------------------------ of a whole run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of two steps with a checkpoint after each."""
    killing.opened("grpo")
    path = tmp_path_factory.mktemp("bent") / "run"
    config = killing.config_of("grpo", **RUN)
    ending = killing.in_child(lambda: killing.start_or_resume("grpo", path, config))
    assert ending.status == 0, ending.words
    return path


def without_last_evaluation(run: Path, path: Path) -> Path:
    """A copy that has something left to do: what follows the newest checkpoint."""
    shutil.copytree(run, path)
    for entry in (path / "evaluations").glob("*00000002*"):
        entry.unlink()
    return path


def sealed_anew(folder: Path) -> None:
    """Give a changed checkpoint seals that fit."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "MANIFEST.json"}
    shutil.rmtree(folder)
    writer.write_folder(folder, files, kind="checkpoint", version=checkpoint.FORMAT)


def lies_in_its_header(file: Path) -> None:
    """The shape of one tensor has as many numbers more as its bytes do not hold."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = next(name for name in header if name != "__metadata__")
    header[name]["shape"] = [10**12, *header[name]["shape"]]
    words = json.dumps(header).encode()
    file.write_bytes(len(words).to_bytes(8, "little") + words + data[8 + size :])


@pytest.mark.parametrize("name", reduced(BENDS, ["a count of -10^30"]))
def test_a_run_with_a_bent_checkpoint_is_refused_and_goes_on_without_it(run, tmp_path, name):
    path = without_last_evaluation(run, tmp_path / "run")
    part, key, change, _ = BENDS[name]
    folder = path / "checkpoints/step-00000002"
    file = folder / f"{part}.safetensors"
    tensors = {part: load_file(file)}
    odd = bent(tensors, part, tensor_of(tensors, part, key), change)[part]
    save_file(odd, file)
    sealed_anew(folder)
    before = killing.lines_of(path)
    ending = killing.in_child(lambda: killing.start_or_resume("grpo", path))
    assert ending.status == 2 and "LearnerError: this" in ending.words, ending.words
    assert killing.lines_of(path) == before
    shutil.move(folder, tmp_path / "aside")
    assert killing.in_child(lambda: killing.start_or_resume("grpo", path)).status == 0
    assert compare_runs(open_run(run), open_run(path), exact=True).equal


@pytest.mark.full
def test_a_header_that_lies_is_passed_over(run, tmp_path):
    path = without_last_evaluation(run, tmp_path / "run")
    folder = path / "checkpoints/step-00000002"
    lies_in_its_header(folder / "model.safetensors")
    sealed_anew(folder)
    assert "is not a safetensors file" in checkpoint.damage(path, 2)
    ending = killing.in_child(lambda: killing.start_or_resume("grpo", path))
    assert ending.status == 0, ending.words
    assert killing.lines_of(path) == killing.lines_of(run)
    assert compare_runs(open_run(run), open_run(path), exact=True).equal
