"""One measurement of conversations, by packline or by transformers."""

from __future__ import annotations

import msgspec


class ConversationRun(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations turned into ids and loss masks by one fresh process, or tree of processes."""

    contender: str
    round: int
    conversations: int
    tokens: int
    trained: int
    """Tokens with loss."""
    wall_seconds: float
    """Time of the process, from start to end, imports included."""
    cpu_seconds: float
    """Processor seconds of all processes, start included."""
    seconds: float
    """From the first conversation to the last token, without imports and tokenizer."""
    busy_cores: float = 0.0
    """Cores busy with other work when it began."""
