"""The audit log of a tenant: acts of people and programs, one stream per month.

Laws: an act and its entry are one transaction, so no act is missing and none is listed that was not carried out. An
entry outlives its session, redaction and deletion included. Only retention removes entries, by the month.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace

from perdure.clock import Clock
from perdure.codec import decode, encode
from perdure.commit.changes import Audit as AuditNotes
from perdure.commit.changes import NewStream, Note
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import Seq, StreamId, Tenant, audit_stream, without_keys
from perdure.runtime.pages import LONGEST_PAGE, check_limit
from perdure.runtime.readable import Readable
from perdure.runtime.sessions.parts import short_text
from perdure.store.protocol import Store
from perdure.store.shapes import StreamInfo
from perdure.vocab.audit import MAX_FIELD_CHARS, Act, ActRecorded
from perdure.vocab.records import Row

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

log = logging.getLogger("perdure.runtime")

KIND = "act_recorded"
PAGE = 200
MAX_REFUSALS = 60
"""Recorded refusals per tenant, process and minute: of named people, and again of bearers of keys. A stranger may try
any number of keys."""
MAX_LATE_KEYS = 1_024
"""Keys whose late resolution was recorded, remembered by a process."""
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of an act, as the caller names it, and the way by which the act came."""

    by: str = ""
    via: str = "api"


def actor(by: str, via: str) -> Actor:
    """Return an author.

    Raises:
        Error: `invalid_argument`, `invalid_text`, `input_too_large`.
    """
    return Actor(short_text(by, "by"), short_text(via, "via"))


def act(name: Act, who: Actor, *, session: str = "", target: str = "", detail: str = "") -> ActRecorded:
    """Return an act with bounded fields. In the fields of the caller, what looks like a signed key is shortened."""
    fields = {"by": named(who.by), "via": named(who.via), "session": session, "target": target, "detail": detail}
    return ActRecorded(act=name, **{field: _bounded(text) for field, text in fields.items()})


def _omitted(count: int) -> ActRecorded:
    return act("refusals_omitted", Actor(via="perdure"), detail=str(count - MAX_REFUSALS))


def named(text: str) -> str:
    """Return a text from a caller as the audit log keeps it."""
    return _bounded(without_keys(text))


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_FIELD_CHARS else f"{text[: MAX_FIELD_CHARS - 1]}…"  # threat: T-AUD-02


class AuditLog:
    """The writer of audit entries, for all tenants of a runtime."""

    def __init__(self, store: Store, clock: Clock, readable: Readable, retention_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._readable = readable
        self._retention_ms = retention_ms
        self._refusals: dict[tuple[Tenant, bool], tuple[int, int]] = {}
        self._late: dict[tuple[Tenant, str], None] = {}

    async def notes(self, tenant: Tenant, *acts: ActRecorded) -> AuditNotes:
        """Return the entries of acts, for the transaction that carries them out."""
        now = self._clock.wall_ms()
        stream = await self._month(tenant, now)
        return tuple(Note(stream, Entry(KIND, encode(one), now)) for one in acts)

    async def record(self, tenant: Tenant, *acts: ActRecorded) -> None:
        """Record acts that are no write, such as an export. Durable when this returns."""
        await self._store.annotate_all(await self.notes(tenant, *acts))

    async def refuse(self, tenant: Tenant, refused: ActRecorded, code: str) -> None:
        """Record a refused act. Does not raise, so that the caller gets the refusal itself."""
        if not refused.by and code == "already_resolved" and self._was_late(tenant, refused.target):
            return
        minute, budget = self._clock.wall_ms() // MINUTE_MS, (tenant, bool(refused.by))  # threat: S25
        then, before = self._refusals.get(budget, (minute, 0))
        count = before + 1 if then == minute else 1
        self._refusals[budget] = (minute, count)
        if count > MAX_REFUSALS:
            return
        acts = [replace(refused, outcome="refused", detail=code)]
        if then != minute and before > MAX_REFUSALS:
            acts.insert(0, _omitted(before))
        await self._record_refusals(tenant, *acts)

    async def close(self) -> None:
        """Record how many refusals were omitted in the last minute."""
        refusals, self._refusals = self._refusals, {}
        for (tenant, _), (_, count) in refusals.items():
            if count > MAX_REFUSALS:
                await self._record_refusals(tenant, _omitted(count))

    async def _record_refusals(self, tenant: Tenant, *acts: ActRecorded) -> None:
        try:
            await self.record(tenant, *acts)
        except Error as problem:
            log.warning("refused act not recorded act=%s error=%s", acts[-1].act, problem.code)

    def _was_late(self, tenant: Tenant, key: str) -> bool:
        """Remember the late resolution of a key. True if it was known."""
        if (tenant, key) in self._late:
            return True
        self._late[tenant, key] = None
        if len(self._late) > MAX_LATE_KEYS:
            del self._late[next(iter(self._late))]
        return False

    async def _month(self, tenant: Tenant, now: int) -> StreamId:
        """Return the stream of this month, created with its first act. Then the months past retention are deleted."""
        stream = audit_stream(tenant, month_of(now))
        await self._readable.check(stream)
        if await self._store.stream(stream) is None:
            try:
                await self._store.create(NewStream(stream, "", (), now))
            except Error as problem:
                if problem.code is not Code.SESSION_EXISTS:  # another writer was first
                    raise
            else:
                await self.prune(tenant)
        return stream

    async def prune(self, tenant: Tenant) -> None:
        """Delete the months whose entries are all older than the retention, by the store's clock and by ours."""
        if not self._retention_ms:
            return
        oldest = min(await self._store.now(), self._clock.wall_ms()) - self._retention_ms
        for month in await months(self._store, tenant):
            if month.name < month_of(oldest):
                await self._store.delete(month.stream)


@dataclass(frozen=True, slots=True)
class AuditedAct:
    """An entry of the audit log.

    `by` is the name that the caller gave. `outcome` is `done` or `refused`; a refused act has an error code as its
    `detail`.
    """

    id: str
    at: int
    act: str
    outcome: str
    by: str
    via: str
    session: str = ""
    target: str = ""
    detail: str = ""


class Audit:
    """`rt.audit`: the audit log of this tenant. Works on any runtime of the store."""

    def __init__(self, host: RuntimeCore) -> None:
        self._host = host

    async def list(
        self,
        *,
        session: str | None = None,
        act: Act | None = None,
        by: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        before: AuditedAct | None = None,
    ) -> tuple[AuditedAct, ...]:
        """Return entries, newest first: all of them, or those of a session, act, author, or after a time.

        `before` is the last entry of the previous page. The entries of a page are searched from the newest on.

        Raises:
            Error: `invalid_argument` for an unknown act, a time without a time zone, or an invalid `limit` or `before`.
        """
        self._host.check_usable()
        check_limit(limit)
        month, seq = _place(before)
        wanted = _Filter(session, _known(act), by if by is None else named(by), _ms(since))
        found: list[AuditedAct] = []
        for info in await months(self._host.store, self._host.tenant):
            if info.name > month or (wanted.since and info.name < month_of(wanted.since)):
                continue
            until = min(info.last_seq, seq - 1) if info.name == month else info.last_seq
            while until > 0 and len(found) < limit:
                after = max(0, until - PAGE)
                rows = await self._host.store.read(info.stream, after=Seq(after), until=Seq(until))
                found += filter(wanted.accepts, (_entry(info.name, row) for row in reversed(rows)))
                until = after
        return tuple(found[:limit])


@dataclass(frozen=True, slots=True)
class _Filter:
    session: str | None
    act: str | None
    by: str | None
    since: int

    def accepts(self, one: AuditedAct) -> bool:
        fields = ((self.session, one.session), (self.act, one.act), (self.by, one.by))
        return one.at >= self.since and all(wanted in (None, has) for wanted, has in fields)


async def months(store: Store, tenant: Tenant) -> tuple[StreamInfo, ...]:
    """Return the months of a tenant's audit log, the last one first."""
    found = await store.streams(tenant=tenant, kind="audit", limit=LONGEST_PAGE)
    return tuple(sorted(found, key=lambda info: info.name, reverse=True))


def month_of(at_ms: int) -> str:
    """Return the month of a time, such as `2026-11`, in UTC."""
    return datetime.fromtimestamp(max(0, at_ms) / 1000, UTC).strftime("%Y-%m")


def _entry(month: str, row: Row) -> AuditedAct:
    one = decode(row.data, ActRecorded)
    place = f"{month}/{row.seq}"
    return AuditedAct(place, row.at, one.act, one.outcome, one.by, one.via, one.session, one.target, one.detail)


def _place(before: AuditedAct | None) -> tuple[str, int]:
    if before is None:
        return "~", 0  # sorts after every month
    month, _, seq = before.id.partition("/") if isinstance(before, AuditedAct) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance] - any input
    if not seq.isdecimal():
        raise Error(Code.INVALID_ARGUMENT, "before must be the last entry of the previous page")
    return month, int(seq)


def _known(name: str | None) -> str | None:
    if name is not None and name not in get_args(Act):
        raise Error(Code.INVALID_ARGUMENT, f"unknown act {name!r:.80}", hint=", ".join(get_args(Act)))
    return name


def _ms(since: datetime | None) -> int:
    if since is None:
        return 0
    if not isinstance(since, datetime) or since.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        raise Error(Code.INVALID_ARGUMENT, "since has no time zone", hint="datetime(2026, 11, 1, tzinfo=UTC)")
    return int(since.timestamp() * 1000)
