"""Recordings of provider traffic: what was asked and answered, read from VCR's YAML without any of our code."""

# It reads the JSON of others.
# pyright: basic
from __future__ import annotations

import base64
import gzip
import json
import os
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from tests.providers.loopback import Answer, operation_of

OWN = Path(__file__).parent.parent / "cassettes"
FOLDER = Path(os.environ.get("PERDURE_CASSETTES") or OWN)

_QUESTIONS = (
    ("responses", "POST", re.compile(r"/responses$")),
    ("responses", "GET", re.compile(r"/responses/resp_\w+$")),
    ("chat", "POST", re.compile(r"/chat/completions$")),
    ("anthropic", "POST", re.compile(r"/v1/messages$")),
    ("google", "POST", re.compile(r"/models/[^/:]+:(streamGenerateContent|generateContent)$")),
    ("bedrock", "POST", re.compile(r"/model/[^/]+/converse(-stream)?$")),
)
_BEGINS = {"responses": "/responses", "chat": "/chat/completions", "anthropic": "/v1/messages"}
_COMPATIBLE = {
    "api.openai.com": "openai-chat",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "openrouter.ai": "openrouter",
    "api.x.ai": "xai",
}
_EVENT_STREAM = "application/vnd.amazon.eventstream"


class Unreadable(Exception):
    """Why a recording cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """One request of a recording, and the response it got. `wire` is empty if it is not a question to a model."""

    method: str
    url: str
    wire: str
    request: Any
    status: int
    content_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def operation(self) -> str:
        return operation_of(self.method, self.url)

    @property
    def streamed(self) -> bool:
        return self.content_type.startswith(("text/event-stream", _EVENT_STREAM))

    @property
    def asks_for_a_stream(self) -> bool:
        return self.request.get("stream") is True or "stream" in self.operation or "stream=true" in self.url

    @property
    def answer(self) -> Answer:
        return Answer(self.body, self.status, self.content_type, self.headers)

    @property
    def model(self) -> str:
        """The model that was asked."""
        if self.wire == "google":
            return urlsplit(self.url).path.rpartition("/")[2].partition(":")[0]
        if self.wire == "bedrock":
            return unquote(urlsplit(self.url).path.split("/")[-2])
        return str(self.request["model"])

    @property
    def provider(self) -> str:
        """The provider of the request, by our names."""
        if self.wire == "chat":
            return _COMPATIBLE.get(urlsplit(self.url).hostname or "", "openai-compatible")
        return "openai" if self.wire == "responses" else self.wire

    @property
    def prefix(self) -> str:
        """Where the provider begins in its address."""
        begins = _BEGINS.get(self.wire)
        return urlsplit(self.url).path.partition(begins)[0] if begins else ""

    @property
    def route(self) -> tuple[str, ...]:
        """The route that opaque parts of this reply belong to."""
        return (self.wire, urlsplit(self.url).hostname or "", self.prefix, self.model)


def all_files() -> list[Path]:
    return sorted(FOLDER.rglob("*.yaml"))


def read(path: Path) -> list[Interaction]:
    """The questions to models in a recording, in their order.

    Raises:
        Unreadable: there are none, or there is one that the SDKs do not ask.
    """
    recorded: Any = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(recorded, dict) or not isinstance(recorded.get("interactions"), list):
        raise Unreadable("it is no recording of VCR: it has no list of interactions")
    found = [_interaction(one) for one in recorded["interactions"]]
    if not (questions := [one for one in found if one.wire]):
        others = sorted({f"{one.method} {urlsplit(one.url).path}" for one in found})
        raise Unreadable(f"nothing in it is a question to a model that we ask, only {', '.join(others) or 'nothing'}")
    return questions


def _interaction(recorded: Any) -> Interaction:
    request, response = recorded["request"], recorded["response"]
    path, status = urlsplit(request["uri"]).path, response["status"]["code"]
    questions = (wire for wire, method, at in _QUESTIONS if method == request["method"] and at.search(path))
    wire = next(questions, "")
    if wire and (status == 101 or request["uri"].startswith("ws")):
        raise Unreadable("it is of a web socket, and providers are asked by requests")
    headers = {name.lower(): _one(value) for name, value in (response.get("headers") or {}).items()}
    body = _bytes(response, headers.get("content-encoding", "")) if wire else b""
    return Interaction(
        method=request["method"],
        url=request["uri"],
        wire=wire,
        request=_json(request) if wire else None,
        status=status,
        content_type=_content_type(headers.get("content-type", ""), body),
        body=body,
        headers={name: text for name, text in headers.items() if name.startswith(("retry-after", "x-"))},
    )


def _one(value: Any) -> str:
    return str(value[0] if isinstance(value, list) and value else value or "")


def _content_type(said: str, body: bytes) -> str:
    if not said and body.startswith((b"data:", b"event:")):
        return "text/event-stream"
    return said or "application/json"


def _json(message: Any) -> Any:
    if "parsed_body" in message:
        return message["parsed_body"]
    body = message.get("body")
    body = body.get("string") if isinstance(body, dict) else body
    if not body:
        return {}
    try:
        return json.loads(_unpacked(body if isinstance(body, bytes) else str(body).encode(), ""))
    except ValueError as problem:
        raise Unreadable(f"a question in it is no JSON: {problem}") from None


def _bytes(message: Any, encoding: str) -> bytes:
    if "parsed_body" in message:
        return json.dumps(message["parsed_body"], ensure_ascii=False).encode()
    body = message.get("body") or {}
    if isinstance(body, dict):
        if "base64_string" in body:
            return _unpacked(base64.b64decode(body["base64_string"]), encoding)
        body = body.get("string") or ""
    return _unpacked(body if isinstance(body, bytes) else str(body).encode(), encoding)


def _unpacked(body: bytes, encoding: str) -> bytes:
    """Recorders unpack bodies or not, and keep the header that says how they were packed either way."""
    if body.startswith(b"\x1f\x8b"):
        return gzip.decompress(body)
    if encoding == "deflate":
        try:
            return zlib.decompress(body)
        except zlib.error:
            return body
    if encoding in ("br", "zstd") and body and body.lstrip()[:1] not in (b"{", b"[", b"d", b"e", b":"):
        raise Unreadable(f"an answer in it is packed with {encoding}, which is not read here")
    return body
