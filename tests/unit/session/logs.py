"""Random legal logs of sessions: turns one after another, killed, cancelled, cut anywhere, with late news between."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from perdure.ids import BlobHash, EffectId, InputId, Seq, StreamId, TurnId
from perdure.turn.state import Call
from perdure.vocab.messages import AttachmentRef, ImagePart, InputPart, Text
from perdure.vocab.outcomes import Success
from perdure.vocab.records import (
    InputAdmitted,
    OutcomeArrivedLate,
    Record,
    Row,
    SessionOpened,
    TurnEnded,
    kind_of,
    write,
)
from tests.unit.turn.driving import Owner

PICTURE = ImagePart(ref=AttachmentRef(hash=BlobHash("h"), media_type="image/png", size=1))


@dataclass
class Session:
    """Writes a log turn by turn. Doubts of earlier turns may be cleared up at any later moment."""

    random: Random
    cancellable: bool = True
    records: list[Record] = field(default_factory=lambda: [SessionOpened(agent="a")])
    doubted: list[tuple[EffectId, Call]] = field(default_factory=list[tuple[EffectId, Call]])
    steered: list[str] = field(default_factory=list[str])

    def turn(self, index: int) -> None:
        """One more turn, from its input to its end."""
        turn = TurnId(f"t{index}")
        self._late_news(0.5)
        parts: tuple[InputPart, ...] = (Text(text=f"question {index}"),)
        if self.random.random() < 0.2:
            parts = (*parts, PICTURE)
        self.records.append(InputAdmitted(input=InputId(f"i{index}"), turn=turn, parts=parts))
        owner = Owner(self.random, turn, index, cancellable=self.cancellable, steerable=True)
        self.records.append(owner.opening)
        for _, news in owner.steps():
            self.records.extend(news)
            if not isinstance(news[-1] if news else None, TurnEnded):
                self._late_news(0.03)
        self.doubted.extend(owner.doubted)
        self.steered.extend(owner.steered)

    def _late_news(self, chance: float) -> None:
        if self.doubted and self.random.random() < chance:
            effect, call = self.doubted.pop()
            late = OutcomeArrivedLate(
                call=call.request.id,
                id=effect,
                tool=call.request.name,
                output=Success(value=news_of(call.request.id, effect)),
            )
            self.records.append(late)


def news_of(call: str, effect: str) -> str:
    """Return the text of a late outcome, so that each can be recognised."""
    return f"<{call} {effect}>"


def random_log(seed: int, *, turns: int = 4, cancellable: bool = True) -> list[Record]:
    session = Session(Random(seed), cancellable)
    for index in range(turns):
        session.turn(index)
    return session.records


def rows(records: list[Record]) -> list[Row]:
    """The records where they stand in a stream."""
    return [
        Row(stream=StreamId("s"), seq=Seq(seq), at=seq, kind=kind_of(record), data=write(record))
        for seq, record in enumerate(records, start=1)
    ]


def by_turn(records: list[Record]) -> list[list[Record]]:
    """A log cut after the end of each turn; what follows the last end is the open turn."""
    turns: list[list[Record]] = [[]]
    for record in records:
        turns[-1].append(record)
        if isinstance(record, TurnEnded):
            turns.append([])
    return turns
