"""Timeline of a session as text: turns and steps as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.cli.lines import JournalLine, Reader
from perdure.cli.screen import took
from perdure.vocab.records import Row

BAR = 24


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A step of a turn. `end` is None while the step runs."""

    kind: str
    name: str
    start: int
    end: int | None
    result: str
    tone: str
    tokens: int | None


@dataclass(slots=True)
class TurnPicture:
    """One turn with its steps."""

    number: int
    start: int
    end: int | None = None
    said: str = ""
    result: str = "unfinished"
    tokens: int = 0
    steps: list[TimelineStep] = field(default_factory=list[TimelineStep])

    @property
    def took_ms(self) -> int | None:
        """The duration of the turn, or None while it runs."""
        return None if self.end is None else self.end - self.start


def pictures(rows: Sequence[Row]) -> list[TurnPicture]:
    """Return the turns of a log."""
    found: list[TurnPicture] = []
    begun: dict[str, JournalLine] = {}
    said = ""
    for line in Reader().lines(rows):
        if line.kind in ("input", "steer", "interrupt"):
            said = line.result
        elif line.kind == "turn" and line.name == "start":
            found.append(TurnPicture(line.turn or 0, line.at, said=said))
            begun.clear()
        elif found and line.kind == "turn":
            found[-1].end, found[-1].result, found[-1].tokens = line.at, line.result, line.tokens or 0
            begun.clear()
        elif found and line.begun:
            begun[line.effect] = line
        elif found and line.effect:
            started = begun.pop(line.effect, None)
            start = started.at if started else line.at - (line.ms or 0)
            found[-1].steps.append(_step(line, start, line.at))
    if found and found[-1].end is None:
        found[-1].steps.extend(_step(line, line.at, None) for line in begun.values())
    return found


def _step(line: JournalLine, start: int, end: int | None) -> TimelineStep:
    return TimelineStep(line.kind, line.name, start, end, line.result if end else "running", line.tone, line.tokens)


def bar(step: TimelineStep, turn: TurnPicture, now: int) -> str:
    """Return a bar that shows when in its turn a step ran."""
    until = turn.end if turn.end is not None else now
    span = max(1, until - turn.start)
    first = min(BAR - 1, (step.start - turn.start) * BAR // span)
    last = min(BAR - 1, ((step.end if step.end is not None else now) - turn.start) * BAR // span)
    return "".join("█" if first <= place <= last else "░" for place in range(BAR))


def note_of(step: TimelineStep) -> str:
    """Return the text beside the bar."""
    ms = took(step.end - step.start) if step.end is not None else ""
    tokens = f"{step.tokens} tok" if step.tokens is not None else ""
    result = "" if step.result.startswith("ok") else step.result
    return "  ".join(filter(None, (ms, tokens, result)))
