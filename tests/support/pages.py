"""The code blocks of a page."""

from __future__ import annotations

import re

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a text that are in one language."""
    return [code for name, code in BLOCK.findall(text) if name == language]
