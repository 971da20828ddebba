"""How a turn ended, for whoever waits for that, wherever it runs: in this process, elsewhere, or nowhere yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.errors import Code, Error
from perdure.ids import InputId, TurnId
from perdure.observe.ends import has_begun, told, waits
from perdure.observe.hub import Subscription
from perdure.runtime.sessions import verbs
from perdure.runtime.shared import TurnResult, Waiter
from perdure.store.shapes import StreamInfo
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import TurnEnded

if TYPE_CHECKING:
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.sessions.session import Session


async def wait_for(session: Session, turn: TurnId, input: InputId) -> TurnResult:
    """The end of a turn, or of the one that took the input which had asked for it."""
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
    session: Session, turn: TurnId, input: InputId, here: Waiter
) -> TurnResult | tuple[TurnId, InputId] | None:
    """The end of a turn that runs elsewhere, or nowhere yet, or who answers its input instead. None: it is or was here;
    look again."""
    rt, stream, begun_in = session.runtime, session.stream, None
    with rt.hub.subscribe(stream, live=False) as news:
        while not (here.done() or rt.drives(stream, turn)):
            over, info = await told(rt.store, stream, turn), await rt.store.stream(stream)
            if over is not None:
                return _result(rt, over, info)
            if info is None:
                raise verbs.session_unknown(session.id)
            made = (info.number, info.created_at)  # after a deletion it may be another session
            if begun_in != made and not await waits(rt.store, stream, turn):
                if not await has_begun(rt.store, stream, turn):
                    if (elsewhere := await verbs.whereabouts(session, input)) is not None:
                        return elsewhere
                    raise no_turn(session, turn)
                begun_in = made
            await _either(here, news)
    return here.result() if here.done() else None


def _result(rt: Runtime, over: tuple[TurnEnded, LlmCallOutcome | None], info: StreamInfo | None) -> TurnResult:
    agent = rt.agents.get(info.agent) if info else None
    return TurnResult.of(*over, agent.output_as if agent else None)


async def _either(here: Waiter, news: Subscription) -> None:
    """Until the turn has ended in this process, or something has happened to look at."""
    waiting = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({here, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
    finally:
        waiting.cancel()
    news.items.clear()


def no_turn(session: Session, turn: TurnId) -> Error:
    """The refusal to tell anything of a turn that is not there: it never was, or was deleted with its session."""
    return Error(Code.TURN_UNKNOWN, f"session {session.id!r} has no turn {turn!r}", turn=turn)
