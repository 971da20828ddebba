"""The client `ctx.attachments`: bytes that belong to the session."""

from __future__ import annotations

from typing import Protocol

from perdure.vocab.messages import AttachmentRef


class Attachments(Protocol):
    """Stores bytes and returns references. The bytes become durable in the append that records the call's outcome."""

    async def put(self, data: bytes, media_type: str, *, name: str = "") -> AttachmentRef:
        """Store bytes and return a reference.

        Raises:
            ToolError: `runtime_effect_attachment_missing_reference` for no bytes,
                `runtime_effect_attachment_media_type` for an unsupported type,
                `runtime_effect_attachment_store` for too many bytes.
        """
        ...

    async def get(self, ref: AttachmentRef) -> bytes:
        """Return the bytes of a reference held by this session.

        Raises:
            ToolError: `attachment_not_found` for any other reference, whether the bytes exist or not.
        """
        ...
