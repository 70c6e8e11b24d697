"""Exact match and F1, by hand and against the official rules; what a list of guesses, yes and no earn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.worlds.qa.answers import exact_match, f1, normalize


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("An apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("theme", "theme"),
        ("  a\tb\n", "b"),
        ("", ""),
        ("Ärzte", "ärzte"),
        ("«x»", "«x»"),
    ],
)
def test_normalising(text, normalised):
    assert normalize(text) == normalised


@pytest.mark.parametrize(
    ("answer", "golds", "matches", "score"),
    [
        ("Paris", ["Paris"], True, 1.0),
        ("the paris.", ["Paris"], True, 1.0),
        ("Paris, France", ["Paris"], False, 2 / 3),
        (
            "London Rome Paris Berlin Madrid",
            ["Paris"],
            False,
            2 / 6,
        ),  # a guess list: nothing, and its ordinary F1
        ("NYC", ["New York City", "NYC"], True, 1.0),  # an alias
        ("York New", ["New York City", "York"], False, 0.8),  # the best of the golds
        ("unknown", ["no"], False, 0.0),
        ("not", ["no"], False, 0.0),
        ("no", ["unknown"], False, 0.0),
        ("no it is not", ["no"], False, 0.0),
        ("yes", ["no"], False, 0.0),
        ("No.", ["no"], True, 1.0),
        ("noanswer", ["no answer"], False, 0.0),
        ("", ["Paris"], False, 0.0),
        ("", [""], False, 0.0),
        ("", ["The"], False, 0.0),
        ("a", ["A"], True, 1.0),  # the letter, of which normalising leaves nothing
        ("!", ["?"], False, 0.0),
        ("Paris", [], False, 0.0),
        ("a a b b", ["b b c"], False, 0.8),  # words count as often as they stand there
        ("b b b", ["b"], False, 0.5),
    ],
)
def test_what_answers_earn(answer, golds, matches, score):
    assert exact_match(answer, golds) is matches
    assert f1(answer, golds) == pytest.approx(score)


WORDS = st.lists(
    st.sampled_from(["paris", "the", "rome", "no", "yes", "x", "a", "!"]), max_size=5
).map(" ".join)


@given(WORDS, WORDS)
def test_f1_is_symmetric_bounded_and_1_exactly_for_a_match_of_words(answer, gold):
    score = f1(answer, [gold])
    assert 0.0 <= score <= 1.0 and score == f1(gold, [answer])
    if exact_match(answer, [gold]):
        assert score == 1.0
    if score == 1.0:
        assert sorted(normalize(answer).split()) == sorted(normalize(gold).split())


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_more_golds_never_pay_less(answer, golds):
    assert f1(answer, golds) == max(f1(answer, [gold]) for gold in golds)
    assert exact_match(answer, golds) == any(exact_match(answer, [gold]) for gold in golds)
