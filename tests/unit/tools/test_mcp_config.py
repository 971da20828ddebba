"""Configurations of MCP servers that no server can be started from."""

from __future__ import annotations

import pytest

from perdure import Code, Error
from perdure.codec import Json
from perdure.tools.mcp.config import parse


@pytest.mark.parametrize(
    "given", [{"command": "\ud800"}, {"url": "http://x", "headers": {"a": "\udfff"}}, {"\ud800": 1}]
)
def test_server_with_a_lone_surrogate_is_an_invalid_configuration(given: Json) -> None:
    with pytest.raises(Error) as caught:
        parse({"mcpServers": {"r": given}})
    assert caught.value.code is Code.INVALID_ARGUMENT
