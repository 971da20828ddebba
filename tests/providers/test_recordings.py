"""How recordings are read: any that can be is replayed, and of any other it is said why not."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.providers import cassettes
from tests.providers.cassettes import Unreadable
from tests.providers.told import is_error, told

REPLY = {
    "type": "message",
    "content": [{"type": "text", "text": "ok"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def recording(
    path: Path, uri: str, *, body: Any = None, method: str = "POST", status: int = 200, **headers: str
) -> Path:
    request: Any = {"method": method, "uri": uri, "body": '{"model": "m", "messages": []}', "headers": {}}
    answered: Any = {
        "status": {"code": status},
        "headers": {name.replace("_", "-"): [v] for name, v in headers.items()},
    }
    answered["body"] = {"string": json.dumps(REPLY)} if body is None else body
    path.write_text(yaml.safe_dump({"interactions": [{"request": request, "response": answered}], "version": 1}))
    return path


MESSAGES = "https://gateway.example/anthropic/v1/messages?beta=true"


@pytest.mark.parametrize(
    "body",
    [
        {"string": json.dumps(REPLY)},
        {"string": gzip.compress(json.dumps(REPLY).encode())},
        {"base64_string": base64.b64encode(gzip.compress(json.dumps(REPLY).encode())).decode()},
    ],
    ids=["plain", "packed", "packed, in base64"],
)
def test_bodies_are_unpacked_and_hosts_do_not_matter(tmp_path: Path, body: Any) -> None:
    [one] = cassettes.read(recording(tmp_path / "a.yaml", MESSAGES, body=body, content_encoding="gzip"))
    assert (one.wire, one.provider, one.prefix, one.model) == ("anthropic", "anthropic", "/anthropic", "m")
    assert told([one]).text == "ok"
    assert not is_error(one)


def test_recorded_interactions_of_other_services_are_skipped(tmp_path: Path) -> None:
    asked = recording(tmp_path / "a.yaml", MESSAGES)
    token = recording(tmp_path / "b.yaml", "https://oauth2.googleapis.com/token", body={"string": b"\x89PNG"})
    both = [one for path in (token, asked) for one in yaml.safe_load(path.read_text())["interactions"]]
    asked.write_text(yaml.safe_dump({"interactions": both}))
    assert [one.wire for one in cassettes.read(asked)] == ["anthropic"]


@pytest.mark.parametrize(
    ("uri", "more", "reason"),
    [
        ("https://api.openai.com/v1/embeddings", {}, "only POST /v1/embeddings"),
        ("https://b.example/model/m/invoke", {}, "only POST /model/m/invoke"),
        ("https://api.openai.com/v1/responses", {"status": 101}, "web socket"),
        (MESSAGES, {"body": {"string": b"\x8b\x02\x80"}, "content_encoding": "br"}, "packed with br"),
    ],
)
def test_unreplayable_recording_is_refused_with_the_reason(
    tmp_path: Path, uri: str, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unreadable, match=reason):
        cassettes.read(recording(tmp_path / "a.yaml", uri, **more))


def test_invalid_recording_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("[1, 2]")
    with pytest.raises(Unreadable, match="no recording"):
        cassettes.read(path)


def test_cut_stream_is_distinguished_from_a_finished_one(tmp_path: Path) -> None:
    started = {"type": "message_start", "message": {"usage": {"input_tokens": 1}}}
    over = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    for pieces, broke in (([started], True), ([started, over], False)):
        text = "".join(f"data: {json.dumps(one)}\n\n" for one in pieces)
        [one] = cassettes.read(recording(tmp_path / "a.yaml", MESSAGES, body={"string": text}))
        assert one.streamed, "by its words, if nothing else says so"
        assert is_error(one) is broke
