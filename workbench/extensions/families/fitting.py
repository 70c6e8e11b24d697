"""`env.calls.format` of a session against what its chat template asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.chat import ChatFormat
from workbench.tools.formats import TEMPLATE
from workbench.values.errors import ConfigError, WorkbenchError
from workbench.worlds.tool_env import CallSettings


def asked_form(chat: ChatFormat) -> str | None:
    """The form of calls that a prompt with tools asks for: the template's own where it shows the tools itself, else that of
    our text, hermes. None: a form that nobody here reads."""
    if not chat.capabilities.tool_schemas:
        return "hermes"
    return chat.manner.calls or None


def fit_calls(family: Any, chat: ChatFormat) -> tuple[Any, Sequence[str]]:
    """(the family with the form that the template asks for, where `calls.format` leaves it to the template; what should be
    known of it). Raises ConfigError where the prompt shows tools in one form and calls are read in another."""
    calls = family.calls
    if not isinstance(calls, CallSettings):
        return family, ()
    asked = asked_form(chat)
    setting = getattr(family, "calls_setting", "env.calls.format")
    if calls.format == TEMPLATE:
        if asked is None:
            raise ConfigError(f"{setting} = 'template': {_unread(chat)}. {_as_tags(setting)}")
        return _with_form(family, asked), [
            f"calls are read in the form {asked!r}, as the chat template asks for them"
        ]
    if calls.format in ("tags", asked) or not calls.show_schemas or not _offers_tools(family):
        return family, ()
    if asked is None:
        raise ConfigError(
            f"{setting} = {calls.format!r}, but the tools are shown as the chat template shows them, and "
            f"{_unread(chat)}, so that right calls would be refused. {_as_tags(setting)}"
        )
    raise ConfigError(
        f"{setting} = {calls.format!r}, but the chat template shows the tools itself and asks for calls in the "
        f"form {asked!r}, so that right calls would be refused. Set {setting} = 'template' to read calls as the "
        f"template asks for them. Or {setting} = 'tags', which shows the tools as our own text"
    )


def _unread(chat: ChatFormat) -> str:
    if chat.manner.calls == "":
        return "it shows tools without saying how they are called"
    return "it has calls written in a form that nobody here reads"


def _as_tags(setting: str) -> str:
    return (
        f"Set {setting} = 'tags', which shows the tools as our own text and reads <tool>...</tool>"
    )


def _with_form(family: Any, form: str) -> Any:
    """The family with this form of calls; one that holds another environment says itself how it takes it."""
    if hasattr(family, "with_form"):
        return family.with_form(form)
    return replace(family, calls=replace(family.calls, format=form))


def _offers_tools(family: Any) -> bool:
    """Whether its trajectories have any tool."""
    try:
        return bool(family.make().tools)
    except (WorkbenchError, AttributeError):  # what cannot be made yet says so when it is used
        return True
