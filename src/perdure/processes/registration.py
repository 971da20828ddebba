"""Registering a process: what may be asked for, and the delivery that opens its stream.

Laws: the same registration again is the same process, another one under its id a conflict. A captured environment is
required for what is executed from it, and forbidden for everything else. Nothing is half registered: the row, the
record and the environment are one transaction.
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
"""The source key of a process's registration: it is started once."""

EXTERNAL = "external"
"""The definition of what is executed outside. Every worker knows it, and does nothing for it."""

PREFIX = "process:"
"""What the definitions of processes begin with where agents are named too; no agent's name can."""

_ENV = re.compile(r"process-env:sha256:[0-9a-f]{64}")


def check_process_id(value: object) -> str:
    """What a process can be called: like everything else, but without `#`, which separates the segments of a run.

    Raises:
        Error: `invalid_id`.
    """
    name = check_id(value, what="the process id")
    if "#" in name:
        raise Error(Code.INVALID_ID, f"the process id {name!r} has a # in it", because="# separates segments of a run")
    return name


def owner_of(definition: str) -> str:
    """How a definition stands in a stream's row, where the agent of a session would."""
    return PREFIX + definition


def environment(options: Json, policy: Json) -> tuple[str, Blob]:
    """A captured execution environment: its reference, and the bytes to store with whoever refers to it."""
    blob = blob_of(encode({"plugin_options": options, "policy": policy}), "application/json")
    return f"process-env:sha256:{blob.hash}", blob


NOTHING_CAPTURED = environment({}, {})[0]
"""The environment of most processes."""


def check_registration(asked: Registration) -> None:
    """Refuse what cannot be registered.

    Raises:
        Error: `invalid_id`, `process_registration_invalid`, `process_event_type_invalid`.
    """
    check_process_id(asked.process_id)
    if not asked.definition.strip():
        raise _invalid("it names no code to run it", asked)
    captured = isinstance(asked.input, ToolCallInput | EngineInput)
    if captured and not _ENV.fullmatch(asked.env):
        raise _invalid("it needs a captured execution environment, process-env:sha256:…", asked)
    if not captured and asked.env:
        raise _invalid("an external process or a session turn has no captured execution environment", asked)
    external = isinstance(asked.input, ExternalInput)
    if external != (asked.recovery == "externally_owned"):
        raise _invalid("what is external is externally owned, and nothing else is", asked)
    if isinstance(asked.input, SessionTurnInput) and asked.input.create_request is None:
        raise _invalid("a session turn needs a session to be made", asked)
    check_event_types(asked.event_types)


def starting(
    tenant: Tenant, asked: Registration, *, at: int, env: Blob | None = None, queue: str | None = None
) -> Delivery:
    """The delivery that registers a process: it opens the stream with what the process is, and wakes a worker.

    Raises:
        Error: whatever `check_registration` refuses.
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
    """Where a process's log is."""
    return process_stream(tenant, process_id)


def conflict(process_id: str) -> Error:
    """The refusal of another registration under an id that was used."""
    return Error(
        Code.PROCESS_CONFLICT,
        f"there is a process {process_id!r}, and it is another one",
        because="it was registered with other code, input or options",
        hint="start the same thing again to get that process, or choose another id",
        process=process_id,
    )


def unknown(process_id: str) -> Error:
    """The refusal of something for a process that does not exist."""
    return Error(
        Code.PROCESS_UNKNOWN,
        f"there is no process {process_id!r}",
        hint="list them with `perdure ps`",
        process=process_id,
    )


def _invalid(because: str, asked: Registration) -> Error:
    return Error(
        Code.PROCESS_REGISTRATION_INVALID,
        "the process cannot be registered; nothing was written",
        because=because,
        process=asked.process_id,
    )
