"""`ctx.triggers` of one call, or of one entry of a process. Effects are recorded once and not repeated on re-entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec

from perdure.codec import Json
from perdure.ids import join
from perdure.inbox.items import Occurrence
from perdure.runtime.calls.clients import CallSite, visibly
from perdure.runtime.processes.function import ProcessFunction
from perdure.runtime.triggers.subscriptions import SubscriptionRequest, check_source
from perdure.tools.body import Body
from perdure.tools.clients.triggers import TriggerReport
from perdure.tools.context import ToolContext, origin_of
from perdure.vocab.processes import SessionScope

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore


@dataclass(frozen=True, slots=True)
class Spokesman:
    """The identity under which a client acts: idempotency key, owner of its subscriptions, wake target, and the sinks
    for its reports."""

    key: str
    originator: SessionScope | None
    wake_target: SessionScope | None
    nth: Callable[[str], int]
    durable: Callable[[], Awaitable[None]]
    report: Callable[[Json], None]


@dataclass(frozen=True, slots=True)
class TriggersClient:
    """The triggers of one tenant, as a tool or a process uses them."""

    _runtime: RuntimeCore
    by: Spokesman
    body: Body | None = None

    @property
    def registration_originator(self) -> SessionScope | None:
        """The owner of subscriptions made here."""
        return self.by.originator

    @property
    def registration_wake_target(self) -> SessionScope | None:
        """The session that processes of subscriptions made here wake."""
        return self.by.wake_target

    async def emit(
        self, source_type: str, payload: Json = None, *, key: str | None = None, source: str = "", session: str = ""
    ) -> TriggerReport:
        """Emit an occurrence. Durable when this returns, and reported in the outcome of the call."""
        with visibly():
            check_source(source_type, source)
        name = join("emit", source_type, key if key is not None else str(self.by.nth(source_type)))
        chosen = join(self.by.key, name) if key is None else key

        async def say() -> Json:
            happened = await self._runtime.triggers.emit(
                source_type, payload, key=chosen, source=source, session=session
            )
            report = TriggerReport(
                occurrence_id=happened.id,
                source_type=source_type,
                source=source,
                idempotency_key=happened.key,
                duplicate=happened.is_duplicate,
            )
            return msgspec.to_builtins(report)

        with visibly():
            new = await self._runtime.trigger_sources.occurrence(
                source_type, payload, key=chosen, source=source, session=session
            )
        assert isinstance(new.item, Occurrence)
        told = await self._once(name, [source_type, new.item.payload, chosen, source, session], say)
        self.by.report(told)
        return msgspec.convert(told, TriggerReport)

    async def subscribe(
        self,
        source_type: str,
        process: object,
        *,
        key: str,
        source: str = "",
        args: tuple[object, ...] | None = None,
    ) -> str:
        """Subscribe a process to all later occurrences of a source. The subscription belongs to this call's session."""
        by = self.by
        wanted = SubscriptionRequest(
            source_type,
            process if isinstance(process, ProcessFunction) else cast("str", process),
            key,
            source,
            args,
            owner=by.originator.session_id if by.originator else "",
            wake_target=by.wake_target.session_id if by.wake_target else "",
        )

        async def ask() -> Json:
            operation = join(by.key, wanted.name.id)
            return (await self._runtime.trigger_sources.register(wanted, operation=operation, by=by.key)).id

        with visibly():
            name, given = join("subscribe", wanted.name.id), msgspec.to_builtins(wanted.definition())
        return str(await self._once(name, given, ask))

    async def _once(self, name: str, given: Json, perform: Callable[[], Awaitable[Json]]) -> Json:
        """Perform once for all entries of a body. Without a body, every attempt performs again under the same key."""

        async def tell() -> Json:
            with visibly():
                return await perform()

        if self.body is not None:
            return await self.body.told("trigger", name, given, tell)
        await self.by.durable()  # the call's records are durable before an external effect
        return await tell()


def client_of_call(
    runtime: RuntimeCore, ctx: ToolContext[object], site: CallSite, durable: Callable[[], Awaitable[None]]
) -> TriggersClient:
    """Return `ctx.triggers` for one attempt of a call. Its session owns the subscriptions and is woken by them."""
    origin = origin_of(ctx)
    mine = SessionScope(session_id=ctx.session_id, frame_id=origin.agent_frame_id)

    def nth(source_type: str) -> int:
        site.check_running()
        site.counted[join(ctx.idempotency_key, source_type)] += 1
        return site.counted[join(ctx.idempotency_key, source_type)]

    by = Spokesman(ctx.idempotency_key, mine, mine, nth, durable, site.triggers.append)
    return TriggersClient(runtime, by, origin.body)
