"""A session leaves as a file and arrives as one: complete, elsewhere, and without going on with foreign work."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, Attachment, Code, Error, Runtime, tool
from perdure.codec import digest, encode
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of, ref_of
from perdure.vocab.messages import Text, ToolResultPart
from perdure.vocab.records import TurnEnded
from tests.scenarios.conftest import App
from tests.scenarios.test_content import PNG, Looking


async def exported(app: App) -> bytes:
    rt = await app.open(Looking())
    session = await rt.session("one", agent="a")
    await session.ask(["look", Attachment("image/png", PNG)], key="k1")
    await session.ask("more")
    await session.set_title("Old")
    await session.set_tags(["vip"])
    return await session.export()


async def test_a_session_goes_on_elsewhere(app: App) -> None:
    data = await exported(app)
    model = Looking()
    async with Runtime("memory://", agents=[Agent("a", model=model)], tenant="elsewhere") as rt:
        session = await rt.import_session("two", data)
        assert [m.role for m in await session.messages()] == ["user", "assistant", "user", "assistant"]
        assert ((await session.info()).title, (await session.info()).tags) == ("Old", ("vip",))
        again = await session.send(["look", Attachment("image/png", PNG)], key="k1")
        assert again.is_duplicate, "the same key is still the same input"
        await session.ask("and?")
        assert list(model.requests[0].attachments.values()) == [PNG]
        assert len(model.requests[0].messages) == 5


async def test_session_is_imported_with_another_name_and_agent(app: App) -> None:
    data = await exported(app)
    agents = [Agent("a", model=Looking()), Agent("b", model=Looking())]
    async with Runtime(app.new_store(), agents=agents) as rt:
        session = await rt.import_session("two", data, agent="b")
        await session.ask("hi")
        info = await core_of(rt).store.stream(ref_of(session).stream)
        assert info is not None
        assert info.agent == "b"
        with pytest.raises(Error) as caught:
            await rt.import_session("one", data)
        assert caught.value.code is Code.SESSION_EXISTS
        with pytest.raises(Error) as caught:
            await rt.import_session("three", data, agent="nobody")
        assert caught.value.code is Code.AGENT_UNKNOWN


async def test_work_that_was_under_way_is_not_continued(app: App) -> None:
    begun, exported, charged = asyncio.Event(), asyncio.Event(), 0

    @tool(effect="once")
    async def charge() -> str:
        """Charge."""
        nonlocal charged
        charged += 1
        begun.set()
        await exported.wait()
        return "charged"

    rt = await app.open(ScriptedModel(call("charge"), say("ok")), charge)
    session = await rt.session("one", agent="a")
    sent = await session.send("go")
    await begun.wait()
    data = await session.export()
    exported.set()
    other = await rt.import_session("two", data)
    ended = [row.record for row in await other.journal() if isinstance(row.record, TurnEnded)]
    assert [(end.status, end.reason) for end in ended] == [("stopped", "imported")]
    results = [p for m in await other.messages() for p in m.parts if isinstance(p, ToolResultPart)]
    assert [result.output["code"] for result in results] == ["outcome_unknown"]
    await sent.result(timeout=20)
    assert charged == 1
    await other.ask("go on", timeout=20)


@pytest.mark.any_store
async def test_a_damaged_export_is_refused_whole(app: App) -> None:
    data = await exported(app)
    lines = data.splitlines(keepends=True)
    newer = lines[0].replace(b'"v":1', b'"v":2')
    for wrong in (
        b"",
        b"hello",
        b"{}",
        b"".join(lines[:-1]),
        b"".join(lines[1:]),
        b"".join([lines[0], *lines[2:]]),
        newer + b"".join(lines[1:]),
        data.replace(b"look", b"LOOK"),
        b"\xff" + data,
    ):
        async with Runtime("memory://", agents=[Agent("a", model=Looking())]) as rt:
            with pytest.raises(Error) as caught:
                await rt.import_session("two", wrong)
            assert caught.value.code is Code.EXPORT_INVALID
            assert await rt.list_sessions() == ()


Lines = list[dict[str, Any]]


def sealed(lines: Lines) -> bytes:
    """Return a changed export with a valid end."""
    whole = lines[:-1]
    end = {"type": "end", "lines": len(whole), "sha256": digest(whole)}
    return b"".join(encode(line) + b"\n" for line in [*whole, end])


def nth(lines: Lines, kind: str, n: int = 0) -> dict[str, Any]:
    return [line for line in lines if line.get("kind") == kind][n]


def numbered(lines: Lines) -> None:
    for seq, line in enumerate((line for line in lines if line["type"] == "record"), 1):
        line["seq"] = seq


def dropped(kind: str, n: int = 0) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines.remove(nth(lines, kind, n))
        numbered(lines)

    return change


def doubled(kind: str) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        one = nth(lines, kind)
        lines.insert(lines.index(one), copy.deepcopy(one))
        numbered(lines)

    return change


def head(**says: object) -> Callable[[Lines], None]:
    return lambda lines: lines[0].update(says)


def within(kind: str, n: int = 0, **says: object) -> Callable[[Lines], None]:
    return lambda lines: nth(lines, kind, n)["data"].update(says)


def swapped(lines: Lines) -> None:
    one, two = lines[3], lines[4]
    one["kind"], two["kind"], one["data"], two["data"] = two["kind"], one["kind"], two["data"], one["data"]


def redacting_nothing(lines: Lines) -> None:
    data = {"seq": 99, "sha256": "0" * 64}
    lines.insert(-1, {"type": "record", "seq": 0, "at": 1, "kind": "record_redacted", "data": data})
    numbered(lines)


CHANGES: list[tuple[Callable[[Lines], object], str]] = [
    (head(tags=None), "tags must be a list"),
    (head(tags=5), "tags must be a list"),
    (head(tags=["a,b"]), "invalid tag"),
    (head(tags=[str(n) for n in range(500)]), "too many tags: 500"),
    (head(title="\x1b[2Jevil"), "control character"),
    (head(title="x" * 1000), "1000 characters"),
    (head(agent=None), "invalid agent name"),
    (head(agent=""), "invalid agent name"),
    (head(agent="z" * 1000), "invalid agent name"),
    (head(v=True), "version"),
    (lambda lines: lines[2].update(at=2**70), "has an invalid time"),
    (lambda lines: lines[2].update(at=-5), "has an invalid time"),
    (lambda lines: lines[1].update(seq=True), "out of order"),
    (dropped("input_admitted"), "#2: a turn begins that no input asked for"),
    (dropped("turn_opened"), "outside of any turn"),
    (dropped("effect_started"), "has no fingerprint"),
    (dropped("effect_settled"), "without the outcome of m1.1"),
    (dropped("turn_ended"), "before the one before it has ended"),
    (doubled("session_opened"), "#2: the session is opened again"),
    (doubled("input_admitted"), "#3: input"),
    (doubled("turn_opened"), "claimed a second time"),
    (doubled("effect_started"), "#5: effect m1.1 was started before"),
    (doubled("effect_settled"), "#6: effect m1.1 was settled before"),
    (doubled("turn_ended"), "claimed a second time"),
    (swapped, "outside of any turn"),
    (within("input_admitted", 1, key="k1"), "the input key 'k1' was used before"),
    (within("input_admitted", key="k" * 1000), "the input key"),
    (within("input_admitted", parts=[]), "no parts"),
    (within("turn_opened", 1, view_seq=9999), "starts at #9999"),
    (within("turn_opened", 1, index=-3), "expected turn 1"),
    (within("title_set", title="a\nb"), "control character"),
    (redacting_nothing, "redacts record 99"),
]


@pytest.mark.any_store
@pytest.mark.parametrize("number", range(len(CHANGES)))
async def test_an_export_that_contradicts_itself_is_refused_and_says_where(app: App, number: int) -> None:
    change, because = CHANGES[number]
    lines = [json.loads(line) for line in (await exported(app)).splitlines()]
    change(lines)
    async with Runtime(app.new_store(), agents=[Agent("a", model=Looking())]) as rt:
        with pytest.raises(Error) as caught:
            await rt.import_session("two", sealed(lines))
        assert caught.value.code is Code.EXPORT_INVALID
        assert because in caught.value.because
        assert [info.id for info in await rt.list_sessions()] == ["one"]


async def test_redacted_input_keeps_its_key_after_import(app: App) -> None:
    rt = await app.open(Looking())
    session = await rt.session("one", agent="a")
    await session.ask("pay", key="k1")
    await session.redact(2)
    for name in ("two", "three"):  # and once more from there
        session = await rt.import_session(name, await session.export())
        assert (await session.send("pay", key="k1")).is_duplicate
        with pytest.raises(Error) as caught:
            await session.send("pay twice", key="k1")
        assert caught.value.code is Code.INPUT_KEY_CONFLICT
        assert b"pay" not in await session.export()


async def test_a_session_of_plain_messages_is_exported_like_any_other(app: App) -> None:
    rt = await app.open(Looking())
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    session = await rt.import_session("s", messages)
    again = await rt.import_session("t", await session.export())
    assert [m.role for m in await again.messages()] == ["user", "assistant"]


async def test_every_line_is_json_and_says_what_it_is(app: App) -> None:
    lines = [json.loads(line) for line in (await exported(app)).splitlines()]
    assert lines[0]["type"] == "perdure_session"
    assert lines[0]["v"] == 1
    assert {line["type"] for line in lines[1:-1]} == {"record", "blob"}
    assert lines[-1]["type"] == "end"


async def test_plain_messages_are_a_past_to_start_from(app: App) -> None:
    model = Looking()
    rt = await app.open(model)
    messages = [
        {"role": "user", "content": "My name is Ann"},
        {"role": "user", "content": ["this is me", Attachment("image/png", PNG)]},
        {"role": "assistant", "content": "Hello Ann"},
        {"role": "user", "content": "Are you there?"},
    ]
    session = await rt.import_session("s", messages)
    await session.ask("What is my name?")
    shown = model.requests[0]
    assert [m.role for m in shown.messages] == ["user", "assistant", "user"]
    texts = [part.text for m in shown.messages for part in m.parts if isinstance(part, Text)]
    assert texts == ["My name is Ann", "this is me", "Hello Ann", "Are you there?", "What is my name?"]
    assert list(shown.attachments.values()) == [PNG]


@pytest.mark.any_store
@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        5,
        [{"role": "assistant", "content": "hi"}],
        [{"role": "system", "content": "be nice"}],
        [{"role": "user"}],
        ["hello"],
        [{"role": "user", "content": "hi"}, {"role": "tool", "content": "x"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}],
    ],
)
async def test_messages_that_are_no_conversation_are_refused(app: App, messages: object) -> None:
    rt = await app.open(Looking())
    with pytest.raises(Error) as caught:
        await rt.import_session("s", messages)  # type: ignore[arg-type]
    assert caught.value.code is Code.EXPORT_INVALID
    assert await rt.list_sessions() == ()
