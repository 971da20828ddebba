"""Programs that the model writes: their calls are effects like any other, and they go on wherever they stood."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from perdure import (
    Agent,
    CannotTell,
    Code,
    Error,
    Happened,
    OutcomeUnknown,
    Runtime,
    RuntimeOptions,
    Session,
    ToolContext,
    ToolError,
    WorkerOptions,
    tool,
)
from perdure.codec import Json
from perdure.codemode import ProgramLimits, code_mode
from perdure.codemode.machine import Machine
from perdure.codemode.pauses import Pause
from perdure.models.scripted import ScriptedModel, call, calls, say
from perdure.observe.verify import verify
from perdure.runtime.calls.programs import ProgramsClient
from perdure.runtime.internals import core_of, ref_of
from perdure.session.fold import CODE
from perdure.session.redaction import caches_of
from perdure.tools.decorator import AnyTool
from perdure.vocab.messages import ToolResultPart
from perdure.vocab.tools import RetryPolicy
from tests.scenarios.conftest import App, until

pytestmark = pytest.mark.any_store

Spoil = Callable[[bytes], Awaitable[bytes | None]]


def script(*programs: str) -> ScriptedModel:
    return ScriptedModel(*(call("run_python", code=code) for code in programs), say("done"))


def shop(sold: list[int]) -> list[AnyTool]:
    @tool(effect="pure")
    async def price(item: int) -> dict[str, int]:
        """The price of an item."""
        return {"cents": item * 100}

    @tool
    async def buy(ctx: ToolContext, item: int, note: str = "") -> str:
        """Buy an item."""
        if item == 13:
            raise ToolError("nobody sells 13", code="unlucky")
        sold.append(item)
        return f"bought {item}"

    return [price, buy]


async def told(session: Session) -> list[Json]:
    history = await session.messages()
    return [part.output for message in history for part in message.parts if isinstance(part, ToolResultPart)]


async def check(rt: Runtime, session: str = "s") -> None:
    [info] = [one for one in await core_of(rt).session_streams() if one.name == session]
    verdict = verify(
        info, await core_of(rt).store.read(info.stream), await core_of(rt).store.load(info.stream, code=CODE)
    )
    assert verdict.problems == ()


async def run(
    app: App, *programs: str, tools: Sequence[AnyTool] = (), limits: ProgramLimits | None = None
) -> list[Json]:
    rt = await app.open(script(*programs), *tools, code_mode(limits=limits))
    session = await rt.session("s", agent="a")
    await session.ask("go")
    await check(rt)
    return await told(session)


async def test_program_returns_its_last_value_and_printed_text(app: App) -> None:
    sold: list[int] = []
    code = """
total = 0
for item in [1, 2, 3]:
    total += price(item)["cents"]
    print(buy(item, note="for ana"))
f = price
{"total": total, "more": f(item=7), "awaited": await price(item=8)}
"""
    assert await run(app, code, tools=shop(sold)) == [
        {
            "result": {"total": 600, "more": {"cents": 700}, "awaited": {"cents": 800}},
            "printed": "bought 1\nbought 2\nbought 3\n",
        }
    ]
    assert sold == [1, 2, 3]


async def test_variables_and_functions_stay_for_the_next_program_and_the_next_turn(app: App) -> None:
    sold: list[int] = []
    first = "basket = [1, 2]\ndef fill(item):\n    basket.append(item)\n    return buy(item)"
    model = ScriptedModel.by_input(
        {
            "go": [call("run_python", code=first), call("run_python", code="fill(3)"), say("done")],
            "and now?": [call("run_python", code="basket"), say("done")],
        }
    )
    rt = await app.open(model, *shop(sold), code_mode())
    session = await rt.session("s", agent="a")
    await session.ask("go")
    await session.ask("and now?")
    assert [one["result"] if isinstance(one, dict) and "result" in one else one for one in await told(session)] == [
        {},
        "bought 3",
        [1, 2, 3],
    ]
    await check(rt)


async def test_errors_come_back_for_repair_and_what_was_done_stays_done(app: App) -> None:
    sold: list[int] = []
    broken, repaired = "x = buy(1)\nbuy(13)", "x, buy(2)"
    [error, told_then] = await run(app, broken, repaired, tools=shop(sold))
    assert "program_failed" in str(error)
    assert "unlucky: nobody sells 13" in str(error)
    assert "line 2" in str(error)
    assert told_then == {"result": ["bought 1", "bought 2"]}
    assert sold == [1, 2]


async def test_a_failed_call_can_be_caught(app: App) -> None:
    code = "try:\n    buy(13)\nexcept RuntimeError as e:\n    r = str(e)\nr"
    assert await run(app, code, tools=shop([])) == [{"result": "unlucky: nobody sells 13"}]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("buy({1, 2})", "TypeError"),
        ("buy(1, 2, 3, 4)", "takes item, note"),
        ("buy(1, item=2)", "each once"),
        ("buy('many')", "invalid_tool_args"),
        ("sell(1)", "NameError"),
        ("run_python(code='1')", "NameError"),
        ("x = (", "SyntaxError"),
    ],
)
async def test_a_call_that_is_none_is_an_error_of_the_program(code: str, says: str) -> None:
    sold: list[int] = []
    async with Runtime("memory://", agents=[Agent("a", model=script(code), tools=[*shop(sold), code_mode()])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        assert says in str(await told(session))
    assert sold == []


async def test_time_randomness_and_naps_are_recorded(app: App) -> None:
    code = """
import time, random, asyncio
from datetime import datetime, date
a, b, c = time.time(), datetime.now(), date.today()
time.sleep(0.01)
await asyncio.sleep(0.01)
[a > 1.7e9, b.year >= 2026, c.year >= 2026, 0 <= random.random() < 1]
"""
    assert await run(app, code) == [{"result": [True, True, True, True]}]


HOSTILE = {
    "endless loop": ("while True: pass", "program_limit_exceeded"),
    "endless loop that catches": (
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "program_limit_exceeded",
    ),
    "memory": ("x = [0] * 10**9", "program_limit_exceeded"),
    "memory bit by bit": ("x = []\nwhile True: x.append('y' * 1000)", "program_limit_exceeded"),
    "big number": ("2 ** 10 ** 9", "program_limit_exceeded"),
    "recursion": ("def f(): return f()\nf()", "RecursionError"),
    "giant output": ("print('x' * 10**6)", "program_limit_exceeded"),
    "endless output": ("while True: print('y' * 100)", "program_limit_exceeded"),
    "endless calls": ("while True: price(1)", "program_limit_exceeded"),
    "file": ("open('/etc/passwd').read()", "PermissionError"),
    "path": ("from pathlib import Path\nPath('/etc/passwd').read_text()", "PermissionError"),
    "environment": ("import os\nos.environ", "program_failed"),
    "subprocess": ("import subprocess", "ModuleNotFoundError"),
    "socket": ("import socket", "ModuleNotFoundError"),
    "import": ("__import__('os').system('true')", "NameError"),
    "classes": ("().__class__.__bases__[0].__subclasses__()", "AttributeError"),
    "eval": ("eval('open(\"/etc/passwd\")')", "PermissionError"),
    "exit": ("raise SystemExit('out')", "program_failed"),
    "regex": ("import re\nre.match('(a|a)*b', 'a' * 10**5)\nopen('/x')", "program_"),
    "deep data": ("x = []\nfor i in range(100000): x = [x]\nprice(x)", "program_"),
    "big answer": ("'x' * 10**7", ""),
    "endless number as an answer": ("10 ** 5000", "too large to be shown"),
    "endless number as an argument": ("price(10 ** 5000)", "too long to be written"),
    "deep answer": ("x = []\nfor i in range(5000): x = [x]\nx", "too large to be shown"),
    "coroutines without end": (
        "import asyncio\nasync def f():\n    await asyncio.gather(f(), f())\nawait f()",
        "program_limit_exceeded",
    ),
    "awaiting itself": ("async def f():\n    await t\nt = f()\nawait t", "program_failed"),
    "huge message": ("raise ValueError('x' * 5_000_000)", "program_failed"),
    "huge argument": ("price('y' * 3_000_000)", "program_failed"),
    "tool as a key": ("sorted([2, 1], key=lambda i: price(i)['cents'])", "program_failed"),
    "an argument that holds itself": ("x = []\nx.append(x)\nprice(x)", "program_failed"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_program_ends_as_a_tool_error_and_the_worker_lives(name: str) -> None:
    code, says = HOSTILE[name]
    model = ScriptedModel(
        call("run_python", code="kept = 1"),
        call("run_python", code=code),
        call("run_python", code="kept + 1"),
        say("alive", exact=True),
    )
    limits = ProgramLimits(seconds=0.5, memory_bytes=20_000_000, output_bytes=10_000, calls=20)
    async with Runtime(
        "memory://", agents=[Agent("a", model=model, tools=[*shop([]), code_mode(limits=limits)])]
    ) as rt:
        session = await rt.session("s", agent="a")
        assert await session.ask("go") == "alive"
        outputs = await told(session)
    assert says in str(outputs[1])
    assert outputs[2] == {"result": 2}, "earlier variables are still there"


async def test_an_interpreter_whose_process_is_ended_for_its_memory_is_a_limit() -> None:
    code = "import asyncio\nasync def f():\n    await asyncio.gather(f(), f())\nawait f()"
    limits = ProgramLimits(seconds=30, memory_bytes=30_000_000)
    model = script(code, "1")
    async with Runtime("memory://", agents=[Agent("a", model=model, tools=[code_mode(limits=limits)])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        [ended, after] = await told(session)
    assert "program_limit_exceeded" in str(ended)
    assert after == {"result": 1}


async def test_an_interpreter_that_dies_is_a_tool_error(app: App) -> None:
    @tool(effect="pure")
    def murder() -> str:
        """Kill every interpreter of this process."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                name, _, rest = stat.read_text().rpartition(") ")
                if name.endswith("(monty") and rest.split()[1] == str(os.getpid()):
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        return "done"

    outputs = await run(app, "murder()\n1", "2", tools=[murder])
    assert "interpreter_crashed" in str(outputs[0])
    assert outputs[1] == {"result": 2}


async def test_other_sessions_go_on_while_a_program_loops() -> None:
    model = ScriptedModel.by_input(
        {"loop": [call("run_python", code="while True: pass"), say("ended")], "hello": [say("hi", exact=True)]}
    )
    agent = Agent("a", model=model, tools=[code_mode(limits=ProgramLimits(seconds=50))])
    async with Runtime("memory://", agents=[agent]) as rt:
        busy = await rt.session("busy", agent="a")
        looping = await busy.send("loop")
        for n in range(20):
            assert await (await rt.session(f"other-{n}", agent="a")).ask("hello") == "hi"
        assert (await busy.why()).status == "running"
        await busy.cancel()
        assert (await looping.result(timeout=30)).status == "stopped"


# --- approvals, doubt, cancelling


def paying(paid: list[int], **options: Json) -> AnyTool:
    @tool(**options)
    async def pay(ctx: ToolContext, cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return f"paid {cents}"

    return pay


async def asked(rt: Runtime) -> str:
    async def there() -> bool:
        return len(await rt.approvals.list()) == 1

    await until(there)
    [question] = await rt.approvals.list()
    return question.id


@pytest.mark.parametrize("patience", [0.0, 30.0])
async def test_a_call_of_a_program_waits_for_its_approval_parked_or_not(app: App, patience: float) -> None:
    paid: list[int] = []
    code = "first = pay(1)\nsecond = pay(6000)\n[first, second, pay(2)]"

    def large(args: SimpleNamespace) -> bool:
        return args.cents > 5000

    pay = paying(paid, needs_approval=large)
    rt = await app.open(script(code), pay, code_mode(), tuning=RuntimeOptions(idle_timeout_s=patience))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    question = await asked(rt)
    assert paid == [1]
    [waiting] = await session.pending()
    assert (waiting.kind, waiting.tool) == ("approval", "pay")
    await rt.approvals.approve(question, by="ana", args={"cents": 5999})
    assert (await sent.result(timeout=30)).status == "finished"
    assert paid == [1, 5999, 2]
    assert (await rt.approvals.get(question)).used_at is not None
    assert await told(session) == [
        {
            "result": ["paid 1", "paid 5999", "paid 2"],
            "note": 'ana changed the arguments of call 2 (pay) to {"cents":5999}.',
        }
    ]
    await check(rt)


async def test_a_denied_call_is_an_error_in_the_program(app: App) -> None:
    paid: list[int] = []
    code = "try:\n    pay(1)\nexcept RuntimeError as e:\n    r = str(e)\nr"
    rt = await app.open(
        script(code), paying(paid, needs_approval=True), code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0)
    )
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await rt.approvals.deny(await asked(rt), by="ana", reason="too much")
    await sent.result(timeout=30)
    assert "approval_denied: ana did not approve this call: too much" in str(await told(session))
    assert paid == []
    await check(rt)


async def test_a_grant_for_the_session_covers_the_calls_of_a_program(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(script("[pay(i) for i in range(3)]"), paying(paid, needs_approval=True), code_mode())
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await rt.approvals.approve(await asked(rt), by="ana", for_session=True)
    assert (await sent.result(timeout=30)).status == "finished"
    assert paid == [0, 1, 2]
    await check(rt)


async def test_a_cancelled_turn_withdraws_what_its_program_asked(app: App) -> None:
    paid: list[int] = []
    rt = await app.open(script("pay(1)"), paying(paid, needs_approval=True), code_mode())
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    question = await asked(rt)
    await session.cancel()
    assert (await sent.result(timeout=30)).status == "stopped"
    with pytest.raises(Error) as refused:
        await rt.approvals.approve(question, by="ana")
    assert refused.value.code is Code.APPROVAL_STALE
    assert paid == []
    await check(rt)


async def test_a_cancelled_turn_ends_a_program_that_loops(app: App) -> None:
    rt = await app.open(script("while True: pass"), code_mode(limits=ProgramLimits(seconds=50)))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")

    async def begun() -> bool:
        return any("code:program" in getattr(row.record, "id", "") for row in await session.journal())

    await until(begun)
    await session.cancel()
    assert (await sent.result(timeout=30)).status == "stopped"
    await check(rt)


@pytest.mark.parametrize(("verdict", "expected"), [(Happened("receipt 7"), "receipt 7"), (CannotTell("?"), "unknown")])
async def test_a_call_in_doubt_is_probed_like_any_other(
    app: App, verdict: Happened | CannotTell, expected: str
) -> None:
    code = "try:\n    r = send()\nexcept RuntimeError as e:\n    r = 'unknown'\nr"
    asked_for: list[str] = []

    async def probe(ctx: ToolContext) -> Happened | CannotTell:
        asked_for.append(ctx.idempotency_key)
        return verdict

    sent: list[str] = []

    @tool(probe=probe)
    async def send(ctx: ToolContext) -> str:
        """Send."""
        sent.append(ctx.idempotency_key)
        raise OutcomeUnknown("the line broke")

    [output] = await run(app, code, tools=[send])
    assert isinstance(output, dict)
    assert output["result"] == expected
    assert asked_for == sent
    assert len(sent) == 1


async def test_people_say_what_became_of_a_call_of_a_program(app: App) -> None:
    sent: list[str] = []

    @tool(in_doubt="ask")
    async def send(ctx: ToolContext) -> str:
        """Send."""
        sent.append(ctx.idempotency_key)
        raise OutcomeUnknown("the line broke")

    rt = await app.open(script("send()"), send, code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    turn = await session.send("go")
    question = await asked(rt)
    with pytest.raises(Error) as refused:
        await rt.approvals.settle(question, "did_not_happen", by="ana")
    assert refused.value.code is Code.ORIGINAL_CALL_MAY_STILL_RUN
    await rt.approvals.settle(question, "happened", by="ana", value="receipt 8")
    await turn.result(timeout=30)
    assert await told(session) == [{"result": "receipt 8"}]
    assert len(sent) == 1
    await check(rt)


# --- what is kept is a cache


class Spy:
    """Counts how interpreters were begun, and can spoil what they are to begin from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[str] = []
        self.ran: list[str] = []
        self.fetch = ProgramsClient.fetch
        run, program, variables = Machine.run, Machine.load_program, Machine.load_variables

        async def spied_run(machine: Machine, code: str) -> Pause:
            self.ran.append(code)
            return await run(machine, code)

        async def spied_program(machine: Machine, state: bytes, printed: str) -> Pause:
            pause = await program(machine, state, printed)
            self.loaded.append("program")
            return pause

        async def spied_variables(machine: Machine, state: bytes) -> None:
            await variables(machine, state)
            self.loaded.append("variables")

        monkeypatch.setattr(Machine, "run", spied_run)
        monkeypatch.setattr(Machine, "load_program", spied_program)
        monkeypatch.setattr(Machine, "load_variables", spied_variables)


async def gone(_: bytes) -> bytes | None:
    return None


async def of_another_version(data: bytes) -> bytes | None:
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(data), "version": "monty 0.0.1"})


async def cut(data: bytes) -> bytes | None:
    return data[:-20]


async def scrambled(data: bytes) -> bytes | None:
    packed = msgspec.msgpack.decode(data)
    return msgspec.msgpack.encode({**packed, "state": packed["state"][:60] + bytes(40) + packed["state"][100:]})


SPOILED = [gone, of_another_version, cut, scrambled]
TWO_CALLS = "import random\nx = random.random()\nprint('once')\na = buy(1)\nb = pay(2)\n[a, b, x == x, buy(3)]"


async def through_an_approval(app: App, sold: list[int]) -> Json:
    rt = await app.open(
        script(TWO_CALLS),
        *shop(sold),
        paying(sold, needs_approval=True),
        code_mode(),
        tuning=RuntimeOptions(idle_timeout_s=0.0),
    )
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    question = await asked(rt)

    async def parked() -> bool:
        info = await core_of(rt).store.stream(ref_of(session).stream)
        return (
            info is not None
            and info.parked
            and info.owner is None
            and not core_of(rt).has_in_hand(ref_of(session).stream)
        )

    await until(parked)
    await rt.approvals.approve(question, by="ana")
    assert (await sent.result(timeout=30)).status == "finished"
    await check(rt)
    [output] = await told(session)
    return output


AS_EVER = {"result": ["bought 1", "paid 2", True, "bought 3"], "printed": "once\n"}


async def test_a_parked_program_goes_on_where_it_stood(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    spy, sold = Spy(monkeypatch), list[int]()
    assert await through_an_approval(app, sold) == AS_EVER
    assert sold == [1, 2, 3]
    assert spy.loaded == ["program"]
    assert spy.ran == [TWO_CALLS]


@pytest.mark.parametrize("spoil", SPOILED)
async def test_unloadable_program_is_replayed_from_the_log(
    app: App, monkeypatch: pytest.MonkeyPatch, spoil: Spoil
) -> None:
    spy, sold = Spy(monkeypatch), list[int]()

    async def fetch(client: ProgramsClient, hash: str) -> bytes | None:
        data = await spy.fetch(client, hash)
        assert data is not None
        return await spoil(data)

    monkeypatch.setattr(ProgramsClient, "fetch", fetch)
    assert await through_an_approval(app, sold) == AS_EVER
    assert sold == [1, 2, 3], "a call that was made is not made again"
    assert spy.loaded == []
    assert spy.ran == [TWO_CALLS, TWO_CALLS]


@pytest.mark.parametrize("spoil", SPOILED)
async def test_variables_that_cannot_be_loaded_come_from_running_earlier_programs_again(
    app: App, monkeypatch: pytest.MonkeyPatch, spoil: Spoil
) -> None:
    sold: list[int] = []
    first = "import random\nx = [random.random(), buy(1)]\nbuy(13)"
    model = ScriptedModel.by_input(
        {
            "one": [call("run_python", code=first), call("run_python", code="y = buy(2)\nx"), say("ok")],
            "two": [call("run_python", code="[x, y, buy(3)]"), say("ok")],
        }
    )
    rt = await app.open(model, *shop(sold), code_mode())
    session = await rt.session("s", agent="a")
    await session.ask("one")
    spy = Spy(monkeypatch)

    async def fetch(client: ProgramsClient, hash: str) -> bytes | None:
        data = await spy.fetch(client, hash)
        assert data is not None
        return await spoil(data)

    monkeypatch.setattr(ProgramsClient, "fetch", fetch)
    await session.ask("two")
    [_, second, third] = await told(session)
    assert isinstance(second, dict)
    assert third == {"result": [second["result"], "bought 2", "bought 3"]}
    assert sold == [1, 2, 3]
    assert spy.loaded == []
    assert len(spy.ran) == 3
    await check(rt)


async def test_diverging_program_fails_with_replay_mismatch(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    spy, sold = Spy(monkeypatch), list[int]()
    run = Machine.run

    async def other(machine: Machine, code: str) -> Pause:
        return await run(machine, code if not spy.ran else code.replace("buy(1)", "buy(7)"))

    async def fetch(_: ProgramsClient, __: str) -> bytes | None:
        return None

    monkeypatch.setattr(Machine, "run", other)
    monkeypatch.setattr(ProgramsClient, "fetch", fetch)
    output = await through_an_approval(app, sold)
    assert "replay_mismatch" in str(output)
    assert sold == [1]


async def test_a_program_that_a_limit_ended_leaves_the_variables_from_before_it() -> None:
    model = script("kept = [1]", "kept.append(2)\nwhile True: pass", "kept")
    agent = Agent("a", model=model, tools=[code_mode(limits=ProgramLimits(seconds=0.3))])
    async with Runtime("memory://", agents=[agent]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        assert (await told(session))[2] == {"result": [1]}


async def test_programs_of_one_reply_run_one_after_the_other(app: App) -> None:
    model = ScriptedModel(calls(call("run_python", code="x = 1"), call("run_python", code="x + 1")), say("done"))
    rt = await app.open(model, code_mode())
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert (await told(session))[1] == {"result": 2}


async def kept(rt: Runtime, session: Session) -> list[bytes]:
    """Return the stored interpreters of the session."""
    found: list[bytes] = []
    for row in await session.journal():
        for hash in caches_of(row.record):
            with suppress(Error):
                found.append((await core_of(rt).store.blob(hash, stream=ref_of(session).stream)).data)
    return found


async def test_a_program_that_ended_leaves_its_variables_and_nothing_else(app: App) -> None:
    sold: list[int] = []
    rt = await app.open(
        script("x = 'apple'\n[buy(i) for i in range(1, 4)]", "y = x + buy(4)"), *shop(sold), code_mode()
    )
    session = await rt.session("s", agent="a")
    await session.ask("go")
    [variables] = await kept(rt, session)
    assert b"applebought 4" in variables
    assert [row.kind for row in await session.journal() if row.kind == "attachment_stored"] == []


async def test_a_cancelled_program_leaves_nothing_of_where_it_stood(app: App) -> None:
    rt = await app.open(script("x = 'apple'\npay(1)"), paying([], needs_approval=True), code_mode())
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await asked(rt)
    assert [b"apple" in data for data in await kept(rt, session)] == [True]
    await session.cancel()
    assert (await sent.result(timeout=30)).status == "stopped"
    assert await kept(rt, session) == []


async def test_redacting_what_a_call_returned_takes_it_out_of_every_stored_interpreter(app: App) -> None:
    @tool(effect="pure")
    async def look_up() -> str:
        """Something private."""
        return "the-secret"

    model = ScriptedModel.by_input(
        {
            "one": [call("run_python", code="x = look_up()\ny = 7\nNone"), say("ok")],
            "two": [call("run_python", code="[x, y]"), say("ok")],
        }
    )
    rt = await app.open(model, look_up, code_mode())
    session = await rt.session("s", agent="a")
    await session.ask("one")
    assert b"the-secret" in b"".join(await kept(rt, session))
    [seq] = [row.seq for row in await session.journal() if getattr(row.record, "id", "").endswith("step:call:1")]
    assert await session.redact(seq)
    assert await kept(rt, session) == []
    await session.ask("two")
    assert (await told(session))[1] == {"result": ["[redacted]", 7]}, "the programs before it ran again, from the log"
    assert b"the-secret" not in b"".join([*await kept(rt, session), *(row.data for row in await session.journal())])
    await check(rt)


async def test_redacted_program_loses_its_variables_with_a_message(app: App) -> None:
    model = ScriptedModel.by_input(
        {
            "one": [call("run_python", code="x = 1"), say("ok")],
            "two": [call("run_python", code="x"), call("run_python", code="x = 2\nx"), say("ok")],
        }
    )
    rt = await app.open(model, code_mode())
    session = await rt.session("s", agent="a")
    await session.ask("one")
    [reply] = [row.seq for row in await session.journal() if row.kind == "effect_settled" and b"x = 1" in row.data]
    assert await session.redact(reply)
    await session.ask("two")
    [_, lost, anew] = await told(session)
    assert "variables of earlier programs are lost" in str(lost)
    assert anew == {"result": 2}


# --- retries and limits of single calls


@pytest.mark.parametrize("spoiled", [False, True])
async def test_program_call_is_retried_by_the_policy_of_its_tool(
    app: App, monkeypatch: pytest.MonkeyPatch, spoiled: bool
) -> None:
    tried: list[tuple[int, int, str]] = []

    @tool(retries=RetryPolicy(kind="safe", max_attempts=3, base_delay_ms=1))
    async def send(ctx: ToolContext) -> str:
        """Send."""
        tried.append((ctx.attempt, ctx.max_attempts, ctx.idempotency_key))
        if len(tried) % 3:
            raise ToolError("busy", code="busy", retry_safe=len(tried) != 4)
        return "sent"

    code = "first = send()\npay(1)\ntry:\n    send()\nexcept RuntimeError as e:\n    second = str(e)\n[first, second]"
    if spoiled:

        async def fetch(_: ProgramsClient, __: str) -> bytes | None:
            return None

        monkeypatch.setattr(ProgramsClient, "fetch", fetch)
    tuning = RuntimeOptions(idle_timeout_s=0.0)
    rt = await app.open(script(code), send, paying([], needs_approval=True), code_mode(), tuning=tuning)
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    await rt.approvals.approve(await asked(rt), by="ana")
    assert (await sent.result(timeout=30)).status == "finished"
    assert await told(session) == [{"result": ["sent", "busy: busy"]}]
    assert [(attempt, most) for attempt, most, _ in tried] == [(1, 3), (2, 3), (3, 3), (1, 3)]
    assert len({key for _, _, key in tried[:3]}) == 1
    assert len({key for _, _, key in tried}) == 2
    await check(rt)


@pytest.mark.parametrize("also", [{}, {"tool:run_python": 2}])
async def test_calls_of_programs_keep_the_limits_of_their_tools(app: App, also: dict[str, int]) -> None:
    inside, most, done = 0, 0, 0

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        nonlocal inside, most, done
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        done += 1
        return "charged"

    model = ScriptedModel.by_input({}, default=[call("run_python", code="[charge() for _ in range(3)]"), say("done")])
    work = WorkerOptions(limits={"tool:charge": 1, **also})
    rt = await app.open(model, charge, code_mode(), worker=work)
    sent = [await (await rt.session(f"s{n}", agent="a")).send(f"go {n}") for n in range(4)]
    assert [(await one.result(timeout=30)).status for one in sent] == ["finished"] * 4
    assert done == 12
    assert most <= (2 if also else 1), "a holder of a permit waits for no other: its calls run without"

    async def given_back() -> bool:
        return not await core_of(rt).store.permits()

    await until(given_back)
