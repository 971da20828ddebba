"""Opening a turn: with an input, from its log, or with another agent after a handoff."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure.codec import encode
from perdure.commit.plan import Snapshot
from perdure.ids import BlobHash, Seq
from perdure.inbox.admit import admitted
from perdure.inbox.items import Input
from perdure.runtime.agent import Agent, setup_of
from perdure.runtime.shared import Shared
from perdure.runtime.turns.transcript import Transcript
from perdure.runtime.worker.owned import OwnedStream
from perdure.session.fold import CODE, SessionState
from perdure.turn.machine import advance
from perdure.turn.state import Turn, opened, taken_over
from perdure.vocab.records import Limits, Record, TurnAgentChanged, TurnOpened
from perdure.vocab.tools import Composition
from perdure.vocab.usage import Usage

FOLDED_AT_ONCE = 256
"""Records of a turn that one step folds, before other tasks of the event loop run."""
SNAPSHOT_ROWS = 64
"""Rows after the last snapshot that make a new one worth its bytes: a cold claim would have to fold them."""


@dataclass(frozen=True, slots=True)
class OpenedTurn:
    """A turn that is about to be driven: its state, its composition, and its records so far."""

    turn: Turn
    composition: BlobHash
    records: list[Record]


class TurnOpener:
    """The opener of one stream's turns.

    `opened_at` is the time at which the last turn was opened. `snapshot_seq` is the seq of the last snapshot.
    """

    def __init__(self, shared: Shared, owned: OwnedStream, transcript: Transcript) -> None:
        self.opened_at = 0
        self.snapshot_seq = Seq(0)
        self._shared = shared
        self._owned = owned
        self._transcript = transcript
        self._stored: set[BlobHash] = set()

    def forget_stored(self) -> None:
        """Forget which compositions are stored.

        Their bytes may have been removed, so the next use stores them again.
        """
        self._stored.clear()

    @property
    def records(self) -> list[Record]:
        """The records of the open turn, including those that are not durable yet."""
        return [*self._transcript.open, *self._owned.undurable()]

    def open(
        self, state: SessionState, agent: Agent, item: Input, instructions: str, *consume: int, model: str = ""
    ) -> OpenedTurn:
        """Open a turn for an input, and consume its inbox row in the same append."""
        setup = setup_of(agent)
        composition = setup.composition(
            instructions,
            without=state.without_tools,
            model=model or item.model or state.model,
            output=item.output,
        )
        from_turn, view_seq = self._transcript.window(agent.view_bytes)
        self.opened_at = self._shared.clock.wall_ms()
        record = TurnOpened(
            turn=item.turn,
            index=state.turns,
            composition=self._keep(composition),
            from_turn=state.turns if from_turn is None else from_turn,
            view_seq=Seq(self._owned.known_seq + 1) if view_seq is None else view_seq,
            limits=setup.limits if setup.limits != Limits() else None,
            spent=state.usage + state.child_usage if setup.limits.binds_session else Usage(),
        )
        said = admitted(item, item.turn)
        if self._owned.settled and state.seq - self.snapshot_seq >= SNAPSHOT_ROWS:
            self._owned.snapshot(Snapshot(state.seq, CODE, encode(state)))
            self.snapshot_seq = state.seq
        before = self.records
        self._owned.submit(said, record, consume=consume)
        return OpenedTurn(opened(record, composition), record.composition, [*before, said, record])

    async def resumed(self) -> OpenedTurn:
        """Return the open turn, rebuilt from its records."""
        records = self.records
        start = next(record for record in records if isinstance(record, TurnOpened))
        self._transcript.begin_at(start.from_turn)
        kept, compositions = start.composition, self._shared.compositions
        turn = opened(start, await compositions.get(kept))
        for count, record in enumerate(records[records.index(start) + 1 :], 1):
            if count % FOLDED_AT_ONCE == 0:
                await asyncio.sleep(0)  # a turn can have thousands of records
            if isinstance(record, TurnAgentChanged):
                kept = record.composition
                turn = taken_over(turn, record, await compositions.get(kept))
            else:
                turn = advance(turn, record)
        return OpenedTurn(turn, kept, records)

    def taken_over(self, begun: OpenedTurn, agent: Agent, composition: Composition) -> OpenedTurn:
        """Record that another agent continues the turn, and return the turn."""
        turn, kept = begun.turn, self._keep(composition)
        record = TurnAgentChanged(turn=turn.id, n=turn.hands + 1, agent=agent.name, composition=kept)
        self._owned.submit(record)
        return OpenedTurn(taken_over(turn, record, composition), kept, [*begun.records, record])

    def _keep(self, composition: Composition) -> BlobHash:
        """Return the composition's hash. Store its bytes with the next append if they may be missing."""
        blob = self._shared.compositions.blob(composition)
        if blob.hash not in self._stored:
            self._owned.blob(blob)
            self._stored.add(blob.hash)
        return blob.hash
