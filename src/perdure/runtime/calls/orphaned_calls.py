"""Model calls that get no reply, because their worker is gone or their turn was cancelled: text, usage and outcome.

Law: every model call that was begun gets exactly one end in the log, from the canceller of its turn or from the next
owner. From then on its usage is in the ledger, and limits count it before the next model call.
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
from perdure.runtime.turns.transcript import VisibleMessages
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
class PartialText:
    """Partial output of an interrupted model call.

    `chars` counts text and thinking. `hidden`: output that is not shown, such as a call, had begun. `asked`: the
    request was sent. `told` is the usage that the provider had reported.
    """

    text: str = ""
    chars: int = 0
    hidden: bool = False
    asked: bool = True
    told: Usage = Usage()


@dataclass(slots=True)
class PartialReply:
    """Output of one model attempt as it arrives.

    `asked`: the request was sent. `hidden`: output that is not shown, such as a call, has begun.
    """

    asked: bool = False
    texts: list[str] = field(default_factory=list[str])
    chars: int = 0
    hidden: bool = False
    told: Usage = Usage()

    def cost(self, usage: Usage) -> None:
        """Note the usage that the provider reports so far."""
        self.told = usage

    def add(self, text: str, thinking: bool) -> bool:
        """Add a piece. Return True if observers need to know; hidden output is reported to them once."""
        if not text:
            new, self.hidden = not self.hidden, True
            return new
        self.chars += len(text)
        if not thinking:
            self.texts.append(text)
        return True

    def on_text(self, text: str, thinking: bool) -> None:
        """Add a piece that goes to no observer."""
        self.add(text, thinking)

    @property
    def anything(self) -> bool:
        """True if output or reported usage has begun."""
        return self.chars > 0 or self.hidden or self.told.calls > 0

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self.texts)

    @property
    def written(self) -> PartialText:
        """The partial output so far."""
        return PartialText(self.text, self.chars, self.hidden, self.asked, self.told)


async def written(store: Store, stream: StreamId, turn: TurnId, effect: EffectId) -> PartialText:
    """Return the partial output of a call from the side channel, which may have lost all of it."""
    try:
        pieces = [one for one in await store.live.read(stream) if (one.turn, one.effect) == (turn, effect)]
    except Error:
        return PartialText()
    last = [one for one in pieces if one.run == pieces[-1].run]
    whole = list(_without_gap(last))
    text = "".join(one.text for one in whole if not one.thinking)
    return PartialText(text, max((one.end for one in last), default=0), any(not one.text for one in last))


def _without_gap(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces before the first gap. Pieces after a lost one make no sense."""
    end = 0
    for piece in pieces:
        if piece.start > end:
            return
        end = max(end, piece.end)
        yield piece


async def partial_from_host(
    partial: PartialStreamStore, session: SessionId, turn: TurnId, before: PartialText
) -> PartialText:
    """Return the partial output of a call as the host's stream store knows it.

    Return `before`, from the side channel, if the host knows nothing of the call, fails, or takes too long.
    """
    try:
        async with asyncio.timeout(HOST_S):
            state = await partial.get_partial_stream(session, turn)
    except Exception:
        log.exception("partial stream lookup failed", extra={"turn": turn})
        return before
    if state is None:
        return before
    text = clean(state.accumulated)
    return replace(before, text=text, chars=max(len(text), before.chars))


class StoredPartialStreams:
    """A `PartialStreamStore` of one tenant, read from the side channel."""

    def __init__(self, store: Store, tenant: Tenant) -> None:
        self._store = store
        self._tenant = tenant

    async def get_partial_stream(self, session_id: SessionId, turn_id: TurnId) -> PartialStreamState | None:
        """Return the reply of a turn as far as it was written, or None if there is none or it is recorded.

        The reply may still be in progress, or its worker may have died.
        """
        stream = session_stream(self._tenant, session_id)
        pieces = [one for one in await self._store.live.read(stream) if one.turn == turn_id]
        if not pieces:
            return None
        effect = pieces[-1].effect
        since = [row.record for row in await self._store.read(stream, after=pieces[-1].seq)]
        if any(isinstance(one, EffectSettled) and one.id == effect for one in since):
            return None
        return PartialStreamState((await written(self._store, stream, turn_id, effect)).text)


class UnrecordedUsage:
    """Usage of model calls whose end the store refused. Bounded, and known only in this process."""

    def __init__(self) -> None:
        self._known: dict[tuple[StreamId, TurnId, EffectId], Usage] = {}

    def note(self, stream: StreamId, turn: TurnId, effect: EffectId, spent: Usage) -> None:
        """Note the usage for the owner that records the end of the call: most often this process, soon."""
        self._known[stream, turn, effect] = spent
        while len(self._known) > MAX_UNSAVED:
            del self._known[next(iter(self._known))]

    def take(self, stream: StreamId, turn: TurnId, effect: EffectId) -> Usage | None:
        """Remove and return the usage of a call, or None."""
        return self._known.pop((stream, turn, effect), None)


async def cost_of(model: Model, turn: Turn, shown: VisibleMessages, before: PartialText) -> Usage:
    """Return the usage of an interrupted call, with its price if known.

    Usage that the provider did not report is estimated.
    """
    asked = turn.composition
    usage = estimated(asked.instructions, shown.messages, [tool.definition for tool in asked.tools], before.chars)
    return await priced(model, completed(before.told, usage))


async def priced(model: Model, usage: Usage) -> Usage:
    """Return the usage with its price, if the model knows prices."""
    return (await model.priced(usage)).bounded() if isinstance(model, KnowsPrices) else usage


def partial_reply(turn: Turn, text: str, why: str, usage: Usage) -> Reply | None:
    """Return the partial text as a reply, if that is allowed: only text, and only without a requested output type."""
    wanted = turn.limits.partial_replies == "finalize" and turn.composition.output is None
    if not wanted or not text.strip():
        return None
    return Reply(parts=(Text(text=text),), usage=usage, model=turn.composition.model, partial=why)


async def ended(
    model: Model, turn: Turn, shown: VisibleMessages, before: PartialText, known: Usage | None
) -> LlmCallOutcome:
    """Return the outcome of a call whose worker is gone or whose turn was cancelled. Unknown usage is estimated."""
    spent = known or (await cost_of(model, turn, shown, before) if before.asked else Usage())
    streamed = before.chars > 0
    if turn.cancel:
        return LlmCallOutcome(error=NOT_WANTED, text_streamed=streamed, spent=spent)
    if (reply := partial_reply(turn, before.text, "worker_lost", spent)) and not before.hidden:
        return LlmCallOutcome(reply=reply, text_streamed=True)
    error = LlmError(kind="worker_lost", message=GONE, retryable=True)
    return LlmCallOutcome(error=error, text_streamed=streamed, spent=spent)


def left_asked(turn: Turn, journal: EffectJournal, *, over: bool) -> list[EffectStarted]:
    """Return the unfinished model calls that tools of a gone worker had begun.

    A call is left out if its provider job can be re-attached, unless the turn is `over`.
    """
    again = {call_body(ref.iteration, ref.index or 0): _runs_again(call) for ref, call in unanswered(turn)}
    left: list[EffectStarted] = []
    for started in journal.unsettled():
        body = outer_body(started.id)
        found = journal.job(started.id) is not None and not (over or turn.cancel)
        if started.estimated_usage is not None and body in again and not (found and again[body]):
            left.append(started)
    return left


def _runs_again(call: Call) -> bool:
    """Return True if the next owner runs the call once more. A call that must not run twice is in doubt."""
    return not (call.doubt or call.pending or (call.started and call.started.effect == "once"))


async def completion_ended(
    model: Model | None, turn: Turn, estimate: DirectUsage, known: Usage | None
) -> DirectOutcome:
    """Return the outcome of a tool's model call that will get no reply. Its partial output is unknown."""
    error = NOT_WANTED if turn.cancel else LlmError(kind="worker_lost", message=GONE, retryable=True)
    spent = known or (estimate.usage if model is None else await priced(model, estimate.usage))
    return DirectOutcome(error=error, source=estimate.source, spent=spent, model=estimate.model)


def unwanted(outcome: LlmCallOutcome) -> LlmCallOutcome:
    """Return the outcome of a reply that came after its turn was cancelled: not shown, but charged."""
    if outcome.reply is None:
        return outcome
    return LlmCallOutcome(error=NOT_WANTED, text_streamed=outcome.text_streamed, spent=outcome.bought)
