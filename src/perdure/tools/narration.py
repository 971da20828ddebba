"""One sentence for people about a tool call, in their language. Arguments that look like secrets are never shown."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, cast
from urllib.parse import urlsplit, urlunsplit

from perdure.codec import Json, encode
from perdure.vocab.messages import ToolCall

Phase = Literal["started", "waiting", "completed", "failed"]
Narrator: TypeAlias = Callable[[ToolCall, Phase, str | None], str | None]
Templates: TypeAlias = Mapping[str, Mapping[Phase, str]]
"""Sentences by language tag and phase; `{order}` stands for the argument `order`."""

MAX_ARGUMENT_CHARS = 60
HIDDEN = "…"

_GENERIC: Templates = {
    "en": {
        "started": "Running {tool}",
        "waiting": "Waiting for {tool}",
        "completed": "Finished {tool}",
        "failed": "{tool} failed",
    }
}
_PLACE = re.compile(r"\{(\w+)\}")
_SECRET = re.compile(
    r"secret|token|passw|pwd|passphrase|credential|cookie|bearer|signature|auth|otp|cvv|cvc"
    r"|(api|access|private|signing|encryption)[-_ ]?key|^key$|^pin$",
    re.IGNORECASE,
)

logger = logging.getLogger("perdure.tools")


def narration(
    call: ToolCall, phase: Phase, locale: str | None, *, noun: str, own: Narrator | Templates | None = None
) -> str:
    """Return a sentence about a call: the tool's own, or a generic one with `noun`."""
    said = None
    if isinstance(own, Mapping):
        said = _template(cast("Templates", own), phase, locale)
    elif own is not None:
        try:
            spoken = own(call, phase, locale)
        except Exception:  # user code, and only a label
            logger.exception("narration failed tool=%s", call.name)
            spoken = None
        if spoken:
            return spoken
    template = said or _template(_GENERIC, phase, locale) or "{tool}"
    return _PLACE.sub(lambda place: _filled(place.group(1), call, noun), template)


def _template(templates: Templates, phase: Phase, locale: str | None) -> str | None:
    """Return the sentence in the exact language, else in its base language, else in English."""
    known = {_tag(name): sentences for name, sentences in templates.items()}
    wanted = _tag(locale or "en")
    for tag in (wanted, wanted.split("-")[0], "en"):
        if phase in known.get(tag, {}):
            return known[tag][phase]
    return None


def _tag(locale: str) -> str:
    return locale.replace("_", "-").lower()


def _filled(name: str, call: ToolCall, noun: str) -> str:
    if name == "tool":
        return noun
    args: Json = call.args
    if not isinstance(args, dict) or name not in args or looks_secret(name):
        return HIDDEN
    return shown(cast("dict[str, Json]", args)[name])


def looks_secret(name: str) -> bool:
    """Return True if the argument name suggests a secret."""
    return _SECRET.search(name) is not None


def shown(value: Json) -> str:
    """Shorten an argument to one line. URLs lose query and credentials; lists become a count."""
    match value:
        case str():
            text = " ".join(_bare(value).split())
            return text if len(text) <= MAX_ARGUMENT_CHARS else f"{text[: MAX_ARGUMENT_CHARS - 1]}{HIDDEN}"
        case bool() | int() | float() | None:
            return encode(value).decode()[:MAX_ARGUMENT_CHARS]
        case _:
            return f"{len(value)} items"


def _bare(text: str) -> str:
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return HIDDEN
