"""A vLLM server as the engine sees it (`vllm_turns.Core`): requests in flight, and a sync that is proven before it is used.

    sync    pause ─▶ start ─▶ update ─▶ finish ─▶ forget prefixes ─▶ what arrived? ─▶ resume      (all by the first process)
    turn    ask ─▶ answer, of the version that was asked for; what broke off is asked again

A server that we started and that is gone, or whose sync failed, is started anew and given the newest weights; what was in
flight is asked again, with the same seeds (without them it is another turn, and as good: nothing of the first is kept). Of a
server that somebody else started it is only said what is wrong with it.
"""

from __future__ import annotations

import shutil
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from workbench.engines.adapter_route import Adapter
from workbench.engines.layout import LayoutConfig
from workbench.engines.vllm_core import WHOLE, VllmOutput
from workbench.extensions.vllm_server.adapters import AdapterTransfer
from workbench.extensions.vllm_server.client import ServerClient, ServerDeadlineError, ServerError
from workbench.extensions.vllm_server.process import ServerProcess
from workbench.extensions.vllm_server.ranks import ServerRanks
from workbench.extensions.vllm_server.transfer import WeightTransfer
from workbench.values.errors import EngineError

MOST_TRIES = 4  # of the same turn
WAIT_S = 0.02  # for a first answer, in a poll
# That another learner process waits until the first one has started the server anew.
REJOIN_S = 30.0


@dataclass
class _Asked:
    """A request in flight: what it was asked with, for it may be asked again. `ticket` is of this one try: names come
    again in the next rollout, and an answer that was on its way must not be taken for that one's."""

    prompt: list[int]
    params: Mapping[str, Any]
    tries: int = 1
    ticket: str = ""


class ServerCore:
    """One server. `process` is None for one that somebody else started, and on all learner processes but the first."""

    def __init__(
        self,
        url: str,
        layout: LayoutConfig,
        *,
        rows: int,
        cache_tokens: int,
        ranks: ServerRanks,
        folder: str = "",
        process: ServerProcess | None = None,
        adapters: AdapterTransfer,
        key: str = "",
    ) -> None:
        """`folder`: where weights are written, by the process that speaks; it is taken away with the server. `key`: that
        every request carries."""
        self.cache_tokens = cache_tokens
        self.patience_s = layout.answer_deadline_s
        self.layout = layout
        self._ranks = ranks
        self._process = process
        self._adapters = adapters
        self._client = ServerClient(url, rows=rows, answer_s=layout.answer_deadline_s, key=key)
        self._run = ranks.hear(uuid.uuid4().hex[:8])
        self._transfer = WeightTransfer(self._client, self._run, folder, layout, adapters)
        self.head_logits = self._transfer.head_logits
        self._asked: dict[str, _Asked] = {}
        self.restarts = 0
        self.makes_generators = True
        # Also where nobody closes it: when it is forgotten, as by a notebook's cell that is run twice, or at the end.
        self._end = weakref.finalize(self, _let_go, self._client, process, folder, self._transfer)

    def wait(self) -> None:
        """Until it answers. Raises EngineError, also for a server that is none of ours."""
        if self._process is not None:
            self._process.wait(lambda: self._client.answers_at_all, self.layout.start_deadline_s)
        self._ranks.meet()
        self._client.call("GET", "/health")
        self.makes_generators = self._ask_worker("workbench_makes_generators")
        self._adapters.refuse_without(self._ask_worker("workbench_adapter_room"), self._client.url)

    def _ask_worker(self, method: str) -> Any:
        seconds = self.layout.sync_deadline_s
        answer = self._client.call("POST", "/collective_rpc", {"method": method}, seconds=seconds)
        return answer["results"][0]

    # ------------------------------------------------------------------------------------------ turns

    def add(self, name: str, prompt: list[int], params: Mapping[str, Any]) -> None:
        if not self._end.alive:
            raise EngineError("the engine was closed; open the session anew")
        self._ask(name, _Asked(prompt, dict(params)))

    def abort(self, name: str) -> None:
        if (asked := self._asked.pop(name, None)) is not None:
            self._client.drop(asked.ticket)

    def step(self) -> list[VllmOutput]:
        """Turns that are over. Raises EngineError where the server is gone for good; it is named, and so is what to do."""
        over = []
        broken = []
        names = {asked.ticket: name for name, asked in self._asked.items()}
        for ticket, answer in self._client.answers(WAIT_S):
            if (name := names.get(ticket)) is None:
                continue
            if isinstance(answer, ServerError):
                broken.append((name, answer))
            else:
                del self._asked[name]
                over.append(output_of(name, answer, self._transfer.label))
        if broken:
            self._ask_again(broken)
        return over

    def _ask(self, name: str, asked: _Asked) -> None:
        self._asked[name] = asked
        asked.ticket = f"{self._run}-{name}-{uuid.uuid4().hex[:8]}"
        # Keys and values of another version are another prefix: a cache that was not dropped cannot be hit (R34). And of
        # another process, whose probe after a sync must find nothing that this one's has left.
        salt = f"{self._transfer.label or 'none'}.{self._ranks.rank}"
        self._client.ask(
            asked.ticket,
            {
                "request_id": asked.ticket,
                "token_ids": asked.prompt,
                "cache_salt": salt,
                **self._transfer.whom,
                "sampling_params": {**asked.params, "detokenize": False},
            },
        )

    def _ask_again(self, broken: list[tuple[str, ServerError]]) -> None:
        """Turns whose answer broke off. A turn is its seed: asked again, it is the same one. Without, none is asked for being long."""
        if not self._client.answers_at_all:
            self._recover(str(broken[0][1]))  # asks for everything in flight
            return
        for name, error in broken:
            asked = self._asked[name]
            is_another = isinstance(error, ServerDeadlineError) and "seed" not in asked.params
            if asked.tries >= MOST_TRIES or is_another:
                raise EngineError(
                    f"{error}; asked {asked.tries} times. {_what_to_do(self._process, self.layout)}"
                )
            asked.tries += 1
            self._ask(name, asked)

    # ------------------------------------------------------------------------------------------ weights

    def load(
        self, weights: Mapping[str, torch.Tensor], version: int, adapter: Adapter | None = None
    ) -> dict[str, str]:
        """Bring these weights into the server; the digests of what arrived. Afterwards it is paused until `resume`. With
        an `adapter` it alone is brought, beside the first weights that the server had: the two come to `weights`.

        Every learner process calls it, with the same weights. Raises EngineError, and then the server is not resumed.
        """
        self._ranks.meet()  # nobody's turn is under way while it is paused
        arrived: dict[str, str] | None = None
        error_text = ""
        if self._ranks.speaks:
            try:
                arrived = self._send(weights, version, adapter)
            except EngineError as error:
                error_text = str(error)
        report = (arrived, error_text, self._transfer.label, self._transfer.model)
        arrived, error_text, label, model = self._ranks.hear(report)
        if arrived is None:
            raise EngineError(error_text)
        self._transfer.label = label
        self._transfer.model = model
        return arrived

    def forget_prefixes(self) -> None:
        """Done with every delivery, while the server is paused; and every request is salted by version."""

    def resume(self) -> None:
        """Go on sampling: the digests were right."""
        if self._ranks.speaks:
            self._client.call("POST", "/resume")
        self._ranks.meet()

    def _send(
        self, weights: Mapping[str, torch.Tensor], version: int, adapter: Adapter | None
    ) -> dict[str, str]:
        if self._process is None:
            self._transfer.refuse_a_stranger()
        self._transfer.prepare(weights, version, adapter)
        try:
            return self._transfer.send()
        except EngineError as error:
            if self._process is None:
                raise EngineError(
                    f"{error}. It may hold half of the weights now, so it was not resumed: restart it"
                ) from error
            return self._restart(f"its sync to version {version} failed: {error}")

    # ------------------------------------------------------------------------------------------ a server that is gone

    def _recover(self, why: str) -> None:
        """Have the server back with the newest weights, and ask again for what was in flight. Raises EngineError."""
        if self._process is not None:
            self._restart(why)
            self._client.call("POST", "/resume")
        elif self.layout.url or not self._transfer.comes_back(REJOIN_S):
            raise EngineError(f"{why}. {_what_to_do(self._process, self.layout)}")
        for name, asked in list(self._asked.items()):
            asked.tries += 1
            if asked.tries > MOST_TRIES:
                raise EngineError(
                    f"{why}, {MOST_TRIES} times in one turn. {_what_to_do(self._process, self.layout)}"
                )
            self._ask(name, asked)

    def _restart(self, why: str) -> dict[str, str]:
        """Another process in its place, paused, with the newest weights: the digests of what arrived there."""
        self.restarts += 1
        for asked in self._asked.values():  # their answers could only be of the server that is gone
            self._client.drop(asked.ticket)
        self._transfer.begin_anew()
        self._process.start()
        try:
            self._process.wait(lambda: self._client.answers_at_all, self.layout.start_deadline_s)
        except EngineError as error:
            raise EngineError(f"{why}; started anew, {error}") from error
        return self._transfer.send(anew=True)

    def close(self) -> None:
        """End a server that was started here. Nothing may be asked of it afterwards."""
        self._end()


def _what_to_do(process: ServerProcess | None, layout: LayoutConfig) -> str:
    if process is not None:
        return f"Its log ends with: {process.last_words}"
    if not layout.url:
        return "It was started by the first process: resume the run"
    return "It was started by somebody else: see that it runs, then resume this run"


def _let_go(
    client: ServerClient, process: ServerProcess | None, folder: str, transfer: WeightTransfer
) -> None:
    client.close()
    transfer.begin_anew()
    if process is not None:
        process.close()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def output_of(name: str, answer: Mapping[str, Any] | EngineError, label: str) -> VllmOutput:
    """A server's answer to a turn. What is none, and tokens of other weights than those asked for, are its `error`."""
    if isinstance(answer, EngineError):
        return VllmOutput(name, [], [], "error", 0, None, error=str(answer))
    try:
        output = _read_output(name, answer)
        spans = answer["choices"][0].get("weight_versions") or []
        others = [span for span in spans if label and span["version"] != label]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        why = (
            f"the server's answer is none of its kind ({type(error).__name__}: {error}): "
            f"{str(dict(answer))[:200]}"
        )
        return VllmOutput(name, [], [], "error", 0, None, error=why)
    if others:
        span = others[0]
        why = (
            f"tokens {span['start']} to {span['end']} were sampled from the weights "
            f"{span['version']!r}, and {label!r} were asked for; does another run use this server?"
        )
        return replace(output, error=why)
    return output


def _read_output(name: str, answer: Mapping[str, Any]) -> VllmOutput:
    """Raises whatever an answer of another kind leads to."""
    choice = answer["choices"][0]
    content = (choice["logprobs"] or {}).get("content") or []
    prompt_details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    scored = None
    if answer.get("prompt_logprobs") is not None:
        after_first = [next(iter(token.values())) for token in answer["prompt_logprobs"][1:]]
        scored = [float(token["logprob"]) for token in after_first]
    whole = None
    if any(len(token.get("top_logprobs") or ()) > WHOLE for token in content):
        whole = [_by_token(token["top_logprobs"]) for token in content]
    return VllmOutput(
        name,
        [int(token) for token in choice["token_ids"]],
        [float(token["logprob"]) for token in content],
        choice["finish_reason"] or "none",
        int(prompt_details.get("cached_tokens") or 0),
        scored,
        whole,
    )


def _by_token(logprobs: list[Mapping[str, Any]]) -> dict[int, float]:
    return {int(one["token_id"]): float(one["logprob"]) for one in logprobs}
