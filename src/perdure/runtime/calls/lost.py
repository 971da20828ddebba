"""A model call that nobody will answer any more, because its worker is gone or its turn was cancelled: what it had
written, what that cost, and how it counts as ended.

Law: every call that was begun and never ended is ended in the log, once, by whoever cancels its turn or owns it next;
what it bought is in the ledger from then on, and limits count it before the model is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from perdure.effects.journal import EffectJournal
from perdure.errors import Error
from perdure.ids import EffectId, SessionId, StreamId, Tenant, TurnId, session_stream
from perdure.models.estimating import completed, estimated
from perdure.models.protocol import KnowsPrices, Model, clean
from perdure.runtime.turns.transcript import Shown
from perdure.services.replies import PartialStreamState, PartialStreamStore
from perdure.store.live import Piece
from perdure.store.protocol import Store
from perdure.turn.machine import unanswered
from perdure.turn.state import Call, Turn
from perdure.vocab.messages import Reply, Text
from perdure.vocab.outcomes import DirectOutcome, DirectUsage, LlmCallOutcome, LlmError
from perdure.vocab.records import EffectSettled, EffectStarted
from perdure.vocab.refs import call_body, outer_body
from perdure.vocab.usage import Usage

log = logging.getLogger("perdure.runtime")

HOST_S = 5.0
GONE = "the worker that asked is gone"
NOT_WANTED = LlmError(kind="cancelled", message="the turn was cancelled")
MAX_UNSAVED = 1024


@dataclass(frozen=True, slots=True)
class Written:
    """What a model had written when it broke off: the text, the length of all of it, and whether something else had
    begun that is not shown, such as a call; or that it never was `asked`. `told` is what its provider had said of the
    cost by then."""

    text: str = ""
    chars: int = 0
    hidden: bool = False
    asked: bool = True
    told: Usage = Usage()


@dataclass(slots=True)
class Saying:
    """What a model has said in one attempt, if it was `asked`; of what is `hidden`, nothing is shown: a call."""

    asked: bool = False
    texts: list[str] = field(default_factory=list[str])
    chars: int = 0
    hidden: bool = False
    told: Usage = Usage()

    def cost(self, usage: Usage) -> None:
        """The provider tells what it has cost so far."""
        self.told = usage

    def add(self, text: str, thinking: bool) -> bool:
        """Whether others need to know: of what is hidden, they are told once."""
        if not text:
            new, self.hidden = not self.hidden, True
            return new
        self.chars += len(text)
        if not thinking:
            self.texts.append(text)
        return True

    def hear(self, text: str, thinking: bool) -> None:
        """Take it in, where nobody else listens."""
        self.add(text, thinking)

    @property
    def anything(self) -> bool:
        """Whether it has begun to write, or to cost."""
        return self.chars > 0 or self.hidden or self.told.calls > 0

    @property
    def text(self) -> str:
        """All of the text."""
        return "".join(self.texts)

    @property
    def written(self) -> Written:
        """What there is of it."""
        return Written(self.text, self.chars, self.hidden, self.asked, self.told)


async def written(store: Store, stream: StreamId, turn: TurnId, effect: EffectId) -> Written:
    """What the side channel has of a call. It may have lost everything."""
    try:
        pieces = [one for one in await store.live.read(stream) if (one.turn, one.effect) == (turn, effect)]
    except Error:
        return Written()
    last = [one for one in pieces if one.run == pieces[-1].run]
    whole = list(_without_gap(last))
    text = "".join(one.text for one in whole if not one.thinking)
    return Written(text, max((one.end for one in last), default=0), any(not one.text for one in last))


def _without_gap(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The beginning of what was written: behind a piece that was lost, nothing makes sense."""
    end = 0
    for piece in pieces:
        if piece.start > end:
            return
        end = max(end, piece.end)
        yield piece


async def told_by_host(partial: PartialStreamStore, session: SessionId, turn: TurnId, before: Written) -> Written:
    """What there is of a call by what its host knows; `before` is what the side channel has of it. A host that knows
    nothing of it, cannot say, or takes too long is not waited for."""
    try:
        async with asyncio.timeout(HOST_S):
            state = await partial.get_partial_stream(session, turn)
    except Exception:
        log.exception("the host cannot say what there is of a reply", extra={"turn": turn})
        return before
    if state is None:
        return before
    text = clean(state.accumulated)
    return replace(before, text=text, chars=max(len(text), before.chars))


class StoredPartialStreams:
    """The replies that broke off, as the side channel has them: a `PartialStreamStore` of one tenant."""

    def __init__(self, store: Store, tenant: Tenant) -> None:
        self._store = store
        self._tenant = tenant

    async def get_partial_stream(self, session_id: SessionId, turn_id: TurnId) -> PartialStreamState | None:
        """The reply of a turn that is being written, or was when its worker died; None if there is none, or it is
        saved."""
        stream = session_stream(self._tenant, session_id)
        pieces = [one for one in await self._store.live.read(stream) if one.turn == turn_id]
        if not pieces:
            return None
        effect = pieces[-1].effect
        since = [row.record for row in await self._store.read(stream, after=pieces[-1].seq)]
        if any(isinstance(one, EffectSettled) and one.id == effect for one in since):
            return None
        return PartialStreamState((await written(self._store, stream, turn_id, effect)).text)


class Unsaved:
    """What calls cost whose end the store refused: known in this process, for a while, and nowhere else."""

    def __init__(self) -> None:
        self._known: dict[tuple[StreamId, TurnId, EffectId], Usage] = {}

    def note(self, stream: StreamId, turn: TurnId, effect: EffectId, spent: Usage) -> None:
        """Remember it for whoever ends the call in the log: most often us, in a moment."""
        self._known[stream, turn, effect] = spent
        while len(self._known) > MAX_UNSAVED:
            del self._known[next(iter(self._known))]

    def take(self, stream: StreamId, turn: TurnId, effect: EffectId) -> Usage | None:
        """What a call cost, if it is known."""
        return self._known.pop((stream, turn, effect), None)


async def cost_of(model: Model, turn: Turn, shown: Shown, before: Written) -> Usage:
    """What a call cost that broke off, with its price if the model knows one: what its provider had not told by then is
    estimated."""
    asked = turn.composition
    usage = estimated(asked.instructions, shown.messages, [tool.definition for tool in asked.tools], before.chars)
    return await priced(model, completed(before.told, usage))


async def priced(model: Model, usage: Usage) -> Usage:
    """The same, with its price if the model knows it."""
    return await model.priced(usage) if isinstance(model, KnowsPrices) else usage


def partial_reply(turn: Turn, text: str, why: str, usage: Usage) -> Reply | None:
    """What there is of a reply, if it may stand as one: text only, where no other form is asked for."""
    wanted = turn.limits.partial_replies == "finalize" and turn.composition.output is None
    if not wanted or not text.strip():
        return None
    return Reply(parts=(Text(text=text),), usage=usage, model=turn.composition.model, partial=why)


async def ended(model: Model, turn: Turn, shown: Shown, before: Written, known: Usage | None) -> LlmCallOutcome:
    """How a call ended whose worker is gone, or whose turn was cancelled. What nobody told is estimated."""
    spent = known or (await cost_of(model, turn, shown, before) if before.asked else Usage())
    streamed = before.chars > 0
    if turn.cancel:
        return LlmCallOutcome(error=NOT_WANTED, text_streamed=streamed, spent=spent)
    if (reply := partial_reply(turn, before.text, "worker_lost", spent)) and not before.hidden:
        return LlmCallOutcome(reply=reply, text_streamed=True)
    error = LlmError(kind="worker_lost", message=GONE, retryable=True)
    return LlmCallOutcome(error=error, text_streamed=streamed, spent=spent)


def left_asked(turn: Turn, journal: EffectJournal, *, over: bool) -> list[EffectStarted]:
    """The model calls outside the conversation that a worker which is gone had begun, for calls without an end; not
    those whose job can be found, unless the turn is `over`."""
    again = {call_body(ref.iteration, ref.index or 0): _runs_again(call) for ref, call in unanswered(turn)}
    left: list[EffectStarted] = []
    for started in journal.unsettled():
        body = outer_body(started.id)
        found = journal.job(started.id) is not None and not (over or turn.cancel)
        if started.asks is not None and body in again and not (found and again[body]):
            left.append(started)
    return left


def _runs_again(call: Call) -> bool:
    """Whether the next owner runs the call once more: one that must not run twice is in doubt."""
    return not (call.doubt or call.pending or (call.started and call.started.effect == "once"))


async def completion_ended(model: Model | None, turn: Turn, asks: DirectUsage, known: Usage | None) -> DirectOutcome:
    """How a model call outside the conversation ended that nobody waits for. What it had written nobody knows."""
    error = NOT_WANTED if turn.cancel else LlmError(kind="worker_lost", message=GONE, retryable=True)
    spent = known or (asks.usage if model is None else await priced(model, asks.usage))
    return DirectOutcome(error=error, source=asks.source, spent=spent, model=asks.model)


def unwanted(outcome: LlmCallOutcome) -> LlmCallOutcome:
    """How a call ended that was answered when its turn had been cancelled: nobody is shown it, and it was bought."""
    if outcome.reply is None:
        return outcome
    return LlmCallOutcome(error=NOT_WANTED, text_streamed=outcome.text_streamed, spent=outcome.bought)
