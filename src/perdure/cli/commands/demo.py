"""`perdure demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from perdure.cli.options import Json
from perdure.cli.program import program

FOLDER = Path(".perdure")


def demo(
    auto: Annotated[bool, Option("--auto", help="Kill a worker at every step, unattended, and check.")] = False,
    kill_at: Annotated[
        str, Option(metavar="POINT", help="With --auto: one point only, e.g. 5:after or post-charge.")
    ] = "",
    delay: Annotated[float, Option(metavar="SECONDS", min=0, help="Delay of the tool after the charge.")] = 20,
    reset: Annotated[bool, Option("--reset", help="Delete the demo's store and ledger first.")] = False,
    folder: Annotated[Path, Option("--dir", metavar="FOLDER", help="Folder of the store and the ledger.")] = FOLDER,
    model: Annotated[str, Option(metavar="MODEL", help="Book with this model, e.g. openai:gpt-5.2.")] = "",
    json: Json = False,
) -> None:
    """See an agent survive kill -9, offline, in two minutes.

    Books a flight with a simulated model. Kill its worker while it charges the card, run the same command again, and
    count the charges in the ledger.
    """
    if (auto or kill_at) and model:
        from perdure.cli.demo.real import run_real
        from perdure.cli.store_locator import run

        raise Exit(0 if run(lambda: run_real(model, kill_at=kill_at or None, json=json)) else 1)
    if auto or kill_at:
        from perdure.cli.demo.auto import run_auto
        from perdure.cli.store_locator import run

        raise Exit(0 if run(lambda: run_auto(kill_at=kill_at or None, json=json)) else 1)
    raise Exit(_tour(folder, delay, model, reset=reset))


def _tour(folder: Path, delay: float, model: str, *, reset: bool) -> int:
    from perdure.cli.demo.tour import Tour, run_tour
    from perdure.cli.store_locator import run
    from perdure.models.registry import check_ready, resolve

    async def begin() -> int:
        if model:
            await check_ready(resolve(model))
        return await run_tour(Tour(folder, delay, command, model), reset=reset)

    command = f"{program()} demo"
    command += "" if folder == FOLDER else f" --dir {shlex.quote(str(folder))}"
    command += f" --model {model}" if model else ""
    return run(begin)
