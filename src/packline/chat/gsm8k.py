"""GSM8K: word problems whose `<<expression=result>>` marks become Python calls and their output.

Natalia sold 48/2 = <<48/2=24>>24 clips      text "... 48/2 = "  python "48/2"  output "24"  text "24 clips"
"""

from __future__ import annotations

import re
from typing import Any

from packline.sources.batch import RecordProblem

MARK = re.compile(r"<<([^<>]*)>>")


def read_gsm8k(record: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Convert a record with question and answer to a conversation.

    Raises:
        RecordProblem: the record has no such fields.

    >>> talk = read_gsm8k({"question": "1+1?", "answer": "It is <<1+1=2>>2.\\n#### 2"}, {})
    >>> [(part["type"], part["text"]) for part in talk["messages"][1]["content"]]
    [('text', 'It is '), ('python', '1+1'), ('python_output', '2'), ('text', '2.\\n#### 2')]
    """
    question, answer = (
        (record.get(name) for name in ("question", "answer")) if isinstance(record, dict) else (0, 0)
    )
    if not isinstance(question, str) or not isinstance(answer, str):
        raise RecordProblem("not_a_conversation", "expected question and answer, both strings")
    parts = []
    for place, piece in enumerate(MARK.split(answer)):
        if place % 2 == 0:
            parts.append({"type": "text", "text": piece})
            continue
        expression, equals, result = piece.rpartition("=")
        if not equals:
            expression, result = piece, ""
        parts.append({"type": "python", "text": expression})
        parts.append({"type": "python_output", "text": result})
    said = [part for part in parts if part["text"] or part["type"] != "text"]
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": said}]}
