"""S5, S23 and x6: an imported past brings no agent, model, tool, number or id that the importer did not ask for."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from perdure import Agent, Code, Error, UsageLimits, tool
from perdure.codemode import code_mode
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.internals import core_of, ref_of
from perdure.vocab.messages import Text, ToolResultPart
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import App
from tests.scenarios.test_archive import Lines, nth, numbered, sealed

ran: list[str] = []


@tool
async def wipe() -> str:
    """Wipe."""
    ran.append("wiped")
    return "wiped"


def support() -> Agent:
    script = {"go": [call("wipe"), say("support tried")]}
    return Agent("support", model=ScriptedModel.by_input(script, default=[say("support here")]), tools=[wipe])


def admin() -> Agent:
    return Agent("admin", model=ScriptedModel.by_input({}, default=[say("admin here")]), tools=[wipe])


async def exported(app: App) -> Lines:
    rt = await app.add([support(), admin()])
    session = await rt.session("one", agent="support")
    await session.ask("go")
    ran.clear()
    return [json.loads(line) for line in (await session.export()).splitlines()]


def inserted(lines: Lines, kind: str, data: dict[str, Any], *, before: str = "") -> None:
    place = lines.index(nth(lines, before)) if before else len([line for line in lines if line["type"] != "blob"]) - 1
    lines.insert(place, {"type": "record", "seq": 0, "at": 1, "kind": kind, "data": data})
    numbered(lines)


@pytest.mark.parametrize("taken_over", [False, True])
async def test_s05_imported_session_is_run_by_the_requested_agent(app: App, taken_over: bool) -> None:
    lines = await exported(app)
    turn, blob = nth(lines, "turn_opened")["data"]["turn"], nth(lines, "turn_opened")["data"]["composition"]
    told = {"turn": turn, "call": f"{turn}.1.0", "to": "admin"}
    taken = {"turn": turn, "n": 1, "agent": "admin", "composition": blob}
    inserted(lines, "handed_over", told, before="turn_ended")
    if taken_over:
        inserted(lines, "turn_agent_changed", taken, before="turn_ended")
    rt = await app.add([support(), admin()])
    session = await rt.import_session("two", sealed(lines), agent="support")
    assert (await session.ask("who?")).startswith("support here")
    assert {info.agent for info in await rt.list_sessions() if info.id == "two"} == {"support"}


async def test_s05_handed_over_session_keeps_its_agent_in_its_own_export(app: App) -> None:
    lines = await exported(app)
    turn = nth(lines, "turn_opened")["data"]["turn"]
    inserted(lines, "handed_over", {"turn": turn, "call": f"{turn}.1.0", "to": "admin"}, before="turn_ended")
    rt = await app.add([support(), admin()])
    await rt.import_session("two", sealed(lines), agent="admin")
    again = await rt.get_session("two").export()
    third = await rt.import_session("three", again)
    assert (await third.info()).model == ""
    assert (await third.ask("who?")).startswith("admin here")


async def test_s05_import_resets_model_and_tool_memberships(app: App) -> None:
    lines = await exported(app)
    inserted(lines, "model_set", {"model": "ollama:elsewhere"})
    inserted(lines, "tool_membership_changed", {"names": ["wipe"], "present": False})
    rt = await app.add([support(), admin()])
    session = await rt.import_session("two", sealed(lines))
    assert (await session.info()).model == ""
    await session.ask("go")
    assert ran == ["wiped"], "the tool is a member again, and the agent's model was asked"


async def test_s05_import_leaves_the_variables_of_programs_behind(app: App) -> None:
    def programmer(*programs: str) -> Agent:
        script = ScriptedModel(*(call("run_python", code=code) for code in programs), say("done"))
        return Agent("programmer", model=script, tools=[code_mode()])

    rt = await app.add([programmer("hidden = 41", "hidden")])
    session = await rt.session("one", agent="programmer")
    await session.ask("go")
    lines: Lines = [json.loads(line) for line in (await session.export()).splitlines()]
    outcomes = [line["data"]["outcome"] for line in lines if line.get("kind") == "effect_settled"]
    hashes = [outcome["sync"]["hash"] for outcome in outcomes if "sync" in outcome]
    state = await core_of(rt).store.blob(hashes[-1], stream=ref_of(session).stream)
    told = {"type": "blob", "hash": state.hash, "media_type": state.media_type}
    lines.insert(-1, {**told, "data": b64encode(state.data).decode()})
    rt = await app.add([programmer("hidden")])
    two = await rt.import_session("two", sealed(lines))
    assert len(await two.messages()) == len(await session.messages())
    await two.ask("again")
    results = [part.output for one in await two.messages() for part in one.parts if isinstance(part, ToolResultPart)]
    assert results[1] == {"result": 41}
    assert "NameError: name" in str(results[2])
    with pytest.raises(Error) as missing:
        await core_of(rt).store.blob(state.hash, stream=ref_of(two).stream)
    assert missing.value.code is Code.BLOB_UNKNOWN


FOREIGN: list[tuple[str, dict[str, Any]]] = [
    ("process_event", {"event": "x"}),
    ("process_first_started", {"worker": "w"}),
    ("abandon_requested", {"by": "x"}),
    ("schedule_fired", {"due_at": 1}),
    ("schedule_skipped", {"due_at": 1}),
    ("trigger_source_opened", {"source_type": "t", "source": "s"}),
]


@pytest.mark.any_store
@pytest.mark.parametrize(("kind", "data"), FOREIGN)
async def test_s05_import_refuses_records_of_other_streams(app: App, kind: str, data: dict[str, Any]) -> None:
    lines = await exported(app)
    inserted(lines, kind, data)
    rt = await app.add([support(), admin()])
    with pytest.raises(Error) as caught:
        await rt.import_session("two", sealed(lines))
    assert caught.value.code is Code.EXPORT_INVALID


def usage(**counts: int) -> Callable[[Lines], None]:
    return lambda lines: nth(lines, "turn_ended")["data"].update(usage=counts)


def spent(**counts: int) -> Callable[[Lines], None]:
    return lambda lines: nth(lines, "effect_settled")["data"]["outcome"]["reply"].update(usage=counts)


def effect(kind: str, id: str) -> Callable[[Lines], None]:
    return lambda lines: nth(lines, kind)["data"].update(id=id)


def everywhere(old: str, new: str) -> Callable[[Lines], None]:
    """Name one effect by another id in all of its records, so that the log agrees with itself."""

    def change(lines: Lines) -> None:
        for line in lines:
            if line["type"] == "record" and line["data"].get("id") == old:
                line["data"]["id"] = new

    return change


def child(**data: object) -> Callable[[Lines], None]:
    return lambda lines: inserted(lines, "child_ended", {"child": "zz", "turn": "t", "status": "finished", **data})


def claim(number: int) -> Callable[[Lines], None]:
    data = {"number": number, "handle": "h", "token": "t", "task": "x", "parent": "other:session:victim", "turn": "t"}
    return lambda lines: inserted(lines, "child_claimed", data)


WRONG: list[Callable[[Lines], None]] = [
    usage(input=-1),
    usage(cost_nano=-(10**12)),
    usage(input=10**18),
    spent(input=-(10**12), output=5),
    child(usage={"input": -50_000}),
    effect("effect_started", ""),
    effect("effect_settled", ""),
    effect("effect_started", "m-1.1"),
    effect("effect_started", "m1.1_0"),
    effect("effect_settled", "p/step:x"),
    effect("effect_settled", "c1.x/step:y"),
    everywhere("m1.1", "m01.1"),
    everywhere("m1.1", "m1.1_0"),
    everywhere("m1.1", "m99999999999999999999.1"),
    claim(0),
    claim(7),
    lambda lines: nth(lines, "turn_opened")["data"].update(from_turn=10**12),
    lambda lines: nth(lines, "turn_opened")["data"].update(from_turn=-1),
    lambda lines: nth(lines, "input_admitted")["data"].update(input=""),
    lambda lines: nth(lines, "session_opened")["data"].update(agent="a\nb"),
]


@pytest.mark.any_store
@pytest.mark.parametrize("number", range(len(WRONG)))
async def test_s23_import_refuses_impossible_numbers_and_ids(app: App, number: int) -> None:
    lines = await exported(app)
    WRONG[number](lines)
    rt = await app.add([support(), admin()])
    with pytest.raises(Error) as caught:
        await rt.import_session("two", sealed(lines))
    assert caught.value.code is Code.EXPORT_INVALID
    assert [info.id for info in await rt.list_sessions()] == ["one"]


async def test_s05_imported_child_records_name_no_other_session(app: App) -> None:
    lines = await exported(app)
    claim(1)(lines)
    inserted(lines, "child_registered", {"handle": "h", "token": "t", "child": "victim", "asked": "t"})
    rt = await app.add([support(), admin()])
    await (await rt.session("victim", agent="support")).ask("hello")
    session = await rt.import_session("two", sealed(lines))
    assert b"victim" not in await session.export()


VALUES: list[Any] = ["", "x", -1, 0, 10**15, None, True, [], {}, "m1.1", "c1.0.1", "\u2028"]


def mutated(lines: Lines, dice: random.Random) -> None:
    """Replace, drop, repeat or swap one value of one record."""
    records = [line for line in lines if line["type"] == "record"]
    line = dice.choice(records)
    spots: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        kind = value.__class__
        keys: list[Any] = [*value] if kind is dict else [*range(len(value))] if kind is list else []
        for key in keys:
            spots.append((value, key))
            walk(value[key])

    walk(line["data"])
    match dice.randrange(4):
        case 0 if spots:
            where, key = dice.choice(spots)
            where[key] = dice.choice(VALUES)
        case 1:
            lines.remove(line)
        case 2:
            lines.insert(lines.index(line), json.loads(json.dumps(line)))
        case _:
            other = dice.choice(records)
            line["kind"], other["kind"] = other["kind"], line["kind"]
            line["data"], other["data"] = other["data"], line["data"]
    numbered(lines)


@pytest.mark.any_store
@pytest.mark.parametrize("seed", range(3))
async def test_s23_every_accepted_import_can_be_continued(app: App, seed: int) -> None:
    whole, dice = await exported(app), random.Random(seed)
    rt = await app.add([support(), admin()])
    accepted = 0
    for n in range(150):
        lines: Lines = json.loads(json.dumps(whole))
        mutated(lines, dice)
        try:
            session = await rt.import_session(f"m{n}", sealed(lines), agent="support")
        except Error as problem:
            if problem.code is not Code.EXPORT_INVALID:
                raise
            continue
        accepted += 1
        assert (await session.ask("hello", timeout=4)).startswith("support here")
        await session.usage()
        await session.messages()
        await session.export()
    assert accepted


class Reporting:
    """A model whose reports of usage are set by the test."""

    name = "m"

    def __init__(self) -> None:
        self.usage = Usage(input=-1_000_000, cost_nano=-5)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield ModelReply(parts=(Text(text="x"),), finish="stop", usage=self.usage, model="m")


async def test_x6_negative_usage_of_a_model_gives_no_budget_back(app: App) -> None:
    model = Reporting()
    rt = await app.add([Agent("a", model=model, limits=UsageLimits(session_tokens=100))])
    session = await rt.session("s", agent="a")
    await session.ask("1")
    assert (await session.usage()).input == 0
    model.usage = Usage(input=90)
    await session.ask("2")
    await session.ask("3")
    result = await (await session.send("4")).result(timeout=10)
    assert (result.status, result.reason) == ("stopped", "limit_reached")
