"""Tasksets of today's verifiers (its `verifiers.v1`): tasks with rewards, tool servers and an endpoint to speak with.

A trajectory is the package's own `Rollout`: setup, limits, stops, interception, finalize, scoring. Its program, which the
package would start as a process of its own for each trajectory, runs here: the loop of its `null` harness, which calls the
model through the interception server and the task's tools by MCP. The model that it finds at the endpoint is the policy.
Tasks that need a container, or an `Env` of several agents, are not played.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from workbench.extensions.adapters.packages import package
from workbench.extensions.adapters.verifiers_rollouts import (
    Ask,
    ContextLimit,
    PolicyAnswer,
    Rollouts,
    RubricVerdict,
    Words,
    words_of,
)
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError

LIMITS = (
    "max_turns",
    "max_input_tokens",
    "max_output_tokens",
    "max_total_tokens",
    "context_length",
    "agent_timeout",
)
OLDEST = "0.4"  # version of the package whose tasksets are played


def refuse_older_versions() -> None:
    """Raise ConfigError where the verifiers that is installed has no tasksets."""
    if find_spec("verifiers.v1") is None:
        raise ConfigError(
            f"env.kind = 'verifiers' needs verifiers {OLDEST} or newer, whose tasksets are in verifiers.v1; "
            f"installed is {version('verifiers')}; pip install 'verifiers>={OLDEST}'"
        )


class VerifiersTaskset:
    """A taskset, and what its trajectories share: an interception server, its tool servers and the endpoint of the policy.
    `turns`: the most answers of a trajectory, 0 where nobody says."""

    def __init__(self, taskset: type, args: Mapping[str, Any], turns: int, success: str) -> None:
        self.vf = package("verifiers.v1", "verifiers")
        generic = package("verifiers.v1.utils.generic", "verifiers")
        base = self.vf.TasksetConfig
        config = generic.concrete_type(taskset, base, origin=self.vf.Taskset) or base
        self.taskset = taskset(config(**{"id": taskset.__module__, **args}))
        self.limit = turns
        self.success = success
        self._asks: dict[str, Ask] = {}  # by the id of the trajectory's trace
        self._up: asyncio.Future | None = None  # what serves all trajectories
        if taskset.task_type().NEEDS_CONTAINER:
            raise ConfigError(
                f"tasks of {taskset.__name__} need a container, and trajectories are played in this environment's "
                "own processes; play tasks that need none"
            )

    def rows(self) -> Iterator[tuple[str, Any]]:
        """(id, task) of every task."""
        for number, task in enumerate(self.taskset):
            yield task.data.id or task.data.name or str(number), task

    def rollouts(self, row_of: Callable[[Task], Any]) -> Rollouts:
        return Rollouts(partial(self._play, row_of), self.success)

    async def _servers(self) -> SimpleNamespace:
        """What serves all trajectories, begun with the first one."""
        if self._up is None:
            self._up = asyncio.get_running_loop().create_future()
            self._serving = asyncio.ensure_future(self._serve(self._up))
        try:
            return await asyncio.shield(self._up)
        except Exception:
            self._up = None  # the next trajectory tries again
            raise

    async def _serve(self, up: asyncio.Future) -> None:
        """Until it is cancelled: what is opened and closed by one task, as the servers' scopes ask for."""
        from verifiers.v1.interception import InterceptionServer
        from verifiers.v1.mcp import serve_shared

        toolsets = self.taskset.toolsets(self.taskset.config)
        async with AsyncExitStack() as stack:
            try:
                tools = await stack.enter_async_context(serve_shared(toolsets)) if toolsets else {}
                secrets = tuple(filter(None, (tool.state_secret for tool in tools.values())))
                interception = await stack.enter_async_context(
                    InterceptionServer(state_service_secrets=secrets)
                )
                url = await self._endpoint(stack)
            except Exception as error:
                return up.set_exception(error)
            client = self.vf.EvalClientConfig(base_url=url, api_key_var="WORKBENCH_POLICY_KEY")
            up.set_result(SimpleNamespace(tools=tools, interception=interception, client=client))
            await asyncio.Event().wait()

    async def _endpoint(self, stack: AsyncExitStack) -> str:
        """The address at which the policy answers as a model would."""
        from aiohttp import web

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._completion)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def _completion(self, request: Any) -> Any:
        from aiohttp import web

        ask = self._asks.get(request.headers.get("X-Session-ID", ""))
        body = await request.json()
        if ask is None:
            error = {"message": "no trajectory asks by this id"}
            return web.json_response({"error": error}, status=404)
        try:
            answer = await ask(list(map(_words, body["messages"])), body.get("tools") or [])
        except ContextLimit:
            error = {
                "message": "the maximum context length is reached",
                "code": "context_length_exceeded",
            }
            return web.json_response({"error": error}, status=400)
        completion = {
            "id": "turn",
            "object": "chat.completion",
            "created": 0,
            "model": "policy",
            "choices": [_choice(answer)],
        }
        return web.json_response(completion)

    async def _play(self, row_of: Callable[[Task], Any], task: Task, ask: Ask) -> RubricVerdict:
        up = await self._servers()
        rollout = self._rollout(row_of(task), up)
        self._asks[rollout.trace.id] = ask
        try:
            if await rollout.open():
                await rollout.step()
            trace = await rollout.close()
        except BaseException:
            await rollout.abort()
            raise
        finally:
            del self._asks[rollout.trace.id]
        return _verdict(trace)

    def _rollout(self, task: Any, up: SimpleNamespace) -> Any:
        from verifiers.v1.agent import resolve_rollout_timeouts
        from verifiers.v1.configs.agent import TimeoutConfig
        from verifiers.v1.rollout import Rollout
        from verifiers.v1.session import RolloutLimits
        from verifiers.v1.utils.compile import resolve_runtime_config

        vf = self.vf
        harness = _harness()
        here = resolve_runtime_config(vf.SubprocessConfig(), task)
        agent = vf.AgentConfig(
            harness=harness.config, runtime=here, model="policy", client=up.client
        )
        return Rollout(
            task=task,
            agent_config=agent,
            harness=harness,
            ctx=vf.ModelContext("policy", up.client),
            runtime_config=here,
            timeouts=resolve_rollout_timeouts(TimeoutConfig(), task),
            limits=RolloutLimits(max_turns=self.limit or None),
            shared_tools=up.tools,
            interception=up.interception,
        )


def _choice(answer: PolicyAnswer) -> dict[str, Any]:
    """An answer as OpenAI's API has it."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if not answer.calls:
        return {"index": 0, "message": message, "finish_reason": "stop"}
    message["tool_calls"] = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in answer.wire_calls
    ]
    return {"index": 0, "message": message, "finish_reason": "tool_calls"}


def _verdict(trace: Any) -> RubricVerdict:
    """What the task's rewards say. Raises EnvError for a trajectory that something broke before it was scored."""
    fault = trace.errors[-1] if trace.errors else None
    words = f"{fault.type}: {fault.message}" if fault else ""
    if not trace.ok and not trace.timing.scoring.start:
        raise EnvError(f"verifiers ended this trajectory with {words or trace.stop_condition}")
    rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    parts = {name: reward.score * reward.weight for name, reward in rewards.items()}
    metrics = dict(trace.metrics) | {name: reward.score for name, reward in rewards.items()}
    stop = trace.stop_condition or ""
    scored = trace.ok and len(rewards) == len(trace.rewards)
    return RubricVerdict(
        parts if scored else None,
        {name: value for name, value in metrics.items() if value is not None},
        stop,
        stop in LIMITS,
        error="" if scored else words or "a reward was not computed",
    )


def _words(message: Mapping[str, Any]) -> Words:
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return words_of(message["role"], message.get("content"), calls, message.get("tool_call_id"))


# ------------------------------------------------------------------------------------------------ the program


def _harness() -> Any:
    """The package's `null` harness, with its program in this process."""
    from verifiers.v1.harnesses.null import NullHarness, NullHarnessConfig
    from verifiers.v1.runtimes import ProgramResult

    class Here(NullHarness):
        # A stop or a rewrite before a call ends the trajectory instead.
        SUPPORTS_TOOL_INTERCEPTION = False

        async def setup(self, runtime: Any) -> None: ...

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: Mapping[str, str],
            data: Any,
        ) -> Any:
            from verifiers.v1.dialects.chat import message_to_wire

            system, prompt = self.resolve_prompt(data)
            messages = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += map(message_to_wire, prompt or ())
            await _chat(endpoint, secret, messages, mcp_urls, self.config.tool_timeout)
            return ProgramResult(exit_code=0, stdout="", stderr="")

    return Here(NullHarnessConfig(id="null"))


async def _chat(
    endpoint: str,
    secret: str,
    messages: list[dict],
    mcp_urls: Mapping[str, str],
    tool_timeout: float,
) -> None:
    """Ask and call until an answer without calls, or a limit of the rollout."""
    import httpx
    from verifiers.v1.harnesses.utils.compaction import bound_tool_message
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

    servers = {name: {"url": url, "timeout": tool_timeout} for name, url in mcp_urls.items()}
    headers = {"Authorization": f"Bearer {secret}"}
    async with AsyncExitStack() as stack:
        client = httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=None)
        http = await stack.enter_async_context(client)
        tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
        call = partial(call_mcp, connections, dispatch)
        body = {"model": "policy", "messages": messages} | ({"tools": tools} if tools else {})
        while True:
            response = await http.post("/chat/completions", json=body)
            # A limit, a stop, or a context that is full: the rollout knows which.
            if response.status_code == 400:
                return
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return
            for tool_call in message["tool_calls"]:
                name = tool_call["function"]["name"]
                arguments = json.loads(tool_call["function"]["arguments"])
                content = f"error: unknown tool {name!r}"
                if name in dispatch:
                    content = await call(name, arguments)
                reply = {"role": "tool", "tool_call_id": tool_call["id"], "content": content}
                messages.append(bound_tool_message(reply | {"name": name}))
