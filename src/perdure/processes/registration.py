"""Registration of processes: validation, and the delivery that opens the stream.

Laws: the same registration again is the same process; another one under its id is a conflict. A captured environment is
required for inputs executed from it, and forbidden for all others. The row, the record and the environment are one
transaction.
"""

from __future__ import annotations

import re

from perdure.codec import Json, brief, digest, encode
from perdure.errors import Code, Error
from perdure.ids import StreamId, Tenant, check_id, process_stream
from perdure.inbox.admit import Delivery, Opening
from perdure.inbox.items import Wake
from perdure.processes.events import check_event_types
from perdure.processes.visibility import tags_of
from perdure.vocab.blobs import Blob, blob_of
from perdure.vocab.records import ProcessRegistered, kind_of, write
from perdure.vocab.registrations import EngineInput, ExternalInput, Registration, SessionTurnInput, ToolCallInput

START = "start"
"""The source key of a process's registration, so that it is started once."""

EXTERNAL = "external"
"""The definition of external processes. Every worker knows it, and executes nothing for it."""

PREFIX = "process:"
"""Prefix of process definitions in places that also hold agent names, which cannot contain it."""

_ENV = re.compile(r"process-env:sha256:[0-9a-f]{64}")


def check_process_id(value: object) -> str:
    """Return a valid process id: as any id, but without `#`, which separates the segments of a run.

    Raises:
        Error: `invalid_id`.
    """
    name = check_id(value, what="the process id")
    if "#" in name:
        raise Error(Code.INVALID_ID, f"the process id {name!r} contains #", because="# separates segments of a run")
    return name


def owner_of(definition: str) -> str:
    """Return a definition as stored in a stream's row, in place of a session's agent."""
    return PREFIX + definition


def environment(options: Json, policy: Json) -> tuple[str, Blob]:
    """Return the reference of a captured execution environment, and its bytes."""
    blob = blob_of(encode({"plugin_options": options, "policy": policy}), "application/json")
    return f"process-env:sha256:{blob.hash}", blob


NOTHING_CAPTURED = environment({}, {})[0]
"""The empty environment that most processes have."""


def check_registration(asked: Registration) -> None:
    """Raise if the registration is invalid.

    Raises:
        Error: `invalid_id`, `process_registration_invalid`, `process_event_type_invalid`.
    """
    check_process_id(asked.process_id)
    if not asked.definition.strip():
        raise _invalid("its definition is blank", asked)
    if isinstance(asked.input, ToolCallInput | SessionTurnInput):  # it would wait for ever
        raise _invalid(f"no worker runs a process of input {type(asked.input).__name__}", asked)
    captured = isinstance(asked.input, EngineInput)
    if captured and not _ENV.fullmatch(asked.env):
        raise _invalid("it needs a captured execution environment, process-env:sha256:…", asked)
    if not captured and asked.env:
        raise _invalid("an external process has no captured execution environment", asked)
    external = isinstance(asked.input, ExternalInput)
    if external != (asked.recovery == "externally_owned"):
        raise _invalid("external input needs recovery externally_owned, and no other input may have it", asked)
    check_event_types(asked.event_types)


def starting(
    tenant: Tenant, asked: Registration, *, at: int, env: Blob | None = None, queue: str | None = None
) -> Delivery:
    """Return the delivery that registers a process: it opens the stream with the registration and wakes a worker.

    Raises:
        Error: as `check_registration` does.
    """
    check_registration(asked)
    hash = brief(digest(asked))
    registered = ProcessRegistered(registration=asked, hash=hash)
    return Delivery(
        stream=stream_of(tenant, asked.process_id),
        source_key=START,
        content=hash,
        item=Wake(reason=START),
        at=at,
        agent=owner_of(asked.definition),
        blobs=(env,) if env is not None else (),
        queue=queue,
        opening=Opening(kind_of(registered), write(registered)),
        tags=tags_of(asked),
        once=True,
    )


def stream_of(tenant: Tenant, process_id: str) -> StreamId:
    """Return the stream of a process's log."""
    return process_stream(tenant, process_id)


def conflict(process_id: str) -> Error:
    """Return the error for another registration under a used id."""
    return Error(
        Code.PROCESS_CONFLICT,
        f"the process id {process_id!r} is used by another process",
        because="code, input or options differ",
        hint="repeat the same start to get that process, or choose another id",
        process=process_id,
    )


def unknown(process_id: str) -> Error:
    """Return the error for a process that does not exist."""
    return Error(
        Code.PROCESS_UNKNOWN,
        f"unknown process {process_id!r}",
        hint="perdure ps lists the live ones",
        process=process_id,
    )


def _invalid(because: str, asked: Registration) -> Error:
    return Error(
        Code.PROCESS_REGISTRATION_INVALID,
        "the process cannot be registered; nothing was written",
        because=because,
        process=asked.process_id,
    )
