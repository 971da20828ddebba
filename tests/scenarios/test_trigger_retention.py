"""Retention of occurrences: old ones are pruned with their keys; those still needed stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from perdure import Agent, ProcessContext, Runtime, RuntimeOptions, process
from perdure.errors import Code, Error
from perdure.ids import StreamId, trigger_stream
from perdure.models.scripted import ScriptedModel, say
from perdure.processes.triggers import fold_all
from perdure.runtime.clock import SystemClock
from perdure.runtime.internals import core_of
from perdure.runtime.triggers.subscriptions import SubscriptionHandle, state_of
from perdure.runtime.triggers.triggers import OccurrenceHandle
from perdure.vocab.triggers import SubscriptionChanged, TriggerOccurred, TriggerPruned
from tests.scenarios.conftest import NewStore, until

MAIL = "mail.received"
DAY_S = 86_400


@process
async def file_mail(ctx: ProcessContext, mail: str) -> str:
    return f"filed {mail}"


@process
async def holds(ctx: ProcessContext, mail: str) -> str:
    return str(await ctx.wait_for_signal("go"))


class Days(SystemClock):
    """A wall clock that can be moved on by days; leases do not notice."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms

    def pass_by(self, days: float) -> None:
        self.offset_ms += int(days * DAY_S * 1000)


class PostRoom:
    """Runtimes on one store whose wall clock can be moved, and what is in the log of the one source."""

    def __init__(self, new_store: NewStore, stack: AsyncExitStack) -> None:
        self.clock = Days()
        self._new_store = new_store
        self._stack = stack

    async def open(self, *, keep_s: float = 10 * DAY_S, worker: bool = True) -> Runtime:
        runtime = Runtime(
            self._new_store(),
            agents=[Agent("a", model=ScriptedModel(say("yes")))],
            processes=[file_mail, holds],
            worker=worker,
            options=RuntimeOptions(clock=self.clock, trigger_retention_s=keep_s),
        )
        return await self._stack.enter_async_context(runtime)


@pytest.fixture
async def room(new_store: NewStore) -> AsyncIterator[PostRoom]:
    async with AsyncExitStack() as stack:
        yield PostRoom(new_store, stack)


def at(rt: Runtime) -> StreamId:
    return trigger_stream(rt.tenant, MAIL, "")


async def arrived(rt: Runtime, *keys: str) -> list[OccurrenceHandle]:
    """Mails that came, and were filed; the source is unowned again."""
    told = [await rt.triggers.emit(MAIL, key, key=key) for key in keys]
    for one in told:
        for started in await one.processes(timeout=20):
            if (await started.info()).known.definition == "python:file_mail":
                await started.result(timeout=20)
    await idle(rt)
    return told


async def idle(rt: Runtime) -> None:
    async def nobody_has_it() -> bool:
        info = await core_of(rt).store.stream(at(rt))
        return info is not None and info.owner is None and not info.waiting_inputs

    await until(nobody_has_it, seconds=20)


async def kept(rt: Runtime) -> list[str]:
    """The keys of what the log still has."""
    rows = await core_of(rt).store.read(at(rt))
    return [row.record.key for row in rows if isinstance(row.record, TriggerOccurred)]


async def left(rt: Runtime, *keys: str) -> None:
    """Wait until only these are kept."""

    async def so() -> bool:
        return await kept(rt) == list(keys)

    await until(so, seconds=20)
    await idle(rt)


async def consistent(rt: Runtime) -> None:
    """The log folds to what is known, with and without its snapshot."""
    assert await state_of(core_of(rt).store, at(rt)) == fold_all(await core_of(rt).store.read(at(rt)))


async def test_old_occurrence_is_pruned_with_its_key_and_counted(room: PostRoom) -> None:
    rt = await room.open()
    await rt.triggers.subscribe(MAIL, file_mail, key="file")
    await arrived(rt, "a", "b")
    room.clock.pass_by(9.9)
    await arrived(rt, "c")
    assert (await rt.triggers.emit(MAIL, "a", key="a")).is_duplicate, "ten days are not over"
    room.clock.pass_by(2)  # no input arrives: the source has a timer
    await left(rt, "c")
    await consistent(rt)
    assert (await core_of(rt).trigger_sources.state(at(rt))).occurrences == 3
    assert [record.key for _, record in await core_of(rt).trigger_sources.occurrences(at(rt))] == ["c"]
    again = await rt.triggers.emit(MAIL, "a", key="a")
    assert not again.is_duplicate, "the key was deleted with the occurrence"
    assert (await rt.triggers.emit(MAIL, "c", key="c")).is_duplicate, "and no other"
    with pytest.raises(Error) as caught:
        await rt.triggers.emit(MAIL, "other", key="c")
    assert caught.value.code is Code.TRIGGER_CONFLICT


async def test_last_occurrence_stays_without_a_timer(room: PostRoom) -> None:
    rt = await room.open()
    await rt.triggers.subscribe(MAIL, file_mail, key="file")
    await arrived(rt, "a", "b", "c")
    room.clock.pass_by(100)
    await left(rt, "c")
    assert await core_of(rt).store.next_due() is None
    await consistent(rt)
    await arrived(rt, "d")
    room.clock.pass_by(100)
    await left(rt, "d")
    pruned = [row for row in await core_of(rt).store.read(at(rt)) if isinstance(row.record, TriggerPruned)]
    assert len(pruned) == 1, "the next one takes its place"
    assert (await core_of(rt).trigger_sources.state(at(rt))).occurrences == 4


async def test_occurrence_stays_while_its_process_runs(room: PostRoom) -> None:
    rt = await room.open()
    await rt.triggers.subscribe(MAIL, holds, key="hold")
    (first,) = await arrived(rt, "a")
    await rt.triggers.subscription(f"{MAIL}:hold").update(file_mail)
    await arrived(rt, "b", "c")
    room.clock.pass_by(15)
    await left(rt, "a", "c")
    (held,) = await first.processes()
    await held.signal("go", 1)
    assert await held.result("20s") == "1"
    room.clock.pass_by(15)
    await left(rt, "c")
    await consistent(rt)


async def test_undelivered_occurrence_is_not_pruned(room: PostRoom) -> None:
    """Emitted while no worker is there, and a year later one comes."""
    rt = await room.open(worker=False)
    await rt.triggers.subscribe(MAIL, file_mail, key="file")
    for key in ("a", "b"):
        await rt.triggers.emit(MAIL, key, key=key)
    room.clock.pass_by(365)
    working = await room.open()
    happened = await rt.triggers.emit(MAIL, "a", key="a")
    assert happened.is_duplicate
    (started,) = await happened.processes(timeout=20)
    assert await started.result(timeout=20) == "filed a"
    await idle(working)
    assert await kept(working) == ["a", "b"]


async def test_a_subscription_that_was_deleted_goes_whole_and_may_come_again(room: PostRoom) -> None:
    rt = await room.open()
    gone = await rt.triggers.subscribe(MAIL, file_mail, key="gone")
    back = await rt.triggers.subscribe(MAIL, file_mail, key="back")
    for one in (gone, back):
        await one.disable()
        await one.delete()
    room.clock.pass_by(9)
    assert (await back.restore()).incarnation == 2
    room.clock.pass_by(3)
    await until(lambda: forgotten(rt, gone), seconds=20)
    await idle(rt)
    await consistent(rt)
    with pytest.raises(Error) as caught:
        await gone.restore()
    assert caught.value.code is Code.TRIGGER_SUBSCRIPTION_UNKNOWN
    assert (await back.info()).incarnation == 2
    again = await rt.triggers.subscribe(MAIL, file_mail, key="gone")
    assert (await again.info()).revision == 1
    (happened,) = await arrived(rt, "a")
    assert len(await happened.processes()) == 2
    for change in (again.disable, again.enable, again.delete, again.restore):
        await change()
    await consistent(rt)


async def forgotten(rt: Runtime, handle: SubscriptionHandle) -> bool:
    return handle.id not in (await core_of(rt).trigger_sources.state(handle.stream)).known


async def test_of_a_subscription_that_lives_only_what_was_between_goes(room: PostRoom) -> None:
    rt = await room.open()
    one, two = [await rt.triggers.subscribe(MAIL, file_mail, key=key) for key in ("one", "two")]
    for n in range(4):
        await one.disable(operation=f"off-{n}")
        await one.enable(operation=f"on-{n}")
    await arrived(rt, "a")
    receipt = await one.enable(operation="on-0")
    assert receipt.revision == 3, "the same operation again is answered with its receipt"
    room.clock.pass_by(15)
    await until(lambda: changes_left(rt, 3), seconds=20)
    await idle(rt)
    await consistent(rt)
    known = await core_of(rt).trigger_sources.state(at(rt))
    assert [sub.id for sub in known.living] == [one.id, two.id], "in the order in which they came"
    assert (await one.info()).revision == 9
    assert (await one.enable(operation="on-0")).revision == 10, "long ago, and forgotten"
    (happened,) = await arrived(rt, "b")
    assert len(await happened.processes()) == 2


async def changes_left(rt: Runtime, count: int) -> bool:
    rows = await core_of(rt).store.read(at(rt))
    return sum(isinstance(row.record, SubscriptionChanged) for row in rows) == count


async def test_a_long_log_goes_page_by_page(room: PostRoom) -> None:
    rt = await room.open()
    told = [await rt.triggers.emit(MAIL, n, key=f"k{n}") for n in range(450)]
    await told[-1].deliveries(timeout=40)
    await idle(rt)
    room.clock.pass_by(15)
    await left(rt, "k449")
    await consistent(rt)
    assert (await core_of(rt).trigger_sources.state(at(rt))).occurrences == 450
    assert not (await rt.triggers.emit(MAIL, 0, key="k0")).is_duplicate
    assert [record.key for _, record in await core_of(rt).trigger_sources.occurrences(at(rt), limit=5)][-1] == "k449"


async def test_with_no_retention_all_is_kept(room: PostRoom) -> None:
    rt = await room.open(keep_s=0)
    await arrived(rt, "a", "b")
    room.clock.pass_by(10_000)
    await arrived(rt, "c")
    assert await core_of(rt).store.next_due() is None
    assert await kept(rt) == ["a", "b", "c"]
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(Error) as caught:
            RuntimeOptions(trigger_retention_s=wrong)
        assert caught.value.code is Code.INVALID_ARGUMENT


async def test_emitting_schedule_continues_after_its_occurrence_was_pruned(room: PostRoom) -> None:
    """Skipping what overlaps looks at what the last run started: what is pruned is over."""
    rt = await room.open()
    schedule = await rt.schedule(emit=MAIL, payload="tick", cron="0 0 1 */3 *", overlap="skip")
    await schedule.run()

    async def ran() -> bool:
        return len(await kept(rt)) == 1 if await core_of(rt).store.stream(at(rt)) else False

    await until(ran, seconds=20)
    await idle(rt)
    await arrived(rt, "another")
    room.clock.pass_by(20)
    await left(rt, "another")
    room.clock.pass_by(100)

    async def ran_again() -> bool:
        return (await schedule.info()).runs == 2

    await until(ran_again, seconds=20)
