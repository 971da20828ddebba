"""Shows: code mode. The model writes a program; its calls are effects, and one of them needs an approval.

Needs:   pip install 'perdure[code]'
Run:     python examples/22_code_mode.py
See:     three payments by one program, the large one after ana's approval; the result that the model receives.
"""

import asyncio

from perdure import Agent, Runtime, tool
from perdure.codemode import code_mode
from perdure.testing import ScriptedModel, call, say
from perdure.vocab.messages import ToolResultPart

paid: list[int] = []


@tool(effect="pure")
def invoices() -> list[dict[str, int]]:
    """List the open invoices."""
    return [{"id": 1, "cents": 900}, {"id": 2, "cents": 75_000}, {"id": 3, "cents": 1_200}]


@tool(effect="once", needs_approval=lambda args: args.cents > 50_000)
def pay(id: int, cents: int) -> str:
    """Pay an invoice."""
    paid.append(cents)
    return f"invoice {id} paid"


PROGRAM = """
done = [pay(id=one["id"], cents=one["cents"]) for one in invoices()]
print(len(done), "paid")
done
"""
model = ScriptedModel(call("run_python", code=PROGRAM), say("All three are paid.", exact=True))


async def main() -> None:
    agent = Agent("billing", model=model, tools=[invoices, pay, code_mode()])
    async with Runtime("memory://", agents=[agent]) as rt:
        session = await rt.session("s", agent="billing")
        sent = await session.send("Pay what is open")
        async for question in rt.approvals.watch():
            print(f"1  {question.what}: {question.args}, {len(paid)} paid so far")
            await rt.approvals.approve(question.id, by="ana")
            break
        print("2 ", (await sent.result()).text, paid)
        [told] = [
            part.output for one in await session.messages() for part in one.parts if isinstance(part, ToolResultPart)
        ]
        print("3 ", told)


if __name__ == "__main__":
    asyncio.run(main())
