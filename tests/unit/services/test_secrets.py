"""A secret is refused by every encoder, and its value is hidden in every form of it."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import logging
import pickle
import re
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError

from perdure.codec import Json, to_json
from perdure.errors import Code, Error
from perdure.ids import StreamId
from perdure.services.secrets import Redactor, Secret, SeenSecrets

VALUE = 'pa"ss\nwörd-Ünï/+&?=%'
HERE = StreamId("session:default:s")


def redactor(*values: str) -> Redactor:
    made = Redactor(SeenSecrets(), HERE)
    for value in values:
        made.add(value)
    return made


class Account(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    token: Secret


@dataclasses.dataclass
class Config:
    token: Secret


# --- the value as an object


def test_s10_secret_is_refused_by_every_encoder() -> None:
    secret = Secret(VALUE)
    for value in (secret, [secret], {"a": secret}, Account(token=secret), Config(secret)):
        with pytest.raises(Error) as caught:
            to_json({"deep": [value]})
        assert caught.value.code is Code.INVALID_JSON
        assert "$.deep[0]" in caught.value.message
        assert "ss" + chr(10) not in str(caught.value)
    for encode in (msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins, json.dumps, pickle.dumps):
        with pytest.raises(TypeError):
            encode(secret)
    with pytest.raises(PydanticSerializationError):
        Account(token=secret).model_dump_json()


def test_s10_secret_shows_nothing_in_text() -> None:
    secret = Secret(VALUE)
    texts = (repr(secret), str(secret), f"{secret}", "%s" % secret, repr(Config(secret)), repr(Account(token=secret)))  # noqa: UP031
    assert all("wörd" not in text and "Secret(…)" in text for text in texts)
    assert dataclasses.asdict(Config(secret)) == {"token": secret}
    assert not hasattr(secret, "__dict__")
    assert copy.deepcopy(secret) is secret
    assert (secret == Secret(VALUE), secret == Secret("x"), secret == VALUE) == (True, False, False)
    assert secret.reveal() == VALUE


# --- the value inside text


def forms(value: str) -> dict[str, str]:
    data = value.encode()
    return {
        "plain": value,
        "json": json.dumps(value),
        "json without ascii": json.dumps(value, ensure_ascii=False),
        "json in json": json.dumps(json.dumps({"x": value})),
        "repr": repr(value),
        "url": quote(value, safe=""),
        "url path": quote(value),
        "url lower": re.sub("%..", lambda code: code.group().lower(), quote(value, safe="")),
        "form": quote_plus(value),
        "hex": data.hex(),
        "HEX": data.hex().upper(),
        "base64": base64.b64encode(data).decode(),
        "base64 after one": base64.b64encode(b"x" + data + b"y").decode(),
        "base64 after two": base64.b64encode(b"xy" + data + b"z").decode(),
        "base64 for urls": base64.urlsafe_b64encode(b"user:" + data).decode(),
    }


@pytest.mark.parametrize("form", forms(VALUE))
def test_s10_t_sec_02_value_is_hidden_in_every_form(form: str) -> None:
    text = forms(VALUE)[form]
    shown = redactor(VALUE).text(f"see {text} there")
    assert "[secret]" in shown
    assert len(shown) < len("see [secret] there") + 20, shown


def test_s10_number_that_became_a_float_is_hidden() -> None:
    given: Json = {"n": 1234567, "f": 1234567.0, "other": 7654321}
    assert redactor("1234567").json(given) == {"n": "[secret]", "f": "[secret]", "other": 7654321}


@pytest.mark.parametrize(
    ("value", "text"),
    [("abc", "an abc of it"), ("word", "no secret here"), ("1", "11 of 111"), ("password", "pass the word")],
)
def test_s10_t_sec_02_short_values_do_not_hide_ordinary_text(value: str, text: str) -> None:
    assert redactor(value).text(text) == text


# --- pieces


@pytest.mark.parametrize(
    ("values", "text", "shown"),
    [
        (("hunter2",), "key hun", "key "),
        (("hunter2",), "key hunter2", "key hunter2"),
        (("hunter2",), "key hunter2 h", "key hunter2 "),
        (("abcabc",), "x abcabc", "x abcabc"),
        (("abcd", "abcdefgh"), "x abcd", "x "),
        ((), "anything", "anything"),
    ],
)
def test_s10_beginning_of_a_value_is_held_back(values: tuple[str, ...], text: str, shown: str) -> None:
    assert text[: redactor(*values).safe_end(text)] == shown


# --- log records


@pytest.mark.parametrize("name", ["", "perdure.tools", "asyncio", "host.app"])
def test_s10_log_records_of_every_logger_hide_values(name: str, caplog: pytest.LogCaptureFixture) -> None:
    kept = redactor("canary-7731-q")
    with caplog.at_level(logging.DEBUG, logger=name):
        logging.getLogger(name).debug("value=%s", "canary-7731-q", stack_info=True)
        try:
            raise RuntimeError("bad canary-7731-q")
        except RuntimeError:
            logging.getLogger(name).exception("it failed")
    said = "".join(logging.Formatter().format(record) for record in caplog.records)
    assert "canary-7731-q" not in said.replace('"canary-7731-q"', "")  # a source line of this test
    assert "value=[secret]" in said
    assert "RuntimeError: bad [secret]" in said
    assert kept.is_needed


def test_log_record_factory_of_the_host_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()
    marked: list[str] = []

    def mark(*given: object, **named: object) -> logging.LogRecord:
        marked.append("made")
        return before(*given, **named)

    logging.setLogRecordFactory(mark)
    try:
        kept = redactor("canary-7732-q")
        logging.getLogger("host").error("value=canary-7732-q")
    finally:
        logging.setLogRecordFactory(before)
    assert marked == ["made"]
    assert "[secret]" in caplog.text
    assert kept.is_needed
