"""Replay or run, and in which order: what must be durable before the world may notice."""

from __future__ import annotations

import pytest

from perdure.effects.controller import (
    Begun,
    Controller,
    DispatchPolicy,
    EffectLog,
    InlineController,
    JournaledController,
)
from perdure.effects.journal import EffectJournal
from perdure.errors import Code, Error
from perdure.ids import EffectId, WorkerId
from perdure.vocab.effects import EffectKind
from perdure.vocab.outcomes import (
    DurableStepOutcome,
    InDoubt,
    Outcome,
    SleepOutcome,
    Success,
)
from perdure.vocab.records import EffectSettled, EffectStarted, Record
from perdure.vocab.tools import EffectClass
from tests.unit.effects.asking import DECLINED, REFUNDED, SEVEN, FakeLedger, answered, call, step

ONCE, PURE, IDEMPOTENT = (
    DispatchPolicy(effect="once"),
    DispatchPolicy(effect="pure"),
    DispatchPolicy(effect="idempotent"),
)
LOST = Error(Code.LEASE_LOST, "somebody else has it")


def journaled(ledger: FakeLedger, *records: Record) -> JournaledController:
    journal = EffectJournal()
    for record in records:
        journal.fold(record)
    of: EffectLog = ledger
    return JournaledController(journal, of)


def interrupted(effect: EffectClass, due_at: int | None = None) -> EffectStarted:
    """The start that a worker recorded before it died."""
    asked = call()
    return EffectStarted(
        id=EffectId(asked.id), kind=asked.kind, fingerprint=asked.fingerprint(), effect=effect, due_at=due_at
    )


# --- replay


@pytest.mark.parametrize("outcome", [REFUNDED, DECLINED, answered(InDoubt(reason="timeout"))])
async def test_a_settled_effect_is_answered_and_nothing_is_called(outcome: Outcome) -> None:
    ledger = FakeLedger()
    settled = EffectSettled(id=EffectId("c1.0.1"), outcome=outcome, fingerprint=call().fingerprint())
    assert await journaled(ledger, settled).execute(call(), ledger.local(REFUNDED), ONCE) == outcome
    assert ledger.did == []


async def test_an_effect_that_failed_here_fails_again_without_being_called() -> None:
    ledger = FakeLedger()
    controller = journaled(ledger)
    assert await controller.execute(call(), ledger.local(DECLINED), ONCE) == DECLINED
    ledger.did.clear()
    assert await controller.execute(call(), ledger.local(REFUNDED), ONCE) == DECLINED
    assert ledger.did == []


@pytest.mark.parametrize("effect", ["pure", "idempotent", "once", "resumable"])
async def test_something_else_under_the_same_id_is_loud_and_touches_nothing(effect: EffectClass) -> None:
    ledger = FakeLedger()
    controller = journaled(ledger)
    await controller.execute(step("render", 1), ledger.local(SEVEN), DispatchPolicy(effect=effect))
    ledger.did.clear()
    with pytest.raises(Error) as caught:
        await controller.execute(step("render", 2), ledger.local(SEVEN), DispatchPolicy(effect=effect))
    assert caught.value.code is Code.REPLAY_MISMATCH
    assert ledger.did == []


async def test_the_controller_is_usable_after_a_mismatch() -> None:
    ledger = FakeLedger()
    controller = journaled(ledger)
    await controller.execute(step("a", 1), ledger.local(SEVEN), ONCE)
    with pytest.raises(Error):
        await controller.execute(step("a", 2), ledger.local(SEVEN), ONCE)
    assert await controller.execute(step("b", 2), ledger.local(SEVEN), ONCE) == SEVEN


# --- the order of durability


async def test_once_waits_until_its_intent_is_durable() -> None:
    ledger = FakeLedger()
    assert await journaled(ledger).execute(call(), ledger.local(REFUNDED), ONCE) == REFUNDED
    assert ledger.did == ["intent c1.0.1", "durable", "lease live", "ran c1.0.1", "outcome c1.0.1"]


async def test_resumable_waits_until_its_intent_is_durable() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), DispatchPolicy(effect="resumable"))
    assert ledger.did == ["intent c1.0.1", "durable", "lease live", "ran c1.0.1", "outcome c1.0.1"]


async def test_idempotent_waits_for_what_came_before_and_has_no_intent() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), IDEMPOTENT)
    assert ledger.did == ["durable", "lease live", "ran c1.0.1", "outcome c1.0.1"]


async def test_pure_waits_for_nothing() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), PURE)
    assert ledger.did == ["ran c1.0.1", "outcome c1.0.1"]


async def test_a_pure_effect_may_record_its_start_and_still_waits_for_nothing() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), DispatchPolicy(effect="pure", record_start=True))
    assert ledger.did == ["intent c1.0.1", "ran c1.0.1", "outcome c1.0.1"]


async def test_effect_without_declaration_is_once() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED))
    assert ledger.did[:2] == ["intent c1.0.1", "durable"]


async def test_an_outcome_and_the_next_intent_are_submitted_before_the_next_wait() -> None:
    ledger = FakeLedger()
    controller = journaled(ledger)
    for name in ("a", "b", "c"):
        await controller.execute(step(name), ledger.local(SEVEN), ONCE)
    assert ledger.did == [
        *["intent a", "durable", "lease live", "ran a", "outcome a"],
        *["intent b", "durable", "lease live", "ran b", "outcome b"],
        *["intent c", "durable", "lease live", "ran c", "outcome c"],
    ]


@pytest.mark.parametrize("steps", [0, 1, 5])
async def test_k_once_steps_are_k_plus_one_awaited_commits(steps: int) -> None:
    ledger = FakeLedger()
    controller = journaled(ledger)
    for index in range(steps):
        await controller.execute(step(f"s{index}"), ledger.local(SEVEN), ONCE)
    await ledger.durable()  # the owner's last wait, before it publishes the result
    assert ledger.did.count("durable") == steps + 1


# --- the lease


async def test_a_lapsed_lease_is_reasserted_before_the_world_is_called() -> None:
    ledger = FakeLedger(live=(False, False, True))
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), ONCE)
    assert ledger.did == [
        *["intent c1.0.1", "durable"],
        *["lease lapsed", "reassert", "lease lapsed", "reassert", "lease live"],
        *["ran c1.0.1", "outcome c1.0.1"],
    ]


@pytest.mark.parametrize("effect", ["idempotent", "once", "resumable"])
async def test_a_lease_that_cannot_be_reasserted_dispatches_nothing(effect: EffectClass) -> None:
    ledger = FakeLedger(live=(False,), refusal=LOST)
    with pytest.raises(Error) as caught:
        await journaled(ledger).execute(call(), ledger.local(REFUNDED), DispatchPolicy(effect=effect))
    assert caught.value.code is Code.LEASE_LOST
    assert not any(done.startswith(("ran", "outcome")) for done in ledger.did)


async def test_an_intent_that_cannot_be_committed_dispatches_nothing() -> None:
    class Refusing(FakeLedger):
        async def durable(self) -> None:
            await super().durable()
            raise LOST

    ledger = Refusing()
    with pytest.raises(Error) as caught:
        await journaled(ledger).execute(call(), ledger.local(REFUNDED), ONCE)
    assert caught.value.code is Code.LEASE_LOST
    assert ledger.did == ["intent c1.0.1", "durable"]


# --- after a crash


async def test_an_interrupted_once_effect_is_in_doubt_and_never_run_again() -> None:
    ledger = FakeLedger()
    with pytest.raises(Error) as caught:
        await journaled(ledger, interrupted("once")).execute(call(), ledger.local(REFUNDED), ONCE)
    assert caught.value.code is Code.RUNTIME_EFFECT_IN_DOUBT
    assert ledger.did == []


async def test_the_class_in_the_intent_governs_not_that_of_today() -> None:
    ledger = FakeLedger()
    with pytest.raises(Error) as caught:
        await journaled(ledger, interrupted("once")).execute(call(), ledger.local(REFUNDED), PURE)
    assert caught.value.code is Code.RUNTIME_EFFECT_IN_DOUBT
    assert ledger.did == []


@pytest.mark.parametrize("effect", ["pure", "idempotent", "resumable"])
async def test_other_interrupted_effects_run_again_without_a_second_start(effect: EffectClass) -> None:
    ledger = FakeLedger()
    controller = journaled(ledger, interrupted(effect))
    assert await controller.execute(call(), ledger.local(REFUNDED), DispatchPolicy(effect=effect)) == REFUNDED
    assert not any(done.startswith("intent") for done in ledger.did)
    assert ledger.did[-2:] == ["ran c1.0.1", "outcome c1.0.1"]


async def test_a_timer_keeps_its_original_moment() -> None:
    ledger = FakeLedger()
    controller = journaled(ledger, interrupted("pure", due_at=5_000))
    begun = controller.begin(call(), DispatchPolicy(effect="pure", record_start=True, due_at=99_000))
    assert isinstance(begun, Begun)
    assert begun.policy.due_at == 5_000


def test_a_new_owner_settles_interrupted_once_steps_as_in_doubt() -> None:
    ledger = FakeLedger()
    steps = [
        EffectStarted(id=EffectId("a"), kind=EffectKind.DURABLE_STEP, fingerprint="f", effect="once"),
        EffectStarted(id=EffectId("b"), kind=EffectKind.DURABLE_STEP, fingerprint="f", effect="idempotent"),
        EffectStarted(id=EffectId("c"), kind=EffectKind.TOOL_CALL, fingerprint="f", effect="once"),
        EffectStarted(id=EffectId("d"), kind=EffectKind.DURABLE_STEP, fingerprint="f", effect="once"),
    ]
    done = EffectSettled(id=EffectId("d"), outcome=SEVEN)
    controller = journaled(ledger, *steps, done)
    controller.doubt_unsettled_steps(InDoubt(reason="worker_lost"))
    in_doubt = DurableStepOutcome(in_doubt=InDoubt(reason="worker_lost"))
    assert ledger.records == [EffectSettled(id=EffectId("a"), outcome=in_doubt)]
    controller.doubt_unsettled_steps(InDoubt(reason="worker_lost"))
    assert len(ledger.records) == 1


# --- what is written


async def test_an_intent_records_everything_recovery_needs() -> None:
    ledger = FakeLedger()
    care = DispatchPolicy(effect="once", doubt="probe", deadline_at=9_000)
    await journaled(ledger).execute(call(args={"cents": 5}), ledger.local(REFUNDED), care)
    intent, settled = ledger.records
    assert isinstance(intent, EffectStarted)
    assert (intent.effect, intent.doubt, intent.deadline_at, intent.worker) == ("once", "probe", 9_000, "w1")
    assert intent.command == call(args={"cents": 5}).command
    assert intent.fingerprint == call(args={"cents": 5}).fingerprint()[:32]
    assert settled == EffectSettled(id=EffectId("c1.0.1"), outcome=REFUNDED)


async def test_a_command_is_kept_only_if_asked_for() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), DispatchPolicy(effect="once", keep_command=False))
    intent = ledger.records[0]
    assert isinstance(intent, EffectStarted)
    assert intent.command is None


async def test_a_start_that_is_only_information_names_no_worker() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), DispatchPolicy(effect="pure", record_start=True))
    intent = ledger.records[0]
    assert isinstance(intent, EffectStarted)
    assert intent.worker == WorkerId("")


async def test_without_a_start_the_outcome_carries_the_fingerprint() -> None:
    ledger = FakeLedger()
    await journaled(ledger).execute(call(), ledger.local(REFUNDED), IDEMPOTENT)
    expected = EffectSettled(id=EffectId("c1.0.1"), outcome=REFUNDED, fingerprint=call().fingerprint()[:32])
    assert ledger.records == [expected]


# --- executors


@pytest.mark.parametrize("inline", [False, True])
async def test_effect_without_executor_is_refused(inline: bool) -> None:
    controller: Controller = InlineController() if inline else journaled(FakeLedger())
    with pytest.raises(Error) as caught:
        await controller.execute(call(), None, PURE)
    assert caught.value.code is Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_UNAVAILABLE
    assert caught.value.message == "no executor for effect kind tool_call"


@pytest.mark.parametrize("inline", [False, True])
async def test_an_executor_of_another_kind_is_refused_before_it_runs(inline: bool) -> None:
    ledger = FakeLedger()
    controller: Controller = InlineController() if inline else journaled(ledger)
    with pytest.raises(Error) as caught:
        await controller.execute(call(), ledger.local(SleepOutcome()), PURE)
    assert caught.value.code is Code.RUNTIME_EFFECT_LOCAL_EXECUTOR_MISMATCH
    assert caught.value.message == "the executor for sleep cannot perform effect kind tool_call"
    assert ledger.did == []


@pytest.mark.parametrize("inline", [False, True])
async def test_an_outcome_of_another_kind_is_refused_and_not_recorded(inline: bool) -> None:
    ledger = FakeLedger()
    controller: Controller = InlineController() if inline else journaled(ledger)
    with pytest.raises(Error) as caught:
        await controller.execute(call(), ledger.local(SleepOutcome(), EffectKind.TOOL_CALL), PURE)
    assert caught.value.code is Code.RUNTIME_EFFECT_WRONG_OUTCOME
    assert caught.value.details == {"expected": "tool_call", "actual": "sleep"}
    assert ledger.did == ["ran c1.0.1"]


async def test_replayed_effect_needs_no_executor() -> None:
    ledger = FakeLedger()
    controller = journaled(ledger, EffectSettled(id=EffectId("c1.0.1"), outcome=REFUNDED))
    assert await controller.execute(call(), None, ONCE) == REFUNDED


async def test_inline_runs_every_time_and_promises_nothing() -> None:
    ledger = FakeLedger()
    controller = InlineController()
    for _ in range(2):
        assert await controller.execute(call(), ledger.local(answered(Success())), ONCE) == answered(Success())
    assert ledger.did == ["ran c1.0.1", "ran c1.0.1"]
    assert (controller.supports_durable_effects, controller.durability_tier) == (False, "inline")


def test_a_journaled_controller_promises_durability() -> None:
    controller = journaled(FakeLedger())
    assert (controller.supports_durable_effects, controller.durability_tier) == (True, "durable")
