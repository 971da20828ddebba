"""May an effect run, and what became of it."""

from __future__ import annotations

import pytest

from perdure.effects.journal import (
    AlreadyRunning,
    AlreadySettled,
    Claimed,
    DeterminismViolation,
    EffectJournal,
    Interrupted,
    Running,
    Settled,
)
from perdure.errors import Code
from perdure.ids import EffectId, TurnId
from perdure.vocab.effects import Envelope
from perdure.vocab.outcomes import DurableStepOutcome, InDoubt, Outcome, StepFailure
from perdure.vocab.records import CancelRequested, EffectSettled, EffectStarted, Record
from tests.unit.effects.asking import DECLINED, REFUNDED, SEVEN, answered, call, step

E1 = EffectId("c1.0.1")


def started(envelope: Envelope, fingerprint: str | None = None, *, keep: bool = True) -> EffectStarted:
    return EffectStarted(
        id=EffectId(envelope.id),
        kind=envelope.kind,
        fingerprint=fingerprint or envelope.fingerprint(),
        command=envelope.command if keep else None,
        effect="once",
    )


def journal(*records: Record) -> EffectJournal:
    found = EffectJournal()
    for record in records:
        found.fold(record)
    return found


def test_unknown_effect_is_claimed() -> None:
    asked = call()
    assert journal().claim(asked, asked.fingerprint()) == Claimed()
    assert journal(started(step("other"))).claim(asked, asked.fingerprint()) == Claimed()


def test_started_effect_is_already_running() -> None:
    asked = call()
    intent = started(asked)
    assert journal(intent).claim(asked, asked.fingerprint()) == AlreadyRunning(intent)


@pytest.mark.parametrize("outcome", [REFUNDED, DECLINED], ids=["success", "failure"])
def test_settled_effect_returns_its_success_or_failure(outcome: Outcome) -> None:
    asked = call()
    settled = EffectSettled(id=E1, outcome=outcome)
    assert journal(started(asked), settled).claim(asked, asked.fingerprint()) == AlreadySettled(outcome)


def test_effect_settled_without_a_start_returns_its_outcome() -> None:
    asked = call()
    settled = EffectSettled(id=E1, outcome=REFUNDED, fingerprint=asked.fingerprint())
    assert journal(settled).claim(asked, asked.fingerprint()) == AlreadySettled(REFUNDED)


@pytest.mark.parametrize("settled", [False, True])
def test_another_fingerprint_is_noticed_before_anything_else(settled: bool) -> None:
    before, now = call(args={"cents": 5}), call(args={"cents": 500})
    known = journal(started(before), *([EffectSettled(id=E1, outcome=REFUNDED)] if settled else []))
    found = known.claim(now, now.fingerprint())
    assert isinstance(found, DeterminismViolation)
    assert (found.stored_fingerprint, found.current_fingerprint) == (before.fingerprint(), now.fingerprint())
    assert found.paths == ("$.command.call.args.cents: 5 -> 500",)
    assert found.count == 1


def test_another_fingerprint_is_noticed_on_an_outcome_without_a_start() -> None:
    before, now = step("render", "a"), step("render", "b")
    known = journal(EffectSettled(id=EffectId("render"), outcome=SEVEN, fingerprint=before.fingerprint()))
    assert isinstance(known.claim(now, now.fingerprint()), DeterminismViolation)


def test_a_mismatch_names_the_first_eight_paths_and_their_number() -> None:
    before, now = step("render", {f"k{n}": n for n in range(9)}), step("render", {f"k{n}": -n for n in range(1, 10)})
    found = journal(started(before)).claim(now, now.fingerprint())
    assert isinstance(found, DeterminismViolation)
    assert found.count == 10
    assert found.paths[:2] == ("$.command.input.k0: 0 -> absent", "$.command.input.k1: 1 -> -1")
    assert len(found.paths) == 8
    error = found.error(now)
    assert error.code is Code.REPLAY_MISMATCH
    assert error.because.startswith("10 differing JSON paths: $.command.input.k0: 0 -> absent; ")
    where = ", ".join(f"$.command.input.k{n}" for n in range(8))
    fingerprints = {"stored": before.fingerprint(), "current": now.fingerprint()}
    assert error.details == {"effect": "render", "paths": where, **fingerprints}


def test_a_mismatch_without_a_kept_command_says_so() -> None:
    before, now = step("render", 1), step("render", 2)
    found = journal(started(before, keep=False)).claim(now, now.fingerprint())
    assert isinstance(found, DeterminismViolation)
    assert (found.paths, found.count) == ((), 0)
    assert found.error(now).because == "some differing JSON paths: the recorded command was not stored"


def test_a_large_value_is_left_out_of_a_mismatch() -> None:
    before, now = step("render", "x" * 5_000), step("render", "y")
    found = journal(started(before)).claim(now, now.fingerprint())
    assert isinstance(found, DeterminismViolation)
    assert found.paths == ('$.command.input: <5002 bytes> -> "y"',)


# --- what became of it


def test_nothing_became_of_what_was_never_started() -> None:
    assert journal().status(E1) is None
    assert journal().started(E1) is None


def test_a_started_effect_runs_until_it_is_settled() -> None:
    intent = started(call())
    known = journal(intent)
    assert known.status(E1) == Running(intent)
    assert known.started(E1) == intent
    known.fold(EffectSettled(id=E1, outcome=DECLINED))
    assert known.status(E1) == Settled(DECLINED)
    assert known.started(E1) == intent


DOUBT = InDoubt(reason="worker_lost", message="gone")


@pytest.mark.parametrize("outcome", [answered(DOUBT), DurableStepOutcome(in_doubt=DOUBT)], ids=["call", "step"])
def test_an_effect_in_doubt_was_interrupted(outcome: Outcome) -> None:
    assert journal(EffectSettled(id=E1, outcome=outcome)).status(E1) == Interrupted(DOUBT)


def test_a_step_that_failed_is_settled() -> None:
    outcome = DurableStepOutcome(error=StepFailure(code="x", message="m"))
    assert journal(EffectSettled(id=E1, outcome=outcome)).status(E1) == Settled(outcome)


def test_unsettled_effects_are_listed_in_start_order() -> None:
    one, two, three = (started(step(name)) for name in ("a", "b", "c"))
    known = journal(one, two, three, EffectSettled(id=two.id, outcome=SEVEN))
    assert known.unsettled() == (one, three)


def test_records_about_other_things_change_nothing() -> None:
    known = journal(CancelRequested(turn=TurnId("t"), request="r"))
    assert known.unsettled() == ()
