"""Conversion of events to the text of a turn's replies."""

from __future__ import annotations

from perdure.ids import EffectId
from perdure.observe.events import Event, RecordEvent, TextDelta, TextReset
from perdure.vocab.messages import Reply
from perdure.vocab.outcomes import LlmCallOutcome
from perdure.vocab.records import EffectSettled


class TextFlow:
    """The replies of a turn as a text stream, each reply on its own line.

    An interrupted reply stays visible, and the whole new reply follows it. Missed pieces are filled in from the saved
    reply.
    """

    def __init__(self) -> None:
        self._effect: EffectId | None = None
        self._shown = ""
        self._begun = False

    def feed(self, event: Event) -> str:
        """Return the text to show for an event, or an empty string."""
        match event:
            case TextDelta(effect=effect, text=text, thinking=False):
                lead = self._line(effect)
                self._shown += text
                return lead + text
            case TextReset(effect=effect) if effect == self._effect:
                self._effect = None  # the next text starts on a new line
                return ""
            case RecordEvent(record=EffectSettled(id=effect, outcome=LlmCallOutcome(reply=Reply() as reply))) if (
                reply.text
            ):
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
