"""You are the policy: the same collect loop, chat format and environment, with the scripted engine asking a person."""

from __future__ import annotations

from collections.abc import Callable

from workbench.chat import ChatFormat
from workbench.engines.scripted import ScriptedEngine
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.tools.action_format import format_action
from workbench.values import Trajectory
from workbench.values.errors import EngineError
from workbench.worlds.base import EnvFamily


def play(
    family: EnvFamily,
    tokenizer,
    *,
    task_seed: int = 0,
    ask: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
) -> Trajectory:
    """Play one task at the keyboard and return the trajectory that a model would have made.

    Type moves (`Right || Down`), which are put into the environment's format, or a whole action with its tags, which is
    sent as it is. EOF (Ctrl-D) ends the trajectory where it stands. What you type is tokenized by `tokenizer`: you see
    what it sees.
    """
    chat = ChatFormat.from_tokenizer(tokenizer)
    shown: dict[str, int] = {}

    def script(request) -> list[int]:
        say(chat.decode(request.prompt_ids[shown.get(request.session, 0) :]))
        try:
            typed = ask("you> ").strip()
        except EOFError:
            raise EngineError("the player left") from None
        if typed and "<answer>" not in typed:
            typed = format_action(
                [move.strip() for move in typed.split("||")], think=getattr(family, "think", False)
            )
        ids = [*tokenizer.encode(typed, add_special_tokens=False), min(chat.stop_ids)]
        shown[request.session] = len(request.prompt_ids) + len(ids)
        return ids

    groups = collect(
        [family.task(task_seed)],
        family=family,
        engine=ScriptedEngine(script),
        chat=chat,
        config=CollectConfig(max_turn_tokens=1024),
        group_size=1,
        address=("play", task_seed),
    )
    return groups[0][0]
