from __future__ import annotations

from pydantic import BaseModel

from perdure.tools.context import ToolContext
from perdure.tools.decorator import tool


def test_annotations_that_are_strings_may_name_local_classes() -> None:
    class Local(BaseModel):
        a: int

    @tool
    def bare(ctx: ToolContext[Local], one: Local) -> int:
        return one.a

    @tool(effect="pure")
    def configured(one: Local) -> int:
        return one.a

    assert bare.bind({"one": {"a": 1}}) == {"one": Local(a=1)}
    assert configured.bind({"one": {"a": 1}}) == {"one": Local(a=1)}
    assert bare.arguments.context == "ctx"


def test_annotations_may_name_what_is_defined_later() -> None:
    assert early.bind({"one": {"b": 1}}) == {"one": Later(b=1)}


@tool
def early(one: Later) -> int:
    return one.b


class Later(BaseModel):
    b: int
