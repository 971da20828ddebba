"""From events to the text a reader sees."""

from __future__ import annotations

from perdure.ids import EffectId
from perdure.observe.events import Delta, Event, Fact, Superseded
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled


class TextFlow:
    """The replies of a turn as they are written, each on a line of its own.

    A reply that broke off stays as it is and is followed by the whole new one; pieces that were missed are filled in
    from the saved reply.
    """

    def __init__(self) -> None:
        self._effect: EffectId | None = None
        self._shown = ""
        self._begun = False

    def feed(self, event: Event) -> str:
        """What to show next, perhaps nothing."""
        match event:
            case Delta(effect=effect, text=text, thinking=False):
                lead = self._line(effect)
                self._shown += text
                return lead + text
            case Superseded(effect=effect) if effect == self._effect:
                self._effect = None  # what is said next begins on a line of its own
                return ""
            case Fact(record=EffectSettled(id=effect, outcome=LlmCallOutcome(reply=Reply() as reply))) if reply.text:
                lead = self._line(effect)
                shown, self._effect = self._shown, None
                return lead + (reply.text[len(shown) :] if reply.text.startswith(shown) else f"\n{reply.text}")
            case _:
                return ""

    def _line(self, effect: EffectId) -> str:
        if effect == self._effect:
            return ""
        lead = "\n" if self._begun else ""
        self._effect, self._shown, self._begun = effect, "", True
        return lead
