"""One-shot answers from outside: what is waited for, and how it can end."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TypeAlias

import msgspec

from perdure.codec import Json, encode
from perdure.errors import Code, Error
from perdure.ids import PromiseId, StreamId
from perdure.vocab.wire import Value


class ToolCompletion(Value, frozen=True, tag="tool_completion"):
    """A tool call that somebody outside will finish. Belongs to one attempt."""

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
    """Anything an application names itself."""

    key: str

    def __post_init__(self) -> None:
        _named(self.key)


class ToolApproval(Value, frozen=True, tag="tool_approval"):
    """A person's consent to one call of a tool with exactly these arguments, which `arguments` is the digest of."""

    call_id: str
    tool: str
    arguments: str

    def __post_init__(self) -> None:
        for part in (self.call_id, self.tool, self.arguments):
            _named(part)


class DoubtVerdict(Value, frozen=True, tag="doubt_verdict"):
    """A person's word on what became of one attempt of a call whose outcome is unknown."""

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
    """What the completion and the cancellation of a turn race for. Whoever answers it asks for the turn to end."""

    turn_id: str

    def __post_init__(self) -> None:
        _named(self.turn_id)


class TurnTerminal(Value, frozen=True, tag="turn_terminal"):
    """The end of a turn. The turn alone answers it."""

    turn_id: str

    def __post_init__(self) -> None:
        _named(self.turn_id)


class ProcessTerminal(Value, frozen=True, tag="process_terminal"):
    """The end of a process. The process alone answers it."""

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
"""What can be waited for. The last three are control: whoever gives up waiting for them changes nothing."""


def _named(value: str) -> None:
    if not value.strip():
        raise Error(Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY, "a wait identity has a blank name")


def _counted(value: int) -> None:
    if value < 1:
        raise Error(Code.INVALID_AWAIT_EVENT_WAIT_IDENTITY, f"ordinals start at 1, not {value}")


MAX_KEY_CHARS = 4096


class AwaitEventKey(Value, frozen=True):
    """Names one promise. The signature makes it a bearer capability: whoever has the key may answer.

    Printed, it is its id: what is shown or logged by mistake is worth nothing.
    """

    scope: str
    wait: WaitIdentity
    key_id: PromiseId
    signature: str = ""

    def __repr__(self) -> str:
        return f"AwaitEventKey({self.key_id!r})"

    @property
    def text(self) -> str:
        """The key as one word, safe in a URL or a mail."""
        return urlsafe_b64encode(encode(self)).decode().rstrip("=")

    @staticmethod
    def parse(text: str) -> AwaitEventKey:
        """The inverse of `text`. There is one spelling of a key: decoders would let others pass.

        Raises:
            Error: `await_event_unknown_or_revoked` for anything else.
        """
        if len(text) > MAX_KEY_CHARS:
            raise unknown_key()
        try:
            data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            key = msgspec.json.decode(data, type=AwaitEventKey)
        except (ValueError, RecursionError, msgspec.MsgspecError, Error):
            raise unknown_key() from None
        if key.text != text:
            raise unknown_key()
        return key


def unknown_key() -> Error:
    """Unknown, revoked and forged keys get one answer."""
    return Error(
        Code.AWAIT_EVENT_UNKNOWN_OR_REVOKED,
        "nothing waits under this key",
        because="it is unknown, revoked, or not one of this store's",
        hint="use the key exactly as it was handed out, on the store that made it",
    )


class Ok(Value, frozen=True, tag="ok", tag_field="status"):
    """Answered."""

    value: Json = None


class Err(Value, frozen=True, tag="err", tag_field="status"):
    """Answered with a failure; the code is the answerer's own."""

    code: str
    message: str
    raw: Json = None


class TimedOut(Value, frozen=True, tag="timeout", tag_field="status"):
    """Nobody answered in time."""


class Cancelled(Value, frozen=True, tag="cancelled", tag_field="status"):
    """The wait was given up."""


Resolution: TypeAlias = Ok | Err | TimedOut | Cancelled


class PromiseState(Value, frozen=True):
    """A promise as the store holds it.

    `asks` says what people are asked for (such as `approval`), since `asked_at`; blank if it is not for people. An
    answer that allows something is used up when it has done so, at `consumed_at`.
    """

    id: PromiseId
    stream: StreamId
    resolution: Resolution | None = None
    deadline_at: int | None = None
    asks: str = ""
    asked_at: int | None = None
    consumed_at: int | None = None
