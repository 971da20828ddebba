"""Preparation of an owed call: its arguments are checked, and its provider's hook runs.

Law: a prepared call is captured. Once an attempt is recorded, every later attempt gets the same arguments and the same
payload, whatever the hook would return by then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

from msgspec.structs import replace

from perdure.codec import Json, digest
from perdure.effects.journal import EffectJournal
from perdure.errors import Error
from perdure.ids import EffectId
from perdure.tools.prepare import Preparation, ToolPrepareContext, answered, judge, refused
from perdure.tools.provider import ProvidedTool
from perdure.tools.toolbox import Prepared, Toolbox
from perdure.turn.state import AwaitVerdict, Probe, RunCall
from perdure.vocab.effects import AwaitEvent, CallTool, PreparedToolCall
from perdure.vocab.outcomes import Failed, FailureDetail, Success
from perdure.vocab.records import EffectStarted
from perdure.vocab.refs import EffectRef
from perdure.vocab.tools import ToolContract


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call that may be dispatched. With `recorded`, its arguments and payload are stored with its start."""

    prepared: Prepared
    call: PreparedToolCall
    recorded: bool


@dataclass(frozen=True, slots=True)
class Preparing:
    """Marker: the hook has not returned yet."""


UNDER_WAY = Preparing()

NOT_AS_APPROVED = FailureDetail(
    code="prepared_not_as_approved",
    message="A person approved this call with other arguments, and its preparation changed those; it was not run",
    failure_class="invalid",
)

Round: TypeAlias = tuple[EffectId, bool]
"""Identity of one hook run: the attempt, and whether a person edited the arguments."""


class Preparations:
    """The preparations of one turn's calls."""

    def __init__(
        self,
        toolbox: Toolbox,
        journal: EffectJournal,
        context: Callable[[RunCall], ToolPrepareContext],
        durable: Callable[[], Awaitable[None]],
        on_news: Callable[[], None],
        *,
        visible: tuple[str, ...],
    ) -> None:
        self._visible = visible
        self._toolbox = toolbox
        self._journal = journal
        self._context = context
        self._durable = durable
        self._on_news = on_news
        self._asked: dict[Round, asyncio.Task[Preparation]] = {}
        self._answered: dict[Round, PreparedToolCall] = {}
        self._checks: dict[tuple[EffectId, str], asyncio.Task[dict[str, object] | FailureDetail]] = {}

    def of(self, item: RunCall) -> ReadyCall | Success | Failed | Preparing:
        """Return the call ready to be recorded, its outcome if nothing has to run, or `UNDER_WAY` if its hook runs."""
        if item.refusal is not None:
            return Failed(failure=item.refusal)
        captured, edited = self.captured(item), None
        if item.decision is not None and item.decision.args is not None and not self._begun(item):
            captured, edited = None, self._edited(item, item.decision.args)
        prepared = self._toolbox.prepare(item.call, item.contract, captured or edited, visible=self._visible)
        prepared = self._checked(item, prepared)
        if isinstance(prepared, Preparing):
            return prepared
        if isinstance(prepared, FailureDetail):
            self._forget(item)
            return Failed(failure=prepared)
        call = captured or edited or identity(item, prepared.contract)
        tool = prepared.tool
        if captured is not None or not isinstance(tool, ProvidedTool) or not tool.prepares:
            return ReadyCall(prepared, call, recorded=call is captured or call is edited)
        answer = self._answered.get(_round(item)) or self._answer(item, tool, call)
        if not isinstance(answer, PreparedToolCall):
            return answer
        self._answered[_round(item)] = answer  # the call may still wait for its start: the hook runs once
        if edited is not None and digest(answer.args) != digest(edited.args):
            return Failed(failure=NOT_AS_APPROVED)
        again = self._toolbox.prepare(item.call, item.contract, answer, visible=self._visible)
        again = self._checked(item, again)
        if isinstance(again, Preparing):
            return again
        if isinstance(again, FailureDetail):
            return Failed(failure=again)
        return ReadyCall(again, answer, recorded=True)

    def _checked(self, item: RunCall, prepared: Prepared | FailureDetail) -> Prepared | FailureDetail | Preparing:
        """Return the call with checked arguments, its failure, or `UNDER_WAY` while they are checked."""
        if isinstance(prepared, FailureDetail) or prepared.unchecked is None:
            return prepared
        check = prepared.unchecked
        name = (item.ref.id, digest([check.schema, check.args]))
        if (task := self._checks.get(name)) is None:
            task = self._checks[name] = asyncio.create_task(
                check.bound(prepared.arguments), name=f"perdure:check:{item.ref.id}"
            )
            task.add_done_callback(lambda _: self._on_news())
        if not task.done():
            return UNDER_WAY
        return prepared.with_checked(task.result())

    @property
    def under_way(self) -> bool:
        """True while a hook or a check runs."""
        return any(not task.done() for task in (*self._asked.values(), *self._checks.values()))

    def captured(self, item: RunCall | Probe | AwaitVerdict) -> PreparedToolCall | None:
        """Return the call as captured by an earlier attempt or by its approval request, or None."""
        if (begun := self._begun(item)) is not None:
            return begun
        match self.question(item):
            case EffectStarted(command=AwaitEvent(about=PreparedToolCall() as about)):
                return about
            case _:
                return None

    def question(self, item: RunCall | Probe | AwaitVerdict) -> EffectStarted | None:
        """Return the start record of the call's approval request, or None."""
        asked = (self._journal.started(replace(ref, tail="approval").id) for ref in _attempts(item))
        return next((one for one in asked if one is not None), None)

    def _begun(self, item: RunCall | Probe | AwaitVerdict) -> PreparedToolCall | None:
        for ref in _attempts(item):
            started = self._journal.started(ref.id)
            if started and isinstance(started.command, CallTool):
                return started.command.call
        return None

    def _edited(self, item: RunCall, args: dict[str, Json]) -> PreparedToolCall | None:
        """Return the call with the approver's arguments. The payload prepared for the old arguments is dropped."""
        asked = self.captured(item)
        return None if asked is None else replace(asked, args=args, prepared_payload=None)

    def _answer(self, item: RunCall, tool: ProvidedTool, call: PreparedToolCall) -> Preparation | Preparing:
        task = self._asked.get(_round(item))
        if task is not None:
            if not task.done():
                return UNDER_WAY
            del self._asked[_round(item)]
            return refused(call, asyncio.CancelledError()) if task.cancelled() else task.result()
        hook = tool.provider.prepare_tool_call
        ctx = self._context(item)
        if inspect.iscoroutinefunction(hook):
            return self._ask(item, call, lambda: cast("Awaitable[object]", tool.prepare(ctx, call)))
        try:
            answer: object = tool.prepare(ctx, call)
        except BaseException as problem:  # noqa: BLE001 - user code; its error becomes the call's failure
            return refused(call, problem)
        if inspect.isawaitable(answer):
            return self._ask(item, call, lambda: cast("Awaitable[object]", answer))
        return judge(call, answer)

    def _ask(self, item: RunCall, call: PreparedToolCall, ask: Callable[[], Awaitable[object]]) -> Preparing:
        async def run() -> Preparation:
            try:
                await self._durable()  # the hook may call external systems: the reply must be durable first
            except Error as problem:  # ownership is lost; the driver has been notified
                return refused(call, problem)
            return await answered(call, ask())

        task = self._asked[_round(item)] = asyncio.create_task(run(), name=f"perdure:prepare:{item.ref.id}")
        task.add_done_callback(lambda _: self._on_news())
        return UNDER_WAY

    def _forget(self, item: RunCall) -> None:
        if task := self._asked.pop(_round(item), None):
            task.cancel()

    def stop(self) -> None:
        """Cancel all running hooks and checks."""
        for task in (*self._asked.values(), *self._checks.values()):
            task.cancel()
        self._asked.clear()
        self._checks.clear()


def _round(item: RunCall) -> Round:
    return item.ref.id, item.decision is not None and item.decision.args is not None


def _attempts(item: RunCall | Probe | AwaitVerdict) -> Iterator[EffectRef]:
    return (EffectRef(item.ref.iteration, item.ref.index, attempt) for attempt in range(1, item.ref.attempt + 1))


def identity(item: RunCall | Probe, contract: ToolContract) -> PreparedToolCall:
    """Return a call as the model made it, without preparation."""
    call = item.call
    return PreparedToolCall(call_id=call.id, tool_id=contract.tool_id, tool_name=call.name, args=call.args)
