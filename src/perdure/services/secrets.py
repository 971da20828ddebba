"""Secrets that people give to a session: stored outside its log, which contains only references.

Laws: only the reference is shown, recorded or sent to a model. After a tool has read a value, the value is redacted
from its output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from perdure.codec import Json
from perdure.ids import StreamId

REFERENCE = "secret:"
"""The prefix of a reference."""

NOWHERE = StreamId("")

HIDDEN = "[secret]"
"""The replacement for a redacted value."""

MIN_PART_CHARS = 4
"""Minimum length for redaction inside other text. A shorter value is redacted only where it is the whole text."""


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A secret value. Its text form does not contain the value."""

    _value: str

    def reveal(self) -> str:
        """Return the value. Call only where the value is used."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"


class SecretStore(Protocol):
    """The secrets of one session."""

    async def get(self, reference: str) -> Secret:
        """Return the secret behind a reference.

        Raises:
            ToolError: `secret_unknown` if this session has no such secret.
        """
        ...


class Redactor:
    """Redactor of one session's secrets, once read by this process. `seen` contains those of all sessions."""

    def __init__(self, seen: dict[StreamId, tuple[str, ...]] | None = None, stream: StreamId = NOWHERE) -> None:
        self._seen = {} if seen is None else seen
        self._stream = stream

    @property
    def _values(self) -> tuple[str, ...]:
        return self._seen.get(self._stream, ())

    def add(self, value: str) -> None:
        """Redact this value from now on."""
        values = self._values
        if value and value not in values:
            ordered = sorted((*values, value), key=len, reverse=True)  # a value may contain another
            self._seen[self._stream] = tuple(ordered)

    def text(self, text: str) -> str:
        """Return the text with all values redacted."""
        for value in self._values:
            if text == value:
                return HIDDEN
            if len(value) >= MIN_PART_CHARS and value in text:
                text = text.replace(value, HIDDEN)
        return text

    def json(self, value: Json) -> Json:
        """Return the JSON value with all secrets redacted: as text, inside text, as a number or as a name."""
        if not self._seen.get(self._stream):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return HIDDEN if str(value) in self._values else value
        if isinstance(value, list | tuple):
            return [self.json(one) for one in cast("list[Json]", value)]
        if isinstance(value, dict):
            return {self.text(name): self.json(one) for name, one in cast("dict[str, Json]", value).items()}
        return value
