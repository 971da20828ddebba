"""The API of schedules: create, list, pause, resume, run, cancel."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.codec import brief, check_readable, check_text, digest
from perdure.commit.changes import Intervention, Label
from perdure.commit.plan import Entry
from perdure.errors import Code, Error
from perdure.ids import SessionId, StreamId, check_id, schedule_stream, session_stream
from perdure.inbox.admit import Conflict, Delivery, Opening, delivery
from perdure.inbox.items import Wake
from perdure.runtime.clock import moment_of, short_id
from perdure.runtime.pages import check_limit
from perdure.runtime.schedules.monitors import end_monitor
from perdure.runtime.schedules.schedule_host import OWNER, tags_of
from perdure.services.schedules import (
    MAX_ACTIVE_SCHEDULES_PER_SESSION,
    MAX_ACTIVE_SCHEDULES_PER_TENANT,
    ScheduleState,
    SessionSchedule,
    check_schedule,
    fold_all,
    upcoming,
)
from perdure.store.shapes import StreamInfo
from perdure.tools.errors import ToolError, tool_error_of
from perdure.vocab.log_keys import SCHEDULE_END
from perdure.vocab.records import Row, kind_of, write
from perdure.vocab.schedules import (
    Schedule,
    ScheduleChange,
    ScheduleChanged,
    ScheduleCreated,
    SendInput,
)

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

MAX_TEXT_BYTES = 32_768
PAGE = 100


class ScheduleHandle:
    """A handle to one schedule. Handles are cheap; many may refer to the same schedule."""

    def __init__(self, runtime: RuntimeCore, id: str) -> None:
        self.runtime = runtime
        self.id = id
        self.stream: StreamId = schedule_stream(runtime.tenant, id)

    def __repr__(self) -> str:
        return f"ScheduleHandle({self.id!r})"

    async def journal(self) -> tuple[Row, ...]:
        """Return the whole log of the schedule.

        Raises:
            Error: `schedule_unknown`.
        """
        self.runtime.check_usable()
        rows = await self.runtime.store.read(self.stream)
        if not rows:
            raise _unknown(self.id)
        return rows

    async def info(self) -> ScheduleState:
        """Return the current state: a fold of the log.

        Raises:
            Error: `schedule_unknown`.
        """
        return fold_all(await self.journal())

    async def next_runs(self, count: int = 5) -> tuple[datetime, ...]:
        """Return the next due times in UTC; none while the schedule is paused or after its end."""
        now = self.runtime.clock.wall_ms()
        return tuple(moment_of(at) for at in upcoming(await self.info(), count, now=now))

    async def pause(self, *, by: str = "") -> bool:
        """Pause the runs until `resume`. Due times in between are skipped. False if it was paused already."""
        return await self._change("paused", by, unless_so=True)

    async def resume(self, *, by: str = "") -> bool:
        """Resume with the next due time. False if the schedule was not paused."""
        return await self._change("resumed", by, unless_so=False)

    async def run(self, *, by: str = "") -> str:
        """Request a run now, also while the schedule is paused, and return the id of the request. Due times do not
        change."""
        request = short_id("run", self.runtime.clock.wall_ms())
        await self._active()
        await self._tell(ScheduleChanged(change="run", by=_name(by), request=request))
        return request

    async def delete(self, *, by: str = "") -> bool:
        """End the schedule, and the task of a monitor with it. No run starts after this returns.

        False if it had ended already.
        """
        state = await self.info()
        if not state.active:
            return False
        await end_monitor(self.runtime.tasks, state.known.owner, self.id, "canceled")
        now = self.runtime.clock.wall_ms()
        ended = Entry.of(ScheduleChanged(change="ended", by=_name(by), reason="cancelled"), at=now)
        label = Label(tags=tags_of(state.known.owner, active=False))
        noted = await self.runtime.store.annotate(self.stream, ended, label=label)
        self.runtime.hub.notify(self.stream)
        return noted.new

    async def _change(self, change: ScheduleChange, by: str, *, unless_so: bool) -> bool:
        if (await self._active()).paused is unless_so:
            return False
        await self._tell(ScheduleChanged(change=change, by=_name(by)))
        return True

    async def _active(self) -> ScheduleState:
        state = await self.info()
        if not state.active:
            raise Error(
                Code.SCHEDULE_ENDED,
                f"the schedule {self.id} has ended; nothing was written",
                because=f"the reason is {state.ended}",
                hint="await rt.schedule(...)",
                schedule=self.id,
            )
        return state

    async def _tell(self, change: ScheduleChanged) -> None:
        """Append the change to the log and wake the owner of the schedule, in one transaction."""
        rt, now = self.runtime, self.runtime.clock.wall_ms()
        key = f"{change.change}:{change.request or short_id('chg', now)}"
        wake = delivery(self.stream, key, Wake(reason=change.change), at=now)
        written = Intervention(self.stream, delivery=wake, notes=(Entry.of(change, at=now),), unless=(SCHEDULE_END,))
        if not (await rt.store.intervene(written)).done:
            await self._active()  # raises, because the schedule has ended meanwhile
        await rt.notify_stream(self.stream)


class Schedules:
    """The schedules of a tenant: `rt.schedules`."""

    def __init__(self, runtime: RuntimeCore) -> None:
        self._runtime = runtime

    def get(self, id: str) -> ScheduleHandle:
        """Return a handle to a schedule without a lookup. The first operation raises if the schedule does not exist."""
        return ScheduleHandle(self._runtime, check_id(id, what="the schedule id"))

    async def list(
        self,
        *,
        session: str | None = None,
        active: bool = False,
        limit: int = PAGE,
        before: tuple[int, StreamId] | None = None,
    ) -> tuple[StreamInfo, ...]:
        """Return the schedules of this tenant or of a session, last changed first. `active` leaves out ended ones."""
        tag = f"{'active' if active else 'session'}:{session}" if session is not None else "active" if active else None
        rt = self._runtime
        return await rt.store.streams(
            tenant=rt.tenant, kind="schedule", limit=check_limit(limit), before=before, tag=tag
        )

    async def create(self, schedule: Schedule, *, id: str | None = None, by: str = "") -> ScheduleHandle:
        """Create a schedule. Durable when this returns; the same schedule under the same id is the same one.

        Raises:
            Error: `schedule_invalid`, `schedule_zone_unknown`; `schedule_conflict` if another schedule has that id;
                `schedule_limit`; `session_unknown` if its owner, or its target session, does not exist.
        """
        rt = self._runtime
        rt.check_usable()
        check_readable(schedule, what="the schedule", code=Code.SCHEDULE_INVALID)
        now = rt.clock.wall_ms()
        handle = self.get(id if id is not None else short_id("sch", now))
        await self._check(schedule, now, known=await rt.store.stream(handle.stream) is not None)
        match await rt.store.admit(_opening(handle.stream, schedule, _name(by), now)):
            case Conflict():
                raise Error(
                    Code.SCHEDULE_CONFLICT,
                    f"schedule {handle.id} exists with other content; nothing was written",
                    hint="cancel the existing schedule, or use another id",
                    schedule=handle.id,
                )
            case _:
                pass
        await self._stay_within_limits(handle, schedule.owner)
        await rt.notify_stream(handle.stream)
        return handle

    async def _check(self, schedule: Schedule, now: int, *, known: bool) -> None:
        rt, target = self._runtime, schedule.target
        expected = {schedule.owner}
        if isinstance(target, SendInput):
            _check_said(target.text)
            expected |= {"" if target.agent else target.session}
        elif schedule.overlap == "queue":
            raise Error(
                Code.SCHEDULE_INVALID,
                "overlap='queue' needs a session as target",
                because="only inputs of a session can be queued",
                hint='overlap="skip"',
            )
        if known:
            return  # a repeated schedule is checked and counted already
        check_schedule(schedule, now=now)
        for session in expected - {""}:
            if await rt.store.stream(session_stream(rt.tenant, SessionId(session))) is None:
                raise Error(
                    Code.SESSION_UNKNOWN,
                    f"unknown session {session!r}",
                    hint='pass agent="..." to create the session',
                )
        if schedule.owner and await _count_active(self, schedule.owner) >= MAX_ACTIVE_SCHEDULES_PER_SESSION:
            raise _too_many_in_session()
        if len(await self.list(active=True, limit=MAX_ACTIVE_SCHEDULES_PER_TENANT)) >= MAX_ACTIVE_SCHEDULES_PER_TENANT:
            raise _too_many()

    async def _stay_within_limits(self, mine: ScheduleHandle, owner: str) -> None:
        """Cancel this schedule if concurrent calls exceeded a limit. The oldest schedules stay."""
        for tag, limit, refusal in (
            (f"active:{owner}" if owner else "", MAX_ACTIVE_SCHEDULES_PER_SESSION, _too_many_in_session),
            ("active", MAX_ACTIVE_SCHEDULES_PER_TENANT, _too_many),
        ):
            found = await self._tagged(tag, limit) if tag else ()
            oldest = sorted(found, key=lambda info: (info.created_at, info.stream))[:limit]
            if len(found) > limit and mine.stream not in [info.stream for info in oldest]:
                await mine.delete(by="limit")
                raise refusal()

    async def _tagged(self, tag: str, limit: int) -> tuple[StreamInfo, ...]:
        rt = self._runtime
        return await rt.store.streams(tenant=rt.tenant, kind="schedule", limit=2 * limit, tag=tag)


async def _count_active(schedules: Schedules, session: str) -> int:
    """Return the number of a session's schedules that have not ended."""
    return len(await schedules.list(session=session, active=True))


def _check_said(text: str) -> None:
    check_text(text, where="the schedule's input")
    if not text.strip():
        raise Error(Code.SCHEDULE_INVALID, "the schedule has no input", hint='send="Write the report."')
    if (size := len(text.encode())) > MAX_TEXT_BYTES:
        raise Error(
            Code.INPUT_TOO_LARGE, f"the schedule's input is {size} bytes", because=f"the limit is {MAX_TEXT_BYTES}"
        )  # fmt: skip


def _opening(stream: StreamId, schedule: Schedule, by: str, now: int) -> Delivery:
    created = ScheduleCreated(schedule=schedule, by=by)
    return Delivery(
        stream=stream,
        source_key="create",
        content=brief(digest(schedule)),
        item=Wake(reason="created"),
        at=now,
        agent=OWNER,
        opening=Opening(kind_of(created), write(created)),
        tags=tags_of(schedule.owner, active=True),
    )


def _name(by: str) -> str:
    return check_text(by, where="by")[:200]


def ms_of(moment: datetime, *, what: str) -> int:
    """Convert a time to milliseconds since the epoch.

    Raises:
        Error: `schedule_invalid` for a time without a time zone.
    """
    if not isinstance(moment, datetime) or moment.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] - any input
        raise Error(
            Code.SCHEDULE_INVALID,
            f"{what} has no time zone",
            hint="datetime(2026, 12, 24, 18, tzinfo=ZoneInfo('Europe/Berlin'))",
        )
    return int(moment.timestamp() * 1000)


def moment_from(text: str) -> datetime:
    """Parse a time in RFC 3339 format, with its offset.

    Raises:
        Error: `schedule_invalid`.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Error(
            Code.SCHEDULE_INVALID, f"invalid time {text!r}", hint="2026-12-24T18:00+01:00"
        ) from None  # fmt: skip


def _too_many_in_session() -> Error:
    return Error(
        Code.SCHEDULE_LIMIT,
        f"Maximum {MAX_ACTIVE_SCHEDULES_PER_SESSION} active schedules per session. Cancel an existing schedule first.",
        hint="perdure schedules list",
    )


def _too_many() -> Error:
    return Error(
        Code.SCHEDULE_LIMIT,
        f"Maximum {MAX_ACTIVE_SCHEDULES_PER_TENANT} active schedules per tenant. Cancel an existing schedule first.",
        hint="perdure schedules list",
    )


def _unknown(id: str) -> Error:
    return Error(
        Code.SCHEDULE_UNKNOWN, f"unknown schedule {id!r}", hint="perdure schedules list"
    )  # fmt: skip


# --- for tools


@dataclass(frozen=True, slots=True)
class StoredSchedules:
    """The schedules of a tenant's sessions, as tools use them."""

    runtime: RuntimeCore

    async def create_schedule(
        self,
        session_id: SessionId,
        description: str,
        cron_expression: str | None = None,
        scheduled_at: datetime | None = None,
        timezone: str = "UTC",
        *,
        id: str | None = None,
    ) -> SessionSchedule:
        """Create a schedule that sends the description to the session, repeatedly or once."""
        try:
            if id is not None and (known := await self._known(session_id, id)) is not None:
                return known
            schedule = Schedule(
                target=SendInput(session=session_id, text=description, by_session=True),
                cron=cron_expression or "",
                at=ms_of(scheduled_at, what="scheduled_at") if scheduled_at is not None else None,
                timezone=timezone,
                description=description,
                owner=session_id,
            )
            handle = await self.runtime.schedules.create(schedule, id=id)
            return await self._seen(handle)
        except Error as problem:
            raise tool_error_of(problem) from None

    async def _known(self, session_id: SessionId, id: str) -> SessionSchedule | None:
        """Return the schedule of this session with this id. Its first time stands, whatever a repeated call gives."""
        handle = self.runtime.schedules.get(id)
        if await self.runtime.store.stream(handle.stream) is None:
            return None
        known = await self._seen(handle)
        return known if known.session_id == session_id else None

    async def cancel_schedule(self, session_id: SessionId, schedule_id: str) -> SessionSchedule:
        """Disable a schedule of this session."""
        try:
            handle = self.runtime.schedules.get(schedule_id)
            if (await handle.info()).known.owner != session_id:
                raise _unknown(schedule_id)
            await handle.delete(by=f"session {session_id}")
            return await self._seen(handle)
        except Error as problem:
            if problem.code is Code.SCHEDULE_UNKNOWN:
                raise ToolError("Schedule not found", code=problem.code) from None
            raise tool_error_of(problem) from None

    async def list_schedules(self, session_id: SessionId) -> tuple[SessionSchedule, ...]:
        """Return the schedules of this session."""
        schedules = self.runtime.schedules
        found = await schedules.list(session=session_id)
        return tuple([await self._seen(schedules.get(info.name)) for info in found])

    async def count_active_schedules(self, session_id: SessionId) -> int:
        """Return the number of enabled schedules of this session."""
        return await _count_active(self.runtime.schedules, session_id)

    async def _seen(self, handle: ScheduleHandle) -> SessionSchedule:
        state = await handle.info()
        schedule, runs = state.known, await handle.next_runs(1)
        return SessionSchedule(
            id=handle.id,
            session_id=SessionId(schedule.owner),
            description=schedule.description,
            cron_expression=schedule.cron or None,
            scheduled_at=moment_of(schedule.at) if schedule.at is not None else None,
            timezone=schedule.timezone,
            enabled=state.active and not state.paused,
            schedule_type="recurring" if schedule.cron else "oneshot",
            next_trigger_at=runs[0] if runs else None,
            last_triggered_at=moment_of(state.last_run_at) if state.last_run else None,
            trigger_count=state.runs,
            created_at=moment_of(state.created_at),
            updated_at=moment_of(state.updated_at),
        )
