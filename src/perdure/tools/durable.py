"""The durable operations of a resumable tool's context. Recording is in `tools.body`."""

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
from perdure.ids import check_id, join
from perdure.tools.body import Body
from perdure.tools.durations import duration_ms
from perdure.tools.steps import StepEffect, runs_in_loop
from perdure.vocab.promises import EventKey

if TYPE_CHECKING:
    from perdure.tools.subagents import AgentClient

T = TypeVar("T")
Item = TypeVar("Item")
Duration = float | str

MAP_LIMIT = 8


def recorded_body(body: Body | None, call_id: str, tool_name: str) -> Body:
    """Return the body of a call if it records steps.

    Raises:
        Error: `durable_effects_missing_call_id`, `durable_effects_unavailable` or
            `durable_effects_unavailable_in_tool_batch`.
    """
    if not call_id.strip():
        raise Error(Code.DURABLE_EFFECTS_MISSING_CALL_ID, "durable effects need the id of a tool call")
    if body is None or not body.controller.supports_durable_effects:
        raise Error(
            Code.DURABLE_EFFECTS_UNAVAILABLE,
            f"the tool {tool_name} is not resumable, so it has no steps, sleeps, events or sub-agents",
            because="after a crash its body is not re-entered",
            hint='@tool(effect="resumable")',
        )
    if body.place.in_batch and not body.controller.nests:
        raise Error(
            Code.DURABLE_EFFECTS_UNAVAILABLE_IN_TOOL_BATCH,
            f"the tool {tool_name} runs in a batch, where this controller cannot record steps",
            hint="call the tool outside the batch",
        )
    return body


def body_of(ctx: DurableOps) -> Body:
    """Return the body that records the steps of this context.

    Raises:
        Error: as `recorded_body`.
    """
    return ctx._body()  # pyright: ignore[reportPrivateUsage] - the only access from other modules


async def json_step(
    ctx: DurableOps,
    step_id: str,
    input: Json,
    fn: Callable[[Json], Json | Awaitable[Json]],
    *,
    effect: StepEffect = "once",
) -> Json:
    """Run the step `fn(input)` with JSON input and JSON result."""
    return await body_of(ctx).step(step_id, input, lambda: fn(input), effect, in_loop=runs_in_loop(fn))


async def event_of_key(ctx: DurableOps, key: EventKey, timeout: Duration | None = None) -> Json:
    """Wait for the event of this key."""
    limit = None if timeout is None else duration_ms(timeout, what="the timeout of an event")
    return await body_of(ctx).event(key, limit)


class DurableOps:
    """The durable half of a tool's context. All operations require `@tool(effect="resumable")`."""

    idempotency_key: str

    def _body(self) -> Body:
        raise NotImplementedError

    async def step(
        self,
        name: str,
        fn: Callable[..., T | Awaitable[T]],
        /,
        *args: object,
        effect: StepEffect = "once",
        **kwargs: object,
    ) -> T:
        """Run `fn(*args, **kwargs)` once and record the outcome. Every re-entry replays the record.

        The result is the recorded JSON. If the worker died during a `once` step, the step raises `OutcomeUnknown`. An
        `idempotent` or `pure` step runs again.

        Raises:
            StepFailed: the step raised; the same on every re-entry.
            OutcomeUnknown: the step may or may not have taken effect.
            Error: `durable_effect_duplicate_step_id`, `replay_mismatch` if its arguments differ from the recorded.
        """
        if not callable(fn):
            raise Error(Code.INVALID_ARGUMENT, f"step {name!r} must be a function, not {type(fn).__name__}")
        given: Json = [list(args), kwargs] if kwargs else list(args)
        in_loop = runs_in_loop(fn)
        return await self._body().step(name, given, lambda: fn(*args, **kwargs), effect, in_loop=in_loop)

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
        """Run one step per item, `limit` at a time. Results are in the order of the items.

        `key` names each step by its item; without it steps are numbered. After a failure the other steps still finish,
        then the first failure is raised.
        """
        if limit < 1:
            raise Error(Code.INVALID_ARGUMENT, f"ctx.map({name!r}): limit must be >= 1, not {limit}")
        items = tuple(items)  # iterated twice, so an iterator is not enough
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
        """Return a client for another agent: `await ctx.agent("writer").ask("…")`."""
        from perdure.tools.subagents import AgentClient

        return AgentClient(self._body(), check_id(name, what="the name of an agent"))

    async def sleep(self, name: str, duration: Duration) -> None:
        """Wait for milliseconds or months. A restart does not restart the wait."""
        await self._body().sleep(name, duration_ms(duration, what=f"the sleep {name!r}"))

    async def wait_for_event(self, name: str, *, timeout: Duration | None = None) -> Json:
        """Wait for an external event: `session.resolve(name, value)`, or a resolution of the event's key.

        Raises:
            EventTimedOut: no resolution within `timeout`.
            EventFailed: the event ended with an error, or the wait was cancelled.
        """
        body = self._body()
        limit = None if timeout is None else duration_ms(timeout, what=f"the timeout of the event {name!r}")
        return await body.event(body.event_key(name), limit)

    async def event_key(self, name: str) -> EventKey:
        """Return the key of an event, for the party that resolves it. Equal names give equal keys."""
        return self._body().event_key(name)

    def step_key(self, name: str) -> str:
        """Return an idempotency key for one step, stable across re-entries, for external systems."""
        return join(self.idempotency_key, "step", name)

    def now(self, name: str | None = None) -> datetime:
        """Return the current time, recorded on the first entry.

        Unnamed values are matched by order. Concurrent branches need names.
        """
        body = self._body()
        return datetime.fromisoformat(body.value("now", body.now, name))

    def uuid(self, name: str | None = None) -> UUID:
        """Return a recorded random UUID. Names work as in `now`."""
        return UUID(self._body().value("uuid", lambda: str(UUID(bytes=os.urandom(16), version=4)), name))

    def random(self, name: str | None = None) -> float:
        """Return a recorded random number from 0 to 1. Names work as in `now`."""
        return float(self._body().value("random", random.random, name))
