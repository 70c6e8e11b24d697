"""The audit says what it does, and stops where there is nothing to explain."""

from __future__ import annotations

from mismatch_kit import session_after

from workbench.extensions.engine_audit import audit as module
from workbench.extensions.engine_audit.audit import audit


def test_a_gap_of_rounding_ends_it_with_a_sentence_and_a_large_policys_control_is_left_out(
    monkeypatch,
):
    """A small policy has its control all the same: see test_audit_names."""
    monkeypatch.setattr(module, "LARGE", 0)
    session = session_after(0)
    notes: list[str] = []
    report = audit(session, tasks=1, on_note=notes.append)
    assert report.clean and report.tried == 0
    assert report.control.verdict == "not run" and "control=True" in report.control.skipped
    assert "control not run" in report.text and "NOT PASSED" not in report.text
    assert any("no cause is looked for" in words for words in notes)
    assert notes[0].startswith("opening") and not any("the control:" in words for words in notes)


def test_negative_control_a_gap_beyond_rounding_is_looked_into_and_has_its_control(monkeypatch):
    monkeypatch.setattr(module, "LARGE", 0)
    session = session_after(0)
    moved = {name: 1.05 * tensor for name, tensor in session.learner.weights().items()}
    session.engine.sync(moved, session.engine.policy_version + 1)
    notes: list[str] = []
    report = audit(session, tasks=1, on_note=notes.append)
    assert not report.clean and report.tried
    assert any("looking for the cause" in words for words in notes)
    assert any(words.startswith("hypothesis 1:") for words in notes)
    assert report.control.still_moved is not None
