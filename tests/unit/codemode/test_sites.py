"""Static detection of the awaited calls of a program."""

from __future__ import annotations

import pytest

from perdure.codemode.sites import EVERY, MAX_READ_CHARS, Texts, awaited_calls


def found(code: str) -> list[str]:
    data = code.encode()
    return sorted(data[start:end].decode() for start, end in awaited_calls(code))


@pytest.mark.parametrize(
    ("code", "awaited"),
    [
        ("x = price(1)\nawait nothing\nx + 1", []),
        ("x = await price(1)", ["price(1)"]),
        ("await gather(price(1), f(price(2)))", ["f(price(2))", "gather(price(1), f(price(2)))", "price(1)"]),
        (
            "import asyncio as a\nt = [p(i) for i in x]\nu = [q(i) for i in x]\nawait a.gather(*t)",
            ["a.gather(*t)", "p(i)"],
        ),
        ("from asyncio import gather as g\nt = []\nt.append(p(1))\nt.append(2)\nawait g(*t)", ["g(*t)", "p(1)"]),
        ("t = {}\nt['a'] = p(1)\nfor k, one in t.items():\n    await one", ["p(1)", "t.items()"]),
        ("def f(i):\n    r = p(i)\n    return r\nawait f(1)", ["f(1)", "p(i)"]),
        ("f = lambda i: p(i)\nawait f(1)", ["f(1)", "p(i)"]),
        ("async def f(i):\n    return p(i)\nawait f(1)", ["f(1)"]),
        ("async def safe(one):\n    return await one\nawait safe(p(1))", ["p(1)", "safe(p(1))"]),
        ("x = p(1)\nasync def f():\n    x = q(2)\n    await x\nprint(x)", ["q(2)"]),
        ("é = 'ü'; await gather(  p('ß') , 1)", ["gather(  p('ß') , 1)", "p('ß')"]),
        ("x = 1\r\ny = await p(1)\ry = await q(2)", ["p(1)", "q(2)"]),
        ("await (p(1) if x else q(2))", ["p(1)", "q(2)"]),
        ("await gather(*([p(1)] + [q(2)]))", ["gather(*([p(1)] + [q(2)]))", "p(1)", "q(2)"]),
    ],
)
def test_a_call_is_followed_from_where_it_is_awaited(code: str, awaited: list[str]) -> None:
    assert found(code) == awaited


@pytest.mark.parametrize(
    "code", ["f'{x['a']}'; await gather(p())", "await gather(p())" + "\n# " + "x" * MAX_READ_CHARS]
)
def test_a_text_that_is_not_read_is_judged_as_a_whole(code: str) -> None:
    assert awaited_calls(code) in ({EVERY}, set(awaited_calls("await gather(p())")))
    assert awaited_calls(code.replace("gather", "other")) in (set(), set(awaited_calls("await other(p())")))
    assert Texts().and_(code).awaits("<python-input-0>", next(iter(awaited_calls("await gather(p())"))))


@pytest.mark.parametrize(
    "code",
    [
        "await gather(" + "(" * 5000,
        "await gather(" + "1+" * 15000 + "1)",
        "await gather(" + "-" * 30000 + "1)",
        "a=" * 9000 + "1\nawait a",
        "await x\n" + "".join(f"x{i + 1}=x{i}\n" for i in range(2500)) + "await x2500",
        "\0 await gather",
        "await gather('\ud800')",
    ],
)
def test_no_text_is_too_odd_to_be_judged(code: str) -> None:
    awaited_calls(code)


def test_a_text_is_known_by_its_number_among_those_that_were_given() -> None:
    texts = Texts().and_("").and_("# nothing\n\n").and_("x = (").and_("await p(1)").and_("y = 1").and_("await q(1)")
    assert texts.given == 4
    assert texts.awaits("<python-input-1>", (6, 10))
    assert texts.awaits("<python-input-3>", (6, 10))
    assert not texts.awaits("<python-input-2>", (6, 10))
    assert not texts.awaits("<string>", (6, 10))
