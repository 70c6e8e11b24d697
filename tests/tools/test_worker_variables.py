"""A tool in a worker process sees the variables on the list, those that the user named, and no key."""

import json
import os

import pytest

from workbench.tools import tool
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.tools.shared_workers import shared_workers
from workbench.tools.workers.variables import ALSO, passed_on
from workbench.values import ToolCall
from workbench.values.errors import ConfigError

CANARY = "sk-canary-0123456789"
SECRETS = (
    "HF_TOKEN",
    "OPENAI_API_KEY",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "WORKBENCH_RETRIEVER_KEY",
    "MY_OWN",
    "HUGGING_FACE_HUB_TOKEN",
    "PYTHON_KEYRING_PASSWORD",
    "GITHUB_TOKEN",
    "SSH_AUTH_SOCK",
    "DATABASE_URL",
)
LOOKED_AT = ("PATH", "HOME", "PYTHONPATH", "LANG", "HF_HUB_OFFLINE", "JUDGE_KEY", "JUDGE_URL")


@tool
def variables() -> str:
    """What this process has: the variables that hold the canary, some others, and whether its parent's hold it."""
    parent = open(f"/proc/{os.getppid()}/environ", "rb").read().decode()
    wanted = {
        name: value for name, value in os.environ.items() if CANARY in value or name in LOOKED_AT
    }
    return json.dumps([wanted, CANARY in parent])


def seen() -> tuple[dict[str, str], bool]:
    executor = ToolExecutor((variables,), ToolLimits(deadline_s=20.0))
    try:
        [result] = executor.run([ToolCall("variables", {})])
        return json.loads(result.text)
    finally:
        executor.close()


@pytest.fixture
def fresh_workers():
    """Workers are started with the variables of now, and do not outlive the test."""
    shared_workers().shutdown()
    yield
    shared_workers().shutdown()


def test_no_key_reaches_a_worker_but_those_the_user_named(fresh_workers, monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv(ALSO, "JUDGE_KEY, JUDGE_URL")
    monkeypatch.setenv("JUDGE_KEY", "sk-named")
    own, parent = seen()
    expected = {name: os.environ[name] for name in LOOKED_AT if name in os.environ}
    assert own == expected and own["JUDGE_KEY"] == "sk-named" and not parent


def test_a_proxy_with_a_password_stays_behind():
    given = {
        "http_proxy": "http://me:word@proxy:80",
        "HTTPS_PROXY": "http://proxy:80",
        "LC_ALL": "C",
        "XDG_API_TOKEN": "x",
    }
    assert passed_on(given) == {"HTTPS_PROXY": "http://proxy:80", "LC_ALL": "C"}


def test_what_is_no_list_of_names_is_refused():
    with pytest.raises(ConfigError, match=f"{ALSO} names variables.*got 'A=3'"):
        passed_on({ALSO: "B, A=3"})
