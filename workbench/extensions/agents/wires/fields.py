"""Fields of a request, one by one: followed, harmless, or refused by name; none is ignored in silence.

A field that changes what is sampled is followed and recorded, or the call is refused with the field's name. What a program
sends and the run does not follow can be allowed by name (`env.not_followed`): then it is recorded with the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.extensions.agents.messages import RefusedCall

MOST_STOPS = 16  # texts that may end an answer
LONGEST_STOP = 1_000  # characters: an answer is searched for each of them
MOST_CHOICES = 16  # answers to one call

_JSON = "nothing here holds an answer to a grammar; ask for JSON in the prompt and check it in the program"
_EFFORT = "how much is thought is the template's, for the whole run (policy.template_flags)"
_MEMORY = "nothing is remembered from one call to the next; send the whole conversation"
# The least and the most of each setting of the sampler.
SAMPLED: Mapping[str, tuple[float, float]] = {"temperature": (0.0, 100.0), "top_p": (1e-6, 1.0)}
# Why a field is not followed, where its name alone does not say it.
REASONS: Mapping[str, str] = {
    "response_format": _JSON,
    "text": _JSON,
    "output_config": _JSON,
    "output_format": _JSON,
    "tool_choice": "a call cannot be forced; 'auto' and 'none' are followed",
    "parallel_tool_calls": "a turn may hold several calls; the program may take the first alone",
    "seed": "the noise has the addresses of the run; with a seed of the program's all attempts at a task would be alike",
    "reasoning_effort": _EFFORT,
    "reasoning": _EFFORT,
    "thinking": _EFFORT,
    "top_logprobs": "engines give the logprobs of sampled tokens, and of no others",
    "top_k": "the sampler knows temperature and top_p",
    "previous_response_id": _MEMORY,
    "conversation": _MEMORY,
    "prompt": _MEMORY,
    "background": "an answer is waited for",
}


@dataclass(frozen=True)
class FieldRules:
    """What a run makes of the fields of a request.

    temperature, top_p  the run's own; other values are refused unless `decides` names the field
    decides       fields that the program decides: "temperature", "top_p"
    not_followed  fields that may be sent, are recorded, and change nothing
    """

    temperature: float = 1.0
    top_p: float = 1.0
    decides: tuple[str, ...] = ()
    not_followed: tuple[str, ...] = ()


@dataclass(eq=False)
class RequestFields:
    """The fields of one request. What is not taken by the end is refused."""

    body: Mapping[str, Any]
    rules: FieldRules
    noted: dict[str, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def take(self, name: str, default: Any = None) -> Any:
        self.taken.add(name)
        value = self.body.get(name)
        return default if value is None else value

    def followed(self, name: str) -> Any:
        """The value of a field that is followed; None where it is not there, or where the run only notes it."""
        value = self.take(name)
        if value is not None and name in self.rules.not_followed:
            self.noted[name] = value
            return None
        return value

    def number(self, name: str, *, whole: bool = False, least: int | None = None) -> float | None:
        value = self.followed(name)
        wanted = int if whole else (int, float)
        if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
            kind = "a whole number" if whole else "a number"
            raise RefusedCall(400, "invalid_type", f"{name!r} is {kind}, got {value!r:.80}", name)
        if value is not None and least is not None and value < least:
            raise RefusedCall(
                400, "invalid_value", f"{name!r} is at least {least}, got {value!r:.80}", name
            )
        return value

    def stops(self, name: str) -> tuple[str, ...]:
        """Texts that end an answer: one, or a list of them."""
        value = self.followed(name)
        if value is None:
            return ()
        stops = [value] if isinstance(value, str) else value
        is_list = isinstance(stops, list) and len(stops) <= MOST_STOPS
        if not is_list or not all(map(_is_stop, stops)):
            raise RefusedCall(
                400,
                "invalid_value",
                f"{name!r} is a text of at most {LONGEST_STOP:,} characters, or a list of at most {MOST_STOPS}, got "
                f"{value!r:.80}",
                name,
            )
        return tuple(stops)

    def choices(self, name: str) -> int:
        """How many answers are asked for."""
        value = self.number(name, whole=True, least=1)
        if value is not None and value > MOST_CHOICES:
            raise RefusedCall(
                400, "invalid_value", f"{name!r} is at most {MOST_CHOICES}, got {value!r:.80}", name
            )
        return 1 if value is None else int(value)

    def reads_calls(self, name: str, auto: Any, none: Any) -> bool:
        """Whether calls are read out of the text; what would force one is refused. With `none` the tools stand in the prompt
        all the same."""
        self.only(name, auto, none)
        return self.body.get(name) != none

    def flag(self, name: str) -> bool:
        value = self.followed(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise RefusedCall(
                400, "invalid_type", f"{name!r} is true or false, got {value!r:.80}", name
            )
        return value

    def harmless(self, *names: str) -> None:
        """Fields that change nothing of what is sampled."""
        self.taken.update(names)

    def only(self, name: str, *accepted: Any) -> None:
        """A field of which these values ask for what is done anyway."""
        value = self.take(name)
        if value is not None and value not in accepted:
            only = f"only {' or '.join(map(repr, accepted))} is done"
            self.refuse(name, value, REASONS.get(name, only))

    def sampling(self, name: str) -> float | None:
        """A setting of the sampler: the program's where it decides, else it must be the run's."""
        value = self.number(name)
        if value is None:
            return None
        lowest, highest = SAMPLED[name]
        if not lowest <= value <= highest:  # so is what is no number
            words = f"{name!r} is from {lowest:g} to {highest:g}, got {value!r:.80}"
            raise RefusedCall(400, "invalid_value", words, name)
        if name in self.rules.decides:
            return value
        own = getattr(self.rules, name)
        if value != own:
            self.refuse(
                name,
                value,
                f"this run samples with {name} = {own:g}; env.decides = [{name!r}] leaves it to the program",
            )
        return None

    def refuse(self, name: str, value: Any, why: str) -> None:
        """Raise, unless the run allows the field to be noted."""
        if name in self.rules.not_followed:
            self.noted[name] = value
            return
        raise RefusedCall(
            400,
            "unsupported_field",
            f"{name!r} = {value!r:.120} is not followed: {why}. Leave it out, or name it in env.not_followed to have it "
            "recorded and the call sampled without it",
            name,
        )

    def finish(self) -> None:
        """Whatever is left is not known here."""
        for name, value in self.body.items():
            if name not in self.taken and value is not None:
                self.refuse(name, value, REASONS.get(name, "it is not known here"))


def _is_stop(stop: Any) -> bool:
    return isinstance(stop, str) and 0 < len(stop) <= LONGEST_STOP


def list_of(value: Any, what: str) -> list[Any]:
    """A list; an absent one is empty. Raises RefusedCall."""
    if value is not None and not isinstance(value, list):
        raise RefusedCall(400, "invalid_type", f"{what!r} is a list, got {value!r:.80}", what)
    return value or []


def text_of(content: Any, where: str, glue: str) -> str | None:
    """The text of a content that is a string, or a list of parts of text; None where there is none."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RefusedCall(
            400, "invalid_type", f"the content of {where} is a text or a list of parts", "messages"
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text = part.get("text") if isinstance(part, Mapping) else part
        if kind == "refusal":
            text = part.get("refusal")
        if not isinstance(text, str):
            raise RefusedCall(
                400,
                "unsupported_content",
                f"{where} holds a part of type {kind!r}; policies here read text alone",
                "messages",
            )
        texts.append(text)
    return glue.join(texts)


def function_tool(tool: Mapping[str, Any], parameters: str) -> Mapping[str, Any]:
    """A tool in the form of chat completions, which templates know. `parameters`: the key that its schema stands under."""
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get(parameters) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def loose_tools(
    fields: RequestFields, offered: Any, tools: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], ...]:
    """The tools without `strict`, which asks that arguments be held to the schema while they are sampled: refused, or noted
    with the names of the tools. `offered`: as they were sent."""
    sent = offered if isinstance(offered, list) else [offered]
    pairs = zip(sent, tools)
    strict = [tool["function"]["name"] for own, tool in pairs if _is_strict(own)]
    if strict:
        why = "nothing here holds arguments to a schema while they are sampled"
        fields.refuse("strict", strict, why)
    return tuple(_loose(tool) for tool in tools)


def _is_strict(tool: Any) -> bool:
    function = tool.get("function")
    inner = function.get("strict") if isinstance(function, Mapping) else None
    return bool(tool.get("strict") or inner)


def _loose(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    return {**tool, "function": function}


def body_of(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RefusedCall(400, "invalid_json", "the body of a call is a JSON object")
    return value
