"""Promises: one-shot external resolutions, their identities, keys and states."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TypeAlias

import msgspec

from perdure.codec import Json, encode
from perdure.errors import Code, Error
from perdure.ids import PromiseId, StreamId
from perdure.vocab.wire import Value


class ToolCompletion(Value, frozen=True, tag="tool_completion"):
    """The external completion of one attempt of a tool call."""

    call_id: str
    attempt: int = 1

    def __post_init__(self) -> None:
        _named(self.call_id)
        _counted(self.attempt)


class ProcessSignal(Value, frozen=True, tag="process_signal"):
    """The n-th signal of a name sent to a process."""

    process_id: str
    name: str
    ordinal: int

    def __post_init__(self) -> None:
        _named(self.process_id)
        _named(self.name)
        _counted(self.ordinal)


class Custom(Value, frozen=True, tag="custom"):
    """A wait that an application names itself."""

    key: str

    def __post_init__(self) -> None:
        _named(self.key)


class ToolApproval(Value, frozen=True, tag="tool_approval"):
    """A person's approval of one call with exactly the arguments whose digest is `arguments`."""

    call_id: str
    tool: str
    arguments: str

    def __post_init__(self) -> None:
        for part in (self.call_id, self.tool, self.arguments):
            _named(part)


class DoubtVerdict(Value, frozen=True, tag="doubt_verdict"):
    """A person's verdict on one attempt of a call whose outcome is unknown."""

    call_id: str
    attempt: int = 1

    def __post_init__(self) -> None:
        _named(self.call_id)
        _counted(self.attempt)


class ClientResult(Value, frozen=True, tag="client_result"):
    """The result of a call that the client runs."""

    call_id: str

    def __post_init__(self) -> None:
        _named(self.call_id)


class UserAnswer(Value, frozen=True, tag="user_answer"):
    """A person's answers to the questions of one call."""

    call_id: str

    def __post_init__(self) -> None:
        _named(self.call_id)


class TurnCancelGate(Value, frozen=True, tag="turn_cancel_gate"):
    """The gate for which completion and cancellation of a turn race. Resolving it requests the turn's end."""

    turn_id: str

    def __post_init__(self) -> None:
        _named(self.turn_id)


class TurnTerminal(Value, frozen=True, tag="turn_terminal"):
    """The end of a turn. Only the turn resolves it."""

    turn_id: str

    def __post_init__(self) -> None:
        _named(self.turn_id)


class ProcessTerminal(Value, frozen=True, tag="process_terminal"):
    """The end of a process. Only the process resolves it."""

    process_id: str

    def __post_init__(self) -> None:
        _named(self.process_id)


WaitIdentity: TypeAlias = (
    ToolCompletion
    | ProcessSignal
    | Custom
    | ToolApproval
    | DoubtVerdict
    | ClientResult
    | UserAnswer
    | TurnCancelGate
    | TurnTerminal
    | ProcessTerminal
)
"""All kinds of wait. Abandoning a wait for one of the last three changes nothing for the turn or process."""


def _named(value: str) -> None:
    if not value.strip():
        raise Error(Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY, "a wait identity has a blank name")


def _counted(value: int) -> None:
    if value < 1:
        raise Error(Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY, f"ordinals start at 1, not {value}")


MAX_KEY_CHARS = 4096


class EventKey(Value, frozen=True):
    """The name of one promise. The signature makes it a bearer capability: the bearer may resolve the promise.

    Its repr is only the key id, so an accidental log entry reveals no signature.
    """

    scope: str
    wait: WaitIdentity
    key_id: PromiseId
    signature: str = ""

    def __repr__(self) -> str:
        return f"EventKey({self.key_id!r})"

    @property
    def text(self) -> str:
        """The key as one word, safe in URLs and mails."""
        return urlsafe_b64encode(encode(self)).decode().rstrip("=")

    @staticmethod
    def parse(text: str) -> EventKey:
        """Parse the text of a key. Only the exact spelling of `text` is accepted, since decoders tolerate others.

        Raises:
            Error: `event_key_invalid` for anything else.
        """
        if len(text) > MAX_KEY_CHARS:
            raise unknown_key()
        try:
            data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            key = msgspec.json.decode(data, type=EventKey)
        except (ValueError, RecursionError, msgspec.MsgspecError, Error):
            raise unknown_key() from None
        if key.text != text:
            raise unknown_key()
        return key


def unknown_key() -> Error:
    """Return the one error for unknown, revoked and forged keys."""
    return Error(
        Code.EVENT_KEY_INVALID,
        "nothing waits under this key",
        because="the key is unknown, revoked, or of another store",
        hint="use the key exactly as it was handed out, on the store that made it",
    )


class Ok(Value, frozen=True, tag="ok", tag_field="status"):
    """Resolved with a value."""

    value: Json = None


class Failure(Value, frozen=True, tag="err", tag_field="status"):
    """Resolved with a failure; its code is chosen by the resolver."""

    code: str
    message: str
    raw: Json = None


class TimedOut(Value, frozen=True, tag="timeout", tag_field="status"):
    """The deadline passed without a resolution."""


class Cancelled(Value, frozen=True, tag="cancelled", tag_field="status"):
    """The wait was cancelled."""


Resolution: TypeAlias = Ok | Failure | TimedOut | Cancelled


class PromiseState(Value, frozen=True):
    """A promise as the store holds it.

    `request_kind` is the kind of decision requested from people (such as `approval`) since `requested_at`; blank for
    other promises. `consumed_at` is the time at which an approval was used up by the call it allowed.
    """

    id: PromiseId
    stream: StreamId
    resolution: Resolution | None = None
    deadline_at: int | None = None
    request_kind: str = ""
    requested_at: int | None = None
    consumed_at: int | None = None
