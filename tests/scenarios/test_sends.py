"""Messages between streams of one worker take effect at once, without a poll."""

from __future__ import annotations

import pytest

from perdure import Runtime, RuntimeOptions
from perdure.ids import InputId, SessionId, StreamId, TurnId, process_stream, session_stream
from perdure.inbox.admit import Delivery, delivery
from perdure.inbox.items import Input
from perdure.models.scripted import ScriptedModel, say
from perdure.runtime.internals import core_of
from perdure.runtime.worker import worker as worker_module
from perdure.runtime.worker.owned import OwnedStream
from perdure.store.shapes import Claim
from perdure.vocab.messages import Text
from perdure.vocab.records import TitleSet, TurnEnded
from tests.scenarios.conftest import App, until

NEVER_LOOKS = RuntimeOptions(lease_s=36_000)


def said(rt: Runtime, to: str, text: str) -> Delivery:
    item = Input(input=InputId(f"input-{text}"), turn=TurnId(f"turn-{text}"), parts=(Text(text=text),), key=text)
    return delivery(session_stream(rt.tenant, SessionId(to)), text, item, at=1, agent="a")


async def owned_by(rt: Runtime, stream: StreamId) -> OwnedStream:
    """A stream in the hands of this runtime's worker that is no session, as a process is."""
    await core_of(rt).store.admit(delivery(stream, "open", said(rt, "x", "open").item, at=1, agent="nobody's"))
    claim = await core_of(rt).store.claim(stream, rt.worker_id)
    assert isinstance(claim, Claim)
    return OwnedStream(
        core_of(rt).store,
        stream,
        rt.worker_id,
        claim.fence,
        claim.last_seq,
        core_of(rt).clock,
        core_of(rt).notify_streams,
    )


@pytest.mark.parametrize("known", ["new", "idle here", "busy here"])
async def test_a_session_that_is_sent_something_begins_at_once(
    app: App, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SCAN_S", 36_000)
    model = ScriptedModel(*(say("answered") for _ in range(4)))
    rt = await app.open(model, tuning=NEVER_LOOKS)
    await (await rt.session("warm", agent="a")).ask("hello")  # by then its worker has looked the one time it does
    sender = await owned_by(rt, process_stream(rt.tenant, "p"))
    session = await rt.session("s", agent="a")
    if known != "new":
        await session.ask("hello")
    if known == "busy here":
        await session.send("first")
    sender.submit(TitleSet(title="sent"), outbox=(said(rt, "s", "from elsewhere"),))
    await sender.durable()

    async def answered() -> bool:
        ends = [row.record for row in await session.journal() if isinstance(row.record, TurnEnded)]
        return "turn-from elsewhere" in [end.turn for end in ends if end.status == "finished"]

    await until(answered)


async def test_record_and_its_outbox_share_one_append(app: App) -> None:
    rt = await app.open(ScriptedModel(), worker=True)
    sender = await owned_by(rt, process_stream(rt.tenant, "p"))
    plans = core_of(rt).store.counters.plans
    for i in range(4):
        outbox = tuple(
            delivery(process_stream(rt.tenant, f"p{n}"), f"k{i}", said(rt, "x", "go").item, at=1, agent="n")
            for n in range(100)
        )
        sender.submit(TitleSet(title=str(i)), outbox=outbox)
    await sender.durable()
    assert core_of(rt).store.counters.plans - plans == 2, "two of them fit into an append; none is torn apart"
    assert [len(await core_of(rt).store.inbox(process_stream(rt.tenant, f"p{n}"))) for n in range(100)] == [4] * 100
