"""All commands of the command line, and the translation of errors into text and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from perdure.cli import exits
from perdure.cli.commands import (
    approvals,
    audit,
    db,
    demo,
    doctor,
    grants,
    journal,
    mcp,
    models,
    processes,
    resolve,
    run,
    schedules,
    sessions,
    subscriptions,
    tasks,
    triggers,
    usage,
    version,
    why,
    worker,
    workers,
)
from perdure.errors import Error

_PLAIN = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(
    name="perdure",
    help="Durable agents: kill the process anywhere, start it again, and every session carries on.",
    epilog="Start here: perdure demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_PLAIN,
)


@app.callback()
def root(
    show_version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    """Durable agents: kill the process anywhere, start it again, and every session carries on."""
    if show_version:  # `main` handles a lone --version
        version.version()
        raise typer.Exit


app.command()(demo.demo)
app.command()(run.run)
app.command()(worker.worker)
app.add_typer(sessions.app, name="sessions")
app.add_typer(approvals.app, name="approvals")
app.add_typer(grants.app, name="grants")
app.command()(processes.ps)
app.add_typer(processes.app, name="processes")
app.add_typer(tasks.app, name="tasks")
app.add_typer(schedules.app, name="schedules")
app.add_typer(triggers.app, name="triggers")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(workers.app, name="workers")
app.add_typer(models.app, name="models")
app.command()(usage.usage)
app.add_typer(mcp.app, name="mcp")
app.add_typer(audit.app, name="audit")
app.add_typer(journal.app, name="journal")
app.command()(why.why)
app.command()(resolve.resolve)
app.add_typer(db.app, name="db")
app.command()(doctor.doctor)
app.command(hidden=True)(version.version)


def run_app(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = app(args=args, prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
    except Error as problem:
        if exits.debugging():
            raise
        return exits.refuse(problem)
    except (exits.ReaderLeft, BrokenPipeError):  # the reader closed the pipe: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except (KeyboardInterrupt, typer.Abort):
        return exits.INTERRUPTED
    except Exception as problem:  # noqa: BLE001 - a user gets an error, not a traceback
        return _other(problem)
    return code if isinstance(code, int) else exits.OK


def _other(problem: Exception) -> int:
    """Report a usage error or an internal error, and return the exit code."""
    describe = getattr(problem, "format_message", None)
    if callable(describe):
        message = str(describe())
        if message.startswith("Usage:"):  # no command was given: print the help
            print(message)
            return exits.USAGE
        hint = getattr(getattr(problem, "ctx", None), "command_path", "perdure")
        exits.complain(_lower(message), hint=f"{hint} --help")
        return exits.USAGE
    if exits.debugging():
        raise problem
    exits.complain(
        "internal error in perdure",
        because=f"{type(problem).__name__}: {problem}",
        hint="PERDURE_DEBUG=1 prints the traceback; please report it",
    )
    return exits.FAILED


def _lower(message: str) -> str:
    text = message.strip().rstrip(".")
    return text[:1].lower() + text[1:]
