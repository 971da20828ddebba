"""Envelopes, kinds, outcomes: what is validated, hashed and taken apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.codec import Json
from perdure.errors import Code, Error
from perdure.ids import CallId, PromiseId
from perdure.vocab import effects as e
from perdure.vocab import outcomes as o
from perdure.vocab.causes import (
    CausalRef,
    EffectCause,
    ProcessCause,
    ProcessEventCause,
    SessionNodeCause,
    TriggerOccurrenceCause,
)
from perdure.vocab.effects import (
    EffectKind,
    Envelope,
    Invocation,
    Replay,
    Scope,
)
from perdure.vocab.processes import AwaitProcess, ProcessesTransferred
from perdure.vocab.promises import Custom, EventKey, Ok

SCOPE = Scope(session_id="s1", turn_id="t1", turn_index=0, protocol_iteration=1)
KEY = EventKey(scope="s1", wait=Custom(key="reviewed"), key_id=PromiseId("k1"))
SPEC = e.LlmRequestSpec(model="sim:x")
CALL = e.PreparedToolCall(call_id=CallId("c1"), tool_id="tool:refund", tool_name="refund", args={"cents": 5})
DONE = o.Done(result=o.CompletedToolCall(call_id=CallId("c1"), tool_name="refund", output=o.Success(value=1)))
PENDING = o.Pending(key=KEY)

COMMANDS: list[tuple[str, e.Command]] = [
    ("llm_call", e.LlmCall(request=SPEC)),
    ("direct", e.Direct(request=SPEC, usage_source="title")),
    ("tool_call", e.CallTool(call=CALL)),
    ("tool_batch", e.CallTools(batch=e.PreparedToolBatch.of((CALL,)))),
    ("durable_step", e.DurableStep(step_id="render", input=[1])),
    ("process", e.Process(command=AwaitProcess(process_id="p1"))),
    ("exec_code", e.ExecCode(code="1+1")),
    ("checkpoint", e.Checkpoint(checkpoint="after_tools")),
    ("sync_execution_environment", e.SyncExecutionEnvironment()),
    ("sleep", e.Sleep(duration_ms=5)),
    ("await_event", e.AwaitEvent(key=KEY)),
]
OUTCOMES: list[tuple[str, o.Outcome]] = [
    ("llm_call", o.LlmCallOutcome()),
    ("direct", o.DirectOutcome()),
    ("tool_call", o.ToolCallOutcome(launch=DONE)),
    ("tool_batch", o.ToolBatchOutcome(launches=(DONE, PENDING))),
    ("durable_step", o.DurableStepOutcome(value=7)),
    ("process", o.ProcessEffectOutcome(result=ProcessesTransferred())),
    ("exec_code", o.ExecCodeOutcome(response=2)),
    ("checkpoint", o.CheckpointOutcome()),
    ("sync_execution_environment", o.SyncOutcome()),
    ("sleep", o.SleepOutcome()),
    ("await_event", o.AwaitEventOutcome(resolution=Ok(value="yes"))),
]
EXTRACTORS: dict[str, tuple[Callable[[o.Outcome], object], object]] = {
    "llm_call": (o.into_llm_call, o.LlmCallOutcome()),
    "direct": (o.into_direct, o.DirectOutcome()),
    "tool_call": (o.into_tool_call_effect, o.ToolCallOutcome(launch=DONE)),
    "tool_batch": (o.into_tool_batch, o.ToolBatchOutcome(launches=(DONE, PENDING))),
    "durable_step": (o.into_durable_step, o.DurableStepOutcome(value=7)),
    "process": (o.into_process, ProcessesTransferred()),
    "exec_code": (o.into_exec_code, o.ExecCodeOutcome(response=2)),
    "checkpoint": (o.into_checkpoint, o.CheckpointOutcome()),
    "sync_execution_environment": (o.into_sync_execution_environment, o.SyncOutcome()),
    "sleep": (o.into_sleep, o.SleepOutcome()),
    "await_event": (o.into_await_event, Ok(value="yes")),
}


def test_there_are_eleven_kinds_and_each_has_a_command_and_an_outcome() -> None:
    kinds = [
        "llm_call",
        "direct",
        "tool_call",
        "tool_batch",
        "durable_step",
        "process",
        "exec_code",
        "checkpoint",
        "sync_execution_environment",
        "sleep",
        "await_event",
    ]
    assert [kind.value for kind in EffectKind] == kinds
    assert [kind for kind, _ in COMMANDS] == kinds
    assert [kind for kind, _ in OUTCOMES] == kinds


@pytest.mark.parametrize(("kind", "command"), COMMANDS)
def test_a_command_knows_its_kind(kind: str, command: e.Command) -> None:
    assert command.kind.value == kind


@pytest.mark.parametrize(("kind", "outcome"), OUTCOMES)
def test_an_outcome_knows_its_kind(kind: str, outcome: o.Outcome) -> None:
    assert outcome.kind.value == kind


# --- envelopes


@pytest.mark.parametrize(("kind", "command"), COMMANDS)
def test_an_envelope_tells_id_key_and_kind(kind: str, command: e.Command) -> None:
    envelope = Envelope(invocation=Invocation.effect(SCOPE, "e1", EffectKind(kind), "k:1"), command=command)
    assert (envelope.id, envelope.key, envelope.kind.value) == ("e1", "k:1", kind)


SUBJECTS: list[tuple[e.Subject, CausalRef]] = [
    (e.ProcessSubject(process_id="p"), ProcessCause(process_id="p")),
    (
        e.ProcessEventSubject(process_id="p", sequence=3, event_type="x"),
        ProcessEventCause(process_id="p", sequence=3),
    ),
    (e.TriggerOccurrenceSubject(occurrence_id="o"), TriggerOccurrenceCause(occurrence_id="o")),
    (e.SessionNodeSubject(node_id="n"), SessionNodeCause(session_id="s1", node_id="n")),
]


@pytest.mark.parametrize(("subject", "cause"), SUBJECTS)
def test_only_an_effect_may_be_the_subject_of_an_envelope(subject: e.Subject, cause: CausalRef) -> None:
    invocation = Invocation(scope=SCOPE, subject=subject, replay=Replay(key="k"))
    with pytest.raises(Error) as caught:
        Envelope(invocation=invocation, command=e.Sleep(duration_ms=1))
    assert caught.value.code is Code.RUNTIME_EFFECT_INVOCATION_SUBJECT
    assert caught.value.message == "the subject of an effect envelope must be an effect"


@pytest.mark.parametrize(("subject", "cause"), SUBJECTS)
def test_other_subjects_have_no_effect_id_and_can_still_be_a_cause(subject: e.Subject, cause: CausalRef) -> None:
    invocation = Invocation(scope=SCOPE, subject=subject)
    assert (invocation.effect_id, invocation.effect_kind, invocation.replay_key) == (None, None, None)
    assert invocation.causal_ref() == cause


def test_an_effect_can_be_a_cause() -> None:
    invocation = Invocation.effect(SCOPE, "e1", EffectKind.SLEEP, "k", ProcessCause(process_id="p"))
    assert (invocation.effect_id, invocation.effect_kind) == ("e1", EffectKind.SLEEP)
    assert invocation.caused_by == ProcessCause(process_id="p")
    assert invocation.causal_ref() == EffectCause(session_id="s1", turn_id="t1", effect_id="e1")


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_the_effect_id_must_not_be_blank(blank: str) -> None:
    with pytest.raises(Error) as caught:
        Envelope(invocation=Invocation.effect(SCOPE, blank, EffectKind.SLEEP, "k"), command=e.Sleep(duration_ms=1))
    assert caught.value.code is Code.RUNTIME_EFFECT_INVOCATION_SUBJECT
    assert caught.value.message == "the effect id of an envelope must not be blank"


def test_invocation_and_command_must_be_of_one_kind() -> None:
    with pytest.raises(Error) as caught:
        Envelope(invocation=Invocation.effect(SCOPE, "e", EffectKind.DIRECT, "k"), command=e.Sleep(duration_ms=1))
    assert caught.value.code is Code.RUNTIME_EFFECT_INVOCATION_KIND
    assert caught.value.message == "the invocation has kind direct, the command sleep"


@pytest.mark.parametrize("replay", [None, Replay(key="")])
def test_an_envelope_needs_a_replay_key(replay: Replay | None) -> None:
    subject = e.EffectSubject(effect_id="e", kind=EffectKind.SLEEP)
    with pytest.raises(Error) as caught:
        Envelope(invocation=Invocation(scope=SCOPE, subject=subject, replay=replay), command=e.Sleep(duration_ms=1))
    assert caught.value.code is Code.RUNTIME_EFFECT_REPLAY_REQUIRED
    assert caught.value.message == "an effect envelope needs a replay key"


def step(input: Json, key: str = "k", id: str = "e") -> Envelope:
    return Envelope(
        invocation=Invocation.effect(Scope(session_id="s"), id, EffectKind.DURABLE_STEP, key),
        command=e.DurableStep(step_id="x", input=input),
    )


def test_the_fingerprint_of_an_envelope_never_changes() -> None:
    # sha256 of {"command":{"input":{"a":1},"step_id":"x","type":"durable_step"},"invocation":{"replay":{"key":"k"},
    #            "scope":{"session_id":"s"},"subject":{"effect_id":"e","kind":"durable_step","type":"effect"}}}
    assert step({"a": 1}).fingerprint() == "feea388e681730289948421b62197ef9cf4f1ede1c5544aae236761721802108"


def test_the_fingerprint_covers_command_and_invocation_exactly() -> None:
    variants = [step({"a": 1}), step({"a": 1.0}), step({"a": True}), step({"a": " 1"}), step({"a": "1"}), step({})]
    variants += [step({"a": 1}, key="k2"), step({"a": 1}, id="e2"), step({"a": 1, "output": None})]
    assert len({variant.fingerprint() for variant in variants}) == len(variants)
    assert step({"a": 1, "b": 2}).fingerprint() == step({"b": 2, "a": 1}).fingerprint()


def test_an_envelope_that_cannot_be_encoded_has_no_fingerprint() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    for input in (object(), "\ud800", {1: 2}, cycle):
        with pytest.raises(Error) as caught:
            step(input).fingerprint()
        assert caught.value.code is Code.RUNTIME_EFFECT_ENVELOPE_HASH


# --- taking outcomes apart


@pytest.mark.parametrize("wanted", EXTRACTORS)
@pytest.mark.parametrize(("actual", "outcome"), OUTCOMES)
def test_an_extractor_takes_its_own_kind_and_names_both_kinds_otherwise(
    wanted: str, actual: str, outcome: o.Outcome
) -> None:
    extract, answer = EXTRACTORS[wanted]
    if wanted == actual:
        assert extract(outcome) == answer
        return
    with pytest.raises(Error) as caught:
        extract(outcome)
    assert caught.value.code is Code.RUNTIME_EFFECT_WRONG_OUTCOME
    assert caught.value.details == {"expected": wanted, "actual": actual}
    assert caught.value.message == f"expected the outcome of {wanted}, got that of {actual}"


def test_a_completed_call_is_taken_out_of_its_launch() -> None:
    result = o.into_tool_call(o.ToolCallOutcome(launch=DONE))
    assert (result.call_id, result.tool_name, result.output) == ("c1", "refund", o.Success(value=1))


def test_a_pending_call_has_no_output_yet() -> None:
    with pytest.raises(Error) as caught:
        o.into_tool_call(o.ToolCallOutcome(launch=PENDING))
    assert caught.value.code is Code.RUNTIME_EFFECT_TOOL_CALL_PENDING
    assert o.into_tool_call_effect(o.ToolCallOutcome(launch=PENDING)).launch == PENDING


def test_a_completed_call_is_not_taken_out_of_another_kind() -> None:
    with pytest.raises(Error) as caught:
        o.into_tool_call(o.SleepOutcome())
    assert caught.value.code is Code.RUNTIME_EFFECT_WRONG_OUTCOME
    assert caught.value.details == {"expected": "tool_call", "actual": "sleep"}


# --- batches


def prepared(call: str, args: Json = None) -> e.PreparedToolCall:
    return e.PreparedToolCall(call_id=CallId(call), tool_id="tool:x", tool_name="x", args=args)


def test_each_call_of_a_batch_has_its_own_suffix() -> None:
    batch = e.PreparedToolBatch.of((prepared("c9"), prepared("c1"), prepared("c9")))
    assert [call.replay_suffix for call in batch.calls] == ["child:0:c9", "child:1:c1", "child:2:c9"]
    assert [call.call.call_id for call in batch.calls] == ["c9", "c1", "c9"]
    assert (len(batch), batch.is_empty) == (3, False)


def test_a_batch_is_named_by_its_ordered_calls() -> None:
    one, other = prepared("a", {"n": 1}), prepared("b", {"n": 1})
    names = [
        e.PreparedToolBatch.of(calls).batch_id
        for calls in ((one, other), (other, one), (one,), (), (one, prepared("b", {"n": 2})))
    ]
    assert len(set(names)) == 5
    # sha256 of [["a","tool:x",{"n":1}]]
    assert names[2] == "tool-batch:0400ac64353225130dbddfd58dbe4abca41aaaa6b5d0904567c83c55b6fd8a31"


def test_an_empty_batch_says_so() -> None:
    batch = e.PreparedToolBatch.of(())
    assert (len(batch), batch.is_empty) == (0, True)


def test_preparation_that_changes_nothing_is_the_call_itself() -> None:
    assert CALL.identity is CALL
