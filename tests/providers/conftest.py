"""Fixtures of the provider tests: connections end with the test, and polls are fast."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.models.providers import clients


@pytest.fixture(autouse=True)
async def connections(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    import pydantic_ai.models.openai

    monkeypatch.setattr(pydantic_ai.models.openai, "_OPENAI_BACKGROUND_POLL_INTERVAL", 0)
    clients.hold()
    yield
    await clients.release()
