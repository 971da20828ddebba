"""Content other than text: pictures and files travel with the input, and the model sees their bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure import Agent, Attachment, Code, Error, Runtime
from perdure.ids import BlobHash
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest
from perdure.runtime.sessions.parts import MAX_PART_BYTES
from perdure.values import AttachmentRef
from perdure.vocab.messages import File, ImagePart, Text
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App, NewStore

pytestmark = pytest.mark.any_store

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
PDF = b"%PDF-1.7 " + b"x" * 50


class Looking:
    """Keeps what it was shown, and answers `ok`."""

    name = "looking"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        yield ModelReply(parts=(Text(text="ok"),), finish="stop", usage=Usage(), model=self.name)


def seen(request: ModelRequest) -> list[tuple[str, bytes]]:
    parts = [part for message in request.messages for part in message.parts]
    return [(p.ref.media_type, request.attachments[p.ref.hash]) for p in parts if isinstance(p, ImagePart | File)]


async def test_a_model_sees_the_bytes_that_were_sent(app: App) -> None:
    model = Looking()
    rt = await app.open(model)
    session = await rt.session("s", agent="a")
    await session.ask(
        ["What is this?", Attachment("image/png", PNG, name="cat.png"), Attachment("application/pdf", PDF)]
    )
    assert seen(model.requests[0]) == [("image/png", PNG), ("application/pdf", PDF)]
    (message, _) = await session.messages()
    assert [type(part) for part in message.parts] == [Text, ImagePart, File]
    await session.ask("and now?")
    assert seen(model.requests[1]) == [("image/png", PNG), ("application/pdf", PDF)], "the conversation keeps them"


async def test_bytes_are_there_after_a_restart(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[Agent("a", model=Looking())], worker=False) as rt:
        sent = await (await rt.session("s", agent="a")).send([Attachment("image/png", PNG)], key="k")
    model = Looking()
    async with Runtime(new_store(), agents=[Agent("a", model=model)]) as rt:
        again = await (await rt.session("s")).send([Attachment("image/png", PNG)], key="k")
        assert again.is_duplicate
        assert again.turn_id == sent.turn_id
        assert (await again.result(timeout=10)).text == "ok"
    assert seen(model.requests[0]) == [("image/png", PNG)]


async def test_the_same_key_with_other_bytes_is_a_conflict(app: App) -> None:
    rt = await app.open(Looking())
    session = await rt.session("s", agent="a")
    await session.send(["look", Attachment("image/png", PNG)], key="k")
    assert (await session.send(["look", Attachment("image/png", PNG)], key="k")).is_duplicate
    for other in ([Attachment("image/png", PNG + b"!")], ["look"], ["look", Attachment("image/png", PNG, name="x")]):
        with pytest.raises(Error) as caught:
            await session.send(other, key="k")
        assert caught.value.code is Code.INPUT_KEY_CONFLICT


async def test_bytes_that_are_stored_may_be_referred_to(app: App) -> None:
    model = Looking()
    rt = await app.open(model)
    one = await rt.session("one", agent="a")
    await one.ask([Attachment("image/png", PNG)])
    (message, _) = await one.messages()
    (picture,) = message.parts
    assert isinstance(picture, ImagePart)
    two = await rt.session("two", agent="a")
    await two.ask(["the same one", picture.ref])
    await one.delete()
    await two.ask([picture])
    assert seen(model.requests[-1]) == [("image/png", PNG), ("image/png", PNG)]


async def test_bytes_of_another_tenant_cannot_be_referred_to(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[Agent("a", model=Looking())], tenant="other") as rt:
        theirs = await rt.session("s", agent="a")
        await theirs.ask([Attachment("image/png", PNG)])
        (message, _) = await theirs.messages()
        (picture,) = message.parts
        assert isinstance(picture, ImagePart)
    async with Runtime(new_store(), agents=[Agent("a", model=Looking())]) as rt:
        with pytest.raises(Error) as caught:
            await (await rt.session("s", agent="a")).send([picture.ref])
        assert caught.value.code is Code.BLOB_UNKNOWN
        assert await rt.list_sessions() == ()


NOWHERE = AttachmentRef(hash=BlobHash("ab" * 32), media_type="image/png", size=5)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ([], Code.INVALID_ARGUMENT),
        (["ok", ""], Code.INVALID_ARGUMENT),
        ([b"bytes"], Code.INVALID_ARGUMENT),
        ({"text": "x"}, Code.INVALID_ARGUMENT),
        ([Attachment("image/png", "text")], Code.INVALID_ARGUMENT),  # pyright: ignore[reportArgumentType]
        ([Attachment("image/png", PNG, name="a\nb")], Code.INVALID_ARGUMENT),
        ([AttachmentRef(hash=BlobHash("x"), media_type="image/png", size=5)], Code.INVALID_ARGUMENT),
        (["a\ud800"], Code.INVALID_TEXT),
        ([Attachment("image/png")], Code.RUNTIME_EFFECT_ATTACHMENT_MISSING_REFERENCE),
        ([Attachment("video/mp4", b"x")], Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE),
        ([Attachment("image/jpeg", PNG)], Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE),
        ([Attachment("text/plain", b"\xff\xfe")], Code.RUNTIME_EFFECT_ATTACHMENT_MEDIA_TYPE),
        ([Attachment("text/plain", b"x" * (MAX_PART_BYTES + 1))], Code.INPUT_TOO_LARGE),
        ([Attachment("text/plain", b"x" * MAX_PART_BYTES)] * 3, Code.INPUT_TOO_LARGE),
        (["x" * 200_000, "y" * 200_000], Code.INPUT_TOO_LARGE),
        (["x"] * 65, Code.INPUT_TOO_LARGE),
        ([NOWHERE], Code.BLOB_UNKNOWN),
    ],
)
async def test_invalid_content_is_refused_and_nothing_is_written(app: App, content: object, code: Code) -> None:
    rt = await app.open(Looking())
    with pytest.raises(Error) as caught:
        await (await rt.session("s", agent="a")).send(content)  # type: ignore[arg-type]
    assert caught.value.code is code
    assert await rt.list_sessions() == ()


async def test_the_simulated_model_tells_what_it_was_shown(app: App) -> None:
    async with Runtime(app.new_store(), agents=[Agent("echo", model="sim:echo")]) as rt:
        answer = await (await rt.session("e", agent="echo")).ask(["look", Attachment("image/png", PNG)])
    assert answer.startswith(f"You said: look [image/png, {len(PNG)} bytes]")


# --- the model of one input


async def test_an_input_may_choose_its_model(app: App) -> None:
    rt = await app.open(Looking())
    session = await rt.session("s", agent="a")
    assert (await session.ask("hi", model="sim:echo")).startswith("You said: hi")
    assert await session.ask("hi") == "ok"


async def test_the_model_of_an_input_survives_a_restart(new_store: NewStore) -> None:
    async with Runtime(new_store(), agents=[Agent("a", model=Looking())], worker=False) as rt:
        sent = await (await rt.session("s", agent="a")).send("hi", model="sim:echo", key="k")
    async with Runtime(new_store(), agents=[Agent("a", model=Looking())]) as rt:
        session = await rt.session("s")
        again = await session.send("hi", model="sim:echo", key="k")
        assert again.turn_id == sent.turn_id
        assert (await again.result(timeout=10)).text.startswith("You said: hi")
        for other in (None, "sim:travel"):
            with pytest.raises(Error) as caught:
                await session.send("hi", model=other, key="k")
            assert caught.value.code is Code.INPUT_KEY_CONFLICT


async def test_an_unknown_model_is_refused_before_anything_is_written(app: App) -> None:
    rt = await app.open(Looking())
    session = await rt.session("s", agent="a")
    for model, code in (("sim:nobody", Code.MODEL_UNKNOWN), ("", Code.MODEL_UNKNOWN), (7, Code.INVALID_ARGUMENT)):
        with pytest.raises(Error) as caught:
            await session.send("hi", model=model)  # type: ignore[arg-type]
        assert caught.value.code is code
    assert await rt.list_sessions() == ()


async def test_the_model_of_another_agent_may_be_chosen_by_its_name(app: App) -> None:
    mine, theirs = Looking(), Looking()
    theirs.name = "theirs"
    agents = [Agent("a", model=mine), Agent("b", model=theirs)]
    async with Runtime(app.new_store(), agents=agents) as rt:
        await (await rt.session("x", agent="a")).ask("hi", model="theirs")
    assert (len(mine.requests), len(theirs.requests)) == (0, 1)
