"""The filter of Perdure's loggers: a message is one short line, whatever text of others it contains.

A formatter of the host writes the fields as they are. Without the filter, an exception of a tool could forge lines.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from perdure.vocab.invisible import spelled

LOGGERS = (
    "perdure.codemode",
    "perdure.mcp",
    "perdure.models",
    "perdure.runtime",
    "perdure.services",
    "perdure.store",
    "perdure.tools",
)
"""All names that modules log under. A filter of `perdure` would not apply to them."""
MAX_FIELD_CHARS = 1_000
MAX_MESSAGE_CHARS = 4_000
MAX_TRACEBACK_CHARS = 16_000


def escape_log_lines() -> None:
    """Filter the records of all loggers, from now on."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_filter)


def _filter(record: logging.LogRecord) -> bool:
    if isinstance(record.args, Mapping):
        record.args = {name: _field(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_field, record.args))
    else:
        record.msg = _line(str(record.msg), MAX_MESSAGE_CHARS)
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    if record.exc_text:
        record.exc_text = _indented(record.exc_text)
    if record.stack_info:
        record.stack_info = _indented(record.stack_info)
    return True


def _field(value: object) -> object:
    if isinstance(value, int | float):
        return value
    try:
        return _line(str(value), MAX_FIELD_CHARS)
    except Exception:  # noqa: BLE001 - the text of an exception may raise
        return type(value).__name__


def _line(text: str, limit: int) -> str:
    return spelled(_cut(text, limit))  # threat: T-AUD-02


def _indented(text: str) -> str:
    """Return a traceback whose lines all begin with blanks, so that none of them looks like a record."""
    lines = _cut(text, MAX_TRACEBACK_CHARS).split("\n")
    return "\n".join(f"  {spelled(line)}" for line in lines)


def _cut(text: str, limit: int) -> str:
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"
