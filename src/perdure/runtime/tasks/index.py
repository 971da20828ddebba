"""The ordered list of a session's tasks, kept in an unowned stream beside the session's.

Law: a task is entered before it begins, under the log key of the next seq. So every count includes all tasks entered
before, in every process, and concurrent spawns cannot exceed a limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from perdure.codec import decode, encode
from perdure.commit.changes import Amendment, NewStream
from perdure.commit.plan import Entry, Snapshot
from perdure.errors import Code, Error
from perdure.ids import Seq, SessionId, StreamId, Tenant, session_stream, tasks_stream
from perdure.store.protocol import Store

KIND = "tasks_changed"
CODE = "tasks-1"
SNAPSHOT_EVERY = 64


class TasksChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task was entered. `ended` lists tasks found to have ended, `swept` tasks whose retention is over."""

    task: str = ""
    kind: str = ""
    ended: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()


class Entered(msgspec.Struct, frozen=True, array_like=True):
    """A task in the list."""

    kind: str
    at: int
    ended: bool = False


class _TaskSnapshot(msgspec.Struct, frozen=True):
    tasks: dict[str, Entered]


@dataclass(slots=True)
class TaskIndex:
    """The tasks of a session at some seq."""

    seq: Seq = Seq(0)
    tasks: dict[str, Entered] = field(default_factory=dict[str, Entered])

    def fold(self, record: TasksChanged, seq: Seq, at: int) -> None:
        """Apply one more record."""
        for task in record.ended:
            if (known := self.tasks.get(task)) is not None:
                self.tasks[task] = Entered(known.kind, known.at, ended=True)
        if record.task:
            self.tasks[record.task] = Entered(record.kind, at)
        for task in record.swept:
            self.tasks.pop(task, None)
        self.seq = seq


async def read_index(store: Store, tenant: Tenant, session: SessionId) -> TaskIndex:
    """Return the current list; empty if no task was ever entered."""
    loaded = await store.load(tasks_stream(tenant, session), code=CODE)
    index = TaskIndex()
    if loaded.snapshot is not None:
        index = TaskIndex(loaded.snapshot.seq, decode(loaded.snapshot.data, _TaskSnapshot).tasks)
    for row in loaded.rows:
        index.fold(decode(row.data, TasksChanged), row.seq, row.at)
    return index


async def enter(
    store: Store,
    tenant: Tenant,
    session: SessionId,
    new: TasksChanged,
    *,
    now: int,
    judge: Callable[[TaskIndex], Awaitable[tuple[str, ...]]],
) -> None:
    """Enter a task, once. `judge` receives the current list, returns the ended tasks, and raises to refuse the new one.

    Raises:
        Error: the error of `judge`; `session_unknown`.
    """
    stream = tasks_stream(tenant, session)
    while True:
        index = await read_index(store, tenant, session)
        if new.task in index.tasks:
            return
        record = TasksChanged(new.task, new.kind, await judge(index))
        seq = Seq(index.seq + 1)
        entry = Entry(KIND, encode(record), now, key=f"tasks:{seq}")
        if index.seq == 0:
            if await _begun(store, NewStream(stream, "", (entry,), now, beside=session_stream(tenant, session))):
                return
            continue
        if await _amended(store, stream, index, entry, record):
            return


async def forget(store: Store, tenant: Tenant, session: SessionId, task: str, *, now: int) -> None:
    """Remove a task from the list. Does nothing if there is no list, or the task is not in it."""
    stream = tasks_stream(tenant, session)
    while True:
        index = await read_index(store, tenant, session)
        if task not in index.tasks:
            return
        record = TasksChanged(swept=(task,))
        entry = Entry(KIND, encode(record), now, key=f"tasks:{index.seq + 1}")
        try:
            if await _amended(store, stream, index, entry, record):
                return
        except Error as problem:
            if problem.code is not Code.SESSION_UNKNOWN:  # the list was deleted with its session
                raise
            return


async def _amended(store: Store, stream: StreamId, index: TaskIndex, entry: Entry, record: TasksChanged) -> bool:
    """Append the record unless another one took its seq. Return whether it was appended."""
    index.fold(record, Seq(index.seq + 1), entry.at)
    fold = Snapshot(index.seq, CODE, encode(_TaskSnapshot(index.tasks))) if index.seq % SNAPSHOT_EVERY == 0 else None
    return (await store.amend(Amendment(stream=stream, entry=entry, snapshot=fold))).new


async def _begun(store: Store, new: NewStream) -> bool:
    try:
        await store.create(new)
    except Error as problem:
        if problem.code is not Code.SESSION_EXISTS:
            raise
        return False
    return True
