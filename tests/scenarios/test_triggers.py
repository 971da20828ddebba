"""Triggers on every store: an occurrence starts one process per subscription; subscriptions change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack

import pytest

from perdure import (
    Agent,
    ProcessContext,
    Runtime,
    RuntimeOptions,
    ToolContext,
    ToolError,
    process,
    tool,
)
from perdure.codec import Json, encode
from perdure.commit.plan import Entry, Plan, Receipt
from perdure.errors import Code, Error
from perdure.ids import StreamId, trigger_stream
from perdure.models.scripted import ScriptedModel, call, say
from perdure.processes.triggers import SubscriptionName, fold_all, occurrence_id, reservation
from perdure.runtime.internals import core_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.triggers.subscriptions import SubscriptionHandle, SubscriptionRequest
from perdure.vocab.causes import TriggerOccurrenceCause
from perdure.vocab.outcomes import ToolCallOutcome
from perdure.vocab.processes import SessionScope
from perdure.vocab.records import EffectSettled, SubscriptionChanged
from perdure.vocab.registrations import EventType
from perdure.vocab.triggers import SubscriptionDefinition, SubscriptionState
from tests.scenarios.conftest import NewStore, until

MAIL = "mail.received"


@process
async def file_mail(ctx: ProcessContext, mail: dict[str, str]) -> str:
    return f"filed {mail['subject']}"


@process
async def count_mail(ctx: ProcessContext, by: int) -> int:
    return 40 + by


@process
async def passes_on(ctx: ProcessContext, subject: str) -> str:
    """Says it twice, asks for a process, waits, and is entered again from the top."""
    first = await ctx.triggers.emit(MAIL, {"subject": subject})
    second = await ctx.triggers.emit(MAIL, {"subject": f"{subject} again"})
    mine = await ctx.triggers.subscribe("later", count_mail, key="mine", args=(1,))
    await ctx.sleep("nap", 0.01)
    return f"{first.occurrence_id} {second.occurrence_id} {mine}"


PROCESSES = [file_mail, count_mail, passes_on]


@pytest.fixture
async def rt(new_store: NewStore) -> AsyncIterator[Runtime]:
    async with Runtime(new_store(), processes=PROCESSES, agents=[Agent("a", model=ScriptedModel(say("hi")))]) as rt:
        yield rt


def at(rt: Runtime, source: str = "") -> StreamId:
    return trigger_stream(rt.tenant, MAIL, source)


async def subscribe(rt: Runtime, key: str = "x", by: int = 1, owner: str = "") -> SubscriptionHandle:
    return await rt.triggers.subscribe(MAIL, count_mail, key=key, args=(by,), owner=owner)


# --- something happens ---------------------------------------------------------------------------------------------


async def test_occurrence_starts_one_process_per_subscription(rt: Runtime) -> None:
    await (await rt.session("ses", agent="a")).ask("hello")
    await rt.triggers.subscribe(MAIL, file_mail, key="b-file")
    owned = await subscribe(rt, "a-count", 2, owner="ses")
    await rt.triggers.subscribe(MAIL, file_mail, key="elsewhere", source="another inbox")
    happened = await rt.triggers.emit(MAIL, {"subject": "hello"}, key="m1")
    one, two = await happened.processes(timeout=20)
    assert [await one.result(timeout=20), await two.result(timeout=20)] == ["filed hello", 42]
    registration = (await two.info()).known
    assert registration.provenance.caused_by == TriggerOccurrenceCause(occurrence_id=happened.id)
    assert registration.wake_target == registration.provenance.originator == SessionScope(session_id="ses")
    assert registration.label == owned.id == "mail.received:a-count::ses"
    assert (await one.info()).known.provenance.originator is None


async def test_the_same_occurrence_again_is_the_same_and_starts_nothing(rt: Runtime) -> None:
    await rt.triggers.subscribe(MAIL, file_mail, key="file")
    first = await rt.triggers.emit(MAIL, {"subject": "hello"}, key="m1")
    started = await first.deliveries(timeout=20)
    await subscribe(rt, "later")
    again = await rt.triggers.emit(MAIL, {"subject": "hello"}, key="m1")
    assert (again.id, again.is_duplicate, await again.deliveries(timeout=20)) == (first.id, True, started)
    with pytest.raises(Error) as caught:
        await rt.triggers.emit(MAIL, {"subject": "other"}, key="m1")
    assert caught.value.code is Code.TRIGGER_CONFLICT
    assert len(await (await rt.triggers.emit(MAIL, {"subject": "x"}, key="m2")).deliveries(timeout=20)) == 2
    assert (await core_of(rt).trigger_sources.state(at(rt))).occurrences == 2


async def test_sixty_emitters_of_one_occurrence_start_one_process(rt: Runtime) -> None:
    await rt.triggers.subscribe(MAIL, file_mail, key="file")
    told = await asyncio.gather(*(rt.triggers.emit(MAIL, {"subject": "x"}, key="m1") for _ in range(60)))
    assert len({one.id for one in told}) == 1
    assert sum(not one.is_duplicate for one in told) == 1
    assert len({d.process_id for one in told for d in await one.deliveries(timeout=20)}) == 1


async def test_only_what_belongs_to_the_session_is_started(rt: Runtime) -> None:
    for owner in ("a", "b"):
        await (await rt.session(owner, agent="a")).send("hello")
        await subscribe(rt, owner=owner)
    happened = await rt.triggers.emit(MAIL, 1, key="m1", session="b")
    (only,) = await happened.processes(timeout=20)
    assert (await only.info()).known.provenance.originator == SessionScope(session_id="b")


async def test_source_state_equals_the_fold_of_its_log(rt: Runtime) -> None:
    await subscribe(rt)
    for burst in range(2):
        told = await asyncio.gather(*(rt.triggers.emit(MAIL, n, key=f"{burst}-{n}") for n in range(70)))
        for one in told:
            await one.deliveries(timeout=40)
    known = await core_of(rt).trigger_sources.state(at(rt))
    assert known == fold_all(await core_of(rt).store.read(at(rt)))
    assert known.occurrences == 140
    latest = await core_of(rt).trigger_sources.occurrences(at(rt), limit=3)
    rows = [row.record for row in await core_of(rt).store.read(at(rt))]
    assert [record for _, record in latest] == rows[:-4:-1]


# --- a start that fails --------------------------------------------------------------------------------------------


async def test_failed_start_is_recorded_and_stops_no_other_start(rt: Runtime) -> None:
    taken = await (await subscribe(rt, "a-taken")).info()
    await subscribe(rt, "c-fine")
    occurrence = occurrence_id(at(rt), "m1")
    await rt.start(count_mail, 5, id=reservation(occurrence, taken).process_id)
    refused = SubscriptionState(
        id=SubscriptionName(MAIL, "b-refused").id,
        definition=SubscriptionDefinition(
            key="b-refused", definition="python:count_mail", event_types=(EventType(name="one"), EventType(name="one"))
        ),
    )
    change = SubscriptionChanged(change="registered", subscription=refused, operation="op")
    await core_of(rt).store.annotate(at(rt), Entry.of(change, at=0))  # as an older version may have let it pass
    happened = await rt.triggers.emit(MAIL, 1, key="m1")
    assert happened.id == occurrence

    async def failures() -> list[str | None]:
        return [one.failed.code if one.failed else None for one in await happened.deliveries(timeout=20)]

    assert await failures() == ["process_conflict", "process_event_type_invalid", None]
    (fine,) = await happened.processes(timeout=20)
    assert await fine.result(timeout=20) == 41

    async def recorded() -> bool:
        return [row.kind for row in await core_of(rt).store.read(at(rt))][-1] == "trigger_delivery_failed"

    await until(recorded)
    assert await failures() == ["process_conflict", "process_event_type_invalid", None]
    assert await (await rt.triggers.emit(MAIL, 1, key="m1")).deliveries(timeout=20) == await happened.deliveries()


# --- subscriptions ------------------------------------------------------------------------------------------------


async def test_subscription_is_disabled_enabled_deleted_and_revived(rt: Runtime) -> None:
    handle = await subscribe(rt)
    steps = [(handle.disable, 0), (handle.enable, 1), (handle.delete, 0), (handle.restore, 1)]
    ids: set[str] = set()
    known = await handle.info()
    for number, (change, expected) in enumerate(steps):
        known = await change(expected_revision=known.revision, by="ann")
        started = await (await rt.triggers.emit(MAIL, 1, key=f"m{number}")).deliveries(timeout=20)
        assert len(started) == expected, change
        ids |= {one.process_id for one in started}
    assert (known.revision, known.incarnation, len(ids)) == (5, 2, 2)
    assert await handle.info() == known
    [source] = await rt.triggers.list()
    assert [one.definition.key for one in source.state.living] == ["x"]


async def test_a_change_needs_the_revision_it_was_decided_on(rt: Runtime) -> None:
    handle = await subscribe(rt)
    await handle.disable(expected_revision=1)
    refused = [
        handle.delete(expected_revision=1),
        handle.restore(),
        subscribe(rt, by=2),
        handle.update(count_mail, args=(9,), expected_revision=3),
    ]
    for one in refused:
        with pytest.raises(Error) as caught:
            await one
        assert (caught.value.code, caught.value.details["revision"]) == (Code.TRIGGER_REVISION_CONFLICT, 2)
    assert (await (await subscribe(rt)).info()).revision == 2  # the same one again is the same
    await handle.enable(expected_revision=2)
    await handle.update(count_mail, args=(5,), expected_revision=3)
    (one,) = await (await rt.triggers.emit(MAIL, 1, key="m1")).processes(timeout=20)
    assert await one.result(timeout=20) == 45
    await handle.delete()
    for gone in (handle.enable(), handle.update(count_mail), subscribe(rt)):
        with pytest.raises(Error) as caught:
            await gone
        assert (caught.value.code, caught.value.because) == (Code.TRIGGER_REVISION_CONFLICT, "it is deleted")


async def test_the_same_operation_again_finds_its_receipt_whatever_came_since(rt: Runtime) -> None:
    handle = await subscribe(rt)
    off = await handle.disable(expected_revision=1, operation="op-2")
    await handle.enable(expected_revision=2, operation="op-3")
    assert await handle.disable(expected_revision=1, operation="op-2") == off
    assert (await handle.info()).revision == 3
    with pytest.raises(Error) as caught:
        await handle.delete(expected_revision=3, operation="op-2")
    assert caught.value.code is Code.TRIGGER_REVISION_CONFLICT


async def test_concurrent_subscription_changes_accept_exactly_one(rt: Runtime) -> None:
    handle = await subscribe(rt)
    told = await asyncio.gather(
        *(handle.disable(expected_revision=1, operation=f"op-{i}") for i in range(20)), return_exceptions=True
    )
    refused = [one for one in told if isinstance(one, Error)]
    assert {one.code for one in refused} == {Code.TRIGGER_REVISION_CONFLICT}
    assert (len(refused), (await handle.info()).revision) == (19, 2)


async def test_a_source_has_so_many_subscriptions_and_no_more(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.triggers.sources.MAX_SUBSCRIPTIONS", 3)
    told = await asyncio.gather(*(subscribe(rt, f"k{n}") for n in range(6)), return_exceptions=True)
    assert [one.code for one in told if isinstance(one, Error)] == [Code.TRIGGER_LIMIT] * 3
    assert len((await core_of(rt).trigger_sources.state(at(rt))).living) == 3
    with pytest.raises(Error) as caught:
        await subscribe(rt, "one more")
    assert caught.value.code is Code.TRIGGER_LIMIT


async def test_subscription_deleted_before_the_record_starts_no_process(rt: Runtime) -> None:
    """A subscription is deleted while its source takes in what happened: then that is decided anew."""
    handle = await subscribe(rt)
    deleting = asyncio.create_task(handle.delete(expected_revision=1))
    happened = await asyncio.gather(*(rt.triggers.emit(MAIL, n, key=f"m{n}") for n in range(20)))
    await deleting
    gone = next(row.seq for row in await core_of(rt).store.read(at(rt)) if (row.key or "").endswith(":2"))
    for one in happened:
        started = await one.deliveries(timeout=20)
        row = await core_of(rt).store.find(at(rt), f"occ:{one.id}")
        assert row is not None
        assert len(started) == (0 if row.seq > gone else 1)
        for process_id in (delivery.process_id for delivery in started):
            assert await ProcessHandle(core_of(rt), process_id).result(timeout=20) == 41


async def test_subscription_deleted_during_the_append_starts_no_process(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription is deleted after its process was chosen, and before anything is written."""
    handle, stays, append = await subscribe(rt), await subscribe(rt, "stays"), core_of(rt).store.append
    left: list[int] = []

    async def too_late(plan: Plan) -> Receipt:
        left.append((await handle.delete()).revision)
        return await append(plan)

    def appended(plan: Plan) -> Awaitable[Receipt]:
        recorded = any(entry.kind == "trigger_occurred" for entry in plan.entries)
        return too_late(plan) if recorded and not left else append(plan)

    monkeypatch.setattr(core_of(rt).store, "append", appended)
    [only] = await (await rt.triggers.emit(MAIL, 1, key="m1")).deliveries(timeout=20)
    assert (only.subscription, left) == (stays.id, [2])


async def test_a_subscription_ends_with_its_session_and_what_it_started_goes_on(rt: Runtime) -> None:
    session = await rt.session("ses", agent="a")
    await session.ask("hello")
    handle = await subscribe(rt, owner="ses")
    await subscribe(rt, "of the application")
    first = await rt.triggers.emit(MAIL, 1, key="m1")
    assert len(await first.processes(timeout=20)) == 2
    await session.delete()
    second = await rt.triggers.emit(MAIL, 1, key="m2")
    assert len(await second.deliveries(timeout=20)) == 1
    assert (await handle.info()).deleted
    assert [await one.result(timeout=20) for one in await first.processes()] == [41, 41]
    with pytest.raises(Error) as caught:
        await subscribe(rt, "another", owner="ses")
    assert caught.value.code is Code.SESSION_UNKNOWN


# --- what can be said at all ---------------------------------------------------------------------------------------


async def test_payload_is_validated_against_the_declared_schema(rt: Runtime) -> None:
    schema: Json = {"type": "object", "required": ["subject"]}
    known = rt.triggers.declare(MAIL, schema, resource_type="mailbox")
    assert (known.alias, known.event, known.source_type, known.resource_type) == ("mail", "received", MAIL, "mailbox")
    for event, wrong in ((MAIL, schema), ("mail.lost", {"type": 3}), ("mail", None), ("mail.", None), (".lost", None)):
        with pytest.raises(Error) as caught:
            rt.triggers.declare(event, wrong)
        assert caught.value.code is Code.TRIGGER_INVALID
    bad: list[tuple[str, Json, str, Code]] = [
        (MAIL, {"from": "ann"}, "m1", Code.TRIGGER_INVALID),
        (MAIL, {"subject": "x" * 70_000}, "m1", Code.INPUT_TOO_LARGE),
        (MAIL, {"subject": "x"}, "", Code.INVALID_ID),
        (" ", {"subject": "x"}, "m1", Code.INVALID_ID),
        (MAIL, {"subject": float("nan")}, "m1", Code.INVALID_JSON),
    ]
    for source_type, payload, key, code in bad:
        with pytest.raises(Error) as caught:
            await rt.triggers.emit(source_type, payload, key=key)
        assert caught.value.code is code
    assert await core_of(rt).store.stream(at(rt)) is None


async def test_invalid_subscription_is_refused_and_not_created(rt: Runtime) -> None:
    bad = [
        (SubscriptionRequest(MAIL, count_mail, key=" "), Code.INVALID_ID),
        (SubscriptionRequest("", count_mail, key="x"), Code.INVALID_ID),
        (SubscriptionRequest(MAIL, count_mail, key="x", args=(1, 2, 3)), Code.INVALID_ARGUMENT),
        (SubscriptionRequest(MAIL, count_mail, key="x", args=({1, 2},)), Code.INVALID_JSON),
        (SubscriptionRequest(MAIL, count_mail, key="x", args=("x" * 70_000,)), Code.INPUT_TOO_LARGE),
        (SubscriptionRequest(MAIL, count_mail, key="x", owner="nobody"), Code.SESSION_UNKNOWN),
    ]
    for wanted, code in bad:
        with pytest.raises(Error) as caught:
            await core_of(rt).trigger_sources.register(wanted)
        assert caught.value.code is code
    assert await core_of(rt).store.stream(at(rt)) is None
    for look in (rt.triggers.subscription("mail.received:x").enable(), core_of(rt).trigger_sources.source(MAIL)):
        with pytest.raises(Error) as caught:
            await look
        assert caught.value.code in (Code.TRIGGER_SUBSCRIPTION_UNKNOWN, Code.TRIGGER_SOURCE_UNKNOWN)
    with pytest.raises(Error) as caught:
        rt.triggers.subscription("nonsense")
    assert caught.value.code is Code.TRIGGER_SUBSCRIPTION_UNKNOWN


@pytest.mark.parametrize(
    "name", [("a", "b"), ("a", "b", "c"), ("a", "b", "", "d"), ("a:1", "b:", "c/", "d%"), ("a", "b", ":", ":")]
)
def test_the_id_of_a_subscription_says_all_of_its_name(name: tuple[str, ...]) -> None:
    assert SubscriptionName.parse(SubscriptionName(*name).id) == SubscriptionName(*name)


# --- from tools and processes --------------------------------------------------------------------------------------


async def with_tool(new_store: NewStore, stack: AsyncExitStack, do: object, *, idle_timeout_s: float = 30) -> Runtime:
    model = ScriptedModel.by_input({"go": [call("do"), say("ok")]}, default=[say("hi")])
    agent = Agent("a", model=model, tools=[do])  # pyright: ignore[reportArgumentType] - a tool
    runtime = Runtime(
        new_store(), agents=[agent], processes=PROCESSES, options=RuntimeOptions(idle_timeout_s=idle_timeout_s)
    )
    return await stack.enter_async_context(runtime)


async def outcome_of(rt: Runtime) -> tuple[str, list[ToolCallOutcome]]:
    """Let the tool run in session `s`; what was said in the end, and how each of its attempts ended."""
    session = await rt.session("s", agent="a")
    text = await session.ask("go", timeout=40)
    settled = [row.record.outcome for row in await session.journal() if isinstance(row.record, EffectSettled)]
    return text, [one for one in settled if isinstance(one, ToolCallOutcome)]


async def test_an_attempt_that_runs_again_says_nothing_twice(new_store: NewStore) -> None:
    attempts: list[int] = []

    @tool(effect="idempotent", retries=1)
    async def do(ctx: ToolContext) -> str:
        """Say it, and fail once."""
        attempts.append(ctx.attempt)
        await ctx.triggers.emit(MAIL, {"subject": "one"})
        await ctx.triggers.emit(MAIL, {"subject": "two"})
        if len(attempts) == 1:
            raise ToolError("once more", retry_safe=True)
        return "said"

    async with AsyncExitStack() as stack:
        rt = await with_tool(new_store, stack, do)
        await rt.triggers.subscribe(MAIL, file_mail, key="file")
        _, outcomes = await outcome_of(rt)
        assert attempts == [1, 2]
        assert [[one.get("duplicate", False) for one in outcome.triggers] for outcome in outcomes] == [
            [False, False],
            [True, True],
        ]
        for told in outcomes[1].triggers:
            happened = await rt.triggers.emit(
                MAIL, {"subject": "one" if told == outcomes[1].triggers[0] else "two"}, key=told["idempotency_key"]
            )
            assert (happened.id, happened.is_duplicate) == (told["occurrence_id"], True)
            assert len(await happened.processes(timeout=20)) == 1
        assert (await core_of(rt).trigger_sources.state(at(rt))).occurrences == 2


async def test_a_body_that_is_entered_again_says_nothing_again(new_store: NewStore) -> None:
    entered: list[int] = []

    @tool(effect="resumable")
    async def do(ctx: ToolContext) -> str:
        """Say it, wait, and say what it was."""
        entered.append(1)
        told = await ctx.triggers.emit(MAIL, {"subject": "one"})
        mine = await ctx.triggers.subscribe(MAIL, "file_mail", key="mine")
        await ctx.sleep("nap", 0.2)
        return f"{told.occurrence_id} {mine} {told.duplicate}"

    async with AsyncExitStack() as stack:
        rt = await with_tool(new_store, stack, do, idle_timeout_s=0)
        _, [outcome] = await outcome_of(rt)
        assert len(entered) >= 2
        [told] = outcome.triggers
        assert "duplicate" not in told
        handle = rt.triggers.subscription("mail.received:mine::s")
        definition = (await handle.info()).definition
        assert (definition.owner, definition.wake_target) == ("s", SessionScope(session_id="s"))
        assert f"{told['occurrence_id']} {handle.id} False" in encode(outcome).decode()
        [row] = [row for row in await core_of(rt).store.read(at(rt)) if row.kind == "trigger_occurred"]
        assert row.key == f"occ:{told['occurrence_id']}"


async def test_conflicting_emission_of_a_tool_fails_with_a_code(new_store: NewStore) -> None:
    @tool(effect="idempotent")
    async def do(ctx: ToolContext) -> str:
        """Say two things under one key."""
        await ctx.triggers.emit(MAIL, 1, key="k")
        with pytest.raises(ToolError) as caught:
            await ctx.triggers.emit(MAIL, 2, key="k")
        return caught.value.code

    async with AsyncExitStack() as stack:
        rt = await with_tool(new_store, stack, do)
        _, [outcome] = await outcome_of(rt)
        assert "trigger_conflict" in encode(outcome).decode()
        assert len(outcome.triggers) == 1


async def test_process_emits_once_and_subscribes_for_its_owner(new_store: NewStore) -> None:
    async with Runtime(new_store(), processes=PROCESSES, options=RuntimeOptions(idle_timeout_s=0)) as rt:
        await rt.triggers.subscribe(MAIL, file_mail, key="file")
        first, second, mine = str(await (await rt.start(passes_on, "hello", id="p")).result(timeout=30)).split()
        assert first != second
        assert (await rt.triggers.subscription(mine).info()).definition.owner == ""

        async def all_in() -> bool:
            return (await core_of(rt).trigger_sources.state(at(rt))).occurrences == 2

        await until(all_in)
        latest = await core_of(rt).trigger_sources.occurrences(at(rt))
        assert {record.occurrence for _, record in latest} == {first, second}
        started = [ProcessHandle(core_of(rt), one.process_id) for _, record in latest for one in record.deliveries]
        assert {await one.result(timeout=20) for one in started} == {"filed hello", "filed hello again"}
