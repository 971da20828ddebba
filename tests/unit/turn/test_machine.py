"""The turn machine, transition by transition: facts in, debts out."""

from __future__ import annotations

import pytest

from perdure.errors import Code, Error
from perdure.ids import CallId, EffectId, TurnId, WorkerId
from perdure.turn.machine import left_asking, owed, recovery, stopped, unanswered
from perdure.turn.state import AskModel, EndTurn, Probe, RetryWait, RunCall, Turn, opened
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import (
    CompletedToolCall,
    DirectOutcome,
    DirectUsage,
    Done,
    Failed,
    InDoubt,
    LlmCallOutcome,
    LlmError,
    NotRun,
    SleepOutcome,
    Success,
    ToolCallOutcome,
)
from perdure.vocab.records import EffectSettled, Limits, ModelJobBegun, Record, SessionOpened, TurnEnded
from perdure.vocab.refs import EffectRef
from perdure.vocab.tools import Durability, EffectClass, RetryPolicy
from perdure.vocab.usage import Usage
from tests.unit.turn.turning import (
    LOST,
    T,
    admitted,
    asked,
    backoff,
    begun,
    broke,
    calls_of,
    cancel,
    composition,
    ended,
    folded,
    intent,
    late,
    lost,
    names,
    ok,
    opening,
    said,
    unsaid,
    verdict,
    woke,
)

PLAIN = Durability()
SERIAL = Durability(serial=True)
CLASSED = Durability(concurrency_class="db")
PROBED = Durability(doubt="probe")
SAFE = Durability(retry=RetryPolicy(kind="safe", max_attempts=3))
IDEMPOTENT = Durability(effect="idempotent", retry=RetryPolicy(kind="idempotent", max_attempts=3))


def after(*records: Record, **tools: Durability) -> list[str]:
    """Return the owed effects after these facts."""
    return names(owed(folded(opened(opening(), composition(tools)), *records)))


TABLE: list[tuple[str, tuple[Record, ...], list[str]]] = [
    ("the model is asked first", (), ["ask m1.1"]),
    ("a started question is still owed", (asked(),), ["ask m1.1"]),
    ("words end the turn", (said(text="hi"),), ["end finished"]),
    ("silence ends the turn", (said(),), ["end finished"]),
    ("words cut short end the turn", (said(text="hi", finish="length"),), ["end finished"]),
    ("a refusal stops the turn", (said(text="no", finish="refusal"),), ["end refused"]),
    ("a filtered reply stops the turn", (said(finish="content_filter"),), ["end refused"]),
    ("calls are all owed at once", (said("x", "x", "x"),), ["run c1.0.1", "run c1.1.1", "run c1.2.1"]),
    ("a started call is still owed", (said("x"), intent("c1.0.1")), ["run c1.0.1"]),
    ("an answered call is not owed", (said("x", "x"), ok("c1.0.1")), ["run c1.1.1"]),
    ("answers arrive in any order", (said("x", "x"), ok("c1.1.1")), ["run c1.0.1"]),
    ("the model is asked again when all is answered", (said("x"), ok("c1.0.1")), ["ask m2.1"]),
    ("a failure is an answer", (said("x"), broke("c1.0.1")), ["ask m2.1"]),
    ("doubt is told", (said("x"), intent("c1.0.1"), lost("c1.0.1")), ["ask m2.1"]),
    ("not run is an answer", (said("x"), ended("c1.0.1", NotRun())), ["ask m2.1"]),
    ("a second round has its own ids", (said("x"), ok("c1.0.1"), said("x", id="m2.1")), ["run c2.0.1"]),
    ("a tool nobody knows is owed too", (said("unheard"),), ["run c1.0.1"]),
    ("text beside calls does not end the turn", (said("x", text="let me see"),), ["run c1.0.1"]),
    ("an ended turn owes nothing", (said(text="hi"), TurnEnded(turn=T, status="finished")), []),
    ("a cancelled turn owes nothing to the world", (said("x"), cancel()), []),
    ("a cancel request for another turn is nothing", (cancel(TurnId("t2")),), ["ask m1.1"]),
    ("an input that arrives meanwhile is nothing yet", (admitted(),), ["ask m1.1"]),
    ("a cancel request after the end is nothing", (TurnEnded(turn=T, status="finished"), cancel()), []),
]


@pytest.mark.parametrize(("records", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_turn_owes_the_expected_effects(records: tuple[Record, ...], expected: list[str]) -> None:
    assert after(*records, x=PLAIN) == expected


def test_the_end_carries_status_and_usage() -> None:
    turn = folded(
        begun(x=PLAIN),
        said("x", usage=Usage(input=10, output=1, calls=1)),
        ok("c1.0.1"),
        said(text="done", id="m2.1", usage=Usage(input=20, output=2, calls=1)),
    )
    assert owed(turn) == (EndTurn(TurnEnded(turn=T, status="finished", usage=Usage(input=30, output=3, calls=2))),)
    assert turn.ended is None
    end = TurnEnded(turn=T, status="finished")
    assert folded(turn, end).ended == end


def test_a_debt_carries_what_its_runner_needs() -> None:
    turn = folded(begun(x=SAFE), said("x"))
    (run,) = owed(turn)
    assert isinstance(run, RunCall)
    assert (run.call.id, run.call.name) == ("t1.1.0", "x")
    assert run.contract is not None
    assert run.contract.durability == SAFE


def test_an_unknown_tool_has_no_contract_and_the_most_careful_class() -> None:
    turn = folded(begun(), said("unheard"))
    (run,) = owed(turn)
    assert isinstance(run, RunCall)
    assert run.contract is None
    assert calls_of(turn)[0].durability == Durability(effect="once", doubt="tell")


# --- which calls may start


def test_serial_calls_come_last_and_alone() -> None:
    tools = {"s": SERIAL, "x": PLAIN}
    records: list[Record] = [said("s", "x", "s", "x")]
    assert after(*records, **tools) == ["run c1.1.1", "run c1.3.1"]
    records += [ok("c1.3.1")]
    assert after(*records, **tools) == ["run c1.1.1"]
    records += [ok("c1.1.1")]
    assert after(*records, **tools) == ["run c1.0.1"]
    records += [ok("c1.0.1")]
    assert after(*records, **tools) == ["run c1.2.1"]
    records += [ok("c1.2.1")]
    assert after(*records, **tools) == ["ask m2.1"]


def test_calls_of_one_class_run_singly_in_order() -> None:
    tools = {"db": CLASSED, "other": Durability(concurrency_class="mail"), "x": PLAIN}
    records: list[Record] = [said("db", "x", "db", "other", "db")]
    assert after(*records, **tools) == ["run c1.0.1", "run c1.1.1", "run c1.3.1"]
    records += [ok("c1.0.1")]
    assert after(*records, **tools) == ["run c1.1.1", "run c1.2.1", "run c1.3.1"]
    records += [ok("c1.2.1"), ok("c1.1.1"), ok("c1.3.1")]
    assert after(*records, **tools) == ["run c1.4.1"]


def test_two_tools_may_share_a_class() -> None:
    tools = {"read": CLASSED, "write": CLASSED}
    assert after(said("read", "write"), **tools) == ["run c1.0.1"]
    assert after(said("read", "write"), ok("c1.0.1"), **tools) == ["run c1.1.1"]


def test_at_most_thirty_two_calls_are_under_way() -> None:
    forty = said(*["x"] * 40)
    assert after(forty, x=PLAIN) == [f"run c1.{index}.1" for index in range(32)]
    assert after(forty, ok("c1.5.1"), x=PLAIN) == [f"run c1.{index}.1" for index in range(33) if index != 5]


def test_the_cap_belongs_to_the_turn() -> None:
    turn = folded(begun(limits=Limits(max_parallel_calls=2), x=PLAIN), said(*["x"] * 4))
    assert names(owed(turn)) == ["run c1.0.1", "run c1.1.1"]
    assert names(owed(folded(turn, ok("c1.1.1")))) == ["run c1.0.1", "run c1.2.1"]


def test_s16_excess_calls_are_owed_without_a_slot_of_their_own() -> None:
    limits = Limits(calls_per_reply=2, max_parallel_calls=3)
    turn = folded(opened(opening(limits=limits), composition({"x": PLAIN})), said(*["x"] * 100))
    assert names(owed(turn)) == [f"run c1.{n}.1" for n in range(66)]
    assert [one.refusal is not None for one in owed(turn) if isinstance(one, RunCall)] == [False] * 2 + [True] * 64


def test_s16_excess_calls_wait_while_the_cap_is_reached() -> None:
    limits = Limits(calls_per_reply=3, max_parallel_calls=2)
    turn = folded(opened(opening(limits=limits), composition({"x": PLAIN})), said(*["x"] * 5))
    assert names(owed(turn)) == ["run c1.0.1", "run c1.1.1"]
    turn = folded(turn, ok("c1.0.1"), ok("c1.1.1"))
    assert names(owed(turn)) == ["run c1.2.1", "run c1.3.1", "run c1.4.1"]


def test_call_in_backoff_blocks_its_class() -> None:
    tools = {"db": Durability(concurrency_class="db", retry=RetryPolicy(kind="safe", max_attempts=2))}
    assert after(said("db", "db"), broke("c1.0.1", safe=True), **tools) == ["wait c1.0.1.sleep"]


def test_direct_usage_of_a_tool_counts_for_the_turn() -> None:
    spent = tuple(DirectUsage(source="look", model="m", usage=Usage(input=n, calls=1)) for n in (3, 4))
    done = CompletedToolCall(call_id=CallId("t1.1.0"), tool_name="once", output=Success(value=1))
    settled = EffectSettled(id=EffectId("c1.0.1"), outcome=ToolCallOutcome(launch=Done(result=done), direct=spent))
    turn = folded(begun(once=Durability()), said("once", usage=Usage(output=5, calls=1)), settled)
    assert turn.usage == Usage(input=7, output=5, calls=3)


def test_recorded_completions_of_a_body_count_for_the_turn() -> None:
    reply = Reply(parts=(), usage=Usage(input=9, calls=1))
    asked_itself = EffectSettled(id=EffectId("c1.0/direct:sum"), outcome=DirectOutcome(reply=reply, source="x"))
    turn = folded(begun(once=Durability()), said("once", usage=Usage(calls=1)), asked_itself)
    assert turn.usage == Usage(input=9, calls=2)
    assert names(owed(turn)) == ["run c1.0.1"], "the owed effects are unchanged"


def test_results_keep_the_models_order_whatever_the_order_of_their_arrival() -> None:
    turn = folded(begun(x=PLAIN), said("x", "x", "x"), ok("c1.2.1", "C"), ok("c1.0.1", "A"))
    assert [call.output for call in calls_of(turn)] == [Success(value="A"), None, Success(value="C")]
    assert [call.request.id for call in calls_of(turn)] == ["t1.1.0", "t1.1.1", "t1.1.2"]


# --- retries of calls


def test_a_tool_that_says_nothing_is_never_retried() -> None:
    assert after(said("x"), broke("c1.0.1", safe=True), x=PLAIN) == ["ask m2.1"]


def test_safe_failure_is_retried_after_a_backoff() -> None:
    records: list[Record] = [said("x"), intent("c1.0.1"), broke("c1.0.1", safe=True)]
    assert after(*records, x=SAFE) == ["wait c1.0.1.sleep"]
    records += [backoff("c1.0.1.sleep", due_at=7_000)]
    (wait,) = owed(folded(begun(x=SAFE), *records))
    assert wait == RetryWait(EffectRef(1, 0, 1, "sleep"), 200, 7_000)
    records += [woke("c1.0.1.sleep")]
    assert after(*records, x=SAFE) == ["run c1.0.2"]
    records += [intent("c1.0.2"), ok("c1.0.2")]
    assert after(*records, x=SAFE) == ["ask m2.1"]


@pytest.mark.parametrize(
    ("how", "safe", "retried"),
    [
        (Durability(retry=RetryPolicy(kind="never", max_attempts=3)), True, False),
        (SAFE, True, True),
        (SAFE, False, False),
        (IDEMPOTENT, True, True),
        (IDEMPOTENT, False, True),
    ],
)
def test_failure_is_retried_by_policy_and_safety(how: Durability, safe: bool, retried: bool) -> None:
    assert after(said("x"), broke("c1.0.1", safe=safe), x=how) == (["wait c1.0.1.sleep"] if retried else ["ask m2.1"])


@pytest.mark.parametrize("how", [SAFE, IDEMPOTENT])
def test_invalid_failure_is_never_retried(how: Durability) -> None:
    assert after(said("x"), broke("c1.0.1", safe=True, failure_class="invalid"), x=how) == ["ask m2.1"]


def test_the_last_failure_tells_how_often_it_was_tried() -> None:
    records: list[Record] = [said("x", "x")]
    for attempt in (1, 2):
        records += [broke(f"c1.0.{attempt}", safe=True), woke(f"c1.0.{attempt}.sleep")]
    turn = folded(begun(x=SAFE), *records, broke("c1.0.3", safe=True))
    output = calls_of(turn)[0].output
    assert isinstance(output, Failed)
    assert (output.failure.attempts, output.failure.code, output.failure.retry_safe) == (3, "broke", True)


def test_delays_double_are_capped_and_honour_what_the_failure_asks() -> None:
    how = Durability(retry=RetryPolicy(kind="safe", max_attempts=9, base_delay_ms=100, max_delay_ms=250))
    turn = folded(begun(x=how), said("x"))
    delays: list[int] = []
    for attempt, after_ms in enumerate((None, None, None, 5_000, None), start=1):
        turn = folded(turn, broke(f"c1.0.{attempt}", safe=True, after_ms=after_ms))
        (wait,) = owed(turn)
        assert isinstance(wait, RetryWait)
        delays.append(wait.duration_ms)
        turn = folded(turn, woke(f"c1.0.{attempt}.sleep"))
    assert delays == [100, 200, 250, 5_000, 250]


def test_doubt_is_never_retried() -> None:
    assert after(said("x"), intent("c1.0.1"), lost("c1.0.1"), x=SAFE) == ["ask m2.1"]


# --- doubt


def test_a_probe_is_owed_with_all_it_needs_to_judge() -> None:
    turn = folded(
        begun(x=PROBED),
        said("x"),
        intent("c1.0.1", doubt="probe", worker="w9"),
        ended("c1.0.1", InDoubt(reason="timeout")),
    )
    (probe,) = owed(turn)
    assert isinstance(probe, Probe)
    assert (probe.ref.id, probe.call.id) == ("c1.0.1.probe", "t1.1.0")
    assert (probe.doubt, probe.worker) == (InDoubt(reason="timeout"), WorkerId("w9"))


def test_the_policy_in_the_intent_governs() -> None:
    assert after(said("x"), intent("c1.0.1", doubt="tell"), lost("c1.0.1"), x=PROBED) == ["ask m2.1"]
    assert after(said("x"), intent("c1.0.1", doubt="probe"), lost("c1.0.1"), x=PLAIN) == ["probe c1.0.1.probe"]


DOUBTED: tuple[Record, ...] = (said("x", "x"), intent("c1.0.1", doubt="probe"), lost("c1.0.1"))


def test_probe_verdict_happened_is_a_success() -> None:
    turn = folded(begun(x=PROBED), *DOUBTED, verdict("c1.0.1.probe", "happened", {"id": 7}))
    assert calls_of(turn)[0].output == Success(value={"id": 7})
    assert names(owed(turn)) == ["run c1.1.1"]


@pytest.mark.parametrize("answer", ["unknown", "no idea"])
def test_inconclusive_probe_leaves_the_call_in_doubt(answer: str) -> None:
    turn = folded(begun(x=PROBED), *DOUBTED, verdict("c1.0.1.probe", answer))
    assert calls_of(turn)[0].output == LOST


def test_probe_verdict_did_not_happen_starts_another_attempt() -> None:
    turn = folded(begun(x=PROBED), *DOUBTED, verdict("c1.0.1.probe", "did_not_happen"))
    assert names(owed(turn)) == ["run c1.0.2", "run c1.1.1"]
    assert calls_of(turn)[0].started is None


def test_a_call_is_sent_out_again_three_times_at_most() -> None:
    turn = folded(begun(x=PROBED), said("x", "x"))
    for attempt in (1, 2, 3):
        turn = folded(turn, intent(f"c1.0.{attempt}", doubt="probe"), lost(f"c1.0.{attempt}"))
        turn = folded(turn, verdict(f"c1.0.{attempt}.probe", "did_not_happen"))
        assert names(owed(turn))[0] == f"run c1.0.{attempt + 1}"
    turn = folded(turn, intent("c1.0.4", doubt="probe"), lost("c1.0.4"), verdict("c1.0.4.probe", "did_not_happen"))
    assert calls_of(turn)[0].output == LOST
    assert names(owed(turn)) == ["run c1.1.1"]


def test_asking_again_does_not_use_up_the_attempts_of_a_failing_tool() -> None:
    how = Durability(doubt="probe", retry=RetryPolicy(kind="safe", max_attempts=2))
    turn = folded(begun(x=how), said("x"), intent("c1.0.1", doubt="probe"), lost("c1.0.1"))
    turn = folded(turn, verdict("c1.0.1.probe", "did_not_happen"), intent("c1.0.2"), broke("c1.0.2", safe=True))
    assert names(owed(turn)) == ["wait c1.0.2.sleep"]


# --- late outcomes


def test_a_late_outcome_settles_a_call_that_is_in_doubt() -> None:
    turn = folded(begun(x=PLAIN), said("x", "x"), intent("c1.0.1"), lost("c1.0.1"), late("c1.0.1", "paid"))
    assert calls_of(turn)[0].output == Success(value="paid")


def test_a_late_outcome_makes_a_probe_unnecessary() -> None:
    turn = folded(begun(x=PROBED), *DOUBTED, late("c1.0.1", "paid"))
    assert calls_of(turn)[0].output == Success(value="paid")
    assert names(owed(turn)) == ["run c1.1.1"]


def test_late_outcome_settles_a_call_before_its_doubt() -> None:
    turn = folded(begun(x=PLAIN), said("x", "x"), intent("c1.0.1"), late("c1.0.1", "paid"))
    assert calls_of(turn)[0].output == Success(value="paid")
    assert recovery(turn) == ()


def test_the_last_doubt_settled_late_lets_the_turn_go_on() -> None:
    assert after(said("x"), intent("c1.0.1"), late("c1.0.1"), x=PLAIN) == ["ask m2.1"]


IGNORED: list[tuple[str, tuple[Record, ...], str]] = [
    ("of a call that was answered", (said("x", "x"), ok("c1.0.1")), "c1.0.1"),
    ("of a call that failed", (said("x", "x"), broke("c1.0.1")), "c1.0.1"),
    ("of a call that was never dispatched", (said("x", "x"),), "c1.0.1"),
    ("of an earlier attempt", (*DOUBTED, verdict("c1.0.1.probe", "did_not_happen"), intent("c1.0.2")), "c1.0.1"),
    ("of an earlier round", (said("x"), lost("c1.0.1")), "c1.0.1"),
    ("before any call was made", (), "c1.0.1"),
    ("after the end", (TurnEnded(turn=T, status="finished"),), "c1.0.1"),
]


@pytest.mark.parametrize(("records", "id"), [row[1:] for row in IGNORED], ids=[row[0] for row in IGNORED])
def test_a_late_outcome_is_nothing_to_the_machine(records: tuple[Record, ...], id: str) -> None:
    turn = folded(begun(x=PROBED), *records)
    assert folded(turn, late(id)) == turn


def test_a_late_outcome_of_another_turn_is_nothing_to_the_machine() -> None:
    turn = folded(begun(x=PLAIN), said("x"), intent("c1.0.1"))
    assert folded(turn, late("c1.0.1", turn=TurnId("t0"))) == turn


# --- the model


def test_a_model_that_fails_is_asked_again_after_a_sleep() -> None:
    records: list[Record] = [asked("m1.1"), unsaid("m1.1")]
    (wait,) = owed(folded(begun(), *records))
    assert wait == RetryWait(EffectRef(1, None, 1, "sleep"), 500, None)
    records += [backoff("m1.1.sleep", due_at=6_000)]
    assert owed(folded(begun(), *records)) == (RetryWait(EffectRef(1, None, 1, "sleep"), 500, 6_000),)
    records += [woke("m1.1.sleep")]
    assert after(*records) == ["ask m1.2"]
    records += [asked("m1.2"), said(text="hi", id="m1.2")]
    assert after(*records) == ["end finished"]


def test_a_models_delays_double_and_honour_what_the_provider_asks() -> None:
    turn = begun(limits=Limits(model_attempts=9, recovery_ms=200_000))
    delays: list[int] = []
    for attempt, after_ms in enumerate((None, None, 60_000, None, None, None, None), start=1):
        turn = folded(turn, unsaid(f"m1.{attempt}", after_ms=after_ms))
        (wait,) = owed(turn)
        assert isinstance(wait, RetryWait)
        delays.append(wait.duration_ms)
        turn = folded(turn, woke(f"m1.{attempt}.sleep"))
    assert delays == [500, 1_000, 60_000, 4_000, 8_000, 16_000, 20_000]


def test_a_turn_waits_so_long_for_one_reply_and_no_longer() -> None:
    turn = folded(begun(), unsaid("m1.1", after_ms=50_000))
    assert [owe.duration_ms for owe in owed(turn) if isinstance(owe, RetryWait)] == [50_000]
    turn = folded(turn, woke("m1.1.sleep"))
    assert [
        owe.duration_ms for owe in owed(folded(turn, unsaid("m1.2", after_ms=40_000))) if isinstance(owe, RetryWait)
    ] == [40_000]
    (end,) = owed(folded(turn, unsaid("m1.2", after_ms=40_001)))
    assert isinstance(end, EndTurn)
    assert end.ended.reason == "provider_error"


def test_a_model_that_fails_four_times_stops_the_turn() -> None:
    turn = begun()
    for attempt in (1, 2, 3):
        turn = folded(turn, unsaid(f"m1.{attempt}"), woke(f"m1.{attempt}.sleep"))
    (end,) = owed(folded(turn, unsaid("m1.4")))
    assert isinstance(end, EndTurn)
    assert (end.ended.status, end.ended.reason, end.ended.message) == ("stopped", "provider_error", "unavailable: down")


def test_an_error_that_cannot_pass_stops_the_turn_at_once() -> None:
    assert after(unsaid(retryable=False)) == ["end provider_error"]


def deserted(id: str) -> EffectSettled:
    error = LlmError(kind="worker_lost", message="gone", retryable=True)
    return EffectSettled(
        id=EffectId(id), outcome=LlmCallOutcome(error=error, spent=Usage(input=5, calls=1, estimated=1))
    )


def test_lost_worker_costs_no_attempt_and_no_backoff() -> None:
    records: list[Record] = []
    for n in range(1, 5):
        records += [asked(f"m1.{n}"), deserted(f"m1.{n}")]
        assert after(*records) == [f"ask m1.{n + 1}"]
    turn = folded(begun(), *records)
    assert turn.usage == Usage(input=20, calls=4, estimated=4)
    assert left_asking(turn) is None
    assert left_asking(folded(turn, asked("m1.5"))) == EffectRef(1, None, 5)
    (wait,) = owed(folded(turn, asked("m1.5"), unsaid("m1.5")))
    assert isinstance(wait, RetryWait)
    assert wait.duration_ms == 500, "this is the first failure"


def test_s4_five_lost_replies_of_one_request_stop_the_turn() -> None:
    lost = [deserted(f"m1.{attempt}") for attempt in range(1, 6)]
    (end,) = owed(folded(begun(), *lost))
    assert isinstance(end, EndTurn)
    assert (end.ended.reason, end.ended.usage) == ("no_forward_progress", Usage(input=25, calls=5, estimated=5))


def test_a_job_is_waited_for_until_it_is_lost() -> None:
    job = ModelJobBegun(id=EffectId("m1.1"), job={"id": "j"})
    turn = folded(begun(), asked("m1.1"), job)
    assert left_asking(turn) is None, "the next owner awaits the same job"
    assert owed(turn) == (AskModel(EffectRef(1, None, 1), job={"id": "j"}),)
    again = folded(turn, unsaid("m1.1"), woke("m1.1.sleep"))
    assert owed(again) == (AskModel(EffectRef(1, None, 2), job={"id": "j"}),)
    gone = LlmCallOutcome(error=LlmError(kind="job_lost", message="gone", retryable=True))
    anew = folded(turn, EffectSettled(id=EffectId("m1.1"), outcome=gone), woke("m1.1.sleep"))
    assert owed(anew) == (AskModel(EffectRef(1, None, 2)),)


def test_attempts_are_counted_anew_for_each_reply() -> None:
    records = (unsaid("m1.1"), woke("m1.1.sleep"), said("x", id="m1.2"), ok("c1.0.1"))
    assert after(*records, x=PLAIN) == ["ask m2.1"]


# --- budgets


def rounds(count: int, limits: Limits, *, good: bool = True) -> Turn:
    turn = begun(limits=limits, x=PLAIN)
    for iteration in range(1, count + 1):
        answer = ok(f"c{iteration}.0.1") if good else broke(f"c{iteration}.0.1")
        turn = folded(turn, said("x", id=f"m{iteration}.1"), answer)
    return turn


def test_the_last_reply_is_asked_for_without_tools() -> None:
    limits = Limits(max_iterations=2)
    assert names(owed(rounds(1, limits))) == ["ask m2.1"]
    (ask,) = owed(rounds(2, limits))
    assert ask == AskModel(EffectRef(3, None, 1), "none")


def test_fifty_rounds_are_allowed_unless_said_otherwise() -> None:
    assert names(owed(rounds(49, Limits()))) == ["ask m50.1"]
    assert names(owed(rounds(50, Limits()))) == ["ask m51.1 (none)"]


def test_a_last_reply_in_words_finishes_the_turn() -> None:
    turn = rounds(2, Limits(max_iterations=2))
    assert names(owed(folded(turn, said(text="so far", id="m3.1")))) == ["end finished"]


def test_a_last_reply_that_calls_again_is_not_obeyed() -> None:
    turn = rounds(2, Limits(max_iterations=2))
    assert names(owed(folded(turn, said("x", text="so far", id="m3.1")))) == ["end finished"]
    (end,) = owed(folded(turn, said("x", id="m3.1")))
    assert isinstance(end, EndTurn)
    assert (end.ended.reason, end.ended.message) == ("max_iterations", "no final reply after 2 iterations")


def test_a_last_reply_that_fails_is_asked_for_again_without_tools() -> None:
    turn = folded(rounds(2, Limits(max_iterations=2)), unsaid("m3.1"), woke("m3.1.sleep"))
    assert names(owed(turn)) == ["ask m3.2 (none)"]


def test_twelve_fruitless_rounds_in_a_row_stop_the_turn() -> None:
    assert names(owed(rounds(11, Limits(), good=False))) == ["ask m12.1"]
    (end,) = owed(rounds(12, Limits(), good=False))
    assert isinstance(end, EndTurn)
    assert end.ended.reason == "no_progress"
    assert end.ended.message == "12 replies in a row led to no successful call"


def test_one_success_in_a_round_is_progress() -> None:
    limits = Limits(no_progress=2)
    turn = begun(limits=limits, x=PLAIN)
    turn = folded(turn, said("x"), broke("c1.0.1"))
    turn = folded(turn, said("x", "x", id="m2.1"), broke("c2.0.1"), ok("c2.1.1"))
    turn = folded(turn, said("x", id="m3.1"), broke("c3.0.1"))
    assert names(owed(turn)) == ["ask m4.1"]
    assert names(owed(folded(turn, said("x", id="m4.1"), lost("c4.0.1")))) == ["end no_progress"]


# --- cancelling


def test_a_cancelled_turn_tells_which_calls_have_no_answer_yet() -> None:
    turn = folded(begun(x=SAFE), said("x", "x", "x"), ok("c1.1.1"), broke("c1.2.1", safe=True), cancel())
    assert [(ref.id, call.request.id) for ref, call in unanswered(turn)] == [("c1.0.1", "t1.1.0"), ("c1.2.2", "t1.1.2")]
    assert turn.cancel == cancel()


def test_after_the_request_nothing_is_retried_or_probed() -> None:
    assert after(said("x", "x"), cancel(), broke("c1.0.1", safe=True), x=SAFE) == []
    assert after(said("x", "x"), intent("c1.0.1", doubt="probe"), cancel(), lost("c1.0.1"), x=PROBED) == []


def test_doubt_survives_the_request() -> None:
    turn = folded(begun(x=PROBED), said("x", "x"), intent("c1.0.1", doubt="probe"), cancel(), lost("c1.0.1"))
    assert [(ref.id, call.doubt) for ref, call in unanswered(turn)] == [("c1.0.1", LOST), ("c1.1.1", None)]


# The owner may learn of a request after it has written more; a fold of the log meets the request first.
LEARNED_LATE: list[tuple[str, tuple[Record, ...]]] = [
    (
        "a retry",
        (said("x"), broke("c1.0.1", safe=True), backoff("c1.0.1.sleep"), woke("c1.0.1.sleep"), intent("c1.0.2")),
    ),
    ("a probe", (said("x"), intent("c1.0.1", doubt="probe"), lost("c1.0.1"), verdict("c1.0.1.probe", "unknown"))),
    ("a model's retry", (unsaid("m1.1"), backoff("m1.1.sleep"), woke("m1.1.sleep"), asked("m1.2"))),
    ("a second round", (said("x"), ok("c1.0.1"), asked("m2.1"), said(text="hi", id="m2.1"))),
]


@pytest.mark.parametrize("records", [row[1] for row in LEARNED_LATE], ids=[row[0] for row in LEARNED_LATE])
def test_the_place_of_a_request_among_the_records_does_not_matter(records: tuple[Record, ...]) -> None:
    last = folded(begun(x=SAFE), *records, cancel())
    for place in range(len(records)):
        assert folded(begun(x=SAFE), *records[:place], cancel(), *records[place:]) == last


def test_every_call_can_be_answered_after_the_request_and_the_turn_ends() -> None:
    turn = folded(begun(x=PROBED), said("x", "x"), intent("c1.0.1", doubt="probe"), lost("c1.0.1"), cancel())
    for ref, call in unanswered(turn):
        turn = folded(turn, ended(ref.id, call.doubt or NotRun(reason="cancelled")))
    assert owed(turn) == ()
    end = stopped(turn, "cancelled", "enough")
    assert (end.status, end.reason, end.message, end.turn) == ("stopped", "cancelled", "enough", T)
    assert folded(turn, end).ended == end


def test_a_final_reply_after_the_request_ends_nothing_by_itself() -> None:
    turn = folded(begun(), cancel(), said(text="done"))
    assert owed(turn) == ()
    assert turn.ended is None


# --- recovery


def test_a_new_owner_doubts_every_call_that_was_dispatched_and_not_answered() -> None:
    turn = folded(begun(x=PLAIN), said(*["x"] * 4), intent("c1.0.1"), intent("c1.1.1"), ok("c1.1.1"), intent("c1.3.1"))
    found = recovery(turn)
    doubt = InDoubt(reason="worker_lost", message="the worker died before the outcome was recorded")
    assert found == (ended("c1.0.1", doubt), ended("c1.3.1", doubt))
    assert names(owed(folded(turn, *found))) == ["run c1.2.1"]


def test_recovery_says_nothing_twice() -> None:
    turn = folded(begun(x=PROBED), said("x", "x"), intent("c1.0.1", doubt="probe"))
    recovered = folded(turn, *recovery(turn))
    assert names(owed(recovered)) == ["probe c1.0.1.probe", "run c1.1.1"]
    assert recovery(recovered) == ()


def test_recovery_doubts_the_attempt_that_was_dispatched() -> None:
    turn = folded(
        begun(x=SAFE), said("x"), intent("c1.0.1"), broke("c1.0.1", safe=True), woke("c1.0.1.sleep"), intent("c1.0.2")
    )
    assert [record.id for record in recovery(turn)] == ["c1.0.2"]


@pytest.mark.parametrize("records", [(), (said("x"),), (said("x"), broke("c1.0.1", safe=True)), (said(text="hi"),)])
def test_recovery_doubts_nothing_that_was_not_dispatched(records: tuple[Record, ...]) -> None:
    assert recovery(folded(begun(x=SAFE), *records)) == ()


@pytest.mark.parametrize("effect", ["pure", "idempotent", "resumable"])
def test_recovery_runs_again_what_may_run_again(effect: EffectClass) -> None:
    turn = folded(begun(x=PLAIN), said("x"), intent("c1.0.1", effect=effect))
    assert recovery(turn) == ()
    assert names(owed(turn)) == ["run c1.0.1"]


# --- what does not fit

RETRIED: tuple[Record, ...] = (said("x", "x"), broke("c1.0.1", safe=True), woke("c1.0.1.sleep"))
MISFITS: list[tuple[str, tuple[Record, ...], Record]] = [
    ("a second opening", (), opening()),
    ("the opening of a session", (), SessionOpened(agent="a")),
    ("a call before any reply", (), intent("c1.0.1")),
    ("an answer before any reply", (), ok("c1.0.1")),
    ("a reply while calls are answered", (said("x"),), said(text="hi", id="m1.1")),
    ("a question while calls are answered", (said("x"),), asked("m2.1")),
    ("a call that was not made", (said("x"),), ok("c1.7.1")),
    ("the start of a call that was not made", (said("x"),), intent("c1.7.1")),
    ("the start of a later attempt", (said("x"),), intent("c1.0.2")),
    ("the answer of a later attempt", (said("x", "x"),), ok("c1.0.2")),
    ("the answer of an earlier attempt", RETRIED, ok("c1.0.1")),
    ("a second answer", (said("x", "x"), ok("c1.0.1")), ok("c1.0.1", "other")),
    ("a start after the answer", (said("x", "x"), ok("c1.0.1")), intent("c1.0.1")),
    ("an answer of an earlier round", (said("x"), ok("c1.0.1"), said("x", id="m2.1")), ok("c1.0.1")),
    ("a reply of another iteration", (), said(text="hi", id="m2.1")),
    ("a reply of another attempt", (), said(text="hi", id="m1.2")),
    ("the start of another attempt", (), asked("m1.2")),
    ("a model awakes that did not sleep", (), woke("m1.1.sleep")),
    ("a call awakes that did not sleep", (said("x"),), woke("c1.0.1.sleep")),
    ("a verdict nobody asked for", (said("x"),), verdict("c1.0.1.probe", "happened")),
    ("a verdict about an answered call", (said("x", "x"), ok("c1.0.1")), verdict("c1.0.1.probe", "happened")),
    ("an outcome of the wrong kind", (), EffectSettled(id=EffectId("m1.1"), outcome=SleepOutcome())),
    ("an effect after the conclusion", (said(text="hi"),), asked("m2.1")),
    ("an effect after the end", (TurnEnded(turn=T, status="finished"),), asked("m1.1")),
    ("the end of another turn", (), TurnEnded(turn=TurnId("t2"), status="finished")),
    ("an id that is no id", (), EffectSettled(id=EffectId("nonsense"), outcome=SleepOutcome())),
]


@pytest.mark.parametrize(("records", "misfit"), [row[1:] for row in MISFITS], ids=[row[0] for row in MISFITS])
def test_a_record_that_does_not_fit_is_an_error(records: tuple[Record, ...], misfit: Record) -> None:
    turn = folded(begun(x=SAFE), *records)
    with pytest.raises(Error) as caught:
        folded(turn, misfit)
    assert caught.value.code is Code.TURN_EVENT_UNEXPECTED


def test_a_turn_is_a_value() -> None:
    one = folded(begun(x=PLAIN), said("x"), intent("c1.0.1"))
    other = folded(begun(x=PLAIN), said("x"), intent("c1.0.1"))
    assert one == other
    assert CallId("t1.1.0") == calls_of(one)[0].request.id
