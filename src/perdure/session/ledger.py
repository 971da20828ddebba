"""The usage of a session, entry by entry: a fold of its log.

Law: the entries of a session add up to its usage. A failed call is included with the usage its provider reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perdure.ids import EffectId, TurnId
from perdure.vocab.children import ChildEnded
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import DirectOutcome, LlmCallOutcome, ToolCallOutcome
from perdure.vocab.records import EffectSettled, Record, TurnOpened
from perdure.vocab.usage import Usage
from perdure.vocab.wire import Value

NOTHING = Usage()


class UsageEntry(Value, frozen=True):
    """One charge. `source` is `turn`, `direct:` with the name given by a tool, or `sub-agent:` with its session.

    `effect` is the session's own effect that was charged, if any.
    """

    turn: TurnId
    source: str
    usage: Usage
    model: str = ""
    effect: EffectId = EffectId("")


def entries(records: Iterable[Record]) -> Iterator[UsageEntry]:
    """Yield all entries in log order."""
    turn = TurnId("")
    for record in records:
        match record:
            case TurnOpened(turn=opened):
                turn = opened
            case EffectSettled(id=id, outcome=outcome):
                yield from (entry for entry in _bought(turn, id, outcome) if entry.usage != NOTHING)
            case ChildEnded(child=child, usage=usage, source=source, model=model) if usage != NOTHING:
                name = f"direct:{source}" if source else f"sub-agent:{child}"
                yield UsageEntry(turn=turn, source=name, usage=usage, model=model)
            case _:
                pass


def _bought(turn: TurnId, id: EffectId, outcome: object) -> Iterator[UsageEntry]:
    match outcome:
        case LlmCallOutcome(reply=Reply() as reply):
            yield UsageEntry(turn=turn, source="turn", usage=reply.usage, model=reply.model, effect=id)
        case LlmCallOutcome(spent=spent):
            yield UsageEntry(turn=turn, source="turn", usage=spent, effect=id)
        case DirectOutcome(reply=reply, source=source):
            model = reply.model if reply is not None else outcome.model
            yield UsageEntry(turn=turn, source=f"direct:{source}", usage=outcome.bought, model=model, effect=id)
        case ToolCallOutcome(direct=direct):
            for one in direct:
                source = f"direct:{one.source}"
                yield UsageEntry(turn=turn, source=source, usage=one.usage, model=one.model, effect=id)
        case _:
            return
