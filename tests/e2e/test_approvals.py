"""`perdure approvals`, from another process than the worker."""

from __future__ import annotations

import asyncio
import getpass
import subprocess
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import Agent, Runtime, Tuning, tool
from perdure.cli.app import run_app
from perdure.codec import Json
from perdure.models.scripted import ScriptedModel, call, say
from perdure.tools.client_side import ask_user, client_tool
from tests.e2e.command import COMMAND, Ran, environment, perdure


async def test_a_person_decides_from_another_process(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(approve=True)
    async def refund(cents: int) -> str:
        """Refund."""
        paid.append(cents)
        return "refunded"

    path = tmp_path / "s.db"

    async def command(*args: str) -> Ran:
        return await asyncio.to_thread(perdure, "approvals", *args, "--db", str(path), cwd=tmp_path)

    agent = Agent("bank", model=ScriptedModel(call("refund", cents=700), say("done")), tools=[refund])
    async with Runtime(f"sqlite:///{path}", agents=[agent], tuning=Tuning(patience_s=0.0)) as rt:
        sent = await (await rt.session("s", agent="bank")).send("go")
        async with asyncio.timeout(20):
            while not await rt.approvals.list():  # noqa: ASYNC110 - it is asked by the worker
                await asyncio.sleep(0.01)
        (listed,) = (await command("list", "--json")).objects
        assert (listed["type"], listed["tool"], listed["arguments"]) == ("approval", "refund", {"cents": 700})
        assert (listed["status"], listed["decided_by"]) == ("waiting", None)
        id = str(listed["id"])
        shown = await command("list")
        assert id in shown.out
        assert "1 decision waiting" in shown.err
        assert (await command("approve", id, "--edit", '{"cents": "x"}', "--by", "ana")).code == 2
        assert (await command("approve", id, "--edit", "{", "--by", "ana")).code == 2
        for slip in ("", "null", "[]", "7", '"x"', "\udcff"):
            slipped = await command("approve", id, "--edit", slip, "--by", "ana")
            assert (slipped.code, slipped.out) == (2, ""), slip
            assert "inside perdure" not in slipped.err
        assert (await rt.approvals.get(id)).status == "waiting"
        assert (await command("approve", "apr_ffffffffffffffff", "--by", "ana")).code == 3
        approved = await command("approve", id, "--edit", '{"cents": 400}', "--by", "ana")
        assert (approved.code, approved.out) == (0, f"{id}  approved by ana\n")
        late = await command("deny", id, "--by", "bob", "--reason", "no")
        assert late.code == 4
        assert "already decided by ana: approved at" in late.err
        assert (await sent.result(20)).text.startswith("done")
        assert paid == [400]
        (told,) = (await command("show", id, "--json")).objects
        assert (told["status"], told["decided_by"], told["via"]) == ("approved", "ana", "cli")
        assert (told["edited"], told["used_at"] is None) == ({"cents": 400}, False)
        empty = await command("list")
        assert (empty.code, empty.out, empty.err) == (0, "", "Nothing waits for you.\n")
        shown = await command("show", id)
        assert '  arguments  {"cents":700}\n' in shown.out
        assert '  edited     {"cents":400}\n' in shown.out


KEY = urlsafe_b64encode(b'{"scope":"default:s:t","wait":{"type":"custom","key":"go"},"signature":"xxxx"}').decode()


@dataclass(frozen=True)
class Asked:
    """A store in which one call waits for a person, and no worker is there."""

    path: Path
    id: str

    def command(self, *args: str, env: dict[str, str] | None = None) -> Ran:
        return perdure(*args, "--db", str(self.path), cwd=self.path.parent, env=env)


@pytest.fixture
async def waiting(tmp_path: Path) -> Asked:
    @tool(approve=True)
    async def refund(note: str) -> str:
        """Refund."""
        return note

    path = tmp_path / "s.db"
    step = call("refund", note="a\nb \u202e evil")
    agent = Agent("bank", model=ScriptedModel(step, say("done")), tools=[refund])
    async with Runtime(f"sqlite:///{path}", agents=[agent], tuning=Tuning(patience_s=0.0)) as rt:
        await (await rt.session("s", agent="bank")).send("go")
        async with asyncio.timeout(20):
            while not (found := await rt.approvals.list()):  # noqa: ASYNC110 - it is asked by the worker
                await asyncio.sleep(0.01)
    return Asked(path, found[0].id)


def test_words_of_others_stay_on_their_line(waiting: Asked) -> None:
    reason = "no\nerror: forged\r\x1b[2J \u202e\u2028x\x85y"
    assert waiting.command("approvals", "deny", waiting.id, "--by", "eve\nana", "--reason", reason).code == 0
    for args in (("show", waiting.id), ("list",), ("deny", waiting.id, "--by", "bob")):
        ran = waiting.command("approvals", *args)
        for text in (ran.out, ran.err):
            assert not set(text) & set("\u202e\u2028\x1b\r\x85")
            assert "\nana" not in text
            assert "\nerror: forged" not in text
    shown = waiting.command("approvals", "show", waiting.id).out
    assert r"  reason     no\nerror: forged\r\x1b[2J \u202e\u2028x\x85y" in shown
    assert r'  arguments  {"note":"a\nb \u202e evil"}' in shown
    late = waiting.command("approvals", "deny", waiting.id, "--by", "bob")
    assert late.err.startswith(r"error: already decided by eve\nana: denied at")


def test_a_key_where_an_id_belongs_is_not_repeated(waiting: Asked) -> None:
    for args in (
        ("approvals", "show", KEY),
        ("approvals", "approve", KEY, "--by", "ana"),
        ("sessions", "show", KEY),
        ("sessions", "cancel", "s", "--input", KEY),
        ("resolve", KEY, "go", "--ok", "1"),
        ("why", KEY),
        ("sessions", "show", "s", KEY),
    ):
        ran = waiting.command(*args)
        assert ran.code in (2, 3), (args, ran)
        assert KEY[:9] not in ran.out + ran.err, args


def test_a_slip_of_cancel_does_not_cancel_the_running_turn(waiting: Asked) -> None:
    for options in (("--input", ""), ("--input", " "), ("--and-behind",)):
        ran = waiting.command("sessions", "cancel", "s", *options)
        assert (ran.code, ran.out) == (2, ""), options
    assert waiting.command("approvals", "list", "--quiet").out == f"{waiting.id}\n"
    assert waiting.command("sessions", "cancel", "s").code == 0


def test_a_decision_of_a_user_without_a_name_needs_one(
    waiting: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert run_app(["approvals", "deny", waiting.id, "--db", str(waiting.path)]) == 2
    assert "--by NAME" in capsys.readouterr().err
    assert waiting.command("approvals", "list", "--quiet").out == f"{waiting.id}\n"


async def test_answers_results_and_grants_by_command(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(approve=True)
    async def refund(cents: int) -> str:
        """Refund."""
        paid.append(cents)
        return "refunded"

    path = tmp_path / "s.db"

    async def command(*args: str, input: str = "") -> Ran:
        ran = await asyncio.to_thread(
            subprocess.run,
            [*COMMAND, *args, "--db", str(path)],
            cwd=tmp_path,
            env=environment(),
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    async def waits(kind: str) -> None:
        async with asyncio.timeout(30):
            while [item.kind for item in await session.pending()] != [kind]:  # noqa: ASYNC110 - the worker asks
                await asyncio.sleep(0.02)

    size: Json = {"id": "size", "question": "Size?", "kind": "choice", "options": ["S", "M"]}
    pin: Json = {"id": "pin", "question": "The PIN?", "kind": "secret"}
    steps = (call("ask_user", questions=[size, pin]), call("look"), call("refund", cents=1), call("refund", cents=2))
    tools = [ask_user, client_tool("look", "Look.", {"type": "object"}), refund]
    agent = Agent("bank", model=ScriptedModel(*steps, say("done")), tools=tools)
    async with Runtime(f"sqlite:///{path}", agents=[agent], tuning=Tuning(patience_s=0.0)) as rt:
        session = await rt.session("s", agent="bank")
        sent = await session.send("go")
        await waits("question")
        assert (await command("sessions", "post", "s", "1")).code == 3
        shown = await command("sessions", "answer", "s", "size=M", "pin=97531")
        assert (shown.code, "pin is a secret" in shown.err) == (2, True)
        assert (await command("sessions", "answer", "s", "size=XL", input="97531\n")).code != 0
        assert (await command("sessions", "answer", "s", "size")).code == 2
        answered = await command("sessions", "answer", "s", "size=M", "--by", "ann", input="97531\n")
        assert answered.code == 0, answered.err
        assert answered.out.endswith("answered by ann\n")
        await waits("client_call")
        assert (await command("sessions", "post", "s", "{")).code == 2
        posted = await command("sessions", "post", "s", "-", input='{"seen": true}')
        assert posted.code == 0, posted.err
        await waits("approval")
        [asked] = await session.pending()
        assert (await command("approvals", "approve", asked.id, "--for-session", "--by", "ann")).code == 0
        assert (await sent.result(30)).status == "finished"
        assert paid == [1, 2]
        [grant] = (await command("approvals", "grants", "s", "--json")).objects
        assert (grant["tool"], grant["by"]) == ("refund", "ann")
        revoked = await command("approvals", "revoke", "s", str(grant["grant"]), "--by", "bob")
        assert (revoked.code, await session.grants()) == (0, ()), revoked.err
        assert (await command("approvals", "grants", "s")).err == "Nothing is approved for this whole session.\n"
        history = str(await session.history())
    assert "'seen': True" in history
    assert "'value': 'M'" in history
    assert "97531" not in history
