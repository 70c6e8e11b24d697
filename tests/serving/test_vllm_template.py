"""vLLM renders the chat template of what it serves without a limit: one that is not ours is served on the user's word alone."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from workbench.basics.shipped import shipped_folder
from workbench.cli import main
from workbench.extensions.servers import vllm_serving
from workbench.extensions.servers.vllm_serving import refuse_foreign_template, serve
from workbench.values.errors import PolicyError

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def folder(tmp_path):
    """A shipped policy's texts, as an export has them."""
    made = tmp_path / "model"
    made.mkdir()
    for path in (shipped_folder() / "frozenlake-tiny").iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, made / path.name)
    return made


def in_json(folder, name, template):
    path = folder / name
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(document | {"chat_template": template}))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "chat_template.jinja").write_text(LOOPS),
        lambda folder: (folder / "chat_template.jinja").open("a").write("{# as it was #}"),
        lambda folder: in_json(folder, "tokenizer_config.json", LOOPS),
        lambda folder: in_json(folder, "tokenizer_config.json", [{"name": "x", "template": LOOPS}]),
        lambda folder: in_json(folder, "chat_template.json", LOOPS),
        lambda folder: in_json(folder, "processor_config.json", LOOPS),
        lambda folder: (
            (folder / "additional_chat_templates").mkdir(),
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text(LOOPS),
        ),
    ],
)
def test_a_template_that_no_shipped_policy_has_is_refused(folder, change):
    refuse_foreign_template(folder)  # negative control: of one that has
    change(folder)
    with pytest.raises(PolicyError, match="--any-template"):
        refuse_foreign_template(folder)


class StandIn:
    """In place of vLLM's server: what would be handed to it is written, and nothing is started."""

    started = 0

    def __init__(self, write, arguments, *, port, name):
        write(StandIn.place)
        self.url, self.key = "http://127.0.0.1:1", "key"

    def start(self):
        StandIn.started += 1

    def wait(self, answers, seconds):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("template", ["", LOOPS])
def test_the_server_is_not_started_on_it_but_by_the_users_word(folder, monkeypatch, template):
    if template:
        (folder / "chat_template.jinja").write_text(template)
    StandIn.place, StandIn.started = str(folder), 0
    run = type("Run", (), {"name": "first"})()
    monkeypatch.setattr(vllm_serving, "check_vllm", lambda: None)
    monkeypatch.setattr(vllm_serving, "open_run", lambda named: run)
    monkeypatch.setattr(vllm_serving, "config_of_run", lambda run: None)
    monkeypatch.setattr(vllm_serving, "arguments_of", lambda config: {})
    monkeypatch.setattr(vllm_serving, "export_policy", lambda run, folder, step: None)
    monkeypatch.setattr(vllm_serving, "service", lambda name, what: StandIn)
    refused = pytest.raises(PolicyError, match="without a limit") if template else nullcontext()
    with refused, serve("first"):
        pass
    assert StandIn.started == (0 if template else 1)
    with serve("first", any_template=True):
        pass
    assert StandIn.started == (1 if template else 2)


def test_the_command_hands_the_users_word_on(monkeypatch):
    asked = {}

    def noted(source, **settings):
        asked.update(settings)
        raise PolicyError("enough")

    monkeypatch.setattr(vllm_serving, "serve", noted)
    for word in (True, False):
        assert main(["serve", str(Path("x")), "--engine", "vllm", *["--any-template"] * word]) == 2
        assert asked["any_template"] is word
