"""`perdure demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from perdure.cli.options import Json

FOLDER = Path(".perdure")


def demo(
    auto: Annotated[
        bool, Option("--auto", help="Unattended: kill a worker at every step and check each time.")
    ] = False,
    kill_at: Annotated[
        str, Option(metavar="POINT", help="With --auto: only this point, such as 5:after or post-charge.")
    ] = "",
    dawdle: Annotated[float, Option(metavar="SECONDS", min=0, help="How long the charge takes after it is made.")] = 20,
    fresh: Annotated[bool, Option("--fresh", help="Delete the demo's store and ledger first.")] = False,
    folder: Annotated[Path, Option("--dir", metavar="FOLDER", help="Where the store and the ledger are.")] = FOLDER,
    model: Annotated[str, Option(metavar="MODEL", help="Book with this model, e.g. openai:gpt-5.2.")] = "",
    json: Json = False,
) -> None:
    """See an agent survive kill -9, offline, in two minutes.

    Books a flight with a simulated model. Kill its worker while it charges the card, run the same command again, and
    count the charges in the ledger.
    """
    if (auto or kill_at) and model:
        from perdure.cli.demo.real import run_real
        from perdure.cli.places import run

        raise Exit(0 if run(lambda: run_real(model, kill_at=kill_at or None, json=json)) else 1)
    if auto or kill_at:
        from perdure.cli.demo.auto import run_auto
        from perdure.cli.places import run

        raise Exit(0 if run(lambda: run_auto(kill_at=kill_at or None, json=json)) else 1)
    raise Exit(_tour(folder, dawdle, model, fresh=fresh))


def _tour(folder: Path, dawdle: float, model: str, *, fresh: bool) -> int:
    from perdure.cli.demo.tour import Tour, run_tour
    from perdure.cli.places import run
    from perdure.models.registry import check_ready, resolve

    async def begin() -> int:
        if model:
            await check_ready(resolve(model))
        return await run_tour(Tour(folder, dawdle, command, model), fresh=fresh)

    command = "perdure demo" if folder == FOLDER else f"perdure demo --dir {folder}"
    command += f" --model {model}" if model else ""
    return run(begin)
