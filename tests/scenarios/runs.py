"""Background runs started without a model: admitted by the door, as a call of `spawn_background` admits them."""

from __future__ import annotations

from typing import cast

from perdure import Runtime
from perdure.codec import Json
from perdure.ids import CallId
from perdure.runtime.agent import setup_of
from perdure.runtime.internals import core_of
from perdure.services.tasks import CreateSessionTask, SessionTask
from perdure.tools.door import AdmittedRun, admit_run
from perdure.tools.toolbox import Prepared
from perdure.vocab.messages import ToolCall
from perdure.vocab.tools import Composition


async def start_run(rt: Runtime, new: CreateSessionTask) -> SessionTask:
    """Start the run of this task."""
    spec = cast("dict[str, Json]", new.spec)
    call = ToolCall(id=CallId("c"), name=str(spec["tool"]), args=spec.get("arguments") or {})
    toolbox = setup_of(core_of(rt).agents["a"]).toolbox
    current = toolbox.get(call.name)
    assert current is not None
    prepared = toolbox.prepare(call, current.contract)
    assert isinstance(prepared, Prepared)
    run = admit_run(prepared, Composition(agent="a", model="", tools=(current.contract,)), "not_needed")
    assert isinstance(run, AdmittedRun)
    return await core_of(rt).tasks.start(new, run)
