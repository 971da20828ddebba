"""What a resumable tool calls: the durable half of its context. How each of it is recorded is in `tools.body`."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import UUID

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId, check_id, join
from perdure.tools.body import Body
from perdure.tools.durations import duration_ms
from perdure.tools.steps import StepEffect, runs_in_loop
from perdure.vocab.promises import AwaitEventKey

if TYPE_CHECKING:
    from perdure.tools.subagents import AgentClient

T = TypeVar("T")
Item = TypeVar("Item")
Duration = float | str

MAP_LIMIT = 8


class DurableOps:
    """The durable half of a tool's context. Everything here needs `@tool(effect="resumable")`."""

    call_id: CallId
    tool_name: str
    idempotency_key: str
    body: Body | None

    def durable_effects(self) -> Body:
        """The body of this call.

        Raises:
            Error: `durable_effects_missing_call_id`, `durable_effects_unavailable` or
                `durable_effects_unavailable_in_tool_batch`.
        """
        if not self.call_id.strip():
            raise Error(Code.DURABLE_EFFECTS_MISSING_CALL_ID, "durable effects need a tool call to belong to")
        if self.body is None or not self.body.controller.supports_durable_effects:
            raise Error(
                Code.DURABLE_EFFECTS_UNAVAILABLE,
                f"the tool {self.tool_name} is not resumable, so it has no steps, sleeps, events or sub-agents",
                because="after a crash such a call is not entered again",
                hint='declare it: @tool(effect="resumable")',
            )
        if self.body.place.in_batch and not self.body.controller.nests:
            raise Error(
                Code.DURABLE_EFFECTS_UNAVAILABLE_IN_TOOL_BATCH,
                f"the tool {self.tool_name} runs in a batch, and this controller cannot record steps inside one",
                hint="call the tool outside the batch",
            )
        return self.body

    async def step(
        self,
        name: str,
        fn: Callable[..., T | Awaitable[T]],
        /,
        *args: object,
        effect: StepEffect = "once",
        **kwargs: object,
    ) -> T:
        """Run `fn(*args, **kwargs)` once, record what it returns or raises, and answer every re-entry from the record.

        The result comes back as the JSON it was recorded as. A `once` step that was under way when the worker died
        raises `OutcomeUnknown`; an `idempotent` or `pure` one is run again.

        Raises:
            StepFailed: the step raised; the same on every re-entry.
            OutcomeUnknown: nobody knows whether it took effect.
            Error: `durable_effect_duplicate_step_id`, `replay_mismatch` if its arguments differ from the recorded.
        """
        if not callable(fn):
            raise Error(Code.INVALID_ARGUMENT, f"the step {name!r} is a function, not {type(fn).__name__}")
        given: Json = [list(args), kwargs] if kwargs else list(args)
        in_loop = runs_in_loop(fn)
        return await self.durable_effects().step(name, given, lambda: fn(*args, **kwargs), effect, in_loop=in_loop)

    async def run_json(
        self, step_id: str, input: Json, fn: Callable[[Json], Json | Awaitable[Json]], *, effect: StepEffect = "once"
    ) -> Json:
        """A step in its plainest form: `fn(input)`, JSON in and JSON out."""
        in_loop = runs_in_loop(fn)
        return await self.durable_effects().step(step_id, input, lambda: fn(input), effect, in_loop=in_loop)

    async def map(
        self,
        name: str,
        fn: Callable[[Item], T | Awaitable[T]],
        items: Iterable[Item],
        /,
        *,
        key: Callable[[Item], object] | None = None,
        effect: StepEffect = "once",
        limit: int = MAP_LIMIT,
    ) -> list[T]:
        """One step per item, `limit` at a time, results in the order of the items.

        `key` names each step by its item; without it they are numbered. If some fail, the others are still finished,
        and the first failure is raised.
        """
        if limit < 1:
            raise Error(Code.INVALID_ARGUMENT, f"ctx.map({name!r}): limit={limit} would run nothing")
        items = tuple(items)  # whatever yields them: they are gone through twice
        gate = asyncio.Semaphore(limit)
        names = [f"{name}:{key(item) if key else index}" for index, item in enumerate(items)]

        async def one(step_name: str, item: Item) -> T:
            async with gate:
                return await self.step(step_name, fn, item, effect=effect)

        work = [asyncio.ensure_future(one(step_name, item)) for step_name, item in zip(names, items, strict=True)]
        try:
            ended = await asyncio.gather(*work, return_exceptions=True)
        finally:
            for task in work:
                task.cancel()
        for result in ended:
            if isinstance(result, BaseException):
                raise result
        return cast("list[T]", ended)

    def agent(self, name: str) -> AgentClient:
        """Another agent, to be asked something: `await ctx.agent("writer").ask("…")`."""
        from perdure.tools.subagents import AgentClient

        return AgentClient(self.durable_effects(), check_id(name, what="the name of an agent"))

    async def sleep(self, name: str, duration: Duration) -> None:
        """Wait, for milliseconds or months; a restart does not begin the wait anew."""
        await self.durable_effects().sleep(name, duration_ms(duration, what=f"the sleep {name!r}"))

    async def event(self, name: str, *, timeout: Duration | None = None) -> Json:
        """Wait for an answer from outside: `session.resolve(name, value)`, or whoever was given the event's key.

        Raises:
            EventTimedOut: nobody answered within `timeout`.
            EventFailed: the answer was an error, or the wait was cancelled.
        """
        body = self.durable_effects()
        limit = None if timeout is None else duration_ms(timeout, what=f"the timeout of the event {name!r}")
        return await body.event(body.event_key(name), limit)

    async def external_event_key(self, name: str) -> AwaitEventKey:
        """The key of an event, to be given to whoever shall answer. The same name gives the same key."""
        return self.durable_effects().event_key(name)

    async def await_event_json(self, key: AwaitEventKey, *, timeout: Duration | None = None) -> Json:
        """Wait for the event that a key stands for."""
        limit = None if timeout is None else duration_ms(timeout, what="the timeout of an event")
        return await self.durable_effects().event(key, limit)

    def step_key(self, name: str) -> str:
        """An idempotency key for one step, the same on every re-entry: for outside systems that take one."""
        return join(self.idempotency_key, "step", name)

    def now(self, name: str | None = None) -> datetime:
        """The time, as it was when the body first asked here.

        Which of several is meant follows from their order; where branches run at the same time, give each a name.
        """
        body = self.durable_effects()
        return datetime.fromisoformat(body.value("now", body.now, name))

    def uuid(self, name: str | None = None) -> UUID:
        """A random UUID, recorded; named like `now`."""
        return UUID(self.durable_effects().value("uuid", lambda: str(UUID(bytes=os.urandom(16), version=4)), name))

    def random(self, name: str | None = None) -> float:
        """A random number from 0 to 1, recorded; named like `now`."""
        return float(self.durable_effects().value("random", random.random, name))
