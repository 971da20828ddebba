"""Hostile patterns and schemas of a model: no step of the event loop takes 50 ms, and the worker keeps its lease.

The watchdog of `tests/watchdog.py` measures the steps. A second process would take the neighbour's session over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure import Agent, InitialFile, Runtime, RuntimeOptions, tool
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, Step, call, give, say
from perdure.runtime.internals import core_of, ref_of
from perdure.tools.files import file_tools
from perdure.tools.spawn_subagent import spawn_subagent
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.records import EffectSettled, TurnEnded
from tests.crash.harness import processes
from tests.crash.scenarios import Ledger, store_url
from tests.scenarios.conftest import until
from tests.unit.tools.test_schema_bounds import REFUSED, deep, doubling, nested, unbounded_by_shape

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(240)]

LEASE = RuntimeOptions(lease_s=3)
_draw = random.Random(0)
LETTERS = "".join(_draw.choices("ab", k=500_000))
LINES = "\n".join(LETTERS[at : at + 80] for at in range(0, 250_000, 80))
WORDS = "".join(_draw.choices("äßあ字a", k=200_000))
FILES = tuple(InitialFile(f"/{n}.txt", (LETTERS, LETTERS, LINES, WORDS)[n % 4]) for n in range(12))
"""About 5 MB: long lines, short lines, and characters of several bytes."""

PATTERNS = {
    "states": "[ab]*a[ab]{900}c",
    "alternatives": "(a|b)*a(a|b){300}c",
    "dot": ".*a.{900}c",
    "word": r"\w*a\w{45}\W",
    "words": r"(\w{1,9}\s?){5}x",
    "one word": r"\w{48}!",
    "many": "|".join("".join(_draw.choices("ab", k=6)) + "c" for _ in range(120)),
    "nested": "((((a{2}){2}){2}){2}b?){60}c",
    "nested stars": "((a*)*)*c",
    "without case": "(?i)[a-z]*k[a-z]{900}1",
    "all but one": "[^c]*a[^c]{900}c",
    "all but a line end": r"[^\n]*b[^\n]{900}\x00",
    "letters": r"\p{L}*a\p{L}{45}1",
    "borders": r"(\b\w+\b\W*){2,20}$",
    "range": r"[\u00e0-\uffff]*\u3042[\u00e0-\uffff]{900}z",
    "one of a range": ".*字.{900}z",
    "optional": "a?" * 490 + "a" * 400,
    "star": "(a*)*b",
    "any length": ".{0,1000}x",
    "everything": "^",
}
FROM_A_MODEL = {name: schema for name, (schema, _) in REFUSED.items() if name != "no utf-8"}
"""JSON text of a model has no lone surrogates: such arguments are refused before a tool reads them."""

SCHEMAS: dict[str, Json] = {
    **FROM_A_MODEL,
    "deep": deep(80),  # deeper arguments are not accepted at all
    "depth of the limit": deep(60),
    "doubling within the limit": doubling(7),
    "unbounded": unbounded_by_shape(),
    "pattern": {"type": "object", "additionalProperties": {"pattern": "(a{900}){900}"}},
    "pattern of names": {"type": "object", "patternProperties": {"(a|a)*$": {"pattern": "(a*)*b"}}},
    "unique": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
    "unevaluated": {"type": "object", "unevaluatedProperties": {"$ref": "#"}},
}


def agents_of(folder: Path, steps: Sequence[Step]) -> list[Agent]:
    ledger = Ledger(folder / "ledger")

    @tool(effect="once")
    async def charge() -> str:
        """Charge, until the hostile session has ended."""
        ledger.write("charge", "begun")
        while not (folder / "tried").exists():  # noqa: ASYNC110 - the test says so
            await asyncio.sleep(0.02)
        return "charged"

    child = ScriptedModel(*[give(nested(40))] * 100)
    tools = [*file_tools(), spawn_subagent("child")]
    hostile = ScriptedModel(*steps, say("done", exact=True))
    return [
        Agent("hostile", model=hostile, tools=tools, initial_files=FILES),
        Agent("child", model=child),
        Agent("shop", model=ScriptedModel(call("charge"), say("sold", exact=True)), tools=[charge]),
    ]


async def _stand_by(folder: Path) -> None:
    async with Runtime(store_url(folder), agents=agents_of(folder, []), options=LEASE):
        (folder / "ready").touch()
        while not (folder / "over").exists():  # noqa: ASYNC110 - the parent says so
            await asyncio.sleep(0.05)


def stand_by(folder: str) -> None:
    asyncio.run(_stand_by(Path(folder)))


async def exists(file: Path) -> None:
    await until(lambda: asyncio.to_thread(file.exists), seconds=60)


async def try_beside_a_charge(folder: Path, steps: Sequence[Step]) -> list[str]:
    """Run a hostile session beside the call of a neighbour; return the results that the hostile model got."""
    second = processes.Process(target=stand_by, args=(str(folder),))
    async with Runtime(store_url(folder), agents=agents_of(folder, steps), options=LEASE) as rt:
        neighbour = await rt.session("neighbour", agent="shop")
        sold = await neighbour.send("buy")
        await exists(folder / "ledger")
        hostile = await rt.session("hostile", agent="hostile")
        second.start()
        try:
            await exists(folder / "ready")
            tried = await hostile.send("go")
            ended = await tried.result(timeout=200)
            assert ended.status == "finished", ended
            (folder / "tried").touch()
            assert (await sold.result(timeout=20)).status == "finished"
            info = await core_of(rt).store.stream(ref_of(neighbour).stream)
            assert info is not None
            assert info.fence == 1, "no other worker has claimed the session"
        finally:
            (folder / "over").touch()
            await asyncio.to_thread(second.join, 60)
        assert Ledger(folder / "ledger").count("charge") == 1
        records = [row.record for row in await neighbour.journal()]
        [charged] = [
            part.output for m in await neighbour.messages() for part in m.parts if isinstance(part, ToolResultPart)
        ]
        assert charged == "charged"
        assert sum(isinstance(record, TurnEnded) for record in records) == 1
        assert sum(isinstance(record, EffectSettled) for record in records) == 3, "two replies and one call"
        return [
            str(part.output) for m in await hostile.messages() for part in m.parts if isinstance(part, ToolResultPart)
        ]


async def test_t_tool_03_patterns_hold_neither_the_loop_nor_a_lease(folder: Path) -> None:
    assert len(PATTERNS) == 20
    steps = [call("grep_files", pattern=pattern) for pattern in PATTERNS.values()]
    told = await try_beside_a_charge(folder, steps)
    for name, answer in zip(PATTERNS, told, strict=True):
        assert any(sign in answer for sign in ("CPU time", "invalid pattern", "'matches'", "finished within")), (
            name,
            answer,
        )
    assert sum("CPU time" in answer for answer in told) >= 5, "the others are answered within the budget"


async def test_t_tool_03_schemas_hold_neither_the_loop_nor_a_lease(folder: Path) -> None:
    assert len(SCHEMAS) == 20
    steps = [
        call("spawn_subagent", name="child", task=name, mode="foreground", result_schema=schema)
        for name, schema in SCHEMAS.items()
    ]
    for at in (8, 17):  # a turn with a dozen failures in a row is stopped
        steps.insert(at, call("list_directory", path="/"))
    told = [one for one in await try_beside_a_charge(folder, steps) if "entries" not in one]
    refused = [name for name, answer in zip(SCHEMAS, told, strict=True) if "invalid result_schema" in answer]
    assert set(FROM_A_MODEL) <= set(refused)
    assert "CPU time" in told[list(SCHEMAS).index("unbounded")]
