"""The model usage of all sessions of a tenant, summed by session, agent, model, source or day.

Laws: each usage entry counts once. The usage of a sub-agent counts for its own session; the records of its ancestors
count only if that session is deleted. All groupings have the same total.

Reads, by session and by agent: the snapshot and later records of each session, and the whole log of sessions with
sub-agents. Reads, by model, source or day, or since a time: the whole log of each session changed since. Days are UTC.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from perdure.codec import decode
from perdure.errors import Code, Error
from perdure.ids import BlobHash, Seq, SessionId, StreamId, session_stream, stream_names
from perdure.session.fold import CODE, fold_all
from perdure.session.ledger import entries
from perdure.store.shapes import START, StreamInfo
from perdure.vocab.children import ChildEnded, ChildRegistered
from perdure.vocab.records import Row, SessionOpened, TurnAgentChanged, TurnOpened
from perdure.vocab.tools import Composition
from perdure.vocab.usage import Usage

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

By: TypeAlias = Literal["session", "agent", "model", "source", "day"]
PAGE = 500
GONE = "(deleted)"
UNKNOWN = "(unknown)"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """The grouping and the filters: a session with its sub-agents (None: all), a start time, an agent."""

    by: By = "session"
    session: SessionId | None = None
    since_ms: int | None = None
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """One sum. For a session also its agent, its parent, and its usage `together` with that of its sub-agents."""

    name: str
    usage: Usage
    agent: str = ""
    parent: str = ""
    depth: int = 0
    together: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The sums, largest first; days latest first; sub-agents after their parent. Also the total and the amount read."""

    sums: tuple[Account, ...]
    total: Usage
    sessions: int
    records: int


@dataclass(slots=True)
class _Bought:
    """The usage of one session."""

    name: str
    agent: str
    parent: str = ""
    usage: Usage = field(default_factory=Usage)
    children: list[str] = field(default_factory=list[str])


async def accounts(rt: RuntimeCore, question: UsageQuery) -> Accounts:
    """Sum up the usage.

    Raises:
        Error: `session_unknown`.
    """
    count = _Count(rt, question)
    async for info in count.scope():
        await count.take(info)
    await count.take_gone()
    sums = _tree(count.sessions) if question.by == "session" else _sorted(count.sums, question.by)
    return Accounts(tuple(sums), sum(count.sums.values(), Usage()), count.looked_at, count.records)


class _Count:
    """The summation, session by session."""

    def __init__(self, rt: RuntimeCore, question: UsageQuery) -> None:
        self._rt = rt
        self._question = question
        self._models: dict[BlobHash, str] = {}
        self._ended: dict[tuple[SessionId, str], tuple[int, ChildEnded, str]] = {}
        self._exists: set[str] = set()
        self.sums: dict[str, Usage] = {}
        self.sessions: dict[str, _Bought] = {}
        self.looked_at = 0
        self.records = 0

    # --- which

    async def scope(self) -> AsyncIterator[StreamInfo]:
        """Yield the sessions that count."""
        if self._question.session is not None:
            async for info in self._descent(self._question.session):
                yield info
            return
        since = self._question.since_ms or 0
        newest = since
        async for info in self._changed_since(since):
            newest = max(newest, info.updated_at)
            yield info
        async for info in self._changed_since(newest):  # sessions that changed during the listing moved to its top
            yield info

    async def _changed_since(self, since: int) -> AsyncIterator[StreamInfo]:
        before: tuple[int, StreamId] | None = None
        while page := await self._rt.session_streams(limit=PAGE, before=before):
            for info in page:
                if info.updated_at < since:
                    return
                if info.name not in self._exists:
                    yield info
            before = (page[-1].updated_at, page[-1].stream)

    async def _descent(self, first: SessionId) -> AsyncIterator[StreamInfo]:
        """Yield a session and its descendants; each log names the children."""
        waiting: list[SessionId] = [first]
        while waiting:
            name = waiting.pop()
            if name in self._exists:
                continue
            info = await self._rt.store.stream(session_stream(self._rt.tenant, name))
            if info is not None:
                yield info
                waiting += [SessionId(child) for child in self.sessions[name].children]
            elif name == first:
                raise Error(Code.SESSION_UNKNOWN, f"unknown session {name!r}")

    # --- what

    async def take(self, info: StreamInfo) -> None:
        """Add the usage of one session."""
        self.looked_at += 1
        self._exists.add(info.name)
        one = self.sessions[info.name] = _Bought(info.name, info.agent)
        question = self._question
        whole = question.by not in ("session", "agent") or question.since_ms is not None or question.session is not None
        if not whole:
            whole = await self._take_folded(info, one)
        if whole:
            await self._take_log(info, one)

    async def _take_folded(self, info: StreamInfo, one: _Bought) -> bool:
        """Add the usage from the snapshot and later records. Return True if the whole log is needed, because of
        sub-agents."""
        loaded = await self._rt.store.load(info.stream, code=CODE)
        self.records += len(loaded.rows)
        state = fold_all(loaded.snapshot.data if loaded.snapshot else None, loaded.rows)
        if state.child_usage.calls:
            return True
        one.parent = _session_of(state.parent.stream) if state.parent else ""
        running = (row.record for row in loaded.rows if state.open_turn and row.seq >= state.turn_seq)
        self._add(one, info.agent, state.usage + sum((entry.usage for entry in entries(running)), Usage()))
        return False

    async def _take_log(self, info: StreamInfo, one: _Bought) -> None:
        model = ""
        async for row in self._log(info.stream):
            match row.record:
                case SessionOpened(parent=parent) if parent is not None:
                    one.parent = _session_of(parent.stream)
                case TurnOpened(composition=composition) | TurnAgentChanged(composition=composition):
                    model = await self._model_of(info.stream, composition)
                case ChildRegistered(child=child) if child:  # an imported one names none
                    one.children.append(child)
                case ChildEnded(source="") as ended:
                    self._ended.setdefault((ended.child, ended.turn), (row.at, ended, info.name))
                case record if row.at >= (self._question.since_ms or 0):
                    for entry in entries((record,)):
                        key = self._key(one, row, entry.model or model, entry.source)
                        self._add(one, key, entry.usage)
                case _:
                    pass

    async def take_gone(self) -> None:
        """Add the usage of sub-agents whose sessions are deleted, from the records of their ancestors."""
        for (child, _), (at, ended, told_by) in self._ended.items():
            if child in self._exists or at < (self._question.since_ms or 0) or not ended.usage.calls:
                continue
            if await self._rt.store.stream(session_stream(self._rt.tenant, child)) is not None:
                continue
            one = self.sessions.setdefault(child, _Bought(child, GONE, told_by))
            keys = {"agent": GONE, "model": UNKNOWN, "source": GONE, "day": day_of(at), "session": child}
            self._add(one, keys[self._question.by], ended.usage)

    def _add(self, one: _Bought, key: str, usage: Usage) -> None:
        if self._question.agent and one.agent != self._question.agent:
            return
        one.usage += usage
        if usage != Usage():
            self.sums[key] = self.sums.get(key, Usage()) + usage

    def _key(self, one: _Bought, row: Row, model: str, source: str) -> str:
        match self._question.by:
            case "session":
                return one.name
            case "agent":
                return one.agent
            case "model":
                return model or UNKNOWN
            case "source":
                return source
            case "day":
                return day_of(row.at)

    async def _log(self, stream: StreamId) -> AsyncIterator[Row]:
        after: Seq = START
        while rows := await self._rt.store.read(stream, after=after, limit=PAGE):
            self.records += len(rows)
            for row in rows:
                yield row
            after = rows[-1].seq

    async def _model_of(self, stream: StreamId, composition: BlobHash) -> str:
        """Return the model of a turn's composition. A failed attempt does not name its model."""
        if composition not in self._models:
            try:
                blob = await self._rt.store.blob(composition, stream=stream)
                self._models[composition] = decode(blob.data, Composition).model
            except Error:  # redacted
                self._models[composition] = ""
        return self._models[composition]


def day_of(at_ms: int) -> str:
    """Return the UTC day of a time."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _session_of(stream: StreamId) -> str:
    """Return the session of a stream, or an empty string for a process."""
    _, kind, name = stream_names(stream)
    return name if kind == "session" else ""


def _sorted(sums: dict[str, Usage], by: By) -> Iterable[Account]:
    if by == "day":
        return (Account(name, sums[name]) for name in sorted(sums, reverse=True))
    return (Account(name, sums[name]) for name in sorted(sums, key=lambda name: (-sums[name].tokens, name)))


def _tree(sessions: dict[str, _Bought]) -> Iterable[Account]:
    """Yield sessions with their usage, each sub-agent after its parent."""
    below: dict[str, list[_Bought]] = {}
    for one in sessions.values():
        below.setdefault(one.parent if one.parent in sessions else "", []).append(one)

    def together(one: _Bought) -> Usage:
        return sum((together(child) for child in below.get(one.name, ())), one.usage)

    def line(one: _Bought, depth: int) -> Iterable[Account]:
        whole = together(one)
        if whole != Usage():
            yield Account(one.name, one.usage, one.agent, one.parent, depth, whole)
            yield from lines(one.name, depth + 1)

    def lines(parent: str, depth: int) -> Iterable[Account]:
        for one in sorted(below.get(parent, ()), key=lambda one: (-together(one).tokens, one.name)):
            yield from line(one, depth)

    return lines("", 0)
