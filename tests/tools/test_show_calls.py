"""Tools called by hand show what an agent would read."""

from __future__ import annotations

from workbench.look.calls import show_calls


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def test_results_and_errors_stand_in_the_order_of_the_calls():
    text = show_calls(
        ["calculator"],
        ("calculator", {"expression": "6*7"}),
        ("calculater", {}),
        ("calculator", {"expression": 7}),
    ).text
    lines = text.splitlines()[-3:]
    assert "42" in lines[0] and "unknown_tool" in lines[1] and "bad_arguments" in lines[2]


def test_a_plain_function_is_a_tool():
    assert "42" in show_calls("tests.tools.test_show_calls:double", ("double", {"number": 21})).text
