"""verl's own DataProto, advantage step and agent loop's output, as they are."""

from __future__ import annotations

import os

import numpy as np
import pytest

if os.environ.get("WORKBENCH_VERL"):
    import verl  # noqa: F401
else:
    pytest.importorskip("verl", reason="needs the package verl and ray (make test-verl)")

import workbench as wb
from tests.extensions.verl_live.test_verl_live import BY_NAME, batch_with
from tests.extensions.verl_live.verl_bugs import BUGS, TWINS

pytestmark = pytest.mark.full


def real(batch, beside):
    from verl import DataProto

    return DataProto.from_dict(tensors=batch, non_tensors=beside)


def stepped(data, estimator="grpo", **options):
    from verl.trainer.ppo import ray_trainer

    return ray_trainer.compute_advantage(data, adv_estimator=estimator, **options)


@pytest.fixture
def lint():
    said = []
    attached = wb.attach_verl(say=said.append)
    attached.said = said
    yield attached
    attached.detach()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_silent_bug_in_a_dataproto_is_named(bug):
    report = wb.lint_verl(batch_with(bug, real, stepped), "grpo")
    named = [finding.what for rule, finding in report.errors if rule in bug.rules]
    assert any(bug.says in words for words in named), report.text


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_a_legitimate_dataproto_has_no_error(twin, lint):
    data = batch_with(twin, real, stepped)
    assert lint.batches == 1 and lint.ok and not lint.failures, lint.report.text
    assert lint.report["R6"].status == "passed"
    lint.detach()
    again = batch_with(twin, real, stepped)
    assert np.array_equal(data.batch["advantages"], again.batch["advantages"])


@pytest.mark.parametrize("by_spread", [True, False])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "grpo_vectorized", "reinforce_plus_plus"])
def test_estimators_of_verl_agree_with_their_definitions(estimator, by_spread, lint):
    from omegaconf import OmegaConf

    options = {
        "norm_adv_by_std_in_grpo": by_spread,
        "config": OmegaConf.create(
            {"norm_adv_by_std_in_grpo": by_spread, "gamma": 1.0, "use_pf_ppo": False}
        ),
    }
    batch_with(BY_NAME["tools"], real, lambda data: stepped(data, estimator, **options))
    assert lint.ok and not lint.failures, lint.report.text
    known = estimator in ("grpo", "rloo")
    assert lint.report["R6"].status == ("passed" if known else "partly checked")


def test_the_newer_trainers_advantage_step_is_listened_to(lint):
    utils = pytest.importorskip("verl.trainer.ppo.v1.utils")
    data = batch_with(
        BY_NAME["tools"],
        real,
        lambda data: utils.compute_advantage(data, adv_estimator="grpo"),
    )
    assert lint.batches == 1 and lint.ok and "advantages" in data.batch.keys()


def test_the_agent_loops_own_output_is_read():
    loop = pytest.importorskip("verl.experimental.agent_loop.agent_loop")

    def output(mask):
        return loop.AgentLoopOutput(
            prompt_ids=[1, 2, 3],
            response_ids=list(range(20, 28)),
            response_mask=mask,
            response_logprobs=[-0.5, -0.4, -0.3, 0.0, 0.0, 0.0, -0.2, -0.1],
            reward_score=1.0,
            num_turns=4,
            metrics=loop.AgentLoopMetrics(),
        )

    right = [1, 1, 1, 0, 0, 0, 1, 1]
    assert wb.lint_verl([output(right), output(right)]).ok
    assert wb.lint_verl([output(right), output([1] * 8)]).named == ("R3",)
