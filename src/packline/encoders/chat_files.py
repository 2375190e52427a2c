"""The chat template that comes with a tokenizer.

    FOLDER/chat_template.jinja                     the template alone
    FOLDER/tokenizer_config.json: chat_template    a string, or a list of {name, template}: the default one

The template is only read as text; `packline.chat.chat_template` runs it. The separate file takes
precedence, as in transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.tokenizer import _from_hub
from packline.errors import TokenizerError

JINJA, CONFIG = "chat_template.jinja", "tokenizer_config.json"


def read_chat_template(tokenizer: str) -> str | None:
    """Read the chat template next to a tokenizer; None if there is none.

    Args:
        tokenizer: the argument of `load_tokenizer`: a file, a folder or a hub id.

    Raises:
        TokenizerError: unreadable files, or several templates of which none is the default.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / CONFIG).write_text('{"chat_template": "{{ messages }}"}')
    >>> read_chat_template(str(folder))
    '{{ messages }}'
    """
    path = Path(tokenizer).expanduser()
    if not path.exists():
        path, _ = _from_hub(tokenizer)
    folder = path if path.is_dir() else path.parent
    try:
        if (folder / JINJA).is_file():
            return (folder / JINJA).read_text("utf-8")
        if not (folder / CONFIG).is_file():
            return None
        config = msgspec.json.decode((folder / CONFIG).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TokenizerError(f"cannot read the chat template of {tokenizer}: {error}") from error
    return _of_config(config.get("chat_template") if isinstance(config, dict) else None, tokenizer)


def _of_config(value: Any, tokenizer: str) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    named = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
    found = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    if not isinstance(found, str):
        raise TokenizerError(
            f"{tokenizer} has several chat templates and no default: found {', '.join(map(str, named))}",
            hint="write the one to use to a file, and name it with --chat-template",
        )
    return found
