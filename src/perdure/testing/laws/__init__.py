"""The laws of every store, as tests to inherit.

    class TestMyStore(StoreLaws):
        @pytest.fixture
        async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
            async with StoreBench(lambda clock: MyStore(tmp_path / "my.db", clock), MyStore.abandon) as bench:
                yield bench

A `Bench` is a store, a second handle on the same data, a manual clock and a way to kill a worker. Leases last 10 s on
that clock. The tests are async: run them with pytest-asyncio in its auto mode, or mark the class for anyio.
"""

from perdure.testing.laws.amendments import AmendmentLaws
from perdure.testing.laws.append import AppendLaws
from perdure.testing.laws.asks import AskLaws
from perdure.testing.laws.audits import AuditLaws
from perdure.testing.laws.bench import Bench, StoreBench
from perdure.testing.laws.blobs import BlobLaws
from perdure.testing.laws.changes import ChangeLaws
from perdure.testing.laws.claims import ClaimLaws
from perdure.testing.laws.inbox import InboxLaws
from perdure.testing.laws.interventions import InterventionLaws
from perdure.testing.laws.leases import LeaseLaws
from perdure.testing.laws.listing import ListingLaws
from perdure.testing.laws.live import LiveLaws
from perdure.testing.laws.permits import PermitLaws
from perdure.testing.laws.promises import PromiseLaws
from perdure.testing.laws.prunes import PruneLaws
from perdure.testing.laws.queues import QueueLaws
from perdure.testing.laws.receipts import ReceiptLaws
from perdure.testing.laws.rooms import RoomLaws
from perdure.testing.laws.sends import SendLaws
from perdure.testing.laws.snapshots import SnapshotLaws
from perdure.testing.laws.streams import StreamLaws
from perdure.testing.laws.timers import TimerLaws


class StoreLaws(
    AppendLaws,
    ReceiptLaws,
    InboxLaws,
    RoomLaws,
    SendLaws,
    LeaseLaws,
    ClaimLaws,
    QueueLaws,
    PermitLaws,
    PromiseLaws,
    AskLaws,
    TimerLaws,
    BlobLaws,
    SnapshotLaws,
    StreamLaws,
    ListingLaws,
    ChangeLaws,
    InterventionLaws,
    AmendmentLaws,
    AuditLaws,
    PruneLaws,
    LiveLaws,
):
    """All laws of a store. A subclass provides the fixture `bench`."""


__all__ = ["Bench", "StoreBench", "StoreLaws"]
