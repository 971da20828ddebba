"""Commands for the tests of the effect seam, and a ledger that records the order of all calls."""

from __future__ import annotations

from perdure.codec import Json
from perdure.effects.controller import Local
from perdure.errors import Error
from perdure.ids import CallId, WorkerId
from perdure.inbox.admit import Delivery
from perdure.vocab.effects import (
    CallTool,
    DurableStep,
    EffectKind,
    Envelope,
    Invocation,
    PreparedToolCall,
    Scope,
)
from perdure.vocab.outcomes import (
    CompletedToolCall,
    Done,
    DurableStepOutcome,
    Failed,
    FailureDetail,
    Outcome,
    Success,
    ToolCallOutcome,
    ToolOutput,
)
from perdure.vocab.records import EffectSettled, EffectStarted, Record

SCOPE = Scope(session_id="s1", turn_id="t1", turn_index=0, protocol_iteration=1)


def step(name: str, input: Json = None) -> Envelope:
    return Envelope(
        invocation=Invocation.effect(SCOPE, name, EffectKind.DURABLE_STEP, f"k:{name}"),
        command=DurableStep(step_id=name, input=input),
    )


def call(id: str = "c1.0.1", args: Json = None) -> Envelope:
    prepared = PreparedToolCall(call_id=CallId("t1.1.0"), tool_id="tool:refund", tool_name="refund", args=args)
    return Envelope(
        invocation=Invocation.effect(SCOPE, id, EffectKind.TOOL_CALL, f"k:{id}"), command=CallTool(call=prepared)
    )


def answered(output: ToolOutput) -> ToolCallOutcome:
    result = CompletedToolCall(call_id=CallId("t1.1.0"), tool_name="refund", output=output)
    return ToolCallOutcome(launch=Done(result=result))


REFUNDED = answered(Success(value="refunded"))
DECLINED = answered(Failed(failure=FailureDetail(code="declined", message="no")))
SEVEN = DurableStepOutcome(value=7)


class FakeLedger:
    """Writes down, in order, what a controller does: the stream, its durability, its lease."""

    def __init__(self, *, live: tuple[bool, ...] = (), refusal: Error | None = None) -> None:
        self.worker = WorkerId("w1")
        self.did: list[str] = []
        self.records: list[Record] = []
        self._live = list(live)
        self._refusal = refusal

    def submit(self, *records: Record, outbox: tuple[Delivery, ...] = ()) -> tuple[Record, ...]:
        for record in records:
            self.records.append(record)
            match record:
                case EffectStarted(id=id):
                    self.did.append(f"intent {id}")
                case EffectSettled(id=id):
                    self.did.append(f"outcome {id}")
                case _:
                    self.did.append(type(record).__name__)
        return records

    async def durable(self) -> None:
        self.did.append("durable")

    def lease_live(self) -> bool:
        live = self._live.pop(0) if self._live else True
        self.did.append("lease live" if live else "lease lapsed")
        return live

    async def reassert(self) -> None:
        self.did.append("reassert")
        if self._refusal:
            raise self._refusal

    def local(self, outcome: Outcome, kind: EffectKind | None = None) -> Local:
        async def run(envelope: Envelope) -> Outcome:
            self.did.append(f"ran {envelope.id}")
            return outcome

        return Local(kind or outcome.kind, run)
