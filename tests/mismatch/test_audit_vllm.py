"""The audit against vLLM itself: clean, and with what really went wrong there (the tied output head).

Skipped with a reason where vLLM is not installed; `make test-vllm` runs them (and insists).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "engines"))
from mismatch_kit import session_after, sync_one_behind  # noqa: E402
from vllm_kit import leave_out, need_packed_heads, need_vllm  # noqa: E402

from workbench.engines.vllm_check import SyncCheck  # noqa: E402
from workbench.extensions.engine_audit.audit import audit, run_control  # noqa: E402
from workbench.look.cells.train import train_step  # noqa: E402

VLLM = {"engine.kind": "vllm", "engine.cache_tokens": 16384, "engine.max_context": 1000}


def passive(session, **others):
    return audit(session, tasks=2, attempts=4, control=False, **others)


@pytest.mark.parametrize(
    "settings, gap, kl",
    [
        ({}, 2e-6, 1e-9),
        ({"engine.dtype": "bfloat16"}, 0.01, 1e-3),
        ({"collect.temperature": 0.7, "collect.top_p": 0.9}, 2e-6, 1e-9),
    ],
    ids=str,
)
def test_a_clean_vllm_has_nothing_named(settings, gap, kl):
    need_vllm()
    session = session_after(1, **VLLM | settings)
    report = passive(session)
    assert report.clean, report.verdict
    assert report.gap.mean < gap and report.whole.kl < kl and report.whole.vocabulary == 491
    control = run_control(session, report_groups(session), engine=session.engine)
    print(report, *control.lines, sep="\n")
    assert control.passed, control.lines
    assert (
        control.zero_weights and control.tokens_changed == 0 and 0.9 < control.planted_share < 1.1
    )


def report_groups(session):
    from workbench.training.session import rollout

    return rollout(session, 2, group_size=4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vllms_tied_head_is_named(dtype, monkeypatch):
    """The engine's own check is taken away, so that it goes on with the old head in silence, as it did."""
    need_vllm()
    session = session_after(1, **VLLM | {"engine.dtype": dtype})
    need_packed_heads(session.engine._core)
    leave_out(monkeypatch, "tied head")
    monkeypatch.setattr(SyncCheck, "fault", lambda check, *given: None)
    train_step(session, 2)
    report = passive(session)
    print(report)
    assert report.named == ("output head",), report.verdict
    control = run_control(session, report_groups(session), engine=session.engine)
    print(*control.lines, sep="\n")
    assert "output head" in [cause.kind for cause in control.causes], control.lines


def test_a_vllm_that_is_one_step_behind_is_named(monkeypatch):
    need_vllm()
    session = session_after(1, **VLLM)
    sync_one_behind(session)
    for step in (2, 3):
        train_step(session, step)
    report = passive(session)
    print(report)
    assert report.named == ("stale weights",) and "one update ago" in report.verdict
