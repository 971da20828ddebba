"""Starting sub-agents, and the messages that the end of a turn sends to parent and children.

Laws: one append registers a child and sends the input that opens its session. One append ends a child's turn and
notifies its parent. A foreground child does not outlive the turn that waits for it; a background child does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from uuid import UUID

import msgspec

from perdure.codec import brief, digest
from perdure.effects.controller import EffectLog
from perdure.effects.promises import TurnScope
from perdure.errors import Code, Error
from perdure.ids import InputId, SessionId, StreamId, TurnId, session_stream, stream_names
from perdure.inbox.admit import Delivery, Opening, delivery
from perdure.inbox.items import CancelTurn, Input, Wake
from perdure.observe.ends import has_turn, last_answer
from perdure.runtime.sessions.parts import checked_content
from perdure.runtime.shared import Shared
from perdure.services.spawns import Lineage, LogSpawnStore, handle_of
from perdure.services.subagents import SpawnClaimed, SpawnPendingChild
from perdure.store.protocol import Store
from perdure.tools.errors import ToolError
from perdure.tools.subagents import Order
from perdure.vocab.children import ChildEnded, ChildRegistered, Parent
from perdure.vocab.effects import DurableStep
from perdure.vocab.messages import Text
from perdure.vocab.notifications import notification
from perdure.vocab.outcomes import AwaitEventOutcome
from perdure.vocab.promises import Cancelled
from perdure.vocab.records import EffectSettled, EffectStarted, Record, SessionOpened, TurnEnded, kind_of, write
from perdure.vocab.refs import is_part, part_beside

"""Most characters of a background child's answer in the notice to its parent. The child's session has all of it."""


GONE = "gone:"
"""Prefix of the wake reason that a deleted child leaves to its parent."""


async def parent_of(store: Store, stream: StreamId) -> Parent | None:
    """Return the parent that started this session, or None."""
    rows = await store.read(stream, limit=1)
    opened = rows[0].record if rows else None
    return opened.parent if isinstance(opened, SessionOpened) else None


def told_of_deletion(child: StreamId, parent: Parent, *, now: int) -> Delivery:
    """Return the wake for the parent of a deleted child.

    The parent then checks its wait, because the child sends no end.
    """
    name = f"{GONE}{stream_names(child)[2]}"
    return delivery(parent.stream, name, Wake(reason=name), at=now)


class Subagents:
    """The starter of one call's children."""

    def __init__(
        self, shared: Shared, stream: StreamId, line: Lineage, turn: TurnId, call: str, ledger: EffectLog
    ) -> None:
        self._shared = shared
        self._stream = stream
        self._line = line
        self._turn = turn
        self._call = call
        self._ledger = ledger
        self._tenant = stream_names(stream)[0]

    def scope(self, name: str) -> TurnScope:
        """Return the session and turn of the child with this name. The same call always gets the same ones."""
        seed = hashlib.sha256(self._handle(name).encode()).hexdigest()
        return TurnScope(self._tenant, SessionId(f"sub-{seed[:24]}"), TurnId(str(UUID(seed[32:]))))

    def of_call(self, call: str) -> Subagents:
        """Return a starter for the body of another call inside this one."""
        return Subagents(self._shared, self._stream, self._line, self._turn, call, self._ledger)

    def _handle(self, name: str) -> str:
        return handle_of(self._stream, self._call, name)

    async def spawn(self, name: str, order: Order) -> None:
        """Claim a place in the spawn limits, then register the child and open its session in one append."""
        shared = self._shared
        if order.agent not in shared.agents:
            known = ", ".join(sorted(shared.agents))
            raise ToolError(f"Unknown agent {order.agent!r}; the agents are: {known}", code=Code.AGENT_UNKNOWN.value)
        handle, task = self._handle(name), brief(digest((order.agent, order.prompt, order.output, order.background)))
        await self._ledger.durable()  # a child registered by an earlier attempt is then visible in the store
        spawns = LogSpawnStore(shared.store, self._stream, shared.spawn_limits, shared.clock.wall_ms)
        try:
            opening = self._opening(handle, order)
            claim = await spawns.claim(self._line, handle, self._turn, task=task, token=brief(digest(handle)))
        except Error as problem:
            if problem.code.value.startswith("subagent_") or problem.code in _BAD_PROMPT:
                raise ToolError(f"{problem.message}: {problem.because}", code=problem.code.value) from problem
            raise
        if isinstance(claim, SpawnClaimed | SpawnPendingChild):
            child = ChildRegistered(handle=handle, token=claim.claim_token, child=order.session, asked=order.turn)
            self._ledger.submit(child, outbox=(opening,))
            await self._ledger.durable()
            if not await has_turn(shared.store, opening.stream, order.turn):
                message = f"The session name {order.session} of the sub-agent belongs to another session"
                raise ToolError(message, code=Code.SESSION_AGENT_CONFLICT.value)

    def _opening(self, handle: str, order: Order) -> Delivery:
        """Return the child's first input, which opens its session."""
        line = self._line
        parent = Parent(
            stream=self._stream,
            root=line.root,
            handle=handle,
            turn=order.turn,
            depth=line.depth + 1,
            background=order.background,
        )
        item = Input(
            input=InputId(f"in-{order.turn}"),
            turn=order.turn,
            parts=checked_content(order.prompt).parts,
            key="parent",
            source=f"parent:{stream_names(self._stream)[2]}",
            output=order.output,
        )
        now = self._shared.clock.wall_ms()
        new = delivery(session_stream(self._tenant, order.session), "key:parent", item, at=now, agent=order.agent)
        opened = SessionOpened(agent=order.agent, parent=parent)
        return msgspec.structs.replace(new, opening=Opening(kind_of(opened), write(opened)))

    def cancel(self, child: TurnScope, reason: str) -> None:
        """Cancel a child's turn with the next append, because its parent no longer waits for it."""
        self._ledger.submit(outbox=(_let_go(child.stream, child.turn, reason, at=self._shared.clock.wall_ms()),))


_BAD_PROMPT = (Code.INVALID_ARGUMENT, Code.INVALID_TEXT, Code.INPUT_TOO_LARGE)


# --- deliveries of a turn's end


def end_notifications(
    stream: StreamId, parent: Parent | None, ended: TurnEnded, records: Iterable[Record], at: int
) -> Iterator[Delivery]:
    """Yield the deliveries of a turn's end: cancel requests for foreground children, and the result for the parent."""
    facts = tuple(records)
    yield from let_go(stream, facts, at)
    if parent is None:
        return
    session = stream_names(stream)[2]
    told = ChildEnded(child=SessionId(session), turn=ended.turn, status=ended.reason or ended.status, usage=ended.usage)
    for to in dict.fromkeys((parent.stream, parent.root)):
        yield delivery(to, f"ended:{session}:{ended.turn}", told, at=at)
    if parent.background and parent.turn == ended.turn and stream_names(parent.stream)[1] == "session":
        yield _news(parent, SessionId(session), ended, facts, at)


def let_go(stream: StreamId, records: Iterable[Record], at: int) -> Iterator[Delivery]:
    """Yield a cancel request for each foreground child that the turn waited for."""
    tenant = stream_names(stream)[0]
    for order in _waited_for(tuple(records)):
        yield _let_go(session_stream(tenant, order.session), order.turn, "the turn that waited for it has ended", at=at)


def _waited_for(records: tuple[Record, ...]) -> Iterator[Order]:
    """Yield the foreground children whose end this turn has not recorded."""
    asked = [record for record in records if isinstance(record, EffectStarted) and is_part(record.id, "ask")]
    if not asked:
        return  # the common case
    settled = {record.id for record in records if isinstance(record, EffectSettled) and not _given_up(record)}
    for record in asked:
        match record:
            case EffectStarted(id=id, command=DurableStep(input=given)) if given is not None:
                try:
                    order = msgspec.convert(given, type=Order)
                except msgspec.ValidationError:
                    continue  # a refused or redacted order must not keep the turn from ending
                if not order.background and part_beside(id, "answer") not in settled:
                    yield order
            case _:
                pass


def _given_up(settled: EffectSettled) -> bool:
    """Return True if a wait ended as cancelled. The turn ended first, and the child's end is unknown."""
    return isinstance(settled.outcome, AwaitEventOutcome) and isinstance(settled.outcome.resolution, Cancelled)


def _let_go(child: StreamId, turn: TurnId, reason: str, *, at: int) -> Delivery:
    return delivery(child, f"parent-cancel:{turn}", CancelTurn(turn=turn, origin="parent", reason=reason), at=at)


def _news(parent: Parent, session: SessionId, ended: TurnEnded, records: tuple[Record, ...], at: int) -> Delivery:
    """Return the notice of a background child's end: a steering input, which joins the parent's turn or opens one."""
    answer = last_answer(records)
    text = (answer.text if answer else "") if ended.status == "finished" else ended.message
    fields = {"session": session, "answer": text}
    told = notification(f"Sub-agent {ended.reason or ended.status}.", fields, text="answer")
    key = f"subagent:{session}"
    item = Input(
        input=InputId(f"in-{session}"),
        turn=TurnId(str(UUID(digest((session, ended.turn))[:32]))),
        parts=(Text(text=told),),
        key=key,
        mode="steer",
        source=key,
        by_session=True,
    )
    return delivery(parent.stream, f"key:{key}", item, at=at)
