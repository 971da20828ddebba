"""Shows: a cron schedule, its next runs around the end of summer time, a run on request, a pause. No key, no network.

Run:     python examples/11_schedule.py
See:     nine o'clock in Berlin stays nine o'clock when summer time ends; a run on request is answered like any input.
"""

import asyncio
import tempfile
from pathlib import Path
from zoneinfo import ZoneInfo

from perdure import Agent, Runtime
from perdure.runtime.internals import core_of, ref_of

agent = Agent("reporter", model="sim:echo")
BERLIN = ZoneInfo("Europe/Berlin")


async def main(folder: Path) -> None:
    async with Runtime(f"sqlite:///{folder / 'schedule.db'}", agents=[agent]) as rt:
        daily = await rt.schedule(
            "daily-report",
            send="Write the report.",
            session="reports",
            agent="reporter",  # the first run opens the session
            cron="0 9 * * *",
            timezone="Europe/Berlin",
            catch_up="one",  # a weekend without workers is one report, not three
        )
        runs = await daily.next_runs(400)
        print("1 ", {run.astimezone(BERLIN).strftime("%H:%M") for run in runs}, "in Berlin")
        print("   ", sorted({run.strftime("%H:%M") for run in runs}), "in UTC")

        await daily.run(by="ana")  # run now, in addition to the due times
        session = rt.get_session("reports")
        while await core_of(rt).store.stream(ref_of(session).stream) is None or len(await session.messages()) < 2:
            await asyncio.sleep(0.01)
        answer = (await session.messages())[-1].parts[0]
        print("2 ", getattr(answer, "text", ""))

        await daily.pause(by="ana")
        print("3 ", "paused:", await daily.next_runs())
        await daily.delete(by="ana")
        state = await daily.info()
        print("4 ", f"{state.runs} run, ended: {state.ended}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
