import pytest

from perdure.codec import Json
from perdure.ids import CallId
from perdure.models.protocol import ProviderCall
from perdure.models.simulated import EchoModel, TravelModel
from perdure.models.wording import plain
from perdure.session.view import LATE
from perdure.vocab.messages import Message, ToolResultPart
from perdure.vocab.notifications import notification
from tests.unit.models.conversing import Talk, tools

TRAVEL = tools("search_flights", "charge_card")


async def booked(outcome: Json, *, is_error: bool = False) -> Talk:
    """A booking up to the result of the charge, every step by a model of its own."""
    talk = Talk(TRAVEL)
    talk.user("Book me a flight to Porto, please.")
    (search,) = (await talk.ask(TravelModel())).calls
    talk.result(search, [{"flight": "TP 19", "price_cents": 12_300}])
    (charge,) = (await talk.ask(TravelModel())).calls
    assert (search.name, search.args) == ("search_flights", {"city": "Porto"})
    assert (charge.name, charge.args) == ("charge_card", {"amount_cents": 12_300, "description": "Flight to Porto"})
    talk.result(charge, outcome, is_error=is_error)
    return talk


async def test_echo_repeats_the_last_input_in_new_words_every_time() -> None:
    talk = Talk()
    talk.user("first")
    talk.user("hello there")
    one, other = await talk.ask(EchoModel()), await talk.ask(EchoModel())
    assert plain(one.text) == plain(other.text) == "You said: hello there"
    assert one.text != other.text
    assert one.finish == "stop"


async def test_echo_streams_its_text_in_several_deltas_and_counts_tokens() -> None:
    talk = Talk()
    talk.user("hello")
    reply = await talk.ask(EchoModel())
    assert len(talk.deltas) > 1
    assert "".join(talk.deltas) == reply.text
    assert reply.usage.calls == 1
    assert reply.usage.input > 0
    assert reply.usage.output > 0


async def test_echo_answers_an_empty_conversation() -> None:
    assert plain((await Talk().ask(EchoModel())).text) == "You said: "


@pytest.mark.parametrize(
    ("outcome", "is_error", "word"),
    [
        ({"receipt": "r1"}, False, "charged once"),
        ("charged", False, "charged once"),
        ({"error": "declined"}, True, "failed"),
        ({"error": "outcome unknown: not re-run", "code": "outcome_unknown"}, True, "unknown"),
        ({"error": "interrupted: its result is uncertain", "code": "interrupted"}, True, "unknown"),
        ({"receipt": "r1", "bank": "unknown"}, False, "charged once"),
        ("outcome unknown, not re-run", False, "unknown"),
    ],
)
async def test_travel_tells_what_became_of_the_charge(outcome: Json, is_error: bool, word: str) -> None:
    talk = await booked(outcome, is_error=is_error)
    reply = await talk.ask(TravelModel())
    assert word in reply.text
    assert not reply.calls


def late(told: str) -> str:
    """Return the notification of a late outcome in JSON."""
    return notification(LATE, {"call": "t1.1.0", "tool": "charge_card", "outcome": told})


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ('{"receipt":"r1"}', "charged once"),
        ("null", "charged once"),
        ('{"error":"declined","code":"card"}', "failed"),
        ('{"error":"outcome unknown: …","code":"outcome_unknown"}', "unknown"),
    ],
)
async def test_travel_knows_a_result_that_arrived_late(told: str, word: str) -> None:
    talk = await booked({"error": "outcome unknown: not re-run", "code": "outcome_unknown"}, is_error=True)
    await talk.ask(TravelModel())
    talk.user("Was I charged?", note=late(told))
    assert word in (await talk.ask(TravelModel())).text


async def test_a_note_is_not_what_the_user_said() -> None:
    talk = Talk()
    talk.user("hello", note=late("7"))
    assert plain((await talk.ask(EchoModel())).text) == "You said: hello"
    talk.user("[hello]", note=late("{oops"))
    assert "is now known" in (await talk.ask(EchoModel())).text


async def test_travel_believes_the_latest_of_two_results_of_one_call() -> None:
    talk = await booked("outcome unknown, not re-run", is_error=True)
    late = ToolResultPart(call=CallId("t1.1.0"), name="charge_card", output={"receipt": "r1"})
    talk.messages.append(Message(role="tool", parts=(late,)))
    assert "charged once" in (await talk.ask(TravelModel())).text


async def test_travel_books_again_for_a_new_request_only() -> None:
    talk = await booked({"receipt": "r1"})
    await talk.ask(TravelModel())
    talk.user("What did I pay?")
    assert not (await talk.ask(TravelModel())).calls
    talk.user("Now one to New York")
    assert [call.args for call in (await talk.ask(TravelModel())).calls] == [{"city": "New York"}]


async def test_travel_charges_nothing_after_a_failed_search() -> None:
    talk = Talk(TRAVEL)
    talk.user("Book a flight")
    (search,) = (await talk.ask(TravelModel())).calls
    talk.result(search, {"error": "down"}, is_error=True)
    reply = await talk.ask(TravelModel())
    assert not reply.calls
    assert "failed" in reply.text


async def test_travel_without_its_tools_just_talks() -> None:
    talk = Talk()
    talk.user("Book a flight")
    assert not (await talk.ask(TravelModel())).calls


@pytest.mark.parametrize(
    ("output", "cents"),
    [({"flights": [{"price": 99}]}, 99), ("none", 18_900), ([], 18_900), ([{"price": True}], 18_900)],
)
async def test_travel_finds_a_price_however_the_search_shapes_it(output: Json, cents: int) -> None:
    talk = Talk(TRAVEL)
    talk.user("Book a flight")
    (search,) = (await talk.ask(TravelModel())).calls
    talk.result(search, output)
    (charge,) = (await talk.ask(TravelModel())).calls
    assert charge.args["amount_cents"] == cents


async def test_asking_a_simulated_model_twice_is_always_noticed() -> None:
    talk = Talk(TRAVEL)
    talk.user("Book a flight")
    samples = [await talk.sample(TravelModel()) for _ in range(20)]
    ids = {part.provider_id for reply in samples for part in reply.parts if isinstance(part, ProviderCall)}
    assert len(ids) == len({reply.parts for reply in samples}) == 20
