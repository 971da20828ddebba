"""A schedule owned by this worker: compute the due runs, append them, release the schedule.

A run's record and its outgoing delivery commit in one fenced append, so each run happens once.
"""

from __future__ import annotations

import logging

from perdure.commit.changes import Label
from perdure.commit.plan import ClearTimer, Entry, OutboxResult, Prune, SetTimer
from perdure.ids import Seq, SessionId, StreamId, session_stream, stream_names
from perdure.inbox.admit import Delivery
from perdure.runtime.schedules.monitors import end_monitor, is_monitor_over
from perdure.runtime.schedules.runs import ScheduledRun, goes_on, run_of
from perdure.runtime.shared import Shared
from perdure.runtime.worker.driving_host import PassiveHost
from perdure.services.schedules import EndReason, ScheduleState, due_now, fold, fold_all, is_done, next_due, oldest
from perdure.services.tasks import SessionTaskRegistry
from perdure.store.shapes import Claim
from perdure.vocab.log_keys import SCHEDULE_END
from perdure.vocab.records import Row
from perdure.vocab.schedules import ScheduleChanged, ScheduleFired, ScheduleSkipped

log = logging.getLogger("perdure.runtime")

OWNER = "schedule:"
"""The agent column of a schedule's row. Every worker serves schedules."""
DUE = "due"
MAX_RUNS_AT_ONCE = 10
"""The limit of runs in one append; further runs go into further appends."""


def tags_of(owner: str, *, active: bool) -> tuple[str, ...]:
    """Return the tags of a schedule: its session, and while active, the counts of the session and the tenant."""
    of_session = (f"session:{owner}",) if owner else ()
    counts = (f"active:{owner}",) if owner else ()
    return (*of_session, *counts, "active") if active else of_session


class ScheduleHost(PassiveHost):
    """One owned schedule. `serve` makes the due runs and releases the schedule."""

    def __init__(self, shared: Shared, claim: Claim) -> None:
        super().__init__(shared, claim)
        self.state = ScheduleState()
        self._tenant, _, self._id = stream_names(claim.stream)
        self._may_be_long = False
        self._nobody_there = False

    def _learn(self, row: Row) -> None:
        if row.seq > self.state.seq:
            self.state = fold(self.state, row)

    def _was_sent(self, delivery: Delivery, sent: OutboxResult) -> None:
        self._nobody_there = self._nobody_there or sent.because == "session_unknown"
        if sent.verdict == "conflict":
            to = {"to": delivery.stream}
            log.error("scheduled run refused schedule=%s reason=id_taken", self._id, extra=to)

    # --- serving

    async def load(self) -> None:
        """Read and fold the log, once."""
        if self._loaded:
            return
        rows = (await self._shared.store.load(self.stream, code="")).rows
        self.state = fold_all(rows)
        self._may_be_long = oldest(rows) is not None
        self._owned.known_seq = self.state.seq
        self._loaded = True

    async def serve(self, *, once: bool = False) -> None:
        """Make all due runs, then release the schedule.

        Raises:
            Error: why the stream could not be served further.
        """
        await self.load()
        await self._use_up_wakes()
        while self.state.active and not self.stopping and await self._do_what_is_due():
            pass
        await self._forget_what_is_old()
        await self._give_back()
        self.parked = True

    async def _use_up_wakes(self) -> None:
        """Consume the inbox. Items are read before the log, which then contains the changes that caused the wakes."""
        waiting = await self._shared.store.inbox(self.stream)
        for row in await self._shared.store.read(self.stream, after=self.state.seq):
            self._learn(row)
        self._owned.known_seq = max(self._owned.known_seq, self.state.seq)
        if waiting:
            self._owned.submit(consume=tuple(row.id for row in waiting))

    async def _do_what_is_due(self) -> bool:
        """Append the due runs, at most one append's worth. Return whether there may be more."""
        if await self._owner_is_gone():
            await self._end("owner_gone")
            return False
        if await is_monitor_over(self._tasks, self.state.known.owner, self._id):
            await self._end("cancelled")
            return False
        runs, skipped = await self._owed()
        if not runs and skipped is None:
            if is_done(self.state):
                await self._end("done")
            return False
        records = (*(run.record for run in runs), *((skipped,) if skipped else ()))
        self._owned.need((), (SCHEDULE_END,))  # refused once the schedule's end is durable
        self._owned.active = True
        self._nobody_there = False
        self._owned.submit(*records, outbox=tuple(run.outbox for run in runs))
        self._set_timer(_foreseen(self.state, records, self._owned.known_seq))
        await self._owned.durable()
        if self._nobody_there:
            await self._end("target_gone")
            return False
        return True

    async def _owed(self) -> tuple[list[ScheduledRun], ScheduleSkipped | None]:
        state, now = self.state, self._shared.clock.wall_ms()
        runs = [self._run(now, now, request) for request in state.asked[:MAX_RUNS_AT_ONCE]]
        if runs:
            return runs, None
        owed = await due_now(state, now=now)
        if owed.late is not None:
            return [], ScheduleSkipped(due_at=owed.late, reason="late", missed=owed.missed)
        if owed.fire and state.known.overlap == "skip" and await self._last_run_goes_on(owed.fire[0]):
            missed = owed.missed + len(owed.fire) - 1
            return [], ScheduleSkipped(due_at=owed.fire[-1], reason="overlap", missed=missed)
        fire, missed = owed.fire[:MAX_RUNS_AT_ONCE], owed.missed
        return [self._run(now, at, missed=missed if at == fire[0] else 0) for at in fire], None

    def _run(self, now: int, due_at: int, request: str = "", *, missed: int = 0) -> ScheduledRun:
        schedule = self.state.known
        return run_of(self._tenant, self._id, schedule, now=now, due_at=due_at, request=request, missed=missed)

    async def _last_run_goes_on(self, due_at: int) -> bool:
        """Return whether the last run has not ended. Missed runs that are caught up together count as one."""
        last = self.state.last_run
        if last is None or last.due_at >= due_at:
            return False
        return await goes_on(self._shared.store, self._tenant, self.state.known, last)

    @property
    def _tasks(self) -> SessionTaskRegistry:
        return self._shared.host.of(self._tenant).tasks

    async def _owner_is_gone(self) -> bool:
        owner = self.state.known.owner
        return bool(owner) and await self._shared.store.stream(session_stream(self._tenant, SessionId(owner))) is None

    async def _end(self, reason: EndReason) -> None:
        """End the schedule, and remove it from the counts in the same transaction.

        The task of a monitor ends first: after a crash in between, the next worker finds it and ends the schedule.
        """
        state = "succeeded" if reason == "done" else "canceled"
        await end_monitor(self._tasks, self.state.known.owner, self._id, state)
        ended = Entry.of(
            ScheduleChanged(change="ended", by="schedule", reason=reason), at=self._shared.clock.wall_ms()
        )  # fmt: skip
        label = Label(tags=tags_of(self.state.known.owner, active=False))
        noted = await self._shared.store.annotate(self.stream, ended, label=label)
        self.admitted((noted.row,))

    async def _forget_what_is_old(self) -> None:
        """Prune at most one page of old records per serve. A serve adds fewer, so the log stays short."""
        if not self._may_be_long or not self.state.active or self.stopping:
            return
        if found := oldest(await self._shared.store.read(self.stream)):
            places, record = found
            self._owned.prune(Prune(places))
            self._owned.submit(record)
            await self._owned.durable()

    def _set_timer(self, at: int | None) -> None:
        self._owned.timer(ClearTimer(DUE), *((SetTimer(DUE, at),) if at is not None else ()))

    async def _give_back(self) -> None:
        self._set_timer(next_due(self.state) if not self.stopping else self._shared.clock.wall_ms())
        self._owned.active = False
        self._owned.flush(lease="release")
        await self._owned.durable()


def _foreseen(state: ScheduleState, records: tuple[ScheduleFired | ScheduleSkipped, ...], seq: Seq) -> int | None:
    """Return the next due time after these records."""
    for record in records:
        row = Entry.of(record, at=state.updated_at)
        seq = Seq(seq + 1)
        state = fold(state, Row(stream=StreamId(""), seq=seq, at=row.at, kind=row.kind, data=row.data))
    return next_due(state)
