"""Libraries that encode texts quicker than `tokenizers` does, each in a module of its own, and the proof that their ids are the same.

`base` says what a back-end is, `choice` picks one and proves it, `ahead` loads it in the background, `brief` makes its file short,
`checked` runs it with spot checks.
"""

from zephon.operators.token_backends.ahead import Ahead
from zephon.operators.token_backends.base import Backend, FlatEncoder, Library, Ready, RefusedError
from zephon.operators.token_backends.choice import BACKENDS, begin, choose

__all__ = ["BACKENDS", "Ahead", "Backend", "FlatEncoder", "Library", "Ready", "RefusedError", "begin", "choose"]
