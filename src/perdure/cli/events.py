"""Printed form of session events: text lines for people, JSON objects for programs."""

from __future__ import annotations

import sys
from shutil import get_terminal_size

from perdure.cli.lines import Reader
from perdure.cli.screen import clock, emit, note, one_line, plain, say, took, utc
from perdure.codec import Json, decode, encode
from perdure.ids import SessionId
from perdure.observe.events import (
    DeltasDropped,
    Event,
    RecordEvent,
    TextDelta,
    TextReset,
    ToolOutputDelta,
    ToolProgress,
)
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled, Record


def as_json(record: Record) -> Json:
    """Return a record as JSON, with its kind."""
    return decode(encode(record))


def emit_event(session: SessionId, event: Event) -> None:
    """Print one event as a JSON object."""
    shared = {"type": event.type, "v": 1, "session": session, "cursor": str(event.cursor)}
    match event:
        case RecordEvent(at=at, record=record):
            emit(**shared, seq=event.cursor.seq, at=utc(at), record=as_json(record))
        case TextDelta(turn=turn, effect=effect, text=text, thinking=thinking):
            emit(**shared, turn=turn, effect=effect, text=text, thinking=thinking)
        case TextReset(turn=turn, effect=effect, chars=chars):
            emit(**shared, turn=turn, effect=effect, chars=chars)
        case ToolProgress(turn=turn, effect=effect, call=call, tool=tool, message=message, display_name=shown):
            emit(**shared, turn=turn, effect=effect, call=call, tool=tool, message=message, display_name=shown)
        case ToolOutputDelta(turn=turn, effect=effect, call=call, tool=tool, text=text, stream=stream):
            emit(**shared, turn=turn, effect=effect, call=call, tool=tool, text=text, stream=stream)
        case DeltasDropped(dropped=dropped):
            emit(**shared, dropped=dropped)


class Talk:
    """Printer of streamed replies: deltas at once, the rest when the reply is saved, a line break after each reply."""

    def __init__(self, *, tools: bool) -> None:
        self._tools = tools
        self._reader = Reader()
        self._shown = ""

    def show(self, event: Event) -> None:
        """Print the text that an event adds."""
        if isinstance(event, TextDelta) and not event.thinking:
            self._shown += event.text
            _write(event.text)
        if isinstance(event, TextReset) and self._shown:
            self._shown = ""
            _write("\n")
            note("  … the model is called again; the text above is void")
        if isinstance(event, ToolProgress) and self._tools:
            note(f"  … {one_line(f'{event.tool}: {event.message}', 100)}")
        if not isinstance(event, RecordEvent):
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
        elif text:  # the shown text was cut off: the saved reply differs
            _write(f"\n{text}")
        if text or self._shown:
            _write("\n")
        self._shown = ""


def _write(text: str) -> None:
    sys.stdout.write(plain(text))
    sys.stdout.flush()


class Printer:
    """Printer of durable facts, one line each."""

    def __init__(self) -> None:
        self._reader = Reader()

    def on_record(self, event: Event) -> None:
        """Read a fact without printing it, so that later lines can use its names."""
        if isinstance(event, RecordEvent):
            self._reader.line(event)

    def show(self, event: Event) -> None:
        """Print a fact. Text deltas are not durable and are left out; `run` prints them."""
        if not isinstance(event, RecordEvent):
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
