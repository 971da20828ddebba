"""The audit log: one entry per act, in the act's own transaction, bounded, kept apart from sessions. On every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import cast

import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions
from perdure.commit.plan import Entry
from perdure.ids import Tenant, audit_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.audit import MAX_REFUSALS, Audit
from perdure.runtime.internals import core_of
from perdure.store.protocol import Store
from perdure.testing.clock import ManualClock
from perdure.vocab.promises import EventKey
from tests.scenarios.audited import DEEDS, HURRIED, Wanted, acts, begun, entries, opened, ordered, pay, talked, until
from tests.scenarios.conftest import NewStore


def nothing() -> None:
    """Nothing happens after the answer."""


def test_s25_every_act_has_a_deed() -> None:
    assert set(DEEDS) == acts()


@pytest.mark.parametrize("deed", DEEDS)
async def test_s25_act_leaves_its_entry(new_store: NewStore, deed: str) -> None:
    async with opened(new_store()) as rt:
        wanted = await DEEDS[deed](rt, nothing)
        assert deed in {one.act for one in wanted}
        found = await entries(rt)
        assert [one for one in found if one.act in {each.act for each in wanted}] == list(wanted)
        assert "payload" not in repr(found)
        assert "hunter2" not in repr(found)


async def code_of(refused: Callable[[], Awaitable[object]]) -> Code | None:
    """Return the code of a refusal."""
    try:
        await refused()
    except Error as problem:
        return problem.code
    return None


async def test_s25_t_aud_01_act_that_failed_leaves_no_done_entry(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        session = await talked(rt)
        await session.pause(by="ann")
        assert not await session.pause(by="bob")
        assert await code_of(lambda: session.redact(99, by="bob")) is Code.RECORD_UNKNOWN
        assert await code_of(lambda: session.revoke_grant("none", by="bob")) is Code.APPROVAL_UNKNOWN
        assert await code_of(lambda: session.retry(by="bob")) is Code.TURN_NOT_RETRYABLE
        assert await session.cancel(by="bob") == "unknown"
        assert (await session.cancel_input("in_none", by="bob")).outcome == "not_found"
        assert await code_of(lambda: rt.import_session("s", [], agent="talks", by="bob")) is not None
        assert await code_of(lambda: rt.get_session("none").export(by="bob")) is Code.SESSION_UNKNOWN
        assert not await rt.get_session("none").delete(by="bob")
        assert not await rt.get_process("none").delete(by="bob")
        assert await code_of(lambda: rt.get_process("none").cancel(by="bob")) is Code.PROCESS_UNKNOWN
        assert [one.by for one in await rt.audit.list()] == ["ann"]


async def test_s25_t_aud_01_second_decision_is_a_refused_entry(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        await begun(rt, "pays")
        await until(rt.approvals.list)
        [asked] = await rt.approvals.list()
        await rt.approvals.approve(asked.id, by="ann", via="test")
        assert await code_of(lambda: rt.approvals.deny(asked.id, by="bob")) is Code.APPROVAL_ALREADY_DECIDED
        assert await entries(rt) == [
            Wanted("approval_approved", asked.id),
            Wanted(
                "approval_denied", asked.id, "approval_already_decided", by="bob", via="api", outcome="refused"
            ),
        ]  # fmt: skip


async def test_s25_forged_and_late_keys_are_refused_entries_without_signatures(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        key = await ordered(rt)
        forged = EventKey(scope=key.scope, wait=key.wait, key_id=key.key_id, signature="f" * len(key.signature))
        assert await code_of(lambda: rt.resolve(forged, 1)) is Code.EVENT_KEY_INVALID
        assert await code_of(lambda: rt.resolve(forged.text, 1)) is Code.EVENT_KEY_INVALID
        assert await code_of(lambda: rt.resolve("x" * 200, 1)) is Code.EVENT_KEY_INVALID
        await rt.resolve(key, 1)
        await rt.resolve(key, 2)
        refused = {"by": "", "via": "key", "outcome": "refused"}
        invalid = [("event_key_invalid", "", key.key_id)] * 2 + [("event_key_invalid", "", "")]
        assert await entries(rt) == [
            *(Wanted("key_resolved", id, code, session, **refused) for code, session, id in invalid),
            Wanted("key_resolved", key.key_id, by="", via="key"),
            Wanted("key_resolved", key.key_id, "already_resolved", **refused),
        ]
        await rt.get_session("s").pause(by=key.text, via=key.text)
        everything = b"".join(row.data for row in await rows(rt))
        assert key.signature.encode() not in everything
        assert key.text.encode() not in everything


async def test_s25_late_key_is_one_entry_and_a_repeated_value_is_none(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        key = await ordered(rt)
        for value in (1, 1, 1, 2, 3, 2):
            await rt.resolve(key, value)
        assert [(one.outcome, one.detail) for one in await entries(rt)] == [
            ("done", ""),
            ("refused", "already_resolved"),
        ]


async def test_s25_t_aud_01_flood_of_keys_hides_no_refusal_of_a_person(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        await begun(rt, "pays")
        await until(rt.approvals.list)
        [asked] = await rt.approvals.list()
        await rt.approvals.approve(asked.id, by="ann", via="test")
        for _ in range(MAX_REFUSALS + 5):
            assert await code_of(lambda: rt.resolve("forged", 1)) is Code.EVENT_KEY_INVALID
        assert await code_of(lambda: rt.approvals.deny(asked.id, by="mallory")) is Code.APPROVAL_ALREADY_DECIDED
        [last, *_] = await rt.audit.list()
        assert (last.by, last.outcome) == ("mallory", "refused")


async def test_s25_omitted_refusals_are_counted_when_the_runtime_closes(new_store: NewStore) -> None:
    options = RuntimeOptions(clock=ManualClock())
    async with Runtime(new_store(), agents=[], worker=False, options=options) as rt:
        for _ in range(MAX_REFUSALS + 7):
            assert await code_of(lambda: rt.resolve("forged", 1)) is Code.EVENT_KEY_INVALID
        assert not await rt.audit.list(act="refusals_omitted")
    async with Runtime(new_store(), agents=[], worker=False, options=options) as rt:
        assert [one.detail for one in await rt.audit.list(act="refusals_omitted")] == ["7"]


async def rows(rt: Runtime) -> tuple[Entry, ...]:
    """Return the stored entries of the tenant."""
    store = core_of(rt).store
    streams = await store.streams(tenant=Tenant(rt.tenant), kind="audit", limit=100)
    return cast("tuple[Entry, ...]", tuple([row for one in streams for row in await store.read(one.stream)]))


@pytest.mark.any_store
async def test_s25_refusals_of_a_flood_are_counted_not_stored(new_store: NewStore) -> None:
    """A stranger cannot fill the store: any number of forged keys leaves a bounded number of entries a minute."""
    clock = ManualClock()
    async with Runtime(new_store(), agents=[], worker=False, options=RuntimeOptions(clock=clock)) as rt:
        for _ in range(MAX_REFUSALS + 40):
            assert await code_of(lambda: rt.resolve("forged", 1)) is Code.EVENT_KEY_INVALID
        assert len(await rt.audit.list(limit=1000)) == MAX_REFUSALS
        clock.advance(60_000)
        assert await code_of(lambda: rt.resolve("forged", 1)) is Code.EVENT_KEY_INVALID
        last, omitted, *_ = await rt.audit.list(limit=1000)
        assert (last.act, omitted.act, omitted.detail) == ("key_resolved", "refusals_omitted", "40")
        assert len(await rt.audit.list(limit=1000)) == MAX_REFUSALS + 2


async def test_s25_entries_outlive_redaction_and_deletion_of_their_session(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        session = await talked(rt)
        await session.set_model("sim:echo", by="ann")
        [seq] = [row.seq for row in await session.journal() if row.kind == "input_admitted"]
        await session.redact(seq, by="ann")
        await session.delete(by="ann")
        kept = [one.act for one in await rt.audit.list(session="s")]
        assert kept == ["session_deleted", "record_redacted", "model_set"]


async def test_s25_export_is_recorded_before_the_first_byte_and_carries_no_entries(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.runtime.sessions import session as module

    async with opened(new_store()) as rt:
        session = await talked(rt)
        data = await session.export(by="ann-the-exporter")
        assert b"ann-the-exporter" not in data

        async def broken(*_: object, **__: object) -> bytes:
            raise Error(Code.STORE_CORRUPT, "the read failed")

        monkeypatch.setattr(module, "export", broken)
        assert await code_of(lambda: session.export(by="bob")) is Code.STORE_CORRUPT
        assert [one.by for one in await rt.audit.list(act="session_exported")] == ["bob", "ann-the-exporter"]


async def test_t_aud_01_sixty_four_decisions_at_once_lose_no_entry(new_store: NewStore) -> None:
    """S25: two processes decide 64 questions of one tenant at the same time."""
    agent = Agent("bank", model=ScriptedModel(call("pay", cents=1), say("done")), tools=[pay])
    one, two = (Runtime(new_store(), agents=[agent], options=HURRIED, worker=worker) for worker in (True, False))
    async with one, two:
        await asyncio.gather(*[(await one.session(f"s{n}", agent="bank")).send("go") for n in range(64)])

        async def all_ask() -> bool:
            return len(await one.approvals.list(limit=100)) == 64

        await until(all_ask)
        asked = [question.id for question in await one.approvals.list(limit=100)]
        decisions = [(one, two)[n % 2].approvals.approve(id, by=f"n{n}") for n, id in enumerate(asked)]
        await asyncio.gather(*decisions)
        found = await two.audit.list(act="approval_approved", limit=100)
        assert sorted((entry.by, entry.target) for entry in found) == sorted(
            (f"n{n}", id) for n, id in enumerate(asked)
        )


HOSTILE = 'x\n2026-01-01 forged\r\x1b[31mred\x1b[0m\u202e{"act":"session_deleted"}"\\\u2028'


async def test_t_aud_02_hostile_field_stays_bounded_and_one_entry(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        session = await talked(rt)
        huge = HOSTILE + "ü" * 1500
        await session.pause(by=huge, via=huge)
        [entry] = await rt.audit.list(by=huge)
        assert (len(entry.by), len(entry.via)) == (512, 512)
        assert entry.by.startswith(HOSTILE)
        assert await code_of(lambda: session.resume(by="z" * 1_000_000)) is Code.INPUT_TOO_LARGE
        forged = EventKey(scope="s", wait=handed(), key_id=huge * 10, signature="f")  # type: ignore[arg-type] - hostile
        assert await code_of(lambda: rt.resolve(forged, 1)) is Code.EVENT_KEY_INVALID
        [entry] = await rt.audit.list(act="key_resolved")
        assert len(entry.target) == 512
        assert max(len(row.data) for row in await rows(rt)) < 8_000
        assert len([json.loads(row.data) for row in await rows(rt)]) == 2


def handed() -> object:
    """Return any wait of a kind that a key may resolve."""
    from perdure.vocab.promises import Custom

    return Custom(key="go")


async def test_s25_list_filters_and_pages(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        session = await talked(rt)
        for n in range(205):  # more than one page of the store
            await (session.pause if n % 2 == 0 else session.resume)(by=f"p{n % 3}")
        everything = await rt.audit.list(limit=1000)
        assert [one.at for one in everything] == sorted((one.at for one in everything), reverse=True)
        assert len({one.id for one in everything}) == 205
        paged = list(await rt.audit.list(limit=100))
        while page := await rt.audit.list(limit=100, before=paged[-1]):
            paged += page
        assert tuple(paged) == everything
        assert len(await rt.audit.list(act="session_resumed", limit=1000)) == 102
        assert len(await rt.audit.list(by="p0", act="session_paused", limit=1000)) == 35
        assert await rt.audit.list(session="other") == ()
        assert await rt.audit.list(since=datetime(2100, 1, 1, tzinfo=UTC)) == ()
        for wrong in ({"act": "spied"}, {"limit": 0}, {"since": datetime(2026, 1, 1)}, {"before": "x"}):
            assert await code_of(lambda wrong=wrong: rt.audit.list(**wrong)) is Code.INVALID_ARGUMENT  # type: ignore[misc,arg-type] - wrong on purpose


DAY_MS = 86_400_000


def aged(store: Store, clock: ManualClock, **options: float) -> Runtime:
    """Return a runtime on a clock of its own."""
    chosen = RuntimeOptions(clock=clock, **options)  # type: ignore[arg-type] - numbers
    return Runtime(store, agents=[Agent("talks", model=ScriptedModel(say("done")))], worker=False, options=chosen)


@pytest.mark.any_store
async def test_s25_retention_deletes_whole_months_and_keeps_the_rest(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = new_store()

    async def now() -> int:
        return clock.wall_ms()

    monkeypatch.setattr(store, "now", now)
    begins = int(datetime(2026, 1, 15, tzinfo=UTC).timestamp() * 1000)
    clock.advance(begins - clock.wall_ms())
    async with aged(store, clock, audit_retention_s=31 * 86_400.0) as rt:
        for day in (0, 30, 60, 90):
            await rt.import_session(f"s{day}", [{"role": "user", "content": "hi"}], agent="talks", by=str(day))
            if day == 60:
                assert [one.by for one in await rt.audit.list()] == ["60", "30"]  # January is over for 31 days
            clock.advance(30 * DAY_MS)
        assert [one.by for one in await rt.audit.list()] == ["90", "60"]
    months = [one.name for one in await store.streams(tenant=Tenant("default"), kind="audit", limit=10)]
    assert sorted(months) == ["2026-03", "2026-04"]


@pytest.mark.any_store
async def test_s25_clock_of_one_worker_does_not_delete_the_log(new_store: NewStore) -> None:
    """A clock that is a century ahead is not the clock of the store."""
    clock, store = ManualClock(), new_store()
    async with opened(store) as rt:
        session = await talked(rt)
        await session.pause(by="ann")
    clock.advance(100 * 365 * DAY_MS)
    async with aged(store, clock) as rt:
        await rt.import_session("later", [{"role": "user", "content": "hi"}], agent="talks", by="bob")
        assert {one.by for one in await rt.audit.list()} == {"ann", "bob"}


async def test_s25_entries_of_tenants_are_apart(new_store: NewStore) -> None:
    other = Agent("talks", model=ScriptedModel(say("done")))
    async with opened(new_store()) as rt, Runtime(new_store(), agents=[other], worker=False, tenant="b") as foreign:
        session = await talked(rt)
        await session.pause(by="ann")
        assert await foreign.audit.list() == ()
        await foreign.get_session("s", tenant="default").resume(by="host")  # the host may name any tenant
        assert await foreign.audit.list() == ()
        assert [one.by for one in await rt.audit.list()] == ["host", "ann"]


async def test_s25_turns_without_an_audited_act_write_no_entry_and_open_no_stream(new_store: NewStore) -> None:
    async with opened(new_store()) as rt:
        await talked(rt)
        assert await core_of(rt).store.streams(tenant=Tenant("default"), kind="audit", limit=1) == ()


@pytest.mark.any_store
def test_s25_months_of_a_tenant_are_streams_of_their_own(new_store: NewStore) -> None:
    assert audit_stream(Tenant("a"), "2026-11") == "a:audit:2026-11"
    assert [name for name in dir(Audit) if not name.startswith("_")] == ["list"]
