"""The result of a turn that runs in this process, in another one, or not yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.errors import Code, Error
from perdure.ids import InputId, TurnId
from perdure.inbox.admit import NO_INPUT
from perdure.observe.ends import end_and_reply, has_begun, waits
from perdure.observe.hub import HubSubscription
from perdure.runtime.agent import setup_of
from perdure.runtime.sessions import verbs
from perdure.runtime.shared import TurnResult, Waiter, turn_result
from perdure.store.shapes import StreamInfo
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import TurnEnded

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore
    from perdure.runtime.sessions.ref import SessionRef


async def wait_for(session: SessionRef, turn: TurnId, input: InputId = NO_INPUT) -> TurnResult:
    """Wait for the end of a turn, or of the turn that took its input instead, and return the result."""
    rt = session.runtime
    while True:
        here = rt.results.wait_for(turn)
        try:
            is_here = rt.drives(session.stream, turn)
            ended = await here if is_here else await _look_for_end(session, turn, input, here)
        finally:
            rt.results.forget(turn, here)
        if isinstance(ended, TurnResult):
            return ended
        if ended is not None:
            turn, input = ended


async def _look_for_end(
    session: SessionRef, turn: TurnId, input: InputId, here: Waiter
) -> TurnResult | tuple[TurnId, InputId] | None:
    """Wait for the end of a turn that does not run here, or for the turn that answers its input instead.

    Returns None if the turn runs or ran here: then check again.
    """
    rt, stream, begun_in = session.runtime, session.stream, None
    with rt.hub.subscribe(stream, live=False) as news:
        while not (here.done() or rt.drives(stream, turn)):
            over, info = await end_and_reply(rt.store, stream, turn), await rt.store.stream(stream)
            if over is not None:
                return _result(rt, over, info)
            if info is None:
                raise verbs.session_unknown(session.id)
            made = (info.number, info.created_at)  # after a deletion, another session may have this id
            if begun_in != made and not await waits(rt.store, stream, turn):
                if not await has_begun(rt.store, stream, turn):
                    if (elsewhere := await verbs.input_status(session, input)) is not None:
                        return elsewhere
                    raise no_turn(session, turn)
                begun_in = made
            await _either(here, news)
    return here.result() if here.done() else None


def _result(rt: RuntimeCore, over: tuple[TurnEnded, LlmCallOutcome | None], info: StreamInfo | None) -> TurnResult:
    agent = rt.agents.get(info.agent) if info else None
    return turn_result(*over, setup_of(agent).output_as if agent else None)


async def _either(here: Waiter, news: HubSubscription) -> None:
    """Wait until the turn ends in this process, or its stream changes."""
    waiting = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({here, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
    finally:
        waiting.cancel()
    news.items.clear()


def no_turn(session: SessionRef, turn: TurnId) -> Error:
    """Return the error for a turn that never existed, or was deleted with its session."""
    return Error(Code.TURN_UNKNOWN, f"session {session.id!r} has no turn {turn!r}", turn=turn)
