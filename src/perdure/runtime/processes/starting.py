"""The start of a process: one delivery that opens its stream, registers it and wakes a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.codec import Json, check_text, to_json
from perdure.errors import Code, Error
from perdure.ids import check_id
from perdure.inbox.admit import Admitted, Conflict
from perdure.offload import offload, weight_of
from perdure.processes.registration import check_process_id, conflict, environment, starting
from perdure.runtime.clock import short_id
from perdure.runtime.processes.events import check_schemas
from perdure.runtime.processes.function import ANY_SIGNAL, ENGINE, ProcessFunction, input_of
from perdure.runtime.processes.handle import ProcessHandle
from perdure.runtime.work import check_queue
from perdure.store.shapes import claimed
from perdure.tools.step_arguments import refuse_unordered
from perdure.vocab.blobs import Blob
from perdure.vocab.processes import SessionScope
from perdure.vocab.registrations import Provenance, Registration

if TYPE_CHECKING:
    from perdure.runtime.core import RuntimeCore

_NOWHERE = Provenance()


async def start(  # noqa: PLR0913 - what is started, and how
    rt: RuntimeCore,
    process: ProcessFunction | str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    id: str | None,
    label: str = "",
    queue: str | None = None,
    extensions: Mapping[str, Json] | None = None,
) -> ProcessHandle:
    """Register a process of a function, and schedule it."""
    name = short_id("prc", rt.clock.wall_ms()) if id is None else check_process_id(id)
    size = weight_of((args, kwargs, extensions))
    asked, env = await offload(
        size, python_process, rt, process, args, kwargs, id=name, label=label, extensions=extensions
    )
    return await register(rt, asked, env=env, queue=queue)


def python_process(  # noqa: PLR0913 - what is started, and on whose behalf
    rt: RuntimeCore,
    process: ProcessFunction | str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    id: str,
    label: str = "",
    provenance: Provenance = _NOWHERE,
    wake_target: SessionScope | None = None,
    extensions: Mapping[str, Json] | None = None,
) -> tuple[Registration, Blob]:
    """Return the registration of a process of a function, and its captured environment.

    Raises:
        Error: `process_definition_unknown`, `invalid_argument`, `invalid_json`, `input_too_large`.
    """
    function = _function(rt, process)
    if isinstance(function, ProcessFunction):
        definition, given, events = function.definition, function.input_of(args, kwargs), function.events
    else:
        definition, given, events = f"{ENGINE}:{function}", input_of(function, args, kwargs), ()
    said = dict(extensions or {})
    refuse_unordered(said, "the extensions")
    env, blob = environment(to_json(said, where="the extensions"), {})
    asked = Registration(
        process_id=id,
        definition=definition,
        input=given,
        recovery="rerunnable",
        env=env,
        event_types=(*events, ANY_SIGNAL),
        provenance=provenance,
        wake_target=wake_target,
        label=check_text(label, where="the label"),
    )
    return asked, blob


def _function(rt: RuntimeCore, process: ProcessFunction | str) -> ProcessFunction | str:
    """Return the function if this runtime has it, else its name if this runtime has no worker."""
    if isinstance(process, ProcessFunction):
        known = rt.definitions.get(process.definition)
        if known is not None and known is not process:
            raise Error(
                Code.PROCESS_DEFINITION_INVALID,
                f"this runtime has another process function named {process.name!r}",
                hint="start the registered function, or rename this one",
            )
        return process
    name = check_id(process, what="the name of the process")
    code = rt.definitions.get(f"{ENGINE}:{name}")
    if isinstance(code, ProcessFunction):
        return code
    if rt.wants_worker:
        raise Error(
            Code.PROCESS_DEFINITION_UNKNOWN,
            f"this runtime has no process {name!r}",
            because=f"known definitions: {', '.join(sorted(rt.definitions)) or 'none'}",
            hint="pass it to Runtime(processes=[...])",
        )
    return name


async def register(
    rt: RuntimeCore, asked: Registration, *, env: Blob | None = None, queue: str | None = None
) -> ProcessHandle:
    """Register a process durably, or return the existing one if it is equal.

    Raises:
        Error: `process_conflict`; the errors of `check_registration`.
    """
    await check_schemas(asked.event_types)
    place = None if queue is None else check_queue(queue)
    new = starting(rt.tenant, asked, at=rt.clock.wall_ms(), env=env, queue=place)
    handle = ProcessHandle(rt, asked.process_id)
    try:
        admission = await rt.admit(new, claims=asked.definition in rt.definitions)
    except Error as problem:
        if problem.code is not Code.SESSION_AGENT_CONFLICT:
            raise
        raise conflict(asked.process_id) from None
    if isinstance(admission, Conflict):
        raise conflict(asked.process_id)
    if isinstance(admission, Admitted):
        rt.notify(new.stream, claimed(new, admission))
    return handle
