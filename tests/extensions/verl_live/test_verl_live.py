"""The lint of verl's batches: silent bugs are named by row and token, legitimate batches are clean.

`make test-verl` runs the part that needs verl's own code: its DataProto, its advantage step, its agent loop's output.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import workbench as wb
from tests.extensions.verl_live.verl_bugs import BUGS, TWINS, grpo, others, tensors
from workbench.values.errors import ConfigError, DataError, LintError

BY_NAME = {bug.name: bug for bug in (*BUGS, *TWINS)}


def batch_with(bug, make, advantages):
    """A batch with this bug, after the advantage step. `make`: (tensors, others) -> what holds them."""
    batch = tensors(tools=bug.tools)
    beside = others(bug.tools)
    bug.before(batch, beside)
    data = make(batch, beside)
    data = advantages(data)
    bug.after(data.batch, data.non_tensor_batch)
    return data


def plainly(bug):
    def advantages(data):
        data.batch["advantages"] = grpo(data.batch, data.non_tensor_batch["uid"])
        return data

    return batch_with(
        bug, lambda batch, beside: SimpleNamespace(batch=batch, non_tensor_batch=beside), advantages
    )


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_silent_bug_is_named(bug):
    report = wb.lint_verl(plainly(bug), "grpo", step=4)
    named = [finding for rule, finding in report.errors if rule in bug.rules]
    assert any(bug.says in finding.what for finding in named), report.text
    assert named[0].place.step == 4


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_what_is_legitimate_has_no_error(twin):
    report = wb.lint_verl(plainly(twin), "grpo")
    assert report.ok, report.text
    assert report["R6"].status == "passed" and report["R4"].looked


def test_a_place_is_a_row_and_a_token_of_the_response():
    report = wb.lint_verl(plainly(BY_NAME["a-tool-token-trained"]), "grpo", step=2)
    place = dict(report.errors)["R3"].place
    assert (place.trajectory, place.position, place.step) == ("row 0, uid task-0", 4, 2)
    nan = wb.lint_verl(plainly(BY_NAME["reward-is-nan"]), "grpo")
    assert dict(nan.errors)["R16"].place.trajectory == "row 5, uid task-1"


def test_estimators_have_their_definitions_and_others_are_not_checked():
    data = plainly(BY_NAME["tools"])
    earned = data.batch["token_level_rewards"].sum(-1)
    groups = earned.reshape(-1, 4)
    rloo = (groups - (groups.sum(1, keepdim=True) - groups) / 3).reshape(-1, 1)
    data.batch["advantages"] = rloo * data.batch["response_mask"]
    assert wb.lint_verl(data, "rloo").ok
    assert wb.lint_verl(data, "grpo").named == ("R6",)
    unknown = wb.lint_verl(data, "gae")
    assert unknown.ok and "a definition of 'gae'" in unknown["R6"].gaps


def test_what_the_agent_loop_returned_is_looked_at_before_it_is_padded():
    outputs = [
        SimpleNamespace(
            prompt_ids=[1, 2, 3],
            response_ids=list(range(20, 28)),
            response_mask=[1, 1, 1, 0, 0, 0, 1, 1],
            response_logprobs=[-0.5, -0.4, -0.3, 0.0, 0.0, 0.0, -0.2, -0.1],
            reward_score=1.0,
            num_turns=4,
        )
        for _ in range(2)
    ]
    report = wb.lint_verl(outputs)
    assert report.ok and report["R3"].looked and report["R16"].looked
    outputs[1].response_mask = [1] * 8
    report = wb.lint_verl(outputs)
    assert report.named == ("R3",) and dict(report.errors)["R3"].place.trajectory == "row 1"


def test_a_batch_without_ids_is_looked_at_as_far_as_it_goes():
    """The newer trainer hands masks, rewards and logprobs to its advantage step, and no tokens."""
    data = plainly(BY_NAME["tools"])
    for name in ("prompts", "responses", "input_ids", "attention_mask", "position_ids"):
        del data.batch[name]
    report = wb.lint_verl(data, "grpo")
    assert report.ok and report["R6"].looked and report["R23"].looked
    assert report["R7"].status == "not checked"
    data.batch["advantages"] = data.batch["advantages"].roll(1, 0)
    assert wb.lint_verl(data, "grpo").named == ("R6",)


def test_what_is_no_batch_is_refused():
    with pytest.raises(DataError, match=r"takes a verl\.DataProto with a batch"):
        wb.lint_verl("a path")
    with pytest.raises(DataError, match="none of prompts, responses"):
        wb.lint_verl(SimpleNamespace(batch={"other": torch.zeros(2)}))


@pytest.fixture
def stepping(monkeypatch):
    """A module where verl's stands, with an advantage step."""
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        package = ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    module = ModuleType("verl.trainer.ppo.ray_trainer")

    def compute_advantage(data, adv_estimator, norm_adv_by_std_in_grpo=True):
        data.batch["advantages"] = grpo(data.batch, data.non_tensor_batch["uid"])
        return data

    module.compute_advantage = compute_advantage
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def bent_and_stepped(module, name):
    bug = BY_NAME[name]
    return batch_with(
        bug,
        lambda batch, beside: SimpleNamespace(batch=batch, non_tensor_batch=beside),
        lambda data: module.compute_advantage(data, adv_estimator="grpo"),
    )


def test_the_advantage_step_is_listened_to_and_stays_as_it_was(stepping):
    own = stepping.compute_advantage
    said = []
    lint = wb.attach_verl(say=said.append)
    data = bent_and_stepped(stepping, "tools")
    assert lint.ok and lint.batches == 1 and not said
    assert np.array_equal(data.batch["advantages"], plainly(BY_NAME["tools"]).batch["advantages"])
    bent_and_stepped(stepping, "tools-trained")
    assert lint.named == ("R3",) and "row 0, uid task-0" in said[0]
    bent_and_stepped(stepping, "tools-trained")
    assert len(said) == 1 and "R3" in lint.view().text
    lint.detach()
    assert stepping.compute_advantage is own


def test_it_stops_before_the_update_where_asked_and_its_own_failure_ends_no_run(stepping):
    lint = wb.attach_verl("stop", say=lambda text: None)
    with pytest.raises(LintError, match="stopped before the update"):
        bent_and_stepped(stepping, "no-groups")
    lint.detach()
    said = []
    lint = wb.attach_verl(every=2, say=said.append)
    lint._look(SimpleNamespace(batch=None))
    assert lint.failures and "it failed itself, and training goes on" in said[0]
    lint.detach()


def test_arguments_that_are_none_are_refused(stepping):
    with pytest.raises(ConfigError, match="on_error is one of say, stop"):
        wb.attach_verl("ignore")
    with pytest.raises(ConfigError, match="every is a whole number"):
        wb.attach_verl(every=0)
    assert stepping.compute_advantage.__name__ == "compute_advantage"


def test_without_verl_it_is_said(monkeypatch):
    # Where verl is installed, other tests have loaded parts of it.
    loaded = [name for name in sys.modules if name.startswith("verl.")]
    for name in ("verl", *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="attach_verl needs verl with ray"):
        wb.attach_verl()
