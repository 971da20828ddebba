"""Random verbs on sessions, by several callers at once: nothing is lost, doubled or wrongly released."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from perdure import Agent, Error, Runtime, RuntimeOptions, Session, ToolContext, tool
from perdure.ids import InputId, TurnId
from perdure.models.conversation import input_texts, replies, since_input
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall
from perdure.models.wording import provider_id
from perdure.store.shapes import Accepted
from perdure.tools.client_side import client_tool
from perdure.vocab.messages import Text
from perdure.vocab.records import InputAdmitted, InputCancelled, InputMode, TurnEnded
from perdure.vocab.usage import Usage
from tests.scenarios.conftest import NewStore, until
from tests.scenarios.test_approvals import contradictions

SESSIONS, VERBS = 2, 60
TOOLS = ("refund", "charge", "book", "look")
LATE = {
    *("approval_already_decided", "approval_stale", "approval_unknown", "event_key_invalid"),
    *("tool_call_unknown", "tool_call_answered"),
}
"""What somebody is told who comes too late."""

LOOK = client_tool("look", "Look.", {"type": "object"}, result_type={"type": "integer"})


class Obedient:
    """Calls the tools that its newest input names, then answers."""

    name = "obedient"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        _, *plan = input_texts(request.messages)[-1].split()
        await asyncio.sleep(0.002)
        if replies(since_input(request.messages)) == 0 and plan:
            yield ModelReply(
                tuple(ProviderCall(provider_id(), name, "{}") for name in plan), "tool_calls", Usage(), self.name
            )
        else:
            yield ModelReply((Text(text="done"),), "stop", Usage(), self.name)


@dataclass
class World:
    """External effects, and the replies that the callers got."""

    done: list[str] = field(default_factory=list[str])
    said: dict[InputId, str] = field(default_factory=dict[InputId, str])
    allowed: set[str] = field(default_factory=set[str])
    decided: Counter[str] = field(default_factory=Counter[str])
    posted: Counter[str] = field(default_factory=Counter[str])
    cancelled: dict[TurnId, list[str]] = field(default_factory=lambda: defaultdict(list))

    def tools(self) -> list[object]:
        @tool(needs_approval=True)
        async def refund(ctx: ToolContext) -> str:
            """Refund."""
            self.done.append(f"refund {ctx.call_id}")
            return "refunded"

        @tool
        async def charge(ctx: ToolContext) -> str:
            """Charge."""
            self.done.append(f"charge {ctx.call_id}")
            await asyncio.sleep(0.005)
            return "charged"

        @tool(effect="resumable")
        async def book(ctx: ToolContext) -> str:
            """Book."""
            await ctx.step("reserve", self._reserve, ctx.call_id)
            return str(await ctx.wait_for_event("go", timeout="1h"))

        return [refund, charge, book, LOOK]

    async def _reserve(self, call: str) -> str:
        self.done.append(f"reserve {call}")
        return "reserved"


@dataclass
class Somebody:
    """Says what comes to mind."""

    rt: Runtime
    world: World
    chance: random.Random
    numbers: list[int]

    async def speak(self, session: Session, verb: str) -> None:
        try:
            await getattr(self, f"_{verb}")(session)
        except Error as problem:
            if problem.code.value not in LATE:
                raise

    async def _send(self, session: Session, mode: InputMode = "queue", merge_key: str | None = None) -> None:
        self.numbers[0] += 1
        text = f"{self.numbers[0]} {' '.join(self.chance.sample(TOOLS, self.chance.randint(0, 2)))}".strip()
        sent = await session.send(text, mode=mode, replace_key=merge_key, key=text)
        self.world.said[sent.input_id] = text
        assert (await session.send(text, mode=mode, replace_key=merge_key, key=text)).input_id == sent.input_id

    async def _steer(self, session: Session) -> None:
        await self._send(session, mode="steer")

    async def _interrupt(self, session: Session) -> None:
        await self._send(session, mode="interrupt")

    async def _merge(self, session: Session) -> None:
        await self._send(session, merge_key="m")

    async def _cancel(self, session: Session) -> None:
        ends = [row.record.turn for row in await session.journal() if isinstance(row.record, InputAdmitted)]
        if ends:
            turn = self.chance.choice(ends[-3:])
            self.world.cancelled[turn].append(await session.cancel(turn))

    async def _take_back(self, session: Session) -> None:
        if queue := await session.queued_inputs():
            await session.cancel_input(self.chance.choice(queue).input, include_later=self.chance.random() < 0.3)

    async def _pause(self, session: Session) -> None:
        await session.pause(by="somebody")

    async def _resume(self, session: Session) -> None:
        await session.resume(by="somebody")

    async def _approve(self, session: Session, *, deny: bool = False) -> None:
        for one in await self.rt.approvals.list():
            decide = self.rt.approvals.deny if deny else self.rt.approvals.approve
            await decide(one.id, by="somebody")
            self.world.decided[one.id] += 1
            if not deny:
                self.world.allowed.add(str(one.call))

    async def _deny(self, session: Session) -> None:
        await self._approve(session, deny=True)

    async def _answer(self, session: Session) -> None:
        for one in await session.pending():
            if one.kind == "client_call":
                answered = await session.post_result(one.id, self.chance.randint(1, 10**9))
                self.world.posted[one.id] += answered == Accepted()
            elif one.kind == "event":
                await session.resolve(one.id, "yes")


OFTEN = ("send", "steer", "approve", "answer", "resume")
SELDOM = ("interrupt", "merge", "cancel", "take_back", "pause", "deny")


@pytest.mark.timeout(120)
async def test_nothing_is_lost_doubled_or_wrongly_released(new_store: NewStore) -> None:
    world, numbers = World(), [0]

    def worker() -> Runtime:
        agent = Agent("a", model=Obedient(), tools=world.tools())  # pyright: ignore[reportArgumentType] - tools
        return Runtime(new_store(), agents=[agent], options=RuntimeOptions(idle_timeout_s=0.0))

    async with worker() as one, worker() as two:
        sessions = [[await rt.session(f"s{n}", agent="a") for n in range(SESSIONS)] for rt in (one, two)]
        people = [Somebody(rt, world, random.Random(seed), numbers) for seed, rt in enumerate((one, two))]
        await people[0].speak(sessions[0][0], "send")
        await people[0].speak(sessions[0][1], "send")

        async def go_on(who: int) -> None:
            for _ in range(VERBS):
                verb = people[who].chance.choice(OFTEN * 2 + SELDOM)
                await people[who].speak(people[who].chance.choice(sessions[who]), verb)

        await asyncio.gather(go_on(0), go_on(1))

        async def calm() -> bool:
            for session in sessions[0]:
                for verb in ("resume", "deny", "answer"):
                    await people[0].speak(session, verb)
            return all([(await session.why()).status == "idle" for session in sessions[0]])

        await until(calm, seconds=60, every=0.05)
        assert max(Counter(world.done).values(), default=0) <= 1
        assert {act.split()[1] for act in world.done if act.startswith("refund")} <= world.allowed
        assert max(world.decided.values(), default=0) <= 1
        assert max(world.posted.values(), default=0) <= 1
        for session in sessions[0]:
            await judge(session, world)


async def judge(session: Session, world: World) -> None:
    """Compare the log with the replies that the callers got."""
    assert await contradictions(session) == ()
    records = [row.record for row in await session.journal()]
    came = {one.input: one for one in records if isinstance(one, InputAdmitted)}
    gone = {one.input for one in records if isinstance(one, InputCancelled)}
    ends = {one.turn: one for one in records if isinstance(one, TurnEnded)}
    assert came.keys().isdisjoint(gone)
    shown = Counter(
        part.text
        for one in await session.messages()
        if one.role == "user"
        for part in one.parts
        if isinstance(part, Text)
    )
    mine = {input: text for input, text in world.said.items() if input in came or input in gone}
    for input, text in mine.items():
        assert shown[text] == (input in came), text
        assert input in gone or came[input].turn in ends
    for turn, answers in world.cancelled.items():
        if turn in ends:
            assert ("requested" in answers or "already_requested" in answers) <= (ends[turn].reason == "cancelled")
            assert ("completion_won" in answers) <= (ends[turn].reason != "cancelled")
    world.said = {input: text for input, text in world.said.items() if input not in mine}
    if session.id == f"s{SESSIONS - 1}":
        assert world.said == {}, "accepted, and in no log"
