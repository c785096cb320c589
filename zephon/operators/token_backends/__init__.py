"""Libraries that encode texts quicker than `tokenizers` does, each in a module of its own, and the proof that their ids are the same.

`base` says what a back-end is, `choice` picks one and proves it, `checked` runs it with spot checks.
"""

from zephon.operators.token_backends.base import Backend, FlatEncoder, Ready, RefusedError
from zephon.operators.token_backends.choice import BACKENDS, SWITCH, choose

__all__ = ["BACKENDS", "SWITCH", "Backend", "FlatEncoder", "Ready", "RefusedError", "choose"]
