"""Spawn records in the log: one child per call, and limits on the descendants of a root.

Laws: a call has one child, regardless of the number of claims. Claims are numbered in the root's log under one key
each, without gaps. The winner of a number has thus seen all earlier claims, so concurrent spawns cannot exceed a limit.
Liveness is read from the logs themselves (the child's or, before it exists, its parent's), so an end counts without any
message to the root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perdure.codec import brief, digest
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import CallId, SessionId, StreamId, TurnId, join, session_stream, split, stream_names
from perdure.observe.ends import end_and_reply, end_of
from perdure.services.subagents import SpawnClaimed, SpawnClaimResult, SpawnPendingChild, SpawnRunning, SpawnSettled
from perdure.store.protocol import Store
from perdure.vocab.children import ChildClaimed, ChildEnded, ChildRegistered, Parent
from perdure.vocab.log_keys import PROCESS_END, claim_key, registration_key, report_key
from perdure.vocab.records import SessionOpened


@dataclass(frozen=True, slots=True)
class SpawnLimits:
    """Limits on sub-agents: the depth, and the active and total number per root."""

    depth: int = 2
    active: int = 16
    total: int = 200


@dataclass(frozen=True, slots=True)
class Lineage:
    """The position of a stream in its tree of spawns."""

    root: StreamId
    depth: int

    @staticmethod
    def of(stream: StreamId, parent: Parent | None) -> Lineage:
        """Return the lineage of a stream with this parent."""
        return Lineage(parent.root, parent.depth) if parent else Lineage(stream, 0)


def handle_of(parent: StreamId, call: str, name: str = "") -> str:
    """Return the handle of a spawn: the call that makes it, and the spawn's name in that call."""
    return join(parent, call, name)


class LogSpawnStore:
    """Spawn store of one stream, in the log. Claim, register and settle each append a record under its own key, so the
    first one wins.

    Used by `ctx.agent(...)` and the tool `spawn_subagent`, and available to tools with custom session starts. Calls of
    other streams are refused, whatever their tenant.
    """

    def __init__(self, store: Store, own: StreamId, limits: SpawnLimits, now: Callable[[], int]) -> None:
        self._store = store
        self._own = own
        self._tenant = stream_names(own)[0]
        self._limits = limits
        self._now = now

    async def try_claim_spawn(
        self, parent_session_id: SessionId, tool_call_id: CallId, name: str, task: str, claim_token: str
    ) -> SpawnClaimResult:
        """Claim the child of a call, before the child exists.

        Raises:
            Error: `subagent_depth_exceeded`, `subagent_active_exceeded`, `subagent_total_exceeded`; `replay_mismatch`
                if the call claimed a child for another task before; `session_unknown`; `subagent_claim_invalid` for
                another session.
        """
        parent = self._checked(session_stream(self._tenant, parent_session_id))
        if (line := await self._lineage(parent)) is None:
            raise Error(Code.SESSION_UNKNOWN, f"unknown session {parent_session_id!r}")
        turn, wanted = TurnId(tool_call_id.rsplit(".", 2)[0]), brief(digest((name, task)))
        return await self.claim(line, handle_of(parent, tool_call_id), turn, task=wanted, token=claim_token)

    async def claim(self, line: Lineage, handle: str, turn: TurnId, *, task: str, token: str) -> SpawnClaimResult:
        """Claim the child of `handle`, for a turn of its parent.

        Raises:
            Error: as `try_claim_spawn`; `subagent_claim_invalid` for a handle of another stream.
        """
        parent = self._checked(_parent_of(handle))
        if _names_of(line.root)[:1] != (self._tenant,):
            raise _claim_invalid("the handle", "its root belongs to another tenant")
        if (known := await self._known(parent, handle)) is not None:
            return known
        if line.depth >= self._limits.depth:
            raise _exceeded(
                Code.SUBAGENT_DEPTH_EXCEEDED,
                f"no sub-agents allowed {line.depth} levels below the root",
                self._limits.depth,
            )
        while True:
            last = await self._last(line.root)
            live: list[int] = []
            for number in (*last.live, last.number) if last else ():
                other = await self._claim(line.root, number)
                if other is not None and other.handle == handle:
                    return _ours(other, task)
                if other is not None and await self._is_live(other):
                    live.append(number)
            number = last.number + 1 if last else 1
            self._check_room(number, len(live))
            new = ChildClaimed(
                number=number, handle=handle, token=token, task=task, parent=parent, turn=turn, live=tuple(live)
            )
            noted = await self._store.annotate(line.root, Entry.of(new, at=self._now()))
            if noted.new:
                return SpawnClaimed(handle, token)
            # another claim took that number: retry with it included

    async def register_child_session(self, spawn_handle_id: str, claim_token: str, child_session_id: SessionId) -> None:
        """Register the child's session. The first registration wins; later ones change nothing.

        Raises:
            Error: `subagent_claim_invalid` if no call of this session claimed the handle with this token.
        """
        claim = await self._claim_of(spawn_handle_id)
        if claim is None or claim.token != claim_token:
            raise _claim_invalid("the handle", "no call claimed it" if claim is None else "another claim holds it")
        registered = ChildRegistered(handle=spawn_handle_id, token=claim_token, child=child_session_id)
        await self._store.annotate(claim.parent, Entry.of(registered, at=self._now()))

    async def settle_spawn(
        self,
        parent_session_id: SessionId,
        tool_call_id: CallId,
        claim_token: str,
        terminal_status: str,
        terminal_result: str,
    ) -> None:
        """Record the result of a child. The first result wins, and so does the child's own.

        Raises:
            Error: `subagent_claim_invalid` if this call has no child, the token differs from the stored one, or the
                session is another one.
        """
        parent = self._checked(session_stream(self._tenant, parent_session_id))
        child = await self._registered(parent, handle_of(parent, tool_call_id))
        if child is None or child.token != claim_token:
            because = "no sub-agent was registered" if child is None else "another claim holds it"
            raise _claim_invalid(f"the call {tool_call_id}", because)
        ended = ChildEnded(child=child.child, turn=child.asked, status=terminal_status, result=terminal_result)
        await self._store.annotate(parent, Entry.of(ended, at=self._now()))

    def _checked(self, parent: StreamId) -> StreamId:
        """Return the stream of a call, which must be the own one: claims hand out the token that settles a child."""
        if parent != self._own:
            raise _claim_invalid("the handle", "its call belongs to another session")
        return parent

    # --- log queries

    async def _lineage(self, parent: StreamId) -> Lineage | None:
        rows = await self._store.read(parent, limit=1)
        opened = rows[0].record if rows else None
        return Lineage.of(parent, opened.parent) if isinstance(opened, SessionOpened) else None

    async def _claim_of(self, handle: str) -> ChildClaimed | None:
        """Return the claim of a handle, if its call belongs to this session."""
        line = await self._lineage(self._checked(_parent_of(handle)))
        if line is None or (last := await self._last(line.root)) is None:
            return None
        for number in range(last.number, 0, -1):
            claim = await self._claim(line.root, number)
            if claim is not None and claim.handle == handle:
                return claim
        return None

    async def _known(self, parent: StreamId, handle: str) -> SpawnRunning | SpawnSettled | None:
        child = await self._registered(parent, handle)
        if child is None:
            return None
        end = await self._end(parent, child)
        return SpawnRunning(child.child, child.token) if end is None else SpawnSettled(child.child, *end)

    async def _registered(self, parent: StreamId, handle: str) -> ChildRegistered | None:
        row = await self._store.find(parent, registration_key(handle))
        record = row.record if row else None
        return record if isinstance(record, ChildRegistered) else None

    async def _end(self, parent: StreamId, child: ChildRegistered) -> tuple[str, str] | None:
        """Return the result of a child, from its own log or as recorded by its parent."""
        if child.asked:
            over = await end_and_reply(self._store, _stream_of(parent, child), child.asked)
            if over is not None:
                ended, answer = over
                return ended.reason or ended.status, answer.text if answer and answer.reply else ended.message
        row = await self._store.find(parent, report_key(child.child, child.asked))
        record = row.record if row else None
        return (record.status, record.result) if isinstance(record, ChildEnded) else None

    async def _last(self, root: StreamId) -> ChildClaimed | None:
        """Return the newest claim, by binary search: numbers have no gaps."""
        taken, free = 0, 1
        found = None
        while (claim := await self._claim(root, free)) is not None:
            taken, free, found = free, free * 2, claim
        while free - taken > 1:
            middle = (taken + free) // 2
            if (claim := await self._claim(root, middle)) is not None:
                taken, found = middle, claim
            else:
                free = middle
        return found

    async def _claim(self, root: StreamId, number: int) -> ChildClaimed | None:
        row = await self._store.find(root, claim_key(number))
        record = row.record if row else None
        return record if isinstance(record, ChildClaimed) else None

    async def _is_live(self, claim: ChildClaimed) -> bool:
        """Return True if the child is active, or may still start: only the turn that claimed it can start it."""
        child = await self._registered(claim.parent, claim.handle)
        if child is not None:
            exists = await self._store.stream(_stream_of(claim.parent, child)) is not None
            return exists and await self._end(claim.parent, child) is None
        if await self._store.stream(claim.parent) is None:
            return False
        if not claim.turn:
            return await self._store.find(claim.parent, PROCESS_END) is None
        return await end_of(self._store, claim.parent, claim.turn) is None

    def _check_room(self, number: int, live: int) -> None:
        if number > self._limits.total:
            message = f"this root has started {number - 1} sub-agents"
            raise _exceeded(Code.SUBAGENT_TOTAL_EXCEEDED, message, self._limits.total)
        if live >= self._limits.active:
            message = f"{live} sub-agents of this root are active"
            raise _exceeded(Code.SUBAGENT_ACTIVE_EXCEEDED, message, self._limits.active)


def _ours(claim: ChildClaimed, task: str) -> SpawnPendingChild:
    if claim.task != task:
        raise Error(
            Code.REPLAY_MISMATCH,
            "the call claimed its sub-agent for another task before",
            hint="the prompt of a sub-agent must be equal on every entry",
        )
    return SpawnPendingChild(claim.handle, claim.token)


def _names_of(stream: StreamId) -> tuple[str, ...]:
    """Return tenant, kind and name of a stream, or nothing if the text names none."""
    names = split(stream)
    return tuple(names) if len(names) == 3 else ()


def _claim_invalid(what: str, because: str) -> Error:
    return Error(
        Code.SUBAGENT_CLAIM_INVALID,
        f"{what} has no sub-agent with this token",
        because=because,
        hint="use the handle and the token that try_claim_spawn returned",
    )


def _parent_of(handle: str) -> StreamId:
    return StreamId(split(handle)[0])


def _stream_of(parent: StreamId, child: ChildRegistered) -> StreamId:
    return session_stream(stream_names(parent)[0], child.child)


def _exceeded(code: Code, what: str, limit: int) -> Error:
    return Error(
        code, what, because=f"the limit is {limit}", hint="wait for a sub-agent to finish, or continue without one"
    )
