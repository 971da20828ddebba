"""Loading of agents and runtimes from `module:attribute`, for `perdure run` and `perdure worker`."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import cast

from perdure.cli.exits import debugging
from perdure.errors import Code, Error
from perdure.models.protocol import Model
from perdure.runtime.agent import Agent
from perdure.runtime.internals import core_of
from perdure.runtime.runtime import Runtime, alike


def load(target: str) -> object:
    """Return the object that a target names. The current folder is importable.

    Raises:
        Error: `target_invalid`, with the missing part or the exception of the module.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise _invalid(f"invalid target {target!r}", "expected module:attribute", "agent:app is `app` in agent.py")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise _invalid(f"invalid target {target!r}", "expected a module name, not a file", f"{dotted}:{attribute}")
    found: object = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _missing(found, module_name, part)
        found = getattr(found, part)
    return found


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name and (name == problem.name or name.startswith(f"{problem.name}.")):
            raise _invalid(
                f"unknown module {name!r}", f"no {name.replace('.', '/')}.py in {os.getcwd()}", "cd to its folder"
            ) from None
        raise _broken(f"cannot import module {name!r}", problem) from problem
    except Error:
        raise
    except Exception as problem:
        raise _broken(f"cannot import module {name!r}", problem) from problem


def _broken(what: str, problem: Exception) -> Error:
    if debugging():
        raise problem
    last = traceback.extract_tb(problem.__traceback__)[-1]
    where = f"{os.path.basename(last.filename)}:{last.lineno}"
    return _invalid(
        what,
        f"{type(problem).__name__}: {problem} ({where})",
        "PERDURE_DEBUG=1 shows the traceback",
    )


def _missing(found: object, module: str, part: str) -> Error:
    needs = "define a Runtime, an Agent or a list of agents"
    if not isinstance(found, ModuleType):
        return _invalid(f"{module!r} has no such target", f"{type(found).__name__} has no {part!r}", needs)
    usable = [name for name, value in vars(found).items() if isinstance(value, Runtime | Agent)]
    hint = f"try {module}:{usable[0]}" if usable else needs
    return _invalid(
        f"{module!r} has no {part!r}", f"the module has {', '.join(usable) or 'no agent and no runtime'}", hint
    )


def _invalid(what: str, because: str, hint: str) -> Error:
    return Error(Code.TARGET_INVALID, what, because=because, hint=hint)


def runtime_for(target: str, *, store: str | None, model: str | Model | None, worker: bool) -> Runtime:
    """Return the runtime that a target names, or a new one with the target's agents.

    Raises:
        Error: `target_invalid`; `model_unknown`.
    """
    found = load(target)
    if isinstance(found, FunctionType):
        found = _made(found, target)
    if isinstance(found, Runtime):
        return _adapted(found, store=store, model=model, worker=worker)
    agents = _agents(found, target)
    return Runtime(store, agents=_on_model(agents, model), worker=worker)


def _made(make: FunctionType, target: str) -> object:
    """Return the result of a factory function."""
    try:
        return make()
    except Error:
        raise
    except Exception as problem:
        raise _broken(f"{target} raised", problem) from problem


def _adapted(runtime: Runtime, *, store: str | None, model: str | Model | None, worker: bool) -> Runtime:
    if worker and store is None:
        for agent in _on_model(tuple(runtime.agents.values()), model):
            runtime.agents[agent.name] = agent
        return runtime
    agents = _on_model(tuple(runtime.agents.values()), model)
    return alike(runtime, store=store or core_of(runtime).store, agents=agents, worker=worker)


def _agents(found: object, target: str) -> Sequence[Agent]:
    given = type(found).__name__
    if isinstance(found, Agent):
        return (found,)
    if isinstance(found, list | tuple):
        items = cast("Sequence[object]", found)
        agents = tuple(item for item in items if isinstance(item, Agent))
        if agents and len(agents) == len(items):
            return agents
    raise _invalid(f"{target} is a {given}", "expected a Runtime, an Agent or a list of agents", "agent:app")


def _on_model(agents: Sequence[Agent], model: str | Model | None) -> Sequence[Agent]:
    return agents if model is None else tuple(dataclasses.replace(agent, model=model) for agent in agents)
