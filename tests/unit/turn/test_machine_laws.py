"""Laws of the machine, on random turns with crashes anywhere."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ids import EffectId, TurnId
from perdure.turn.machine import advance, owed, recovery
from perdure.turn.state import Acting, RunCall, Turn, opened
from perdure.vocab.outcomes import (
    AwaitEventOutcome,
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    InDoubt,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.promises import Ok
from perdure.vocab.records import CancelRequested, EffectSettled, EffectStarted, OutcomeArrivedLate, Record
from perdure.vocab.refs import EffectRef
from tests.unit.turn.driving import LIMITS, Owner

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=120)


def owner(seed: int, *, cancellable: bool = True) -> Owner:
    return Owner(Random(seed), TurnId("t1"), cancellable=cancellable)


@MANY
@given(SEEDS)
def test_a_crash_anywhere_changes_nothing(seed: int) -> None:
    """At any moment, folding the records from scratch gives the same turn, which owes the same."""
    driven = owner(seed)
    for _ in driven.steps():
        again = driven.refolded()
        assert again == driven.turn
        assert owed(again) == owed(driven.turn)


@MANY
@given(SEEDS)
def test_every_turn_ends_within_its_limits(seed: int) -> None:
    driven = owner(seed)
    for before, _ in driven.steps():
        assert before.iteration <= LIMITS.max_iterations + 1
        if isinstance(before.phase, Acting):
            assert len(owed(before)) <= LIMITS.max_parallel_calls
    assert driven.turn.ended is not None
    asked = [EffectRef.parse(r.id) for r in driven.records if isinstance(r, EffectSettled) and r.id.startswith("m")]
    assert max(ref.attempt for ref in asked) <= LIMITS.model_attempts if asked else True


@MANY
@given(SEEDS)
def test_call_outputs_are_final_until_the_round_ends(seed: int) -> None:
    driven = owner(seed, cancellable=False)
    for before, news in driven.steps():
        calls, now = _outputs(before), _outputs(driven.turn)
        late = any(isinstance(record, OutcomeArrivedLate) for record in news)
        if now.keys() == calls.keys():
            for id, output in calls.items():
                # Nothing but the truth about a doubt may follow an answer.
                assert output is None or now[id] == output or (late and isinstance(output, InDoubt))
        else:
            spoken_of = {EffectRef.parse(r.id).index for r in news if isinstance(r, EffectSettled | OutcomeArrivedLate)}
            assert {index for index, output in enumerate(calls.values()) if output is None} <= spoken_of


def _outputs(turn: Turn) -> dict[str, ToolOutput | None]:
    return {call.request.id: call.output for call in turn.phase.calls} if isinstance(turn.phase, Acting) else {}


@MANY
@given(SEEDS)
def test_the_number_of_answered_calls_never_shrinks(seed: int) -> None:
    driven = owner(seed)
    answered: set[str] = set()
    for _ in driven.steps():
        now = {id for id, output in _outputs(driven.refolded()).items() if output is not None}
        current = set(_outputs(driven.turn))
        assert answered & current <= now
        answered |= now


@MANY
@given(SEEDS)
def test_once_call_is_repeated_only_after_a_negative_verdict(seed: int) -> None:
    """Law 2, judged from the records alone."""
    driven = owner(seed)
    for _ in driven.steps():
        pass
    not_done: set[tuple[int, int | None, int]] = set()
    seen: set[EffectId] = set()
    for record in driven.records:
        match record:
            case EffectStarted(id=id, effect="once"):
                ref = EffectRef.parse(id)
                assert id not in seen
                seen.add(id)
                assert ref.attempt == 1 or (ref.iteration, ref.index, ref.attempt - 1) in not_done
            case EffectSettled(
                id=id, outcome=ToolCallOutcome(launch=Done(result=CompletedToolCall(output=Failed(failure=failure))))
            ) if failure.retry_safe:
                ref = EffectRef.parse(id)
                not_done.add((ref.iteration, ref.index, ref.attempt))
            case EffectSettled(
                id=id,
                outcome=DurableStepOutcome(value={"verdict": "did_not_happen"})
                | AwaitEventOutcome(resolution=Ok(value={"verdict": "did_not_happen", "by": str()})),
            ):
                ref = EffectRef.parse(id)
                not_done.add((ref.iteration, ref.index, ref.attempt))
            case _:
                pass


@MANY
@given(SEEDS)
def test_after_recovery_no_dispatched_once_call_is_owed(seed: int) -> None:
    driven = owner(seed)
    for _ in driven.steps():
        recovered = driven.refolded()
        started = {r.id for r in driven.records if isinstance(r, EffectStarted) and r.effect == "once"}
        settlements = recovery(recovered)
        for settled in settlements:
            recovered = advance(recovered, settled)
        owed_runs = {item.ref.id for item in owed(recovered) if isinstance(item, RunCall)}
        assert owed_runs.isdisjoint(started)
        assert recovery(recovered) == ()


@MANY
@given(SEEDS, st.integers(0, 300))
def test_the_place_of_a_cancel_request_does_not_matter(seed: int, place: int) -> None:
    driven = owner(seed, cancellable=False)
    for _ in driven.steps():
        pass
    records = driven.records[:-1]
    place = place % (len(records) + 1)
    request = CancelRequested(turn=TurnId("t1"), request="r")
    early, at_last = _fold(driven, [*records[:place], request, *records[place:]]), _fold(driven, [*records, request])
    assert early == at_last
    assert owed(early) == ()


def _fold(driven: Owner, records: list[Record]) -> Turn:
    turn = opened(driven.opening, driven.tools)
    for record in records:
        turn = advance(turn, record)
    return turn


def test_the_random_owner_visits_what_it_should() -> None:
    """The laws above mean little unless crashes, doubts, probes, retries and late news really occur."""
    seen: dict[str, int] = {}
    for seed in range(150):
        driven = owner(seed)
        for _ in driven.steps():
            pass
        assert driven.turn.ended is not None
        kinds = [_kind(record) for record in driven.records]
        for kind in {*kinds, driven.turn.ended.reason or "finished", *(["crash"] if driven.crashes else [])}:
            seen[kind] = seen.get(kind, 0) + 1
    for kind in ("crash", "late", "sleep", "probe", "InDoubt", "Success", "Failed", "finished", "cancelled"):
        assert seen.get(kind, 0) >= 5, kind
    for kind in ("no_progress", "provider_error", "refused", "max_iterations"):
        assert seen.get(kind, 0) >= 1, kind


def _kind(record: Record) -> str:
    match record:
        case OutcomeArrivedLate():
            return "late"
        case EffectSettled(outcome=ToolCallOutcome(launch=Done(result=CompletedToolCall(output=output)))):
            return type(output).__name__
        case EffectSettled(id=id):
            return EffectRef.parse(id).tail or "model"
        case _:
            return type(record).__name__
