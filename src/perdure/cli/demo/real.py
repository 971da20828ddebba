"""`perdure demo --auto --model …`: the booking with a model of a provider, killed before and after the charge.

What a real model does is its own affair, so less is expected than of the simulated one: that each worker dies where it
should, that the booking comes to its end, and that the ledger has one charge.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

from perdure.cli.demo.auto import SESSION, Place, person
from perdure.cli.demo.worker import DIE_IN
from perdure.cli.screen import emit, note, say
from perdure.errors import Code, Error
from perdure.models.registry import check_ready, resolve
from perdure.runtime.runtime import Runtime
from perdure.vocab.records import TurnEnded

POINTS = {"pre-charge": 0, "post-charge": 1}
"""Where a worker is killed, and how many charges there are at that moment."""

PATIENCE_S = 180.0


async def run_real(model: str, *, kill_at: str | None, json: bool) -> bool:
    """Book once for each point. True if every booking went well.

    Raises:
        Error: `model_unknown`, `model_key_missing`, `model_package_missing`; `invalid_argument` for another point.
    """
    await check_ready(resolve(model))
    if kill_at is not None and kill_at not in POINTS:
        because = f"with a model of a provider they are: {', '.join(POINTS)}"
        raise Error(Code.INVALID_ARGUMENT, f"there is no point {kill_at!r}", because=because)
    if not json:
        say(f"Kills a worker (SIGKILL) in one booking by {model}; a second one carries on.")
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    good = True
    for point in [kill_at] if kill_at else POINTS:
        problems = await _experiment(Place(folder / point, PATIENCE_S, model), point)
        good = good and not problems
        if json:
            emit(type="demo_point", v=1, point=point, model=model, ok=not problems, problems=problems)
        else:
            say(f"{point:<12}  {'OK' if not problems else 'FAIL: ' + '; '.join(problems)}", "fail" if problems else "")
    if good:
        shutil.rmtree(folder)
    else:
        note(f"Stores and ledgers are kept in {folder}")
    return good


async def _experiment(place: Place, point: str) -> list[str]:
    place.folder.mkdir()
    problems: list[str] = []
    async with person(place):
        code, complaint = await place.worker({DIE_IN: point})
        if code != -signal.SIGKILL and (stopped := await _ended(place)):
            return stopped  # no reply, no booking, nowhere to die
        if code != -signal.SIGKILL:
            problems.append(f"the worker did not die at its point but ended with {code} {complaint}".rstrip())
        if (charges := len(place.ledger.charges())) != POINTS[point]:
            problems.append(f"{charges} charges at the kill, expected {POINTS[point]}")
        code, complaint = await place.worker({})
    if code != 0:
        problems.append(f"the second worker ended with {code} {complaint}".rstrip())
    if (charges := len(place.ledger.charges())) != 1:
        problems.append(f"{charges} charges at the end, expected 1")
    return [*problems, *await _ended(place)]


async def _ended(place: Place) -> list[str]:
    async with Runtime(f"sqlite:///{place.store}", worker=False) as rt:
        ends = [row.record for row in await rt.existing(SESSION).rows() if isinstance(row.record, TurnEnded)]
    if not ends:
        return ["the booking did not end"]
    return [
        f"the booking ended as {end.status} ({end.reason}): {end.message}" for end in ends if end.status != "finished"
    ]
