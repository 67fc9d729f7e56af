"""What stands where the privacy filter does, in a module that processes of their own import quickly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fledge.data.privacy import Treated


class Blacken:
    """Replaces one word, drops records with another."""

    def treat(self, conversation: Sequence[str], key: str) -> Treated:
        if any("python" in text for text in conversation):
            return Treated(None, {}, "policy")
        return Treated([text.replace("garden", "[PLACE]") for text in conversation])


class BlackenAndTell(Blacken):
    """Leaves the number of its process in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def treat(self, conversation: Sequence[str], key: str) -> Treated:
        (self.folder / str(os.getpid())).touch()
        return super().treat(conversation, key)
