"""`perdure models list | test`."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option, Typer

from perdure.cli.options import Json, Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.models.protocol import Model
    from perdure.runtime.model_survey import ModelState, ProviderState

app = Typer(help="List and test models.", no_args_is_help=True, rich_markup_mode=None)

Target = Annotated[
    str,
    Argument(metavar="[TARGET]", help="An application: module:attribute, e.g. agent:app.", show_default=False),
]
ORDER = "A turn uses the model of its input, else of its session, else of its agent, else the host's default."
QUESTION = "Answer with the one word: ready"


@app.command("list")
def list_models(target: Target = "", json: Json = False, quiet: Quiet = False) -> None:
    """List providers and models with status and prices.

    With TARGET, also the models of its agents and the source of each choice. Keys are never shown, no model is called.
    """
    from perdure.cli.store_locator import run

    run(lambda: _list(target, json=json, quiet=quiet))


async def _list(target: str, *, json: bool, quiet: bool) -> None:
    from perdure.cli.screen import note, say
    from perdure.cli.targets import runtime_for
    from perdure.runtime.model_survey import in_use, providers
    from perdure.runtime.models import Models

    if target:
        application = runtime_for(target, store="memory://", model=None, worker=False)
        models, agents = application.models, application.agents
    else:
        models, agents = Models(None, {}), {}
    known, used = await providers(models), await in_use(models, agents)
    if json:
        _emit(known, used)
    elif quiet:
        for word in (*(one.name for one in used if one.status == "ready"), *(f"{p.name}:…" for p in known if p.ready)):
            say(word)
    else:
        _print_providers(known)
        say()
        _print_models(used)
        ready = sum(one.ready for one in known)
        note("")
        note(f"{ready} of {len(known)} providers ready. Model names are provider:model, e.g. openai:gpt-5.2")
        note(ORDER)


def _emit(known: Sequence[ProviderState], used: Sequence[ModelState]) -> None:
    from perdure.cli.screen import emit

    for one in known:
        emit(
            type="provider",
            v=1,
            name=one.name,
            status=one.status.replace(" ", "_"),
            extra=one.extra,
            installed=one.installed,
            key_from=one.key_from,
            keyless=one.keyless,
            address=one.address,
            hint=one.hint or None,
        )
    for model in used:
        emit(
            type="model",
            v=1,
            name=model.name or None,
            status=model.status.replace(" ", "_"),
            agent=model.agent or None,
            origin=model.origin or None,
            input_usd_per_million=_plain(model.prices.input),
            output_usd_per_million=_plain(model.prices.output),
            hint=model.hint or None,
        )


def _print_providers(known: Sequence[ProviderState]) -> None:
    from perdure.cli.screen import Cell, Column, table

    columns = (Column("PROVIDER"), Column("STATUS"), Column("KEY, OR WHAT TO DO"), Column("ADDRESS", gives=True))
    rows = [
        (
            one.name,
            Cell(one.status, "ok" if one.ready else "dim"),
            one.hint or (f"from {one.key_from}" if one.key_from else "none needed"),
            one.address or "-",
        )
        for one in known
    ]
    table(columns, rows)


def _print_models(used: Sequence[ModelState]) -> None:
    from perdure.cli.screen import Cell, Column, table

    origins = {"agent": "the agent", "host": "the host", "nobody": "-", "": "-"}
    columns = (
        Column("MODEL"),
        Column("STATUS"),
        Column("AGENT", gives=True),
        Column("CHOSEN BY", "BY"),
        Column("$/M INPUT", "$/M IN", right=True),
        Column("$/M OUTPUT", "$/M OUT", right=True),
        Column("TO DO", gives=True),
    )
    rows = [
        (
            one.name or "-",
            Cell(one.status, "ok" if one.status == "ready" else "warn"),
            one.agent or "-",
            origins[one.origin],
            _plain(one.prices.input) or "unknown",
            _plain(one.prices.output) or "unknown",
            one.hint or "-",
        )
        for one in used
    ]
    table(columns, rows)


def _plain(price: Decimal | None) -> str | None:
    return None if price is None else f"{price.normalize():f}"


# --- test ---------------------------------------------------------------------------------------------------------


@app.command("test")
def ask(
    model: Annotated[
        str, Argument(metavar="MODEL", help="For example openai:gpt-5.2 or sim:echo.", show_default=False)
    ],
    base_url: Annotated[str, Option(metavar="URL", help="Address of the provider.", show_default=False)] = "",
    target: Annotated[
        str, Option(metavar="TARGET", help="Use the models and keys of this application.", show_default=False)
    ] = "",
    json: Json = False,
) -> None:
    """Send one short prompt to a model.

    The provider charges for the call. Exits with 1 if the model gives no reply.
    """
    from perdure.cli.store_locator import run

    raise Exit(run(lambda: _test(model, base_url, target, json=json)))


async def _test(name: str, base_url: str, target: str, *, json: bool) -> int:
    from perdure.cli.exits import FAILED, OK, complain
    from perdure.cli.money import cost
    from perdure.cli.screen import count, emit, one_line, say, took
    from perdure.models.protocol import ModelError, ModelRequest
    from perdure.models.registry import check_ready
    from perdure.runtime.calls.reading import SILENT, StallPolicy, stream_reply
    from perdure.runtime.clock import SystemClock
    from perdure.vocab.messages import Message, Text

    model = await _model(name, base_url, target)
    await check_ready(model)
    request = ModelRequest(name, "", (Message(role="user", parts=(Text(text=QUESTION),)),), ())
    clock = SystemClock()
    began = clock.monotonic_ms()
    try:
        reply = await stream_reply(model, request, SILENT, StallPolicy())
    except ModelError as problem:
        if json:
            emit(type="model_test", v=1, model=name, ok=False, kind=problem.error.kind, message=problem.error.message)
        else:
            complain(f"{name} gave no reply", because=f"{problem.error.kind}: {problem.error.message}")
        return FAILED
    ms = clock.monotonic_ms() - began
    text = "".join(part.text for part in reply.parts if isinstance(part, Text))
    if json:
        price = reply.usage.cost
        emit(
            type="model_test",
            v=1,
            model=name,
            ok=True,
            ms=ms,
            tokens=reply.usage.tokens,
            cost_usd=None if price is None else str(price),
            text=text,
        )
    else:
        say(f"{name}  {took(ms)}  {count(reply.usage.tokens, 'token')}  cost {cost(reply.usage)}")
        say(f"  {one_line(text)}")
    return OK


async def _model(name: str, base_url: str, target: str) -> Model:
    from perdure.cli.targets import runtime_for
    from perdure.models.registry import at_address, resolve

    if base_url:
        return at_address(name, base_url)
    if not target:
        return resolve(name)
    application = runtime_for(target, store="memory://", model=None, worker=False)
    return await application.models.for_anybody(name)
