"""From an owed call to one that may be recorded: its arguments checked, its provider's hook asked.

Law: what was prepared is sealed. Once an attempt of a call is recorded, every later attempt gets the same arguments
and the same payload, whatever the hook would say by then.
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
from perdure.vocab.outcomes import Failed, Failure, Success
from perdure.vocab.records import EffectStarted
from perdure.vocab.refs import EffectRef
from perdure.vocab.tools import ToolContract


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that may be dispatched. `recorded` asks for its arguments and payload to be kept with its start."""

    prepared: Prepared
    call: PreparedToolCall
    recorded: bool


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The hook has been asked and has not answered."""


UNDER_WAY = UnderWay()

NOT_AS_APPROVED = Failure(
    code="prepared_not_as_approved",
    message="A person approved this call with other arguments, and its preparation changed those; it was not run",
    failure_class="invalid",
)

Round: TypeAlias = tuple[EffectId, bool]
"""What a hook is asked about: an attempt, as the model made it or as a person changed it."""


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

    def of(self, item: RunCall) -> Ready | Success | Failed | UnderWay:
        """The call, ready to be recorded; its answer, if nothing has to run; or that its hook is still at work."""
        sealed, edited = self.sealed(item), None
        if item.decision is not None and item.decision.args is not None and not self._begun(item):
            sealed, edited = None, self._edited(item, item.decision.args)
        prepared = self._toolbox.prepare(item.call, item.contract, sealed or edited, visible=self._visible)
        if isinstance(prepared, Failure):
            self._forget(item)
            return Failed(failure=prepared)
        call = sealed or edited or identity(item, prepared.contract)
        tool = prepared.tool
        if sealed is not None or not isinstance(tool, ProvidedTool) or not tool.prepares:
            return Ready(prepared, call, recorded=call is sealed or call is edited)
        answer = self._answered.get(_round(item)) or self._answer(item, tool, call)
        if not isinstance(answer, PreparedToolCall):
            return answer
        self._answered[_round(item)] = answer  # it may have to wait before it begins: a hook is asked once
        if edited is not None and digest(answer.args) != digest(edited.args):
            return Failed(failure=NOT_AS_APPROVED)
        again = self._toolbox.prepare(item.call, item.contract, answer, visible=self._visible)
        if isinstance(again, Failure):
            return Failed(failure=again)
        return Ready(again, answer, recorded=True)

    @property
    def under_way(self) -> bool:
        """Whether a hook is still at work."""
        return any(not task.done() for task in self._asked.values())

    def sealed(self, item: RunCall | Probe | AwaitVerdict) -> PreparedToolCall | None:
        """The call as it was recorded in full: by an earlier attempt, or when somebody was asked to allow it."""
        if (begun := self._begun(item)) is not None:
            return begun
        match self.question(item):
            case EffectStarted(command=AwaitEvent(about=PreparedToolCall() as about)):
                return about
            case _:
                return None

    def question(self, item: RunCall | Probe | AwaitVerdict) -> EffectStarted | None:
        """The question whether this call may run, if it was asked."""
        asked = (self._journal.started(replace(ref, tail="approval").id) for ref in _attempts(item))
        return next((one for one in asked if one is not None), None)

    def _begun(self, item: RunCall | Probe | AwaitVerdict) -> PreparedToolCall | None:
        for ref in _attempts(item):
            started = self._journal.started(ref.id)
            if started and isinstance(started.command, CallTool):
                return started.command.call
        return None

    def _edited(self, item: RunCall, args: dict[str, Json]) -> PreparedToolCall | None:
        """The call with the arguments of whoever approved it. What was prepared for others is not for these."""
        asked = self.sealed(item)
        return None if asked is None else replace(asked, args=args, prepared_payload=None)

    def _answer(self, item: RunCall, tool: ProvidedTool, call: PreparedToolCall) -> Preparation | UnderWay:
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
        except BaseException as problem:  # noqa: BLE001 - other people's code; it becomes the call's failure
            return refused(call, problem)
        if inspect.isawaitable(answer):
            return self._ask(item, call, lambda: cast("Awaitable[object]", answer))
        return judge(call, answer)

    def _ask(self, item: RunCall, call: PreparedToolCall, ask: Callable[[], Awaitable[object]]) -> UnderWay:
        async def run() -> Preparation:
            try:
                await self._durable()  # the hook may look outside: the reply that names the call comes first
            except Error as problem:  # the stream is not ours any more; its driver has been told
                return refused(call, problem)
            return await answered(call, ask())

        task = self._asked[_round(item)] = asyncio.create_task(run(), name=f"perdure:prepare:{item.ref.id}")
        task.add_done_callback(lambda _: self._on_news())
        return UNDER_WAY

    def _forget(self, item: RunCall) -> None:
        if task := self._asked.pop(_round(item), None):
            task.cancel()

    def stop(self) -> None:
        """Nothing of what is being prepared is wanted any more."""
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()


def _round(item: RunCall) -> Round:
    return item.ref.id, item.decision is not None and item.decision.args is not None


def _attempts(item: RunCall | Probe | AwaitVerdict) -> Iterator[EffectRef]:
    return (EffectRef(item.ref.iteration, item.ref.index, attempt) for attempt in range(1, item.ref.attempt + 1))


def identity(item: RunCall | Probe, contract: ToolContract) -> PreparedToolCall:
    """A call as the model made it."""
    call = item.call
    return PreparedToolCall(call_id=call.id, tool_id=contract.tool_id, tool_name=call.name, args=call.args)
