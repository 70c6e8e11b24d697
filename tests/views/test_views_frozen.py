"""No text of any view is another one than it was: every view, on calm and on hostile words, and all of the stored runs."""

from __future__ import annotations

import json

import freeze
import pytest


@pytest.fixture
def root(monkeypatch):
    """The policy of two of the stored runs is named relative to the root of the repository."""
    monkeypatch.chdir(freeze.ROOT)


def test_every_text_is_the_frozen_one(root):
    before = json.loads(freeze.FROZEN.read_text(encoding="utf-8"))
    cases = freeze.cases()
    assert set(cases) == set(before), (
        "another set of views; python tests/views/freeze.py --write, and read the difference"
    )
    other = [name for name, make in cases.items() if freeze.text_of(make) != before[name]]
    assert other == [], "read the difference: python tests/views/freeze.py"


def test_the_cases_are_many_and_none_of_them_is_a_refusal():
    """Negative control: a view that raised would be frozen as its error."""
    before = json.loads(freeze.FROZEN.read_text(encoding="utf-8"))
    assert len(before) > 130 and not [
        name for name, text in before.items() if text.split("\n")[0].count("Error: ")
    ]
