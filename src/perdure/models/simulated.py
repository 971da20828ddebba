"""Offline models without a key: `sim:echo` answers, `sim:travel` books a flight for the demo.

Both are stateless. Their actions depend only on the messages, so any process can continue for another.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Literal, cast

from perdure import codec
from perdure.codec import Json
from perdure.models import conversation
from perdure.models.protocol import ModelEvent, ModelReply, ModelRequest, ProviderCall, TextPiece
from perdure.models.sampling import sample
from perdure.models.wording import pieces, provider_id, reword
from perdure.vocab.messages import FinishReason, Message, Text, ToolResultPart
from perdure.vocab.usage import Usage

_DELTAS = 6
_DEFAULT_CITY = "Lisbon"
_DEFAULT_CENTS = 18_900
_CUSTOMER = "you@example.com"
_PRICES = ("amount_cents", "price_cents", "cents", "price")

Charge = Literal["charged", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class EchoModel:
    """A model that answers `You said: …`, reworded each time, in the required form."""

    name: str = "sim:echo"
    delta_ms: int = 0

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Repeat the last input and list its attachments."""
        text = reword(f"You said: {conversation.input_text(request.messages)}{_attached(request)}")
        if request.output_spec is not None:
            text = codec.encode(sample(request.output_spec["schema"], text)).decode()
        return _speak(request, self.name, self.delta_ms, (Text(text=text),))


def _attached(request: ModelRequest) -> str:
    refs = conversation.input_attachments(request.messages)
    return "".join(f" [{ref.media_type}, {len(request.attachments[ref.hash])} bytes]" for ref in refs)


@dataclass(frozen=True, slots=True)
class TravelModel:
    """A model that searches flights, charges a card for the first, mails the itinerary and reports the outcome."""

    name: str = "sim:travel"
    delta_ms: int = 0

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Take the next step of the booking."""
        return _speak(request, self.name, self.delta_ms, _next_step(request))


async def _speak(
    request: ModelRequest, name: str, delta_ms: int, parts: tuple[Text | ProviderCall, ...]
) -> AsyncIterator[ModelEvent]:
    for part in parts:
        if isinstance(part, Text):
            for piece in pieces(part.text, _DELTAS):
                await asyncio.sleep(delta_ms / 1000)
                yield TextPiece(piece)
    finish: FinishReason = "tool_calls" if any(isinstance(part, ProviderCall) for part in parts) else "stop"
    reply = ModelReply(parts=parts, finish=finish, usage=Usage(), model=name)
    yield replace(reply, usage=conversation.count_tokens(request, reply))


# --- the booking ------------------------------------------------------------------------------------------------


def _next_step(request: ModelRequest) -> tuple[Text | ProviderCall, ...]:
    said = conversation.input_text(request.messages)
    if said.rstrip().endswith("?") and conversation.results(request.messages, "charge_card"):
        return (_say(_report(request.messages)),)
    now = conversation.since_input(request.messages)
    offered = {tool.name for tool in request.tools}
    found = conversation.results(now, "search_flights")
    if "search_flights" in offered and not found:
        city = _city(said)
        return (_say(f"Looking for flights to {city}."), _call("search_flights", city=city))
    if "charge_card" in offered and not conversation.results(now, "charge_card"):
        if found and found[-1].is_error:
            return (_say("The flight search failed, so nothing was booked or charged."),)
        return (_say("Found one. Paying for it now."), _charge(said, found))
    mailed = conversation.results(now, "send_email")
    if "send_email" in offered and not mailed and _charge_outcome(now) == "charged":
        return (_say("Paid. Mailing you the itinerary."), _call("send_email", to=_CUSTOMER, subject=_flight(said)))
    sent = "" if not mailed else " It was mailed to you." if not mailed[-1].is_error else " It was not mailed."
    return (_say(_report(now) + sent),)


def _say(text: str) -> Text:
    return Text(text=reword(text))


def _call(tool: str, **args: Json) -> ProviderCall:
    return ProviderCall(provider_id=provider_id(), name=tool, arguments=codec.encode(args).decode())


def _charge(said: str, found: tuple[ToolResultPart, ...]) -> ProviderCall:
    cents = _price(found[-1].output) if found else None
    return _call("charge_card", amount_cents=cents or _DEFAULT_CENTS, description=_flight(said))


def _flight(said: str) -> str:
    return f"Flight to {_city(said)}"


def _city(said: str) -> str:
    named = re.search(r"\b(?:to|in|for)\s+([A-Z][\w'-]+(?:\s+[A-Z][\w'-]+)*)", said)
    return named.group(1) if named else _DEFAULT_CITY


def _price(output: Json) -> int | None:
    """Return the first price in a search result, at any depth."""
    if isinstance(output, dict):
        fields = cast("dict[str, Json]", output)
        for name in _PRICES:
            cents = fields.get(name)
            if type(cents) is int and cents > 0:
                return cents
        return next(filter(None, map(_price, fields.values())), None)
    if isinstance(output, list):
        return next(filter(None, map(_price, cast("list[Json]", output))), None)
    return None


# --- the outcome of the charge ----------------------------------------------------------------------------------


def _report(messages: tuple[Message, ...]) -> str:
    match _charge_outcome(messages):
        case "charged":
            return "Booked. The card was charged once; here is your itinerary."
        case "unknown":
            return "The outcome of the charge is unknown. It was not tried again; please check with the bank."
        case "failed":
            return "The charge failed, so the flight is not booked."
        case None:
            return "I have searched, and charged nothing."


def _charge_outcome(messages: tuple[Message, ...]) -> Charge | None:
    """Return the latest outcome of the last charge: its result, or a late note about it."""
    newest: Charge | None = None
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResultPart) and part.name == "charge_card":
                newest = _judge(part.output, failed=part.is_error)
            elif (
                isinstance(part, Text)
                and (note := conversation.late_note(message, part))
                and note.tool == "charge_card"
            ):
                newest = _judge(note.told, failed=note.is_error)
    return newest


def _judge(told: Json, *, failed: bool) -> Charge:
    text = codec.encode(told).decode().lower()
    if "outcome unknown" in text or (failed and re.search("unknown|uncertain|in.doubt", text)):
        return "unknown"
    return "failed" if failed else "charged"
