"""What a reader changes or leaves out without failing is said: once for each file and kind of it, in the log."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger("zephon.formats")
_MOST = 10_000


class Told:
    """What was said of one file. Used from several threads at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.replaced = False
        self.unseen = False

    def replaced_text(self) -> None:
        """Text that isn't UTF-8, or has NUL bytes or lone surrogates, got U+FFFD in these places."""
        if not self.replaced:
            self.replaced = True
            self._say("text that is not UTF-8 (or has NUL bytes): U+FFFD stands in its place; bad_text='error' refuses it")

    def unseen_key(self, name: str) -> None:
        """A key that the sample of the file did not show was left out."""
        if not self.unseen:
            self.unseen = True
            self._say(
                f"the key {name!r}, and perhaps more, is not in the sample that showed the columns, and is left out; "
                "schema= declares it, a larger sample_bytes= (None: all) finds it"
            )

    def _say(self, what: str) -> None:
        with _guard:
            if (self._path, what) in _said or len(_said) > _MOST:
                return  # shards are opened again and again
            _said.add((self._path, what))
        _log.warning("%s: %s", self._path, what)


_said: set[tuple[str, str]] = set()
_guard = threading.Lock()
