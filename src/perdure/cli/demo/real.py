"""`perdure demo --auto --model …`: the booking with a provider's model, killed before and after the charge.

A real model is not predictable, so the checks are weaker than with the simulated model. Each worker must die at its
point, the booking must end, and the ledger must have one charge.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

from perdure.cli.demo.auto import SESSION, Experiment, person
from perdure.cli.demo.worker import DIE_IN
from perdure.cli.screen import emit, note, say
from perdure.errors import Code, Error
from perdure.models.registry import check_ready, resolve
from perdure.runtime.runtime import Runtime
from perdure.vocab.records import TurnEnded

POINTS = {"pre-charge": 0, "post-charge": 1}
"""The kill points, with the number of charges at the kill."""

WORKER_TIMEOUT_S = 180.0


async def run_real(model: str, *, kill_at: str | None, json: bool) -> bool:
    """Book once for each point. Returns True if every booking succeeded.

    Raises:
        Error: `model_unknown`, `model_key_missing`, `model_package_missing`; `invalid_argument` for another point.
    """
    await check_ready(resolve(model))
    if kill_at is not None and kill_at not in POINTS:
        because = f"the points of a provider's model are: {', '.join(POINTS)}"
        raise Error(Code.INVALID_ARGUMENT, f"unknown kill point {kill_at!r}", because=because)
    if not json:
        say(f"Kills a worker (SIGKILL) in one booking by {model}; a second one resumes.")
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    good = True
    for point in [kill_at] if kill_at else POINTS:
        problems = await _experiment(Experiment(folder / point, WORKER_TIMEOUT_S, model), point)
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


async def _experiment(place: Experiment, point: str) -> list[str]:
    place.folder.mkdir()
    problems: list[str] = []
    async with person(place):
        code, complaint = await place.worker({DIE_IN: point})
        if code != -signal.SIGKILL and (stopped := await _ended(place)):
            return stopped  # the turn ended before the point
        if code != -signal.SIGKILL:
            problems.append(f"expected a kill, but the worker exited with {code} {complaint}".rstrip())
        if (charges := len(place.ledger.charges())) != POINTS[point]:
            problems.append(f"{charges} charges at the kill, expected {POINTS[point]}")
        code, complaint = await place.worker({})
    if code != 0:
        problems.append(f"the second worker exited with {code} {complaint}".rstrip())
    if (charges := len(place.ledger.charges())) != 1:
        problems.append(f"{charges} charges at the end, expected 1")
    return [*problems, *await _ended(place)]


async def _ended(place: Experiment) -> list[str]:
    async with Runtime(f"sqlite:///{place.store}", worker=False) as rt:
        ends = [row.record for row in await rt.get_session(SESSION).journal() if isinstance(row.record, TurnEnded)]
    if not ends:
        return ["the booking did not end"]
    return [
        f"the booking ended as {end.status} ({end.reason}): {end.message}" for end in ends if end.status != "finished"
    ]
