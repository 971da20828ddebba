"""The model's view: valid after any interruption, and true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import Json
from perdure.ids import BlobHash, CallId, EffectId, InputId, TurnId
from perdure.session.view import LATE, Conversation, joined, message_for_model, turn_view
from perdure.testing.validity import complaints
from perdure.turn.state import Acting
from perdure.vocab.effects import EffectKind
from perdure.vocab.messages import (
    AttachmentRef,
    ImagePart,
    Message,
    Part,
    Reply,
    ReplyPart,
    Text,
    Thinking,
    ToolCall,
    ToolResultPart,
)
from perdure.vocab.notifications import notification
from perdure.vocab.outcomes import (
    DurableStepOutcome,
    Failed,
    FailureDetail,
    InDoubt,
    LlmCallOutcome,
    NotRun,
    Success,
    ToolOutput,
)
from perdure.vocab.records import (
    EffectSettled,
    EffectStarted,
    InputAdmitted,
    OutcomeArrivedLate,
    Record,
    SessionPaused,
    SessionResumed,
    StopReason,
    TurnEnded,
    TurnOpened,
)
from tests.unit.session.logs import Session, by_turn, news_of, random_log
from tests.unit.turn.test_machine_laws import owner
from tests.unit.turn.turning import (
    admitted,
    asked,
    backoff,
    broke,
    cancel,
    ended,
    intent,
    late,
    lost,
    ok,
    opening,
    said,
    unsaid,
    verdict,
    woke,
)

SEEDS = st.integers(0, 2**32 - 1)
T1, T2, T3 = TurnId("t1"), TurnId("t2"), TurnId("t3")
START: tuple[Record, ...] = (admitted("hello"), opening())

UNCERTAIN = "interrupted: the call was dispatched and its result is uncertain; do not retry it automatically"
NOT_EXECUTED = "interrupted: the tool was not executed before recovery; it is safe to retry"
UNKNOWN = "outcome unknown: the call was dispatched, it may or may not have taken effect, and it was not re-run"


def shown(*records: Record) -> list[str]:
    """The messages of one turn, one line per part."""
    return lines(turn_view([*START, *records]).messages)


def lines(messages: Sequence[Message]) -> list[str]:
    return [f"{message.role}: {_words(part)}" for message in messages for part in message.parts]


def _words(part: Part) -> str:
    match part:
        case Text(text=text):
            return text
        case Thinking(text=text):
            return f"({text})"
        case ToolCall(id=id, name=name):
            return f"{name}? [{id}]"
        case ToolResultPart(call=call, output=output, is_error=is_error):
            return f"{output} [{call}]" + (" !" if is_error else "")
        case _:
            return type(part).__name__


def result(*records: Record, index: int = 0) -> tuple[Json, bool]:
    """Return the result of one call of the last round."""
    message = turn_view([*START, said(*["x"] * 3), *records]).messages[-1]
    part = message.parts[index]
    assert isinstance(part, ToolResultPart)
    return part.output, part.is_error


def steering(text: str, turn: TurnId = T1) -> InputAdmitted:
    parts = (Text(text=text),)
    return InputAdmitted(input=InputId(text), turn=turn, parts=parts, mode="steer", joins=True)


# --- the law


@settings(max_examples=60)
@given(SEEDS)
def test_view_of_every_log_prefix_is_valid(seed: int) -> None:
    log = random_log(seed, turns=3)
    for cut in range(len(log) + 1):
        turns = [turn_view(turn) for turn in by_turn(log[:cut])]
        assert complaints(joined(turns)) == [], f"cut after {cut}"


@settings(max_examples=60)
@given(SEEDS)
def test_steered_input_precedes_its_reply_in_the_view(seed: int) -> None:
    session = Session(Random(seed))
    for index in range(3):
        session.turn(index)
    spoken = lines(joined([turn_view(turn) for turn in by_turn(session.records)]))
    assert [line for line in spoken if "<steer" in line] == [f"user: {text}" for text in session.steered]


def test_steering_stands_behind_the_results_that_were_there_when_it_came() -> None:
    assert shown(said("x"), ok("c1.0.1"), steering("left"), said(text="so", id="m2.1")) == [
        *("user: hello", "assistant: x? [t1.1.0]", "tool: ok [t1.1.0]", "user: left", "assistant: so")
    ]


def test_steering_before_the_first_reply_is_part_of_the_question() -> None:
    [message] = turn_view([*START, steering("left")]).messages
    assert lines([message]) == ["user: hello", "user: left"]


def test_steering_that_was_never_answered_is_shown_with_what_comes_next() -> None:
    stopped = TurnEnded(turn=T1, status="stopped", reason="cancelled")
    one = turn_view([*START, said("x"), ok("c1.0.1"), steering("left"), stopped])
    messages = joined([one, turn_view([admitted("next", T2), opening(T2, 1)])])
    assert complaints(messages) == []
    assert lines(messages)[-2:] == ["user: left", "user: next"]


@settings(max_examples=30)
@given(SEEDS, st.integers(0, 3))
def test_forgetting_the_oldest_turns_keeps_the_view_valid(seed: int, forgotten: int) -> None:
    turns = [turn_view(turn) for turn in by_turn(random_log(seed, turns=4))]
    assert complaints(joined(turns[forgotten:])) == []


# Everything that can be said about the calls of a round, in no order at all: intents, outcomes, doubts, verdicts,
# retries, pauses, late news, cancellations. A turn ends anywhere, with a reason of its own or by force.
ANYTHING = [
    *("intent 0.1", "intent 1.1", "intent 0.2", "ok 0.1", "ok 1.1", "ok 0.2", "broke 0.1", "broke 1.1"),
    *("lost 0.1", "lost 1.1", "lost 0.2", "late 0.1", "late 1.1", "late 0.2", "late_of_another 0.1", "not_run 0.1"),
    *("probe happened", "probe did_not_happen", "probe unknown", "probe gibberish"),
    *("backoff 0.1", "woke 0.1", "asked ", "unsaid ", "cancel ", "steer one", "steer two", "pause ", "resume "),
    *("begin step:a", "begin step:0.1.probe", "begin event:/:", "done step:a", "done step:0.1.probe"),
]


def anything(what: str, n: int, turn: TurnId) -> Record:
    """A record about the n-th round of a turn."""
    verb, _, about = what.partition(" ")
    id = f"c{n}.{about}"
    records: dict[str, Callable[[], Record]] = {
        "intent": lambda: intent(id),
        "ok": lambda: ok(id, turn=turn),
        "broke": lambda: broke(id, safe=True, turn=turn),
        "lost": lambda: lost(id, turn=turn),
        "late": lambda: late(id, turn=turn),
        "late_of_another": lambda: late(id, turn=TurnId("t0")),
        "not_run": lambda: ended(id, NotRun(), turn=turn),
        "probe": lambda: verdict(f"c{n}.0.1.probe", about),
        "backoff": lambda: backoff(f"{id}.sleep"),
        "woke": lambda: woke(f"{id}.sleep"),
        "asked": lambda: asked(f"m{n}.1"),
        "unsaid": lambda: unsaid(f"m{n}.1"),
        "cancel": lambda: cancel(turn),
        "steer": lambda: steering(about, turn),
        "pause": lambda: SessionPaused(),
        "resume": lambda: SessionResumed(),
        "begin": lambda: EffectStarted(id=EffectId(f"c{n}.0/{about}"), kind=EffectKind.DURABLE_STEP, fingerprint="f"),
        "done": lambda: EffectSettled(id=EffectId(f"c{n}.0/{about}"), outcome=DurableStepOutcome(value=1)),
    }
    return records[verb]()


REPLIES = [("x", "y"), ("x",), ()]
ENDS: list[tuple[Literal["finished", "stopped"], StopReason | None]] = [
    ("finished", None),
    ("stopped", "cancelled"),
    ("stopped", "replay_mismatch"),
    ("stopped", "composition_lost"),
    ("stopped", "provider_error"),
]


@st.composite
def disorder(draw: st.DrawFn) -> list[Record]:
    """A log in which nothing is where it should be, but for replies that come with new calls."""
    log: list[Record] = []
    for index in range(draw(st.integers(1, 3))):
        turn = TurnId(f"t{index + 1}")
        if draw(st.booleans()):
            log.append(late("c1.0.1", turn=TurnId("t0")))
        log += [admitted(f"question {index}", turn), opening(turn, index)]
        replies = 0
        for item in draw(st.lists(st.integers(-len(REPLIES), len(ANYTHING) - 1), max_size=14)):
            if item < 0:
                replies += 1
                text = draw(st.sampled_from(["", " ", "so"]))
                log.append(said(*REPLIES[item], text=text, id=f"m{replies}.1", turn=turn))
            else:
                about = draw(st.integers(1, max(1, replies)))
                log.append(anything(ANYTHING[item], about, turn))
        status, reason = draw(st.sampled_from(ENDS))
        log.append(TurnEnded(turn=turn, status=status, reason=reason))
    return log


@settings(max_examples=300)
@given(disorder(), st.integers(0, 10_000))
def test_the_view_is_valid_in_whatever_order_things_went_wrong(log: list[Record], cut: int) -> None:
    """Not only for logs that can come about: the view is total, so a mistake elsewhere cannot cost a session."""
    for length in (len(log), cut % (len(log) + 1)):
        views = [turn_view(turn) for turn in by_turn(log[:length])]
        assert complaints(joined(views)) == []
        for first in range(len(views)):
            assert complaints(joined(views[first:])) == []


@settings(max_examples=60)
@given(SEEDS, st.lists(st.integers(0, 10_000), max_size=3), st.sampled_from(ENDS[1:]))
def test_a_turn_that_is_stopped_by_force_leaves_a_valid_view(
    seed: int, cuts: list[int], end: tuple[Literal["finished", "stopped"], StopReason | None]
) -> None:
    """Stopped in the middle of a round, with calls unanswered; then the session goes on with the turns that follow."""
    turns = by_turn(random_log(seed, turns=4))
    for index, cut in enumerate(cuts):
        turn = turns[index]
        opened_at = next((at for at, record in enumerate(turn) if isinstance(record, TurnOpened)), None)
        if opened_at is None:
            continue
        kept = turn[: opened_at + 1 + cut % (len(turn) - opened_at)]
        stop = TurnEnded(turn=TurnId(f"t{index}"), status="stopped", reason=end[1])
        turns[index] = [*(record for record in kept if not isinstance(record, TurnEnded)), stop]
    assert complaints(joined([turn_view(turn) for turn in turns])) == []


@settings(max_examples=60)
@given(SEEDS)
def test_the_model_is_told_what_the_machine_settled(seed: int) -> None:
    driven = owner(seed, cancellable=False)
    for _ in driven.steps():
        phase = driven.turn.phase
        if not isinstance(phase, Acting):
            continue
        results = turn_view([*START, *driven.records]).messages[-1].parts
        for call, part in zip(phase.calls, results, strict=True):
            assert isinstance(part, ToolResultPart)
            assert part.call == call.request.id
            if call.output is not None and part.output != {"error": NOT_EXECUTED, "code": "interrupted"}:
                assert (part.output, part.is_error) == message_for_model(call.output)
            elif call.output is not None:  # sent out again too often: it is known not to have happened
                assert isinstance(call.output, InDoubt)
            elif call.started is not None and call.doubt is None:
                assert part.output == {"error": UNCERTAIN, "code": "interrupted"}


@settings(max_examples=60)
@given(SEEDS)
def test_late_news_is_told_exactly_once(seed: int) -> None:
    log = random_log(seed, turns=4, cancellable=False)
    log = [*log, admitted("last", TurnId("t9")), opening(TurnId("t9"), 9)]
    told_lines = lines(joined([turn_view(turn) for turn in by_turn(log)]))
    for record in log:
        if isinstance(record, OutcomeArrivedLate) and record.output == Success(value=news_of(record.call, record.id)):
            assert sum(news_of(record.call, record.id) in line for line in told_lines) == 1


# --- one turn


def test_a_turn_begins_with_what_was_said() -> None:
    assert shown() == ["user: hello"]
    picture = ImagePart(ref=AttachmentRef(hash=BlobHash("h"), media_type="image/png", size=1))
    said_so = InputAdmitted(input=InputId("i"), turn=T1, parts=(Text(text="look"), picture))
    assert turn_view([said_so]).messages == (Message(role="user", parts=(Text(text="look"), picture)),)


def test_before_any_record_there_is_nothing_to_show() -> None:
    assert turn_view([]).messages == ()
    assert joined([]) == ()
    assert joined([turn_view([])]) == ()


def test_replies_calls_and_results_follow_each_other() -> None:
    records = (said("x", "y", text="let me see"), ok("c1.1.1", "B"), ok("c1.0.1", "A"), said(text="done", id="m2.1"))
    assert shown(*records) == [
        "user: hello",
        "assistant: let me see",
        "assistant: x? [t1.1.0]",
        "assistant: y? [t1.1.1]",
        "tool: A [t1.1.0]",
        "tool: B [t1.1.1]",
        "assistant: done",
    ]


def test_records_without_content_are_not_shown() -> None:
    assert shown(asked(), unsaid(), backoff("m1.1.sleep"), woke("m1.1.sleep"), cancel()) == ["user: hello"]


def reply(*parts: ReplyPart) -> EffectSettled:
    return EffectSettled(id=EffectId("m1.1"), outcome=LlmCallOutcome(reply=Reply(parts=parts)))


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_blank_text_is_left_out(text: str) -> None:
    call = ToolCall(id=CallId("t1.1.0"), name="x", args={})
    assert shown(reply(Text(text=text))) == ["user: hello"]
    assert shown(reply(Thinking(text="hm"), Text(text=text))) == ["user: hello"]
    assert shown(reply(Text(text=text), call))[:2] == ["user: hello", "assistant: x? [t1.1.0]"]


def test_a_reply_of_nothing_but_thinking_is_left_out() -> None:
    assert shown(reply(Thinking(text="hm"))) == ["user: hello"]
    assert shown(reply(Thinking(text="hm"), Text(text="yes"))) == ["user: hello", "assistant: (hm)", "assistant: yes"]


def test_results_keep_the_id_the_provider_gave_the_call() -> None:
    call = ToolCall(id=CallId("t1.1.0"), name="x", args={}, provider_id="call_0")
    part = turn_view([*START, reply(call), ok("c1.0.1")]).messages[-1].parts[0]
    assert isinstance(part, ToolResultPart)
    assert (part.provider_id, part.name) == ("call_0", "x")


# --- what was interrupted


REPAIRS: list[tuple[str, tuple[Record, ...], Json]] = [
    ("never dispatched", (), NOT_EXECUTED),
    ("dispatched", (intent("c1.0.1"),), UNCERTAIN),
    ("dispatched and asleep before the next attempt", (intent("c1.0.1"), broke("c1.0.1", safe=True)), "it broke"),
    (
        "dispatched once more after a failure",
        (intent("c1.0.1"), broke("c1.0.1", safe=True), woke("c1.0.1.sleep"), intent("c1.0.2")),
        UNCERTAIN,
    ),
    ("in doubt", (intent("c1.0.1"), lost("c1.0.1")), UNKNOWN),
    ("in doubt and probed in vain", (intent("c1.0.1"), lost("c1.0.1"), verdict("c1.0.1.probe", "unknown")), UNKNOWN),
    (
        "known not to have happened",
        (intent("c1.0.1"), lost("c1.0.1"), verdict("c1.0.1.probe", "did_not_happen")),
        NOT_EXECUTED,
    ),
    (
        "dispatched again after a probe",
        (intent("c1.0.1"), lost("c1.0.1"), verdict("c1.0.1.probe", "did_not_happen"), intent("c1.0.2")),
        UNCERTAIN,
    ),
]


@pytest.mark.parametrize(("records", "error"), [row[1:] for row in REPAIRS], ids=[row[0] for row in REPAIRS])
def test_a_call_without_a_result_is_told_for_what_it_is(records: tuple[Record, ...], error: str) -> None:
    output, is_error = result(*records)
    assert output["error"] == error
    assert is_error


def test_probe_value_is_the_call_result() -> None:
    found = (intent("c1.0.1"), lost("c1.0.1"), verdict("c1.0.1.probe", "happened", {"id": 7}))
    assert result(*found) == ({"id": 7}, False)
    assert result(intent("c1.0.1"), lost("c1.0.1"), verdict("c1.0.1.probe", "happened")) == (None, False)


def test_other_calls_are_not_touched_by_a_repair() -> None:
    assert result(ok("c1.1.1", "B"), index=1) == ("B", False)
    assert result(ok("c1.1.1", "B"), index=2) == ({"error": NOT_EXECUTED, "code": "interrupted"}, True)


@pytest.mark.parametrize(
    ("output", "shown_as", "is_error"),
    [
        (Success(value={"a": 1}), {"a": 1}, False),
        (Success(), None, False),
        (
            Failed(failure=FailureDetail(code="declined", message="no money")),
            {"error": "no money", "code": "declined"},
            True,
        ),
        (InDoubt(reason="timeout"), {"error": UNKNOWN, "code": "outcome_unknown", "reason": "timeout"}, True),
        (
            InDoubt(reason="declared", message="502"),
            {"error": f"{UNKNOWN} (502)", "code": "outcome_unknown", "reason": "declared"},
            True,
        ),
        (NotRun(), {"error": "cancelled: the call was not run", "code": "cancelled"}, True),
        (NotRun(reason="by ann"), {"error": "cancelled: the call was not run (by ann)", "code": "cancelled"}, True),
    ],
)
def test_tool_output_is_rendered_for_the_model(output: ToolOutput, shown_as: Json, is_error: bool) -> None:
    assert message_for_model(output) == (shown_as, is_error)
    assert result(ended("c1.0.1", output)) == (shown_as, is_error)


def test_calls_that_were_not_obeyed_are_answered() -> None:
    """A last reply that calls again ends the turn in words; its calls still need results."""
    assert shown(said("x", text="so far"), TurnEnded(turn=T1, status="finished"))[-1] == (
        f"tool: {{'error': '{NOT_EXECUTED}', 'code': 'interrupted'}} [t1.1.0] !"
    )


# --- late news


def news(outcome: str, call: str = "t1.1.0") -> str:
    """Return the notification of an outcome in JSON."""
    return notification(LATE, {"call": call, "tool": "x", "outcome": outcome})


NEWS = news('"paid"')


def test_late_news_of_a_call_in_doubt_is_its_result() -> None:
    assert result(intent("c1.0.1"), lost("c1.0.1"), late("c1.0.1", "paid")) == ("paid", False)
    assert result(intent("c1.0.1"), late("c1.0.1", "paid")) == ("paid", False)
    assert turn_view([*START, said("x"), intent("c1.0.1"), late("c1.0.1", "paid")]).carried == ()


def test_late_news_of_an_earlier_round_is_told_at_the_next_turn() -> None:
    view = turn_view(
        [
            *START,
            *(said("x"), intent("c1.0.1"), lost("c1.0.1")),
            *(said("x", id="m2.1"), late("c1.0.1", "paid"), ok("c2.0.1", "other")),
        ]
    )
    assert view.carried == (NEWS,)
    assert not any("paid" in line for line in lines(view.messages))
    assert lines(joined([view, turn_view([admitted("next", T2)])]))[-2:] == [f"user: {NEWS}", "user: next"]


def test_late_outcome_does_not_settle_a_later_attempt() -> None:
    again = (intent("c1.0.1"), lost("c1.0.1"), verdict("c1.0.1.probe", "did_not_happen"), intent("c1.0.2"))
    view = turn_view([*START, said("x"), *again, late("c1.0.1", "paid")])
    assert view.carried == (NEWS,)
    assert result(*again, late("c1.0.1", "paid")) == ({"error": UNCERTAIN, "code": "interrupted"}, True)


def test_late_news_between_turns_stands_before_the_next_input() -> None:
    view = turn_view([late("c1.0.1", "paid"), admitted("next", T2), opening(T2, 1)])
    assert lines(view.messages) == [f"user: {NEWS}", "user: next"]
    assert view.carried == ()


def test_late_news_alone_is_a_message_of_its_own() -> None:
    assert lines(turn_view([late("c1.0.1", "paid")]).messages) == [f"user: {NEWS}"]


def test_a_failure_that_arrives_late_is_told_as_one() -> None:
    failed = OutcomeArrivedLate(
        call=CallId("t0.1.0"),
        id=EffectId("c1.0.1"),
        tool="x",
        output=Failed(failure=FailureDetail(code="declined", message="no")),
    )
    note = news('{"error":"no","code":"declined"}', "t0.1.0")
    assert lines(turn_view([failed, admitted("next", T2)]).messages)[0] == f"user: {note}"


def test_carried_news_waits_for_a_turn_that_says_something() -> None:
    told = news('"paid"', "t0.9.0")
    first = turn_view([*START, said(text="hi"), late("c9.0.1", "paid", turn=TurnId("t0"))])
    assert first.carried == (told,)
    empty, third = turn_view([]), turn_view([admitted("third", T3)])
    assert lines(joined([first, empty, third])) == [
        "user: hello",
        "assistant: hi",
        f"user: {told}",
        "user: third",
    ]


# --- several turns


def test_turns_follow_each_other_and_equal_roles_are_joined() -> None:
    unanswered = turn_view([*START, unsaid(retryable=False)])
    second = turn_view([admitted("again", T2), opening(T2, 1), said(text="here", turn=T2)])
    messages = joined([unanswered, second])
    assert [message.role for message in messages] == ["user", "assistant"]
    assert lines(messages) == ["user: hello", "user: again", "assistant: here"]


@settings(max_examples=30)
@given(SEEDS, st.integers(0, 10_000))
def test_a_conversation_built_turn_by_turn_is_the_conversation(seed: int, cut: int) -> None:
    log = random_log(seed, turns=3)
    views = [turn_view(turn) for turn in by_turn(log[: cut % (len(log) + 1)])]
    conversation = Conversation()
    for count, view in enumerate(views):
        before = conversation.messages
        assert conversation.with_turn(view) == joined(views[: count + 1])
        assert conversation.messages == before
        conversation.add(view)
    assert conversation.messages == joined(views)


def test_a_conversation_never_begins_with_a_reply() -> None:
    cut = turn_view([said("x"), ok("c1.0.1"), said(text="done", id="m2.1")])
    second = turn_view([admitted("again", T2)])
    assert lines(joined([cut, second])) == ["user: again"]
    assert joined([cut]) == ()


def test_the_size_of_a_view_follows_its_messages() -> None:
    small, large = turn_view([admitted("a")]), turn_view([admitted("a" * 1_000)])
    assert large.size_bytes - small.size_bytes == 999
    assert turn_view([]).size_bytes == 0


def test_the_checker_itself_complains_where_it_should() -> None:
    call = ToolCall(id=CallId("c"), name="x", args={})
    answer = ToolResultPart(call=CallId("c"), name="x", output=1)
    user, calls, tool = (
        Message(role="user", parts=(Text(text="hi"),)),
        Message(role="assistant", parts=(call,)),
        Message(role="tool", parts=(answer,)),
    )
    assert complaints([user, calls, tool]) == []
    for bad in (
        [calls, tool],
        [user, calls],
        [user, user],
        [user, tool],
        [user, calls, user],
        [user, calls, Message(role="tool", parts=(answer, answer))],
        [user, calls, tool, calls, tool],
        [user, Message(role="assistant", parts=())],
        [user, Message(role="assistant", parts=(Text(text=" "),))],
        [user, Message(role="assistant", parts=(Thinking(text="hm"),))],
        [Message(role="user", parts=(answer,))],
    ):
        assert complaints(bad) != []
