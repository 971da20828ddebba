"""The text of records, items and messages that may contain a secret, and how it is rewritten.

A record is a struct of typed fields. Its text and its JSON are content. Its ids, keys, digests and names are identity:
a fold, a replay or a comparison depends on them, so they never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NewType, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from perdure.codec import Json
from perdure.vocab.messages import AttachmentRef

T = TypeVar("T")

IDENTITY = frozenset(
    {
        *("agent", "definition", "name", "names", "tool", "tool_name", "model", "model_variant", "to", "kind"),
        *("key", "merge_key", "replay", "replay_suffix", "request", "operation"),
        *("fingerprint", "content", "redacted", "sha256", "hash", "contract", "arguments", "token", "task"),
        *("id", "call_id", "batch_id", "step_id", "process_id", "process_ids", "session_id", "frame_id", "turn_id"),
        *(
            "node_id",
            "effect_id",
            "provider_id",
            "signal_id",
            "signal_name",
            "tool_id",
            "usage_source",
            "occurrence_id",
        ),
        *("scope", "handle", "session", "process", "occurrence", "subscription", "subscriptions", "owner", "parent"),
        *("source", "source_type", "event", "origin", "authority", "by", "via", "asked", "status", "env"),
        *("route", "signature", "media_type", "cron", "timezone", "path", "fields", "error_type", "failure_class"),
    }
)
"""Text fields that are identity. Every other text field is content."""

CONTENT = frozenset({(AttachmentRef, "name")})
"""Fields that are content although their name is in `IDENTITY`."""

OWN_WORDS = frozenset({"wake"})
"""Structs that contain only words of the runtime, by tag."""

Mode = Literal["content", "identity"]


class Rewriter(Protocol):
    """The rewriting of one text, and of one JSON value."""

    def text(self, text: str) -> str:
        """Return the rewritten text."""
        ...

    def json(self, value: Json) -> Json:
        """Return the rewritten JSON value."""
        ...


def rewritten(value: T, by: Rewriter) -> T:
    """Return a struct, or a collection of structs, with rewritten content."""
    return cast("T", _rewritten(value, by, "content"))


def _rewritten(value: object, by: Rewriter, mode: Mode) -> object:
    if isinstance(value, msgspec.Struct):
        return _struct(value, by)
    if isinstance(value, str):
        return by.text(value) if mode == "content" else value
    if isinstance(value, tuple):
        return tuple([_rewritten(one, by, mode) for one in cast("tuple[object, ...]", value)])
    if isinstance(value, list):
        return [_rewritten(one, by, mode) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _rewritten(one, by, mode) for name, one in cast("dict[str, object]", value).items()}
    return value


def _struct(value: msgspec.Struct, by: Rewriter) -> msgspec.Struct:
    changed: dict[str, object] = {}
    for name, is_json, mode in fields_of(type(value)):
        old: object = getattr(value, name)
        new: object = by.json(old) if is_json and not isinstance(old, msgspec.Struct) else _rewritten(old, by, mode)
        if new != old:
            changed[name] = new
    return msgspec.structs.replace(value, **changed) if changed else value


@cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, bool, Mode], ...]:
    """Return the fields of a struct that can contain content: name, whether it is JSON, and the mode of its text."""
    if kind.__struct_config__.tag in OWN_WORDS:
        return ()
    hints, found = get_type_hints(kind), list[tuple[str, bool, Mode]]()
    for name in kind.__struct_fields__:
        leaves = set(_leaves(hints[name]))
        if leaves:
            is_content = name not in IDENTITY or (kind, name) in CONTENT
            found.append((name, Any in leaves, "content" if is_content and str in leaves else "identity"))
    return tuple(found)


def _leaves(hint: object) -> Iterator[object]:
    """Yield the types in an annotation that can contain text. Ids are new types, and literals are words of ours."""
    if hint is Any or hint is str or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        yield hint
    elif not isinstance(hint, NewType) and get_origin(hint) is not Literal:
        for part in get_args(hint):
            yield from _leaves(part)
