"""A secret is refused by every encoder, and its value is hidden in every form of it."""

from __future__ import annotations

import asyncio
import base64
import copy
import dataclasses
import html
import json
import logging
import pickle
import re
import shlex
import textwrap
from typing import get_args, get_type_hints
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError

from perdure.codec import Json, to_json
from perdure.errors import Code, Error
from perdure.ids import EffectId, StreamId
from perdure.inbox.items import Item
from perdure.services.secret_fields import IDENTITY, fields_of
from perdure.services.secrets import OutputPieces, Redactor, Secret, SeenSecrets
from perdure.vocab.effects import DurableStep, EffectKind
from perdure.vocab.promises import Resolution
from perdure.vocab.records import EffectStarted, Record, kind_of, read, write

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
        "ascii": ascii(value),
        "repr of bytes": repr(data),
        "html": html.escape(value),
        "html text": html.escape(value, quote=False),
        "shell": shlex.quote(value),
        "url twice": quote(quote(value, safe=""), safe=""),
        "base64 for urls": base64.urlsafe_b64encode(b"user:" + data).decode(),
    }


@pytest.mark.parametrize("form", forms(VALUE))
def test_s10_t_sec_02_value_is_hidden_in_every_form(form: str) -> None:
    text = forms(VALUE)[form]
    shown = redactor(VALUE).text(f"see {text} there")
    assert "[secret]" in shown
    assert len(shown) < len("see [secret] there") + 20, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("token-4711\n", "token-4711"),
        ("  token-4711\r\n", base64.b64encode(b"token-4711").decode()[:-2]),
        ("user-4711-x\npass-4711-y", "pass-4711-y"),
        ("user-4711-x\npass-4711-y", "user-4711-x\r\npass-4711-y"),
        ("it's-4711", shlex.quote("it's-4711")[1:-1]),
        ("eyJ4711" * 60, base64.encodebytes(b"eyJ4711" * 60).decode().split("\n")[1]),
    ],
)
def test_s10_part_of_a_value_is_hidden_as_a_tool_returns_it(value: str, text: str) -> None:
    assert redactor(value).text(f"see {text} there").startswith("see [secret]")
    assert "4711" not in redactor(value).text(f"see {text} there")
    assert redactor(value).hides(json.dumps(text).encode())


def test_s10_indented_private_key_is_hidden() -> None:
    key = "-----BEGIN KEY-----\n" + "".join(f"{at:02}{'Mx4711yZ' * 7}\n" for at in range(20)) + "-----END KEY-----"
    for text in (textwrap.indent(key, "    "), key.replace("\n", "\r\n"), json.dumps(key.split("\n"))):
        assert "4711" not in redactor(key).text(text)
    assert redactor(key).text("-----BEGIN KEY-----") == "-----BEGIN KEY-----"


def test_s10_number_that_became_a_float_is_hidden() -> None:
    given: Json = {"n": 1234567, "f": 1234567.0, "other": 7654321}
    assert redactor("1234567").json(given) == {"n": "[secret]", "f": "[secret]", "other": 7654321}


@pytest.mark.parametrize(
    ("value", "text"),
    [("abc", "an abc of it"), ("word", "no secret here"), ("1", "11 of 111"), ("password", "pass the word")],
)
def test_s10_t_sec_02_short_values_do_not_hide_ordinary_text(value: str, text: str) -> None:
    assert redactor(value).text(text) == text


LONG = "".join(f"{at:05}-" for at in range(1_667))
"""A value of 10,002 characters."""


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        ("1", "1", "[secret]"),
        ("abc", "abc", "[secret]"),
        ("abcd", "x abcd y", "x [secret] y"),
        (LONG, f"<{LONG}>", "<[secret]>"),
        ('a"b\n', 'say a"b\n!', "say [secret]!"),
        ("größer", "ist größer!", "ist [secret]!"),
        ("secret", "a [secret] of mine is secret", "a [secret] of mine is [secret]"),
    ],
)
def test_t_sec_02_values_of_every_kind_are_hidden(value: str, text: str, shown: str) -> None:
    assert redactor(value).text(text) == shown
    assert redactor(value).text(shown) == shown  # what is hidden is not hidden again
    assert redactor(value).json({"a": [text]}) == {"a": [shown]}


def test_t_sec_02_prefixes_of_each_other_are_hidden_whole() -> None:
    both = redactor("pass", "password-1", "password-1-and-more")
    assert both.text("pass password-1 password-1-and-more password") == "[secret] [secret] [secret] [secret]word"


# --- the cost of a search: the watchdog of the event loop fails a step above 50 ms


async def test_t_sec_01_search_for_many_values_holds_no_loop() -> None:
    many = redactor(*(f'cä"{at * 7919:06}-of-a-service\n' for at in range(100)))
    page = {"text": [f"word {at} of the page" for at in range(5_000)]}
    assert many.json(page) == page
    assert not many.hides(json.dumps(page).encode())
    assert many.data(json.dumps(page).encode()) == json.dumps(page).encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [("a" * 15_999 + "b", "a" * 245_000), ('"' * 16_000, '\\"' * 120_000), ("abcdabcdx", "abcdabcdy" * 25_000)],
)
async def test_t_sec_01_search_in_near_misses_holds_no_loop(value: str, text: str) -> None:
    own = redactor(value)
    assert own.text(f"{text} {value}").endswith("[secret]")
    assert own.data(f"{text} {value}".encode()).endswith(b"[secret]")
    assert len(own.masked(f"{text} {value}")) == len(text) + 1 + len(value)
    assert own.safe_end(text) <= len(text)
    assert own.safe_end(f"{value[:-9]}.{value[:-9]}") > 0


@pytest.mark.parametrize("size", range(4, 40))
def test_t_sec_01_value_of_any_size_is_found_at_any_offset(size: int) -> None:
    value = "".join(chr(97 + at * 7 % 26) for at in range(size))
    for before in range(17):
        text = f"{'-' * before}{value}-"
        assert redactor(value).text(text) == f"{'-' * before}[secret]-"
        assert redactor(value).data(text.encode()) == f"{'-' * before}[secret]-".encode()
        assert redactor(value).hides(text.encode())


def test_t_sec_01_values_that_overlap_are_hidden_whole() -> None:
    assert redactor("abcdef", "efghij").text("-abcdefghij-") == "-[secret]-"


# --- records


def started(**command: Json) -> EffectStarted:
    step = DurableStep(step_id="mail", input=command)
    return EffectStarted(id=EffectId("c1.0/step:mail"), kind=EffectKind.DURABLE_STEP, fingerprint="mail", command=step)


def test_s10_content_of_a_record_is_hidden_and_its_identity_stays() -> None:
    record = started(to="me", text="use mail-4711", nested=[{"mail-4711": "mail-4711"}], n=4711)
    hidden = redactor("mail-4711", "mail", "c1.0/step:mail", "durable_step").value(record)
    nested = [{"[secret]": "[secret]"}]
    assert hidden == started(to="me", text="use [secret]", nested=nested, n=4711)
    assert read(kind_of(hidden), write(hidden)) == hidden


def test_s10_redaction_twice_is_the_same_record() -> None:
    both = redactor("secret", 'pa"ss-4711', "4711-x")
    once = both.value(started(text='the secret pa"ss-4711, 4711-x', more=json.dumps('pa"ss-4711')))
    assert both.value(once) == once
    assert "4711" not in repr(once)


def test_s10_record_without_a_value_is_returned_unchanged() -> None:
    record = started(text="nothing here")
    assert redactor("mail-4711").value(record) is record
    assert Redactor(SeenSecrets(), HERE).value(record) is record


def test_s10_names_with_a_value_are_refused() -> None:
    redactor("mail-4711").check_names("mail", "4711")
    with pytest.raises(Error) as caught:
        redactor("mail-4711").check_names("a", "job-mail-4711")
    assert caught.value.code is Code.INVALID_ID
    assert "4711" not in str(caught.value)


def test_secrets_of_one_session_do_not_change_what_another_writes() -> None:
    seen, there = SeenSecrets(), StreamId("session:default:other")
    seen.add(HERE, "invoice")
    assert Redactor(seen, there).text("an invoice") == "an invoice"


async def test_s10_task_that_works_for_a_session_hides_its_secrets_elsewhere() -> None:
    seen, there = SeenSecrets(), StreamId("session:default:other")
    seen.add(HERE, "hunter2-x")

    async def body() -> str:
        Redactor(seen, HERE).speaks()
        return await asyncio.to_thread(Redactor(seen, there).text, "use hunter2-x")

    assert await asyncio.create_task(body()) == "use [secret]"
    assert Redactor(seen, there).text("use hunter2-x") == "use hunter2-x"


# --- every text field is content or identity


def structs_of(hint: object, found: set[type[msgspec.Struct]]) -> None:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        if hint not in found:
            found.add(hint)
            for inner in get_type_hints(hint).values():
                structs_of(inner, found)
        return
    for part in get_args(hint):
        structs_of(part, found)


def test_every_identity_name_is_a_field_of_a_stored_struct() -> None:
    found: set[type[msgspec.Struct]] = set()
    for root in (Record, Item, Resolution):
        structs_of(root, found)
    assert len(found) > 100
    assert {name for kind in found for name in kind.__struct_fields__} >= IDENTITY


CONTENT_FIELDS = {
    *("plugin_input", "text", "url", "title", "document", "excerpts", "name", "malformed", "reason", "code"),
    *("problem", "partial", "message", "hint", "connection_required", "error", "tags", "label", "description"),
    "result",
}


def test_new_text_field_of_a_record_is_content_unless_named() -> None:
    found: set[type[msgspec.Struct]] = set()
    for root in (Record, Item, Resolution):
        structs_of(root, found)
    content = {name for kind in found for name, _, mode in fields_of(kind) if mode == "content"}
    assert content == CONTENT_FIELDS, "a new text field: add it here, or to IDENTITY if a fold or replay depends on it"


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


def test_s10_output_in_pieces_hides_a_value_that_straddles_them() -> None:
    own, pieces = redactor("hunter2-x"), OutputPieces()
    shown = [pieces.add("stdout", piece, own) for piece in ("key hun", "ter2", "-x, hun", "gry")]
    assert "".join(shown) == "key [secret], hungry"
    assert pieces.add("stderr", "a hunter", own) == "a "
    assert pieces.rest(own) == {"stderr": "hunter"}
    assert pieces.rest(own) == {}


def test_s10_masked_text_keeps_its_length() -> None:
    assert redactor("hunter2-hunter2").masked("key hunter2-hunter2!") == "key [secret]*******!"
    assert redactor("abcd").masked("abcd") == "[sec"


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


def test_s10_arguments_and_fields_of_log_records_hide_values(caplog: pytest.LogCaptureFixture) -> None:
    kept, value, log = redactor("canary-7733-q"), "canary-7733-q", logging.getLogger("host")
    log.warning("starts with %.3s", value)
    log.warning("%(user)s", {"user": "ann", "token": value})
    log.warning("hello", extra={"token": value, "more": [value], "n": 7})
    log.warning("%s of %s", 1, 2)
    assert [record.getMessage() for record in caplog.records] == ["starts with can", "ann", "hello", "1 of 2"]
    assert "7733" not in repr([vars(record) for record in caplog.records])
    shown = vars(caplog.records[2])
    assert (shown["token"], shown["more"], shown["n"]) == ("[secret]", "['[secret]']", 7)
    assert caplog.records[3].args == (1, 2)
    assert vars(pickle.loads(pickle.dumps(caplog.records[2])))["token"] == "[secret]"
    assert vars(copy.copy(caplog.records[2]))["token"] == "[secret]"
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
