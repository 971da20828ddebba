"""The judgement after a crash, on logs written by hand: each promise broken once, and nothing else noticed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perdure.ids import InputId, Seq, SessionId, StreamId, Tenant, TurnId
from perdure.testing.recovery_report import RecoveryReport, Story, Taken, judge
from perdure.testing.world import Ledger, LedgerEntry
from perdure.vocab.messages import Message, Text
from perdure.vocab.outcomes import Failed, FailureDetail
from perdure.vocab.records import InputAdmitted, OutcomeArrivedLate, Record, Row, TurnEnded, kind_of, write
from tests.unit.turn.turning import ended, intent, late, lost, ok, opening, said, verdict

T1, T2 = TurnId("t1"), TurnId("t2")
KEY = "perdure-tool:default:s:t1.1.0:x"


def admitted(turn: TurnId = T1, key: str = "k") -> InputAdmitted:
    return InputAdmitted(input=InputId(f"i-{turn}"), turn=turn, parts=(Text(text="go"),), key=key)


def story(*records: Record, waiting: Mapping[InputId, Taken] | None = None, problems: tuple[str, ...] = ()) -> Story:
    rows = tuple(
        Row(stream=StreamId("s"), seq=Seq(seq), at=0, kind=kind_of(record), data=write(record))
        for seq, record in enumerate(records, 1)
    )
    history = (Message(role="user", parts=(Text(text="go"),)),)
    return Story(Tenant("default"), SessionId("s"), rows, history, waiting or {}, problems)


def after(*stories: Story, world: Ledger | None = None, calls: Ledger | None = None) -> RecoveryReport:
    return RecoveryReport(stories, world or Ledger(), calls or Ledger())


BEGUN = (admitted(), opening(), said("x"), intent("c1.0.1"))
FINISHED = TurnEnded(turn=T1, status="finished")
DONE = (*BEGUN, ok("c1.0.1"), said(text="done", id="m2.1"), FINISHED)
DOUBTED = (*BEGUN, lost("c1.0.1"), said(text="done", id="m2.1"), FINISHED)
CHARGED = Ledger((LedgerEntry(what="charge", key=KEY),))


def called(*attempts: int, effect: str = "once", key: str = KEY) -> Ledger:
    return Ledger(tuple(LedgerEntry(what="x", key=key, details={"attempt": n, "effect": effect}) for n in attempts))


USUAL = after(story(*DONE), world=CHARGED, calls=called(1))


def test_an_undisturbed_run_breaks_nothing() -> None:
    assert judge(USUAL, after(), USUAL) == ()
    assert judge(USUAL, USUAL, USUAL) == ()


def test_doubt_explained_by_the_crash_is_allowed() -> None:
    crashed = after(story(*BEGUN))
    assert judge(USUAL, crashed, after(story(*DOUBTED))) == ()
    assert judge(USUAL, crashed, after(story(*DOUBTED), world=CHARGED)) == ()
    assert after(story(*DOUBTED)).doubts == ("x",)


def test_doubts_that_were_settled_are_no_doubts() -> None:
    assert story(*BEGUN, lost("c1.0.1"), verdict("c1.0.1.probe", "happened")).doubts == ()
    assert story(*BEGUN, lost("c1.0.1"), verdict("c1.0.1.probe", "did_not_happen")).doubts == ()
    assert story(*BEGUN, lost("c1.0.1"), verdict("c1.0.1.probe", "unknown")).doubts == ("x",)
    assert story(*BEGUN, lost("c1.0.1"), late("c1.0.1", turn=T1)).doubts == ()


LATE_AND_SAFE = OutcomeArrivedLate(
    call=late("c1.0.1", turn=T1).call,
    id=late("c1.0.1").id,
    tool="x",
    output=Failed(failure=FailureDetail(code="busy", message="busy", retry_safe=True)),
)
SAFE = ended("c1.0.1", Failed(failure=FailureDetail(code="busy", message="busy", retry_safe=True)))
UNSAFE = ended("c1.0.1", Failed(failure=FailureDetail(code="declined", message="no")))
SECOND = (intent("c1.0.2"), ok("c1.0.2"), said(text="done", id="m2.1"), FINISHED)


@pytest.mark.parametrize(
    "proof",
    [(SAFE,), (lost("c1.0.1"), verdict("c1.0.1.probe", "did_not_happen")), (lost("c1.0.1"), LATE_AND_SAFE)],
    ids=["a safe failure", "a probe", "late news of a safe failure"],
)
def test_a_second_attempt_with_proof_is_allowed(proof: tuple[Record, ...]) -> None:
    end = after(story(*BEGUN, *proof, *SECOND), world=CHARGED, calls=called(1, 2))
    assert judge(USUAL, after(story(*BEGUN)), end) == ()


BROKEN: dict[str, tuple[RecoveryReport, RecoveryReport, str]] = {
    "an accepted input is gone": (
        after(story(admitted(T2, "other"))),
        USUAL,
        "session s: the input other was accepted and is lost",
    ),
    "a waiting input is gone": (
        after(story(waiting={InputId("i-t2"): Taken(T2, "other")})),
        USUAL,
        "session s: the input other was accepted and is lost",
    ),
    "an input is not answered": (
        after(),
        after(story(*DONE[:-1]), world=CHARGED, calls=called(1)),
        "session s: the input k was accepted and never answered",
    ),
    "an input waits for ever": (
        after(),
        after(story(*DONE, waiting={InputId("i-t2"): Taken(T2, "other")}), world=CHARGED, calls=called(1)),
        "session s: the input other was accepted and never answered",
    ),
    "an input is answered twice": (
        after(),
        after(
            story(*DONE, admitted(T2), opening(T2, 1), TurnEnded(turn=T2, status="finished")),
            world=CHARGED,
            calls=called(1),
        ),
        "the input k of session s was answered 2 times, not 1",
    ),
    "a turn ends in another way": (
        after(),
        after(
            story(*DONE[:-1], TurnEnded(turn=T1, status="stopped", reason="no_progress")),
            world=CHARGED,
            calls=called(1),
        ),
        "the input k of session s ended as stopped no_progress, undisturbed as finished",
    ),
    "an effect happens twice under one key": (
        after(),
        after(story(*DONE), world=Ledger(CHARGED.lines * 2), calls=called(1)),
        f"'charge' happened 2 times under the key {KEY}, expected 1",
    ),
    "an effect happens twice under two keys": (
        after(),
        after(story(*DONE), world=Ledger((*CHARGED, LedgerEntry(what="charge", key="other"))), calls=called(1)),
        "'charge' happened 2 times, expected 1 as in the undisturbed run",
    ),
    "something else happens": (
        after(),
        after(story(*DONE), world=Ledger((*CHARGED, LedgerEntry(what="refund"))), calls=called(1)),
        "'refund' happened 1 times, expected 0 as in the undisturbed run",
    ),
    "an effect is missing without a doubt": (
        after(),
        after(story(*DONE), calls=called(1)),
        "'charge' happened 0 times, expected 1, and nothing is in doubt",
    ),
    "a once call is dispatched twice": (
        after(),
        after(story(*DONE), world=CHARGED, calls=called(1, 1)),
        f"the once tool x was dispatched 2 times as attempt 1 of the call {KEY}",
    ),
    "a settled call runs again": (
        after(story(*DONE[:5]), world=CHARGED, calls=called(1, effect="pure")),
        after(story(*DONE), world=CHARGED, calls=called(1, 1, effect="pure")),
        f"the tool x ran again after its outcome was recorded: call {KEY}",
    ),
    "a second attempt without proof": (
        after(),
        after(story(*BEGUN, UNSAFE, *SECOND), world=CHARGED, calls=called(1, 2)),
        "session s: the call c1.0.2 was dispatched without proof that c1.0.1 did not happen",
    ),
    "a doubt without a cause": (
        after(story(*BEGUN[:3])),
        after(story(*DOUBTED), world=CHARGED),
        "session s: x (c1.0.1) is in doubt but was not under way at the crash",
    ),
    "a log that contradicts itself": (
        after(),
        after(story(*DONE, problems=("#3: expected #2 here; the log has a hole",)), world=CHARGED, calls=called(1)),
        "session s: #3: expected #2 here; the log has a hole",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_noticed_and_named(name: str) -> None:
    crashed, end, said_so = BROKEN[name]
    assert said_so in judge(USUAL, crashed, end)


def test_repetition_of_an_unrecorded_call_is_allowed() -> None:
    crashed = after(story(*BEGUN[:3]), calls=called(1, effect="pure"))
    assert judge(USUAL, crashed, after(story(*DONE), world=CHARGED, calls=called(1, 1, effect="pure"))) == ()
