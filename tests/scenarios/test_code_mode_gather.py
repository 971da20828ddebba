"""Programs that call several tools at once: each call is an effect of its own, whatever the order in which they end."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from perdure import Agent, Code, Error, Runtime, RuntimeOptions, ToolContext, ToolError, tool
from perdure.codec import Json
from perdure.codemode import ProgramLimits, code_mode
from perdure.models.scripted import ScriptedModel, call, say
from perdure.runtime.calls.programs import ProgramsClient
from perdure.runtime.internals import core_of, ref_of
from perdure.tools.decorator import AnyTool
from perdure.vocab.outcomes import DurableStepOutcome
from perdure.vocab.records import EffectSettled, EffectStarted
from tests.scenarios.conftest import App, until
from tests.scenarios.test_code_mode import check, gone, run, script, shop, told

GATHER = "import asyncio\n"


class Overlap:
    """How many calls ran at the same time. With `together`, a call returns when that many run."""

    def __init__(self, together: int = 1) -> None:
        self.now: Counter[str] = Counter()
        self.most = 0
        self.beside_serial = 0
        self._together = together
        self._met = asyncio.Event()

    async def pass_through(self, name: str) -> None:
        self.now[name] += 1
        self.most = max(self.most, self.now.total())
        if self.now["serial"]:
            self.beside_serial = max(self.beside_serial, self.now.total() - 1)
        if self.now.total() >= self._together:
            self._met.set()
        await self._met.wait()
        await asyncio.sleep(0.02)
        self.now[name] -= 1


async def test_gathered_calls_run_concurrently_as_separate_effects(app: App) -> None:
    meeting = Overlap(together=3)

    @tool
    async def meet(ctx: ToolContext, who: str) -> str:
        """Wait for the others."""
        await meeting.pass_through(who)
        return f"{who} met"

    code = GATHER + "await asyncio.gather(meet('a'), meet('b'), meet('c'))"
    rt = await app.open(script(code), meet, code_mode())
    session = await rt.session("s", agent="a")
    await session.ask("go")
    assert await told(session) == [{"result": ["a met", "b met", "c met"]}]
    intents = [row.record.id for row in await session.journal() if isinstance(row.record, EffectStarted)]
    assert [str(id) for id in intents if "/step:" in id] == [f"c1.0/step:call:{n}" for n in (1, 2, 3)]
    await check(rt)


FORMS = {
    "a list": "calls = [price(i) for i in (1, 2)]\n[one['cents'] for one in await asyncio.gather(*calls)]",
    "a list that grows": "calls = []\nfor i in (1, 2):\n    calls.append(price(i))\n"
    "[one['cents'] for one in await asyncio.gather(*calls)]",
    "by name": "calls = {i: price(i) for i in (1, 2)}\n[(await one)['cents'] for one in calls.values()]",
    "a coroutine": "async def look(i):\n    found = await price(i)\n    return found['cents']\n"
    "await asyncio.gather(*[look(i) for i in (1, 2)])",
    "a coroutine that calls at once": "async def look(i):\n    return price(i)['cents']\n"
    "await asyncio.gather(look(1), look(2))",
    "a function": "def look(i):\n    return price(i)\n[one['cents'] for one in await asyncio.gather(look(1), look(2))]",
    "main": "async def main():\n    both = await asyncio.gather(price(1), price(2))\n"
    "    return [one['cents'] for one in both]\nasyncio.run(main())",
    "beside values": "first = price(1)['cents']\n[second] = await asyncio.gather(price(2))\n[first, second['cents']]",
    "beside a nap": "[a, _, b] = await asyncio.gather(price(1), asyncio.sleep(0.01), price(2))\n"
    "[a['cents'], b['cents']]",
    "in one another": "[a, [b]] = await asyncio.gather(price(1), asyncio.gather(price(2)))\n[a['cents'], b['cents']]",
    "what catches": "async def safe(one):\n    try:\n        return (await one)['cents']\n    except RuntimeError:\n"
    "        return 0\nawait asyncio.gather(safe(price(1)), safe(price(2)))",
    "newer than this Python": "x = {'a': [price(1), price(2)]}\nf'{x['a']}'\n"
    "[one['cents'] for one in await asyncio.gather(*x['a'])]",
}


@pytest.mark.parametrize("form", FORMS)
async def test_calls_are_gathered_however_a_program_writes_that(form: str) -> None:
    model = script(GATHER + FORMS[form])
    async with Runtime("memory://", agents=[Agent("a", model=model, tools=[*shop([]), code_mode()])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        assert await told(session) == [{"result": [100, 200]}]
        await check(rt)


async def test_a_coroutine_of_an_earlier_program_is_gathered_by_a_later_one(app: App) -> None:
    first = "# nothing but\nasync def look(i):\n    return await price(i)"
    later = GATHER + "[one['cents'] for one in await asyncio.gather(look(1), look(2))]"
    outputs = await run(app, "", "x = (", first, later, tools=shop([]))
    assert outputs[-1] == {"result": [100, 200]}


async def test_one_that_fails_is_raised_and_the_others_go_on(app: App) -> None:
    sold: list[int] = []
    code = (
        GATHER + "try:\n    await asyncio.gather(buy(1), buy(13), buy(2))\nexcept RuntimeError as e:\n    r = str(e)\nr"
    )
    [output] = await run(app, code, tools=shop(sold))
    assert isinstance(output, dict)
    assert output["result"] == "unlucky: nobody sells 13"
    assert sorted(sold) == [1, 2]


async def test_unawaited_program_call_runs_and_is_reported(app: App) -> None:
    sold: list[int] = []
    code = GATHER + "left = [buy(1)]\nif False:\n    await asyncio.gather(*left)\n'over'"
    later = GATHER + "await asyncio.gather(*left)"
    [output, error, after] = await run(app, code, later, "len(left)", tools=shop(sold))
    assert output == {"result": "over", "note": "Call 1 (buy) was made and not awaited; it ended with: bought 1."}
    assert "a call of an earlier program" in str(error)
    assert after == {"result": 1}, "that program lost no variables"
    assert sold == [1]


# --- beside what


def counted(overlap: Overlap) -> list[AnyTool]:
    @tool(effect="pure", concurrency_group="desk")
    async def desk_work(i: int) -> int:
        """One at a time."""
        await overlap.pass_through("desk")
        return i

    @tool(effect="pure", sequential=True)
    async def alone(i: int) -> int:
        """Beside nothing."""
        await overlap.pass_through("serial")
        return i

    @tool(effect="pure")
    async def free(i: int) -> int:
        """Beside anything."""
        await overlap.pass_through("free")
        return i

    return [desk_work, alone, free]


@pytest.mark.parametrize(
    ("calls", "most", "count"),
    [
        ("*[desk_work(i) for i in range(5)]", 1, 5),
        ("*[alone(i) for i in range(5)]", 1, 5),
        ("*[free(i) for i in range(40)]", 32, 40),
        ("desk_work(0), free(1), desk_work(2), free(3)", 3, 4),
    ],
)
async def test_gathered_calls_keep_the_concurrency_of_their_tools(calls: str, most: int, count: int) -> None:
    overlap = Overlap(together=most)
    overlap_tools = counted(overlap)
    model = script(GATHER + f"sorted(await asyncio.gather({calls}))")
    async with Runtime("memory://", agents=[Agent("a", model=model, tools=[*overlap_tools, code_mode()])]) as rt:
        session = await rt.session("s", agent="a")
        await session.ask("go")
        assert await told(session) == [{"result": list(range(count))}]
    assert overlap.most == most
    assert overlap.beside_serial == 0


# --- the way it took


class Doors:
    """Calls of `knock` end when their door is opened."""

    def __init__(self) -> None:
        self.knocked: list[int] = []
        self._open: dict[int, asyncio.Event] = {}

    def open(self, *doors: int) -> None:
        for door in doors:
            self._open.setdefault(door, asyncio.Event()).set()

    def tool(self, **options: Json) -> AnyTool:
        @tool(**options)
        async def knock(ctx: ToolContext, door: int) -> int:
            """Wait at a door."""
            self.knocked.append(door)
            await self._open.setdefault(door, asyncio.Event()).wait()
            return door

        return knock


BY_ARRIVAL = (
    GATHER
    + """
seen = []
async def visit(door):
    await knock(door)
    seen.append(door)
    return buy(10 * door)
said = await asyncio.gather(*[visit(door) for door in (1, 2, 3)])
[said, seen, pay(5)]
"""
)


def paying(paid: list[int]) -> AnyTool:
    @tool(needs_approval=True)
    async def pay(ctx: ToolContext, cents: int) -> int:
        """Pay."""
        paid.append(cents)
        return cents

    return pay


async def parked(rt: Runtime, stream: str) -> None:
    async def so() -> bool:
        [info] = await core_of(rt).session_streams()
        return info.parked and info.owner is None and not core_of(rt).has_in_hand(info.stream)

    await until(so)


async def asked(rt: Runtime, questions: int) -> list[str]:
    async def there() -> bool:
        return len(await rt.approvals.list()) == questions

    await until(there)
    return [one.id for one in await rt.approvals.list()]


@pytest.mark.parametrize("kept", [True, False])
async def test_replayed_program_receives_results_in_recorded_order(
    app: App, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    sold: list[int] = []
    doors = Doors()
    tools = [*shop(sold), doors.tool(), paying(sold)]
    rt = await app.open(script(BY_ARRIVAL), *tools, code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    for door, so_far in ((3, 1), (1, 2), (2, 3)):

        async def there(so_far: int = so_far) -> bool:
            return len(doors.knocked) == 3 and len(sold) == so_far

        doors.open(door)
        await until(there)
    [question] = await asked(rt, 1)
    await parked(rt, ref_of(session).stream)
    if not kept:
        fetch = ProgramsClient.fetch

        async def spoiled(client: ProgramsClient, hash: str) -> bytes | None:
            data = await fetch(client, hash)
            assert data is not None
            return await gone(data)

        monkeypatch.setattr(ProgramsClient, "fetch", spoiled)
    await rt.approvals.approve(question, by="ana")
    assert (await sent.result(timeout=30)).status == "finished"
    assert await told(session) == [{"result": [["bought 10", "bought 20", "bought 30"], [3, 1, 2], 5]}]
    assert sold == [30, 10, 20, 5]
    assert sorted(doors.knocked) == [1, 2, 3], "nothing twice"
    await check(rt)


async def test_variables_of_a_program_that_gathered_come_from_running_it_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    sold: list[int] = []
    doors = Doors()
    doors.open(1, 2, 3)
    odd = "try:\n    buy({1, 2})\nexcept TypeError:\n    pass\ntry:\n    sell(1)\nexcept NameError:\n    pass\n"
    model = ScriptedModel.by_input(
        {
            "one": [call("run_python", code=odd + BY_ARRIVAL.replace("pay(5)", "0")), say("ok")],
            "two": [call("run_python", code="seen"), say("ok")],
        }
    )
    rt = await app.open(model, *shop(sold), doors.tool(), code_mode())
    session = await rt.session("s", agent="a")
    await session.ask("one")
    [first] = await told(session)

    async def fetch(_: ProgramsClient, __: str) -> bytes | None:
        return None

    monkeypatch.setattr(ProgramsClient, "fetch", fetch)
    await session.ask("two")
    [_, again] = await told(session)
    assert isinstance(first, dict)
    assert again == {"result": first["result"][1]}
    assert sorted(sold) == [10, 20, 30]
    await check(rt)


# --- people, and other ends


@pytest.mark.parametrize("patience", [0.0, 30.0])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
async def test_gathered_calls_run_as_each_is_approved(app: App, patience: float, order: tuple[int, ...]) -> None:
    paid: list[int] = []
    code = GATHER + "await asyncio.gather(pay(1), pay(2), pay(3))"
    rt = await app.open(script(code), paying(paid), code_mode(), tuning=RuntimeOptions(idle_timeout_s=patience))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    questions = await asked(rt, 3)
    by_cents = {(await rt.approvals.get(id)).question.args["cents"]: id for id in questions}
    expected: list[int] = []
    for index in order:
        expected.append(index + 1)
        await rt.approvals.approve(by_cents[index + 1], by="ana")

        async def so() -> bool:
            return paid == expected

        await until(so)
    assert (await sent.result(timeout=30)).status == "finished"
    assert await told(session) == [{"result": [1, 2, 3]}]
    await check(rt)


async def test_denied_gathered_call_raises_and_others_stay_open(app: App) -> None:
    paid: list[int] = []
    code = (
        GATHER
        + """
async def safe(one):
    try:
        return await one
    except RuntimeError as e:
        return str(e).split(':')[0]
await asyncio.gather(safe(pay(1)), safe(pay(2)))
"""
    )
    rt = await app.open(script(code), paying(paid), code_mode(), tuning=RuntimeOptions(idle_timeout_s=0.0))
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    questions = await asked(rt, 2)
    by_cents = {(await rt.approvals.get(id)).question.args["cents"]: id for id in questions}
    await rt.approvals.deny(by_cents[2], by="ana")
    await rt.approvals.approve(by_cents[1], by="ana")
    assert (await sent.result(timeout=30)).status == "finished"
    assert await told(session) == [{"result": [1, "approval_denied"]}]
    assert paid == [1]
    await check(rt)


async def test_a_cancelled_gather_doubts_what_runs_and_withdraws_what_is_asked(app: App) -> None:
    paid: list[int] = []
    doors = Doors()
    code = GATHER + "await asyncio.gather(knock(1), knock(2), pay(3))"
    rt = await app.open(script(code), doors.tool(), paying(paid), code_mode())
    session = await rt.session("s", agent="a")
    sent = await session.send("go")
    [question] = await asked(rt, 1)

    async def knocked() -> bool:
        return sorted(doors.knocked) == [1, 2]

    await until(knocked)
    await session.cancel()
    assert (await sent.result(timeout=30)).status == "stopped"
    with pytest.raises(Error) as refused:
        await rt.approvals.approve(question, by="ana")
    assert refused.value.code is Code.APPROVAL_STALE
    settled = {
        row.record.id: row.record.outcome
        for row in await session.journal()
        if isinstance(row.record, EffectSettled) and "/step:call" in row.record.id
    }
    assert set(settled) == {"c1.0/step:call:1", "c1.0/step:call:2", "c1.0/step:call:3:asks"} or set(settled) == {
        "c1.0/step:call:1",
        "c1.0/step:call:2",
    }
    for n in (1, 2):
        outcome = settled[f"c1.0/step:call:{n}"]  # pyright: ignore[reportArgumentType] - ids are text
        assert isinstance(outcome, DurableStepOutcome)
        assert outcome.in_doubt is not None
    assert paid == []
    await check(rt)


async def test_a_gather_of_too_many_calls_ends_at_the_limit(app: App) -> None:
    sold: list[int] = []
    code = GATHER + "await asyncio.gather(*[buy(i) for i in range(10000)])"
    [output] = await run(app, code, tools=shop(sold), limits=ProgramLimits(calls=40))
    assert "program_limit_exceeded" in str(output)
    assert sorted(sold) == [i for i in range(41) if i != 13][:39]


async def test_failed_gathered_call_is_retried_by_its_policy(app: App) -> None:
    tries: list[int] = []

    @tool(effect="idempotent", retries=2)
    async def shaky(ctx: ToolContext, i: int) -> str:
        """Fail at first."""
        tries.append(i)
        if ctx.attempt == 1:
            raise ToolError("not yet", retry_safe=True)
        return f"{i} at attempt {ctx.attempt}"

    code = GATHER + "await asyncio.gather(shaky(1), shaky(2))"
    [output] = await run(app, code, tools=[shaky])
    assert output == {"result": ["1 at attempt 2", "2 at attempt 2"]}
    assert sorted(tries) == [1, 1, 2, 2]
