"""Secrets that people give a session: kept apart from its log, which has only references to them.

Laws: what is shown, recorded or sent to a model is the reference. A value that a tool has read is taken out of whatever
it says afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from perdure.codec import Json
from perdure.ids import StreamId

REFERENCE = "secret:"
"""What a reference begins with."""

NOWHERE = StreamId("")

HIDDEN = "[secret]"
"""What stands where a value would have been."""

MIN_PART_CHARS = 4
"""A shorter value is hidden only where it stands alone: inside other text it would be everywhere."""


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A value that is not to be seen. Printed, it says nothing."""

    _value: str

    def reveal(self) -> str:
        """The value: for whoever needs it, at the moment they do."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"


class SecretStore(Protocol):
    """The secrets of one session."""

    async def get(self, reference: str) -> Secret:
        """The secret that a reference stands for.

        Raises:
            ToolError: `secret_unknown` if this session has no such secret.
        """
        ...


class Veil:
    """What hides the secrets of one session, as far as this process has seen them: `seen` has those of all sessions."""

    def __init__(self, seen: dict[StreamId, tuple[str, ...]] | None = None, stream: StreamId = NOWHERE) -> None:
        self._seen = {} if seen is None else seen
        self._stream = stream

    @property
    def _values(self) -> tuple[str, ...]:
        return self._seen.get(self._stream, ())

    def add(self, value: str) -> None:
        """Hide this from now on."""
        values = self._values
        if value and value not in values:
            ordered = sorted((*values, value), key=len, reverse=True)  # one may be part of another
            self._seen[self._stream] = tuple(ordered)

    def text(self, text: str) -> str:
        """A text without the values."""
        for value in self._values:
            if text == value:
                return HIDDEN
            if len(value) >= MIN_PART_CHARS and value in text:
                text = text.replace(value, HIDDEN)
        return text

    def json(self, value: Json) -> Json:
        """A JSON value without the values, wherever they are in it: as text, in text, as a number or as a name."""
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
