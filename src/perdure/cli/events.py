"""Events of a session as they are printed: a line for a person, an object for a program."""

from __future__ import annotations

import sys
from shutil import get_terminal_size

from perdure.cli.lines import Reader
from perdure.cli.screen import clock, emit, note, one_line, plain, say, took, utc
from perdure.codec import Json, decode, encode
from perdure.ids import SessionId
from perdure.observe.events import Delta, Event, Fact, Gap, OutputDelta, Progress, Superseded
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled, Record


def as_json(record: Record) -> Json:
    """A record with its kind."""
    return decode(encode(record))


def emit_event(session: SessionId, event: Event) -> None:
    """One event as one JSON object."""
    shared = {"type": event.type, "v": 1, "session": session, "cursor": str(event.cursor)}
    match event:
        case Fact(at=at, record=record):
            emit(**shared, seq=event.cursor.seq, at=utc(at), record=as_json(record))
        case Delta(turn=turn, effect=effect, text=text, thinking=thinking):
            emit(**shared, turn=turn, effect=effect, text=text, thinking=thinking)
        case Superseded(turn=turn, effect=effect, chars=chars):
            emit(**shared, turn=turn, effect=effect, chars=chars)
        case Progress(turn=turn, effect=effect, call=call, tool=tool, message=message, display_name=shown):
            emit(**shared, turn=turn, effect=effect, call=call, tool=tool, message=message, display_name=shown)
        case OutputDelta(turn=turn, effect=effect, call=call, tool=tool, text=text, stream=stream):
            emit(**shared, turn=turn, effect=effect, call=call, tool=tool, text=text, stream=stream)
        case Gap(dropped=dropped):
            emit(**shared, dropped=dropped)


class Talk:
    """Prints replies as they are written: deltas at once, the rest when the reply is saved, a new line after each."""

    def __init__(self, *, tools: bool) -> None:
        self._tools = tools
        self._reader = Reader()
        self._shown = ""

    def show(self, event: Event) -> None:
        """Print what an event adds to the text."""
        if isinstance(event, Delta) and not event.thinking:
            self._shown += event.text
            _write(event.text)
        if isinstance(event, Superseded) and self._shown:
            self._shown = ""
            _write("\n")
            note("  … the model is asked again; what it said so far is void")
        if isinstance(event, Progress) and self._tools:
            note(f"  … {one_line(f'{event.tool}: {event.message}', 100)}")
        if not isinstance(event, Fact):
            return
        line = self._reader.line(event)
        match event.record:
            case EffectSettled(outcome=LlmCallOutcome(reply=reply)):
                self._end(reply.text if reply else "")
            case EffectSettled() if self._tools:
                spent = f"  {took(line.ms)}" if line.ms is not None else ""
                note(f"  {line.kind} {line.name}  {line.result}{spent}")
            case _:
                pass

    def _end(self, text: str) -> None:
        if text.startswith(self._shown):
            _write(text[len(self._shown) :])
        elif text:  # what was shown broke off: the saved reply is another one
            _write(f"\n{text}")
        if text or self._shown:
            _write("\n")
        self._shown = ""


def _write(text: str) -> None:
    sys.stdout.write(plain(text))
    sys.stdout.flush()


class Printer:
    """Prints durable facts as lines."""

    def __init__(self) -> None:
        self._reader = Reader()

    def learn(self, event: Event) -> None:
        """Read a fact without printing it, to know the names in those that follow."""
        if isinstance(event, Fact):
            self._reader.line(event)

    def show(self, event: Event) -> None:
        """Print a fact; pieces of text that are not durable are left to `run`."""
        if not isinstance(event, Fact):
            return
        line = self._reader.line(event)
        numbers = "  ".join(
            part
            for part in (took(line.ms) if line.ms is not None else "", f"{line.tokens} tok" if line.tokens else "")
            if part
        )
        text = f"{clock(line.at)}  #{line.seq:<4} {line.kind:<8} {line.name:<15} {line.result}"
        say(f"{text}  {numbers}".rstrip(), line.tone if line.tone != "ok" else "")
        match event.record:
            case EffectSettled(outcome=LlmCallOutcome(reply=Reply() as reply)) if reply.text:
                room = max(40, get_terminal_size((120, 24)).columns - 18)
                say(f"{'':<17}{one_line(reply.text, room)}", "dim")
            case _:
                pass
