"""The public names of the kit, frozen, and loaded only when they are used."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import perdure.testing

NAMES = [
    "AppendGate",
    "Boundary",
    "CrashReport",
    "Ledger",
    "LedgerEntry",
    "ManualClock",
    "ScriptedModel",
    "World",
    "call",
    "calls",
    "every_boundary",
    "fail",
    "faulty_store",
    "give",
    "malformed",
    "refuse",
    "say",
    "tool_context",
    "truncate",
]


def test_the_public_names_are_these() -> None:
    assert perdure.testing.__all__ == NAMES
    assert dir(perdure.testing) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_what_it_says_however_often_it_is_asked_for(name: str) -> None:
    """A submodule of the same name would take its place once it is loaded."""
    code = (
        f"from perdure.testing import {name}; from perdure.testing import {name} as again; print(type(again).__name__)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() in ("type", "function", "StructMeta")
    assert not isinstance(getattr(perdure.testing, name), types.ModuleType)


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'perdure\.testing' has no attribute 'Mock'"):
        _ = perdure.testing.Mock
