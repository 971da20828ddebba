"""Results that refer to bytes, killed at every boundary: whatever the model is shown, the bytes are there."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.codec import encode
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.runtime.internals import core_of, ref_of
from perdure.store.protocol import Store
from perdure.testing import CrashReport, World, every_boundary
from perdure.tools import Image, ToolResult
from perdure.vocab.messages import ImagePart, Text, ToolResultPart
from perdure.vocab.usage import Usage

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

PICTURE = b"\x89PNG\r\n\x1a\n-not-really"
LONG = "0123456789" * 15_000


class Reader:
    """Asks for a picture and a long text, reads the text to its end, and says how long it is."""

    name = "reader"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        shown = [part for message in request.messages for part in message.parts if isinstance(part, ToolResultPart)]
        parts: tuple[Text | ProviderCall, ...]
        if not shown:
            parts = (ProviderCall("p0", "draw", "{}"), ProviderCall("p1", "big", "{}"))
        elif "next_offset" in shown[-1].output:
            wanted = {"call": shown[-1].output["call"], "offset": shown[-1].output["next_offset"]}
            parts = (ProviderCall(f"p{len(shown)}", "read_result", encode(wanted).decode()),)
        else:
            text = "".join(one.output["text"] for one in shown if one.name != "draw")
            parts = (Text(text=f"read {len(text)}"),)
        yield ModelReply(parts=parts, finish="stop", usage=Usage(), model=self.name)


def app(store: Store, world: World) -> Runtime:
    @tool(effect="idempotent")
    async def draw(ctx: ToolContext) -> ToolResult:
        """Draw."""
        if not world.has(ctx.idempotency_key):
            world.note("draw", key=ctx.idempotency_key)
        return ToolResult.success_with_images({}, [Image(b64encode(PICTURE).decode(), "image/png")])

    @tool(effect="idempotent")
    async def big(ctx: ToolContext) -> str:
        """Big."""
        if not world.has(ctx.idempotency_key):
            world.note("big", key=ctx.idempotency_key)
        return LONG

    return Runtime(store, agents=[Agent("a", model=Reader(), tools=[draw, big])])


async def script(rt: Runtime) -> None:
    session = await rt.session("s", agent="a")
    assert await session.ask("go", key="k") == f"read {len(LONG)}"
    for message in await session.messages():
        for part in message.parts:
            if isinstance(part, ImagePart):
                assert (await core_of(rt).store.blob(part.ref.hash, stream=ref_of(session).stream)).data == PICTURE


def all_shown(crash: CrashReport) -> None:
    parts = [part for message in crash.history("s") for part in message.parts]
    assert sum(isinstance(part, ImagePart) for part in parts) == 1
    read = [part.output["text"] for part in parts if isinstance(part, ToolResultPart) and part.name != "draw"]
    assert "".join(read) == LONG


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["memory", "sqlite"])
def test_pictures_and_long_results_survive_a_crash_anywhere(mode: Literal["memory", "sqlite"]) -> None:
    crashes = every_boundary(app, script, mode=mode, check=all_shown)
    assert len(crashes) > 15
