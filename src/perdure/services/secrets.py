"""Secrets that people give to a session: stored outside its log, which contains only references.

Laws: only the reference is shown, recorded or sent to a model. Once this process has read or received a value,
`Redactor` hides the value in everything that the session, or a tool that works for it, writes.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
from base64 import b64encode
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from functools import cached_property, lru_cache
from html import escape
from struct import Struct
from typing import NoReturn, Protocol, TypeVar, cast
from urllib.parse import quote, quote_plus
from weakref import ReferenceType, ref

from perdure.codec import Json, encode
from perdure.errors import Code, Error
from perdure.ids import StreamId
from perdure.services.secret_fields import rewritten
from perdure.vocab.wire import HIDDEN

REFERENCE = "secret:"
"""The prefix of a reference."""

LISTED = "secrets:"
"""The prefix of the promises that list the references of a session."""

NOWHERE = StreamId("")

MIN_PART_CHARS = 4
"""Minimum length for redaction inside other text. A shorter value is redacted only where it is the whole text."""


MIN_CODED_CHARS = 8
"""Minimum length of an encoded form, such as base64, for redaction. Shorter ones occur in ordinary text."""

MIN_LINE_CHARS = 8
"""Minimum length of a line of a value for redaction by itself. Shorter ones are often ordinary words."""

MAX_CODED_LINES = 8
"""The lines of a value with more lines are hidden as they are, not in encoded forms."""

WRAPPED_AT = (76, 64)
"""Characters in a line of base64 text, in mails and in PEM files."""

SEARCHED_AT_ONCE_BYTES = 262_144
"""More bytes are searched in a thread: a search takes about 10 ms per MiB."""

_WORD = re.compile("[a-z_]{1,16}")

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


T = TypeVar("T")


class SeenSecrets:
    """The values that this runtime has read or received, by session."""

    def __init__(self) -> None:
        self.by_stream: dict[StreamId, tuple[str, ...]] = {}
        self.references: dict[StreamId, tuple[str, ...]] = {}
        """The references of stored secrets that were read, by session."""

    def add(self, stream: StreamId, value: str) -> None:
        """Hide this value from now on in what the stream's session writes, and in all log records."""
        values = self.by_stream.get(stream, ())
        if value and value not in values:
            if not self.by_stream:
                _hide_in_log_records(self)
            self.by_stream[stream] = (*values, value)

    def forget(self, stream: StreamId) -> None:
        """Forget the values of a deleted session."""
        self.by_stream.pop(stream, None)
        self.references.pop(stream, None)


class Redactor:
    """The redactor of one stream: it hides the values of the stream's session and of the session that it writes for."""

    def __init__(self, seen: SeenSecrets | None = None, stream: StreamId = NOWHERE) -> None:
        self.seen = SeenSecrets() if seen is None else seen
        self._stream = stream

    def add(self, value: str) -> None:
        """Redact this value from now on."""
        self.seen.add(self._stream, value)

    @property
    def is_needed(self) -> bool:
        """True if this process has seen a secret at all."""
        return bool(self.seen.by_stream)

    def speaks(self) -> None:
        """Mark the current task as working for this session. All that it writes elsewhere hides the values, too."""
        _speaker.set(self)

    def _own(self) -> tuple[str, ...]:
        return self.seen.by_stream.get(self._stream, ())

    def _matcher(self) -> _Matcher | None:
        """Return the matcher of the values to hide, or None if there are none."""
        speaker = _speaker.get()
        values = self._own()
        if speaker is not None and speaker._stream != self._stream:
            values = (*values, *speaker._own())
        return _matcher_of(values) if values else None

    def text(self, text: str) -> str:
        """Return the text with all values redacted, also where they are escaped or encoded."""
        matcher = self._matcher() if self.seen.by_stream else None
        return text if matcher is None else matcher.text(text)

    def json(self, value: Json) -> Json:
        """Return the JSON value with all secrets redacted: as text, inside text, as a number or as a name."""
        matcher = self._matcher() if self.seen.by_stream else None
        return value if matcher is None else matcher.json(value)

    def data(self, data: bytes) -> bytes:
        """Return the bytes with all values redacted, in the forms that they have as UTF-8 text."""
        matcher = self._matcher() if self.seen.by_stream else None
        return data if matcher is None else matcher.data(data)

    async def data_of_any_size(self, data: bytes) -> bytes:
        """Return the bytes like `data`. Many bytes are searched in a thread, so that the event loop goes on."""
        if not self.seen.by_stream or len(data) <= SEARCHED_AT_ONCE_BYTES:
            return self.data(data)
        return await asyncio.to_thread(self.data, data)

    def value(self, value: T) -> T:
        """Return a record, an item or a message with all values redacted. Its ids, names and keys stay."""
        matcher = self._matcher() if self.seen.by_stream else None
        if matcher is None or not matcher.may_be_in(encode(value)):
            return value
        return rewritten(value, matcher)

    def values(self, values: tuple[T, ...]) -> tuple[T, ...]:
        """Return several values, each redacted."""
        return tuple([self.value(one) for one in values]) if self.seen.by_stream else values

    def hides(self, data: bytes) -> bool:
        """Return True if encoded JSON may contain a value."""
        matcher = self._matcher() if self.seen.by_stream else None
        return matcher is not None and matcher.may_be_in(data)

    def masked(self, text: str) -> str:
        """Return the text with all values redacted, at its old length, for texts whose parts have offsets."""
        matcher = self._matcher() if self.seen.by_stream else None
        return text if matcher is None else matcher.masked(text)

    def check_elsewhere(self, *names: str) -> None:
        """Refuse names of a write that another session's task makes here, if they contain that session's values.

        Raises:
            Error: `invalid_id`.
        """
        by = _speaker.get()
        if by is not None and by._stream != self._stream:
            by.check_names(*names)

    def check_names(self, *names: str) -> None:
        """Refuse names that contain a value, because a changed name would name something else.

        Raises:
            Error: `invalid_id`.
        """
        if any(self.text(name) != name for name in names):  # threat: T-TOOL-08
            raise Error(
                Code.INVALID_ID,
                "a name contains a secret; nothing was written",
                because="ids, keys and names are stored as they are, and are shown in lists and logs",
                hint="use a name that does not depend on the secret",
            )

    def safe_end(self, text: str) -> int:
        """Return the end of the text that can be shown: what follows may be the beginning of a value."""
        matcher = self._matcher() if self.seen.by_stream else None
        return len(text) if matcher is None else matcher.safe_end(text)

    @property
    def longest(self) -> int:
        """The largest size in bytes of a form of a value."""
        matcher = self._matcher() if self.seen.by_stream else None
        return 0 if matcher is None else matcher.longest


_speaker: ContextVar[Redactor | None] = ContextVar("perdure_speaker", default=None)
"""The redactor of the session that the current task works for. Threads of tools inherit it."""


def speaker() -> Redactor:
    """Return the redactor of the session that the current task works for."""
    return _speaker.get() or _NOBODY


_NOBODY = Redactor()


class OutputPieces:
    """The output of one call in pieces, in which a value that straddles two pieces is hidden, too."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def add(self, stream: str, text: str, redactor: Redactor) -> str:
        """Add a piece, and return the text that can be shown now."""
        text = self._held.pop(stream, "") + text
        end = redactor.safe_end(text)
        if end < len(text):
            self._held[stream] = text[end:]
        return redactor.text(text[:end])

    def rest(self, redactor: Redactor) -> Mapping[str, str]:
        """Return the text that was held back, by stream: no more pieces follow."""
        held, self._held = self._held, {}
        return {stream: redactor.text(text) for stream, text in held.items()}


class _Matcher:
    """All forms of some values, prepared for search: one pass over the data finds the forms that may be in it."""

    def __init__(self, values: tuple[str, ...]) -> None:
        self._values = values
        self._whole = frozenset(values)
        self._forms = sorted({form for value in values for form in forms_of(value)}, key=len, reverse=True)
        self.longest = max((len(_utf8(form)) for form in self._forms), default=0)

    @cached_property
    def _plain(self) -> _Index:
        return _Index({_utf8(form): form for form in self._forms})

    @cached_property
    def _in_json(self) -> _Index:
        inside = {*self._forms, *(value for value in self._values if len(value) < MIN_PART_CHARS)}
        return _Index({_utf8(json.dumps(form, ensure_ascii=False)[1:-1]): form for form in inside})

    def may_be_in(self, data: bytes) -> bool:
        """Return whether encoded JSON may contain a value."""
        return any(needle in data for needle in self._in_json.candidates(data))

    def text(self, text: str) -> str:
        """Return the text with all values replaced."""
        if text in self._whole:
            return HIDDEN
        return _replaced(text, self._likely(text), _hidden)

    def masked(self, text: str) -> str:
        """Return the text with all values replaced by as many characters."""
        return _replaced(text, self._likely(text), _masked)

    def data(self, data: bytes) -> bytes:
        """Return the bytes with all values replaced."""
        likely = [form.decode("latin-1") for form in self._plain.candidates(data)]  # one character for each byte
        return _replaced(data.decode("latin-1"), likely, _hidden).encode("latin-1") if likely else data

    def json(self, value: Json) -> Json:
        """Return the JSON value with all values replaced. A name that is a plain word stays: code depends on it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return HIDDEN if _digits(value) in self._whole else value
        if isinstance(value, list | tuple):
            return [self.json(one) for one in cast("list[Json]", value)]
        if isinstance(value, dict):
            items = cast("dict[str, Json]", value).items()
            return {name if _WORD.fullmatch(name) else self.text(name): self.json(one) for name, one in items}
        return value

    def safe_end(self, text: str) -> int:
        """Return the end of the text that can be shown: what follows may be the beginning of a value."""
        size, found = len(text), _found(text, self._likely(text))

        def is_whole(at: int) -> bool:  # a value that is there as a whole holds nothing back
            before = bisect(found, (at, -1)) - 1
            return before >= 0 and at < found[before][1]

        short = range(max(0, size - END_CHARS + 1), size)
        best = next((at for at in short if text[at:] in self._beginnings and not is_whole(at)), size)
        for form in self._forms:
            below = min(len(form), size + 1)
            while (below := _shared(form, text, below)) > size - best:
                if not is_whole(size - below):
                    best = size - below
        return best

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(form[:size] for form in self._forms for size in range(1, min(END_CHARS, len(form))))

    def _likely(self, text: str) -> list[str]:
        return [self._plain.forms[form] for form in self._plain.candidates(_utf8(text))]


class _Index:
    """An index of byte strings by aligned words: data that contains a string contains one of its words, aligned.

    A search reads the data as numbers of eight bytes, and of four bytes for short strings. Its cost depends on the size
    of the data, not on the number of strings. Each string gets words that no other has, where possible.
    """

    def __init__(self, forms: dict[bytes, str]) -> None:
        self.forms = forms
        self._words: dict[str, dict[int, list[bytes]]] = {}
        self._short = [form for form in forms if len(form) < 2 * 4 - 1]
        for form in forms:
            if len(form) >= 2 * 8 - 1:
                self._add(form, 8, self._words.setdefault("Q", {}))
            elif len(form) >= 2 * 4 - 1:
                self._add(form, 4, self._words.setdefault("I", {}))

    @staticmethod
    def _add(form: bytes, width: int, words: dict[int, list[bytes]]) -> None:
        read = _READ[width]
        for shift in range(width):
            (word,) = read(form, shift)
            at = shift + width
            while word in words and at <= len(form) - width and at < WORDS_TRIED * width:
                (word,) = read(form, at)
                at += width
            words.setdefault(word, []).append(form)

    def candidates(self, data: bytes) -> Collection[bytes]:
        """Return the strings that may be in the data: all that are, and few others."""
        found = dict.fromkeys(form for form in self._short if form in data)
        for kind, words in self._words.items():
            for word in words.keys() & _words(data, 8 if kind == "Q" else 4):
                found.update(dict.fromkeys(words[word]))
        return found


_READ = {4: Struct("=I").unpack_from, 8: Struct("=Q").unpack_from}

WORDS_TRIED = 8
"""Words of a string, at each alignment, among which the index selects one."""


def _words(data: bytes, width: int) -> memoryview:
    return memoryview(data)[: len(data) // width * width].cast("Q" if width == 8 else "I")


def _found(text: str, forms: Iterable[str]) -> list[tuple[int, int]]:
    """Return where the forms are in the text, in order. Overlapping places are one.

    Places inside a replacement are left out, so that a value of its letters stays. Each search continues after the
    last place, so that its cost is linear.
    """
    places = sorted(place for form in forms for place in _places(text, form))
    kept = _places(text, HIDDEN) if places else []
    found: list[tuple[int, int]] = []
    for start, end in places:
        if kept and (at := bisect(kept, (start, len(text) + 1))) and end <= kept[at - 1][1]:
            continue
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _places(text: str, form: str) -> list[tuple[int, int]]:
    found, at, size = list[tuple[int, int]](), text.find(form), len(form)
    while at >= 0:
        found.append((at, at + size))
        at = text.find(form, at + size)
    return found


def _replaced(text: str, forms: Iterable[str], shown: Callable[[int], str]) -> str:
    """Return the text with each place of a form replaced by what is shown for its size."""
    forms = [form for form in forms if form in text]
    if len(forms) == 1 and HIDDEN not in text:
        return text.replace(forms[0], shown(len(forms[0])))
    parts, at = list[str](), 0
    for start, end in _found(text, forms):
        parts += (text[at:start], shown(end - start))
        at = end
    return "".join([*parts, text[at:]]) if parts else text


def _hidden(_size: int) -> str:
    return HIDDEN


def _masked(size: int) -> str:
    return HIDDEN[:size].ljust(size, "*")


def _shared(form: str, text: str, below: int) -> int:
    """Return the size of the longest end of the text that is a beginning of the form, or 0.

    Ends below `END_CHARS` characters are not compared. After many near misses, the result is an upper bound.
    """
    last = text[-END_CHARS:]
    for tried in range(MAX_TRIES):
        at = form.rfind(last, 0, below - 1)
        if at < 0 or len(last) < END_CHARS:
            return 0
        below = at + END_CHARS
        if tried == MAX_TRIES - 1 or form.startswith(text[len(text) - below :]):
            break
    return below


END_CHARS = 8
"""Characters at the end of a text by which the places of a form are found that the text may break off at."""

MAX_TRIES = 256
"""Places that are compared. A text of one repeated letter has very many."""


@lru_cache(maxsize=256)
def _matcher_of(values: tuple[str, ...]) -> _Matcher:
    return _Matcher(values)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digits(number: float) -> str:
    """Return a number as a person writes it: a value of digits may have become a float."""
    return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)


@lru_cache(maxsize=1024)
def forms_of(value: str) -> tuple[str, ...]:
    """Return the forms under which a value is hidden inside other text, longest first.

    The forms are the value itself, escaped once or twice for JSON, as a Python literal, for HTML, for a shell and for
    URLs, in hexadecimal, and in base64 at each of three alignments. The value without the space around it and each
    of its lines have forms, too.
    """
    if len(value) < MIN_PART_CHARS:
        return ()
    core = stripped if len(stripped := value.strip()) >= MIN_PART_CHARS else value
    found = _forms(core) | {value}
    if len(rows := core.splitlines()) > 1:
        lines = [line for row in rows if len(line := row.strip()) >= MIN_LINE_CHARS and line[:5] != "-----"]
        found |= {"\r\n".join(rows), *lines}
        for line in lines if len(lines) <= MAX_CODED_LINES else ():
            found |= _forms(line)
    return tuple(sorted(found, key=len, reverse=True))


def _forms(value: str) -> set[str]:
    data = value.encode("utf-8", "surrogatepass")
    found = {value, repr(value)[1:-1], ascii(value)[1:-1], repr(data)[2:-1], *_urls(data)}
    found |= {escape(value), escape(value, quote=False), value.replace("'", "'\"'\"'")}  # HTML, and `shlex.quote`
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        found |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    coded = {data.hex(), data.hex().upper(), *_base64s(data)}
    return found | {form for form in coded if len(form) >= MIN_CODED_CHARS}


def _urls(data: bytes) -> set[str]:
    found = {quote(data, safe=""), quote(data), quote_plus(data)}
    found |= {quote(quote(data, safe=""), safe=""), quote(quote(data))}
    return found | {_CODE.sub(lambda code: code.group().lower(), form) for form in found}


def _base64s(data: bytes) -> set[str]:
    """Return the characters that bytes have in any base64 text, whatever comes before and after them.

    Text that begins with the bytes may be wrapped in lines, as in mails and PEM files.
    """
    found: set[str] = set()
    for before in range(3):
        text = b64encode(bytes(before) + data).decode()
        inside = text[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        found |= {inside, inside.replace("+", "-").replace("/", "_")}
        if before == 0:
            found |= {inside[at : at + width] for width in WRAPPED_AT for at in range(0, len(inside), width)}
    return found


# --- log records

_registries: tuple[ReferenceType[SeenSecrets], ...] = ()
"""The seen values of all runtimes of this process, for log records."""


class _RedactedRecords:
    """A factory of log records without values in their messages and tracebacks, over the factory of the host.

    A filter would have to be added to every logger, because a logger's filter does not apply to the loggers below it.
    """

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *given: object, **named: object) -> logging.LogRecord:
        record = self._make(*given, **named)
        if values := _all_seen():
            _redact(record, matcher := _matcher_of(values))
            record.__dict__ = _RecordFields(record.__dict__, matcher)
        return record


class _RecordFields(dict[str, object]):
    """The fields of a log record. A logger adds the extra ones as items, after the factory has made the record."""

    def __init__(self, fields: Mapping[str, object], matcher: _Matcher) -> None:
        super().__init__(fields)
        self._matcher = matcher

    def __setitem__(self, name: str, value: object) -> None:
        try:
            told = value if isinstance(value, str) else repr(value)
        except Exception:  # noqa: BLE001 - any object of the application
            told = value = "a field of a log record could not be formatted"
        shown = self._matcher.text(told)
        super().__setitem__(name, value if shown == told else shown)

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        return dict, (dict(self),)


def _redact(record: logging.LogRecord, matcher: _Matcher) -> None:
    try:
        said, given = record.getMessage(), repr(record.args)
    except Exception:  # noqa: BLE001 - arguments that do not fit: the handler reports that
        record.msg, record.args = "a log message could not be formatted", ()
        return
    if (shown := matcher.text(said)) != said or matcher.text(given) != given:
        record.msg, record.args = shown, ()
    if record.exc_info:
        told = logging.Formatter().formatException(record.exc_info)
        if (shown := matcher.text(told)) != told:
            record.exc_text, record.exc_info = shown, None
    if record.stack_info:
        record.stack_info = matcher.text(record.stack_info)


def _all_seen() -> tuple[str, ...]:
    known = [seen for one in _registries if (seen := one()) is not None]
    return tuple({value for seen in known for values in list(seen.by_stream.values()) for value in values})


def _hide_in_log_records(seen: SeenSecrets) -> None:
    """Hide the values of a runtime in the log records of all loggers: a tool, a library or asyncio may log them."""
    global _registries
    _registries = (*(one for one in _registries if one() is not None), ref(seen))
    if not isinstance(current := logging.getLogRecordFactory(), _RedactedRecords):
        logging.setLogRecordFactory(_RedactedRecords(current))  # threat: S10, T-SEC-01
