"""Publishing never waits and never fails."""

from __future__ import annotations

import asyncio

from perdure.ids import EffectId, Seq, StreamId, TurnId
from perdure.observe.events import Cursor, TextDelta
from perdure.observe.hub import QUEUE_LIMIT, Hub, HubSubscription
from perdure.vocab.records import Row

S, OTHER = StreamId("s"), StreamId("other")


def row(seq: int) -> Row:
    return Row(stream=S, seq=Seq(seq), at=0, kind="x", data=b"{}")


def delta(text: str = "x") -> TextDelta:
    return TextDelta(Cursor(), TurnId("t"), EffectId("m1.1"), text)


def test_hub_without_subscriptions_ignores_publications() -> None:
    hub = Hub()
    assert not hub.watched(S)
    hub.publish(S, row(1), delta())
    hub.notify(S)
    hub.notify()


def test_a_stream_is_watched_for_the_length_of_a_block() -> None:
    hub = Hub()
    with hub.subscribe(S):
        with hub.subscribe(S):
            assert hub.watched(S)
        assert hub.watched(S)
        assert not hub.watched(OTHER)
    assert not hub.watched(S)


def test_every_subscription_receives_its_stream_in_order() -> None:
    hub = Hub()
    with hub.subscribe(S) as one, hub.subscribe(S) as two, hub.subscribe(OTHER) as other:
        hub.publish(S, row(1), delta("a"), row(2))
        assert list(one.items) == list(two.items) == [row(1), delta("a"), row(2)]
        assert not other.items


def test_full_subscription_counts_dropped_deltas_and_rereads_rows() -> None:
    subscription = HubSubscription(limit=3)
    subscription.look_again = False
    for item in (delta("a"), row(1), delta("b"), delta("c"), delta("d")):
        subscription.put(item)
    assert list(subscription.items) == [delta("a"), row(1), delta("b")]
    assert (subscription.dropped, subscription.look_again) == (2, False)
    subscription.put(row(2))
    assert (subscription.dropped, subscription.look_again) == (2, True)
    assert len(subscription.items) == 3


def test_the_queue_holds_a_thousand_items() -> None:
    assert QUEUE_LIMIT == 1024
    assert HubSubscription().limit == 1024


def test_a_slow_observer_does_not_hurt_a_quick_one() -> None:
    hub = Hub()
    with hub.subscribe(S) as slow, hub.subscribe(S) as quick:
        for index in range(QUEUE_LIMIT + 5):
            hub.publish(S, delta(str(index)))
            quick.items.clear()
        assert (slow.dropped, quick.dropped) == (5, 0)


def test_a_stir_reaches_one_stream_or_all() -> None:
    hub = Hub()
    with hub.subscribe(S) as one, hub.subscribe(OTHER) as other:
        one.look_again = other.look_again = False
        hub.notify(S)
        assert (one.look_again, other.look_again) == (True, False)
        hub.notify()
        assert (one.look_again, other.look_again) == (True, True)


async def test_item_or_notification_wakes_a_waiting_subscription() -> None:
    subscription = HubSubscription()
    waiting = asyncio.create_task(subscription.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    subscription.put(row(1))
    await asyncio.wait_for(waiting, 1)
    again = asyncio.create_task(subscription.wait())
    await asyncio.sleep(0)
    assert not again.done()
    subscription.notify()
    await asyncio.wait_for(again, 1)


async def test_news_before_the_wait_is_not_lost() -> None:
    subscription = HubSubscription()
    subscription.put(row(1))
    await asyncio.wait_for(subscription.wait(), 1)
