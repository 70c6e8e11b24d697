"""A chat template of somebody else is called under limits each time, also where a trial saw nothing of it."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import time

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from tests.chat.chat_families import tokenizer_of
from workbench.engines.policy import load_tokenizer
from workbench.extensions.bounds import templates
from workbench.values.errors import PolicyError

TALK = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "There."},
    {"role": "user", "content": "And the player?"},
]
WHEN = "{%% if 'player' in messages[-1].content %%}%s{%% endif %%}{{ messages[-1].content }}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
ATTACKS = {
    "loops": (WHEN % LOOPS, "took longer than"),
    "doubles": (WHEN % DOUBLES, "took more than 512 MB"),
    "multiplies": (WHEN % "{{ 'x' * 99999999999 }}", "took more than 512 MB"),
    "a power": (
        WHEN % "{% set n = messages|length * 9 %}{{ n ** (n ** (n ** n)) }}",
        "took longer than|took more",
    ),
    "pads": (WHEN % "{{ 'x'|center(9999999999) }}", "took more than 512 MB"),
    "writes": (WHEN % "{{ 'x' * 99999999 }}", "wrote more than"),
}


@pytest.fixture
def tokenizer():
    return copy.deepcopy(tokenizer_of("qwen3"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_over_a_limit_is_ended_and_not_called_again(attack, tokenizer, monkeypatch):
    tokenizer.chat_template, words = ATTACKS[attack]
    monkeypatch.setattr(templates, "SECONDS", 1.0 if "longer" in words else 60.0)
    templates.bound_template(tokenizer)
    assert tokenizer.apply_chat_template(TALK[:1], tokenize=False) == "Where?"  # all is well
    with pytest.raises(PolicyError, match=words):
        tokenizer.apply_chat_template(TALK, tokenize=False)
    kept = templates._keeper()
    with pytest.raises(PolicyError, match="not called again"):
        tokenizer.apply_chat_template(TALK[:1], tokenize=False)
    assert templates._keeper() is kept
    monkeypatch.undo()
    other = copy.deepcopy(tokenizer_of("qwen3"))
    templates.bound_template(other)
    assert "Where?" in other.apply_chat_template(TALK[:1], tokenize=False)


@pytest.mark.parametrize("family", ["qwen3", "llama3.1", "gemma3", "phi3"])
def test_it_writes_what_transformers_writes(family):
    """Texts, ids, refusals and the marks of what an assistant wrote; and those of other tokenizers as ever."""
    plain = tokenizer_of(family)
    bounded = copy.deepcopy(plain)
    templates.bound_template(bounded)
    for settings in (
        {"tokenize": False},
        {"tokenize": False, "add_generation_prompt": True},
        {"tokenize": True, "return_dict": False},
        {"tokenize": False, "chat_template": "{{ messages[0].content }}{{ bos_token }}", "x": 3},
        {"tokenize": False, "continue_final_message": True},
    ):
        assert bounded.apply_chat_template(TALK, **settings) == plain.apply_chat_template(
            TALK, **settings
        )
    several = [TALK[:1], TALK]
    assert bounded.apply_chat_template(several, tokenize=False) == plain.apply_chat_template(
        several, tokenize=False
    )
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    settings = {"chat_template": marked, "return_assistant_tokens_mask": True}
    assert dict(bounded.apply_chat_template(TALK, **settings)) == dict(
        plain.apply_chat_template(TALK, **settings)
    )
    with pytest.raises(TemplateError, match="^no such role$"):
        bounded.apply_chat_template(TALK, chat_template="{{ raise_exception('no such role') }}")
    assert plain.apply_chat_template.__func__ is PreTrainedTokenizerBase.apply_chat_template


def test_it_survives_a_copy_a_pickle_and_a_fork(tokenizer):
    templates.bound_template(tokenizer)
    expected = tokenizer.apply_chat_template(TALK, tokenize=False)
    for other in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert isinstance(other.apply_chat_template, templates.BoundedTemplate)
        assert other.apply_chat_template(TALK, tokenize=False) == expected
    kept = templates._keeper()
    reading, writing = os.pipe()
    if not (child := os.fork()):
        own = tokenizer.apply_chat_template(TALK, tokenize=False) == expected
        os.write(writing, b"%d" % (own and templates._keeper() is not kept))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"1" and templates._keeper() is kept
    os.close(reading), os.close(writing)


def test_a_child_that_is_gone_is_replaced_and_one_whose_parent_is_gone_ends(tokenizer):
    templates.bound_template(tokenizer)
    keeper = templates._keeper()
    os.kill(keeper._pid, signal.SIGKILL)
    os.waitpid(keeper._pid, 0)
    assert "Where?" in tokenizer.apply_chat_template(TALK[:1], tokenize=False)
    keeper = templates._keeper()
    keeper._connection.close()
    for _ in range(100):
        ended, _ = os.waitpid(keeper._pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    assert ended


def test_a_policy_of_somebody_else_is_bounded_and_a_shipped_one_is_not(tmp_path):
    tokenizer_of("qwen3").save_pretrained(tmp_path)
    assert isinstance(load_tokenizer(tmp_path).apply_chat_template, templates.BoundedTemplate)
    shipped = load_tokenizer("frozenlake-tiny")
    assert not isinstance(shipped.apply_chat_template, templates.BoundedTemplate)
