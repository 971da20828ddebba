"""Secrets that people give to a session: stored outside its log, which contains only references.

Laws: only the reference is shown, recorded or sent to a model. After a tool has read a value, the value is redacted
from its output.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import NoReturn, Protocol, cast
from urllib.parse import quote, quote_plus

from perdure.codec import Json
from perdure.ids import StreamId

REFERENCE = "secret:"
"""The prefix of a reference."""

NOWHERE = StreamId("")

HIDDEN = "[secret]"
"""The replacement for a redacted value."""

MIN_PART_CHARS = 4
"""Minimum length for redaction inside other text. A shorter value is redacted only where it is the whole text."""


MIN_CODED_CHARS = 8
"""Minimum length of an encoded form, such as base64, for redaction. Shorter ones occur in ordinary text."""

_CODE = re.compile("%[0-9A-F]{2}")


class Secret:
    """A secret value. Its text form does not contain the value, and no encoder accepts it.

    The class is not a dataclass on purpose: JSON encoders, msgspec and pydantic open those.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value. Call only where the value is used."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _memo: object) -> Secret:
        return self

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a Secret cannot be pickled or stored; pass its reference")  # threat: S10, T-SEC-02


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
            _revealed.add(value)

    def text(self, text: str) -> str:
        """Return the text with all values redacted, also where they are escaped or encoded."""
        return _hidden(text, self._values)

    def safe_end(self, text: str) -> int:
        """Return the end of the text that can be shown: what follows may be the beginning of a value."""
        forms = [form for value in self._values for form in forms_of(value)]
        if not forms:
            return len(text)
        whole = re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
        inside = {at for found in whole.finditer(text) for at in range(found.start() + 1, found.end())}
        for start in range(max(0, len(text) - max(map(len, forms)) + 1), len(text)):
            tail = text[start:]
            if start not in inside and any(len(tail) < len(form) and form.startswith(tail) for form in forms):
                return start
        return len(text)

    @property
    def longest(self) -> int:
        """The largest size in bytes of a form of a value."""
        return max((len(form.encode()) for value in self._values for form in forms_of(value)), default=0)

    def json(self, value: Json) -> Json:
        """Return the JSON value with all secrets redacted: as text, inside text, as a number or as a name."""
        if not self._seen.get(self._stream):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return HIDDEN if _digits(value) in self._values else value
        if isinstance(value, list | tuple):
            return [self.json(one) for one in cast("list[Json]", value)]
        if isinstance(value, dict):
            return {self.text(name): self.json(one) for name, one in cast("dict[str, Json]", value).items()}
        return value


def _digits(number: float) -> str:
    """Return a number as a person writes it: a value of digits may have become a float."""
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


def _hidden(text: str, values: Iterable[str]) -> str:
    for value in values:
        if text == value:
            return HIDDEN
        for form in forms_of(value):
            if form in text:
                text = text.replace(form, HIDDEN)
    return text


@lru_cache(maxsize=1024)
def forms_of(value: str) -> tuple[str, ...]:
    """Return the forms under which a value is hidden inside other text, longest first.

    The forms are the value itself, escaped once or twice for JSON, as a Python literal, for URLs, in hexadecimal, and
    in base64 at each of three alignments.
    """
    if len(value) < MIN_PART_CHARS:
        return ()
    data = value.encode("utf-8", "surrogatepass")
    found = {value, repr(value)[1:-1], *_urls(data)}
    for ascii in (True, False):
        once = json.dumps(value, ensure_ascii=ascii)[1:-1]
        found |= {once, json.dumps(once, ensure_ascii=ascii)[1:-1]}
    coded = {data.hex(), data.hex().upper(), *_base64s(data)}
    found |= {form for form in coded if len(form) >= MIN_CODED_CHARS}
    return tuple(sorted(found, key=len, reverse=True))


def _urls(data: bytes) -> set[str]:
    found = {quote(data, safe=""), quote(data), quote_plus(data)}
    return found | {_CODE.sub(lambda code: code.group().lower(), form) for form in found}


def _base64s(data: bytes) -> set[str]:
    """Return the characters that bytes have in any base64 text, whatever comes before and after them."""
    found: set[str] = set()
    for before in range(3):
        text = b64encode(bytes(before) + data).decode()
        inside = text[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        found |= {inside, inside.replace("+", "-").replace("/", "_")}
    return found


_revealed: set[str] = set()
"""All values that this process has read, for log records."""


class SecretFilter(logging.Filter):
    """Filter that redacts the message and the traceback of log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record. A record without a secret stays as it is."""
        if not _revealed:
            return True
        values = sorted(_revealed, key=len, reverse=True)
        said = record.getMessage()
        if (shown := _hidden(said, values)) != said:
            record.msg, record.args = shown, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text and (shown := _hidden(record.exc_text, values)) != record.exc_text:
            record.exc_text, record.exc_info = shown, None
        return True


LOGGERS = ("codemode", "mcp", "models", "runtime", "services", "store", "tools")
"""The loggers of Perdure. A filter of a logger does not apply to the loggers below it."""

for _name in ("perdure", *(f"perdure.{part}" for part in LOGGERS), "asyncio"):
    logging.getLogger(_name).addFilter(SecretFilter())
