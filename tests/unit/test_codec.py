"""Canonical JSON is a promise to the past: these bytes and digests must never change."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.codec import Json, as_stored, canonical, check_text, decode, differences, digest, encode, to_json
from perdure.errors import Code, Error
from perdure.vocab.effects import Sleep
from perdure.vocab.tools import Composition

VECTORS: list[tuple[object, bytes, str]] = [
    (None, b"null", "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
    (True, b"true", "b5bea41b6c623f7c09f1bf24dcae58ebab3c0cdd90ad966bc43a45b44867e12b"),
    (1, b"1", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"),
    (1.0, b"1.0", "d0ff5974b6aa52cf562bea5921840c032a860a91a3512f7fe8f768f6bbe005f6"),
    (-0.0, b"-0.0", "c26617c7ccbcaa6631b45d851b8cf56e21d2ca624bdb1193afdbd4b560702cec"),
    (1e22, b"1e22", "9540e265d47f306ab4eff11bd7196b22215a3914d21c0dc59a61769a6462d046"),
    (1e-7, b"1e-7", "5b33e02f2c5103a05d32f6ba9cb058294452bfbf393967f68bb30c1bdcbbab22"),
    (0.1, b"0.1", "14be4b45f18e0d8c67b4f719b5144eee88497e413709d11d85b096d8e2346310"),
    (-(2**70), b"-1180591620717411303424", "971a3bcd7a79e1b5b48b268e2b9ea1e4309b95f5c18d6e6d756473aed4366a67"),
    ("Zoë 😀", '"Zoë 😀"'.encode(), "d9badfe45262a6b0edc947713e12952113b4d699bc11a2d6b65939e2eb8206a2"),
    (
        '\x00\n\x7f\u2028/"\\',
        b'"\\u0000\\n\x7f\xe2\x80\xa8/\\"\\\\"',
        "73e049658d47d3df099e77c2c6e30971ffe7cfb279b9a173de84ab9153b72bdc",
    ),
    ([], b"[]", "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"),
    ({}, b"{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
    (
        {"b": {"c": {}}, "a": [{"z": (1, 2.5, "x"), "y": None}]},
        b'{"a":[{"y":null,"z":[1,2.5,"x"]}],"b":{"c":{}}}',
        "90524ce03388cfb9a7e6cd3ad4fab535f45c4e382eee5a5bd5bf80c63e355c14",
    ),
    (
        {"é": 5, "z": 4, "aa": 3, "a": 2, "A": 1, "": 0},
        '{"":0,"A":1,"a":2,"aa":3,"z":4,"é":5}'.encode(),
        "9c1b7f784a517402e653f0e833c6a1e835148571aabaf796d31c93d3b12dd385",
    ),
    (
        Composition(model="m", agent="a", instructions="", tools=(), settings=None),
        b'{"agent":"a","model":"m"}',
        "dc3729a25e582b4474a85e8bbc05af3b0a2a4eb1d806ab3b9449b46835e9ee14",
    ),
    (
        Sleep(duration_ms=0),
        b'{"duration_ms":0,"type":"sleep"}',
        "24a28b1c8aad0cd9cf835647dc3d54b425d568c23d2cd495d7803a55429d199f",
    ),
]

JSON_VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("value", "text", "sha256"), VECTORS, ids=[str(text) for _, text, _ in VECTORS])
def test_canonical_json_and_its_digest_never_change(value: object, text: bytes, sha256: str) -> None:
    assert canonical(value) == text
    assert digest(value) == sha256


@given(JSON_VALUES)
def test_every_json_value_survives_being_stored(value: Json) -> None:
    assert decode(canonical(value)) == value
    assert decode(encode(value)) == value
    assert to_json(value) == value


@given(JSON_VALUES)
def test_the_standard_library_reads_the_same_value(value: Json) -> None:
    assert json.loads(canonical(value)) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=2, max_size=6))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value)


def _shuffled(value: Json, random: Random) -> Json:
    """The same value, the keys of every object in it in another order."""
    if isinstance(value, dict):
        pairs = [(key, _shuffled(inner, random)) for key, inner in cast("dict[str, Json]", value).items()]
        random.shuffle(pairs)
        return dict(pairs)
    return [_shuffled(one, random) for one in cast("list[Json]", value)] if isinstance(value, list) else value


@given(JSON_VALUES, st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter_at_any_depth(value: Json, random: Random) -> None:
    assert canonical(_shuffled(value, random)) == canonical(value)
    assert digest(_shuffled(value, random)) == digest(value)


@given(JSON_VALUES)
def test_canonical_json_is_its_own_canonical_form(value: Json) -> None:
    """Stored, read and encoded again, by any process: the same bytes."""
    once = canonical(value)
    assert canonical(decode(once)) == once
    assert canonical(to_json(value)) == once
    assert canonical(decode(encode(value))) == once


def _typed(value: Json) -> Json:
    """Python takes 1, 1.0 and True for equal, and 0.0 for -0.0; JSON text does not."""
    if isinstance(value, dict):
        return {key: _typed(inner) for key, inner in cast("dict[str, Json]", value).items()}
    if isinstance(value, list):
        return [_typed(one) for one in cast("list[Json]", value)]
    return (type(value).__name__, repr(value))


@given(JSON_VALUES, JSON_VALUES, st.randoms(use_true_random=False))
def test_two_values_have_one_canonical_form_only_if_they_are_equal(one: Json, other: Json, random: Random) -> None:
    for left, right in ((one, other), (one, _shuffled(one, random)), ([one], one), ({"a": one}, {"a": other})):
        assert (canonical(left) == canonical(right)) == (_typed(left) == _typed(right))


WITHOUT_FLOATS: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(WITHOUT_FLOATS)
def test_the_standard_library_writes_the_same_bytes(value: Json) -> None:
    """Another encoder agrees, so that fingerprints can be checked independently. (Floats are spelled differently.)"""
    assert canonical(value).decode() == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_bool_int_float_and_text_have_different_digests() -> None:
    assert len({digest(value) for value in (True, 1, 1.0, "1", [1], None, 0, False, 0.0, -0.0, "")}) == 11


# --- the edge


@pytest.mark.parametrize(
    ("value", "path", "said"),
    [
        (math.nan, "$", "$ is nan, which JSON cannot carry"),
        ([math.inf], "$[0]", "$[0] is inf, which JSON cannot carry"),
        ({"a": [1, {"b": -math.inf}]}, "$.a[1].b", "$.a[1].b is -inf, which JSON cannot carry"),
        ({"a": [10**5000]}, "$.a[0]", "$.a[0] is a number of 16610 bits, which is too long to be written"),
        ({"a": (1, [object()])}, "$.a[1][0]", "$.a[1][0] cannot be stored as JSON"),
        ({"a": {"b": {None: 1}}}, "$.a.b", "$.a.b cannot be stored as JSON"),
    ],
)
def test_value_without_json_form_is_refused_with_its_path(value: object, path: str, said: str) -> None:
    with pytest.raises(Error) as caught:
        to_json(value)
    assert caught.value.code is Code.INVALID_JSON
    assert caught.value.details["path"] == path
    assert caught.value.message == said


@dataclass(eq=False)
class Account:
    """Compared by its number, also with what it was before."""

    number: int
    balance: float

    def __eq__(self, other: object) -> bool:
        return self.number == (
            cast("Json", other)["number"] if isinstance(other, dict) else cast("Account", other).number
        )

    __hash__ = object.__hash__


def test_a_value_that_is_compared_by_its_own_rules_hides_nothing() -> None:
    assert as_stored([Account(7, 1.5)]) == ([{"number": 7, "balance": 1.5}], b'[{"number":7,"balance":1.5}]')
    with pytest.raises(Error) as caught:
        as_stored([Account(7, math.nan)])
    assert (caught.value.code, caught.value.details["path"]) == (Code.INVALID_JSON, "$[0].balance")


def test_a_cycle_is_refused_at_the_place_where_it_closes() -> None:
    inner: dict[str, object] = {"n": 1}
    inner["back"] = [inner]
    with pytest.raises(Error) as caught:
        to_json({"a": [0, inner]})
    assert caught.value.code is Code.INVALID_JSON
    assert caught.value.details["path"] == "$.a[1].back[0]"


@pytest.mark.slow
@pytest.mark.parametrize("depth", [600, 950, 3_000, 100_000])
def test_deeply_nested_value_is_stored_or_refused(depth: int) -> None:
    value: Json = 1
    for _ in range(depth):
        value = [value]
    problem: Error | None = None
    try:
        to_json(value)
    except Error as refused:
        problem = refused
    assert problem is None or (problem.code is Code.INVALID_JSON and "nested too deeply" in problem.message)


@pytest.mark.parametrize(
    ("value", "path"),
    [("\ud800", "$"), ({"a": ["ok", "x\udfff"]}, "$.a[1]"), ({"a": {"\ud800": 1}}, "$.a")],
)
def test_a_lone_surrogate_is_refused_with_its_path(value: object, path: str) -> None:
    with pytest.raises(Error) as caught:
        to_json(value)
    assert caught.value.code is Code.INVALID_TEXT
    assert caught.value.details["path"] == path


def test_the_path_begins_where_the_caller_says() -> None:
    with pytest.raises(Error) as caught:
        to_json([math.nan], where="args.limit")
    assert caught.value.message == "args.limit[0] is nan, which JSON cannot carry"


def test_valid_text_passes_and_a_lone_surrogate_is_located() -> None:
    assert check_text("Zoë 😀", where="the input") == "Zoë 😀"
    with pytest.raises(Error) as caught:
        check_text("ab\ud83d", where="the input")
    assert caught.value.because == "character 2 is a lone surrogate"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"nul", b"NaN", b"Infinity", b"1e400", b'"\xff"', b'"\\ud800"', b"1 2", b"{1:2}"]
)
def test_text_that_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(Error) as caught:
        decode(text)
    assert caught.value.code is Code.INVALID_JSON


def test_json_of_another_shape_is_refused() -> None:
    with pytest.raises(Error) as caught:
        decode(b'{"duration_ms":"long","type":"sleep"}', Sleep)
    assert caught.value.code is Code.INVALID_JSON
    assert "$.duration_ms" in caught.value.because


def test_plain_encoding_keeps_the_order_of_keys() -> None:
    assert encode({"b": 1, "a": 2}) == b'{"b":1,"a":2}'


# --- differences


def test_equal_values_do_not_differ() -> None:
    assert differences({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == ([], 0)


@pytest.mark.parametrize(
    ("recorded", "current", "said"),
    [
        (1, 2, "$: 1 -> 2"),
        (True, 1, "$: true -> 1"),
        (1, 1.0, "$: 1 -> 1.0"),
        (0, False, "$: 0 -> false"),
        (None, {}, "$: null -> {}"),
        ([], {}, "$: [] -> {}"),
        ({"a": 1}, {}, "$.a: 1 -> absent"),
        ({}, {"a": None}, "$.a: absent -> null"),
        ([1], [1, 2], "$[1]: absent -> 2"),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, '$.a[0].b: "x" -> "y"'),
    ],
)
def test_a_difference_names_its_path_and_both_values(recorded: Json, current: Json, said: str) -> None:
    assert differences(recorded, current) == ([said], 1)


def test_the_first_eight_differences_are_described_and_all_are_counted() -> None:
    recorded = {f"k{index:02}": index for index in range(20)}
    described, count = differences(recorded, {})
    assert count == 20
    assert described == [f"$.k{index:02}: {index} -> absent" for index in range(8)]


def test_a_value_of_more_than_2048_bytes_is_elided_whole() -> None:
    fits, too_large = "x" * 2046, "x" * 2047
    assert differences(fits, None)[0] == [f'$: "{fits}" -> null']
    assert differences(too_large, None)[0] == ["$: <2049 bytes> -> null"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deeply_nested_text_is_refused_as_invalid_json(text: str) -> None:
    with pytest.raises(Error) as caught:
        decode(text)
    assert (caught.value.code, caught.value.because) == (Code.INVALID_JSON, "the nesting is too deep")
