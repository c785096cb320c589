"""Trying again: what may pass is tried again after a wait, and what can't pass is not."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from zephon.errors import ZephonError
from zephon.keys import key
from zephon.storage.faults import Diagnosis, Fault, diagnose, say
from zephon.storage.options import StoreOptions

log = logging.getLogger("zephon.storage")

T = TypeVar("T")

_LONGEST_ASKED_WAIT_S = 300.0
"""A `Retry-After` is obeyed up to here; some gateways answer with an hour."""


class FailedError(Exception):
    """No try gave an answer. Internal: stores turn it into a `DataError`, or into "it doesn't exist"."""

    def __init__(self, diagnosis: Diagnosis, tries: int) -> None:
        super().__init__(say(diagnosis.because))
        self.diagnosis = diagnosis
        self.tries = tries

    @property
    def fault(self) -> Fault:
        """What kind of failure it was."""
        return self.diagnosis.fault


def retrying(path: str, attempt: Callable[[], T], options: StoreOptions, refresh: Callable[[], None]) -> T:
    """What `attempt` returns, at its first try that doesn't fail.

    A failure that may pass is tried again `options.retries` times; one of credentials once, after `refresh`.

    Raises:
        FailedError: the last try's failure.
        ZephonError: what the attempt itself says on purpose.
    """
    failures, refreshed, stale = 0, False, False
    while True:
        tries = failures + 1 + refreshed
        try:
            if stale:
                stale = False
                refresh()
            return attempt()
        except ZephonError:
            raise
        except Exception as error:
            found = diagnose(error)
            if found.fault is Fault.DENIED and not refreshed:
                refreshed = stale = True
                wait_s = wait_before(1, path, options)
            elif found.fault in (Fault.BUSY, Fault.PASSING) and failures < options.retries:
                failures += 1
                wait_s = max(found.wait_s or 0.0, wait_before(failures, path, options))
            else:
                raise FailedError(found, tries) from error
        wait_s = min(wait_s, max(_LONGEST_ASKED_WAIT_S, options.longest_wait_s))
        log.log(_level(tries), "%s: %s; try %d follows in %.1f s", path, say(found.because), tries + 1, wait_s)
        time.sleep(wait_s)


def _level(tries: int) -> int:
    """One failure is daily life in an object store; several are worth knowing of."""
    return logging.WARNING if tries >= 3 else logging.INFO


def wait_before(failures: int, path: str, options: StoreOptions) -> float:
    """Seconds to wait after so many failures: doubling, with a jitter keyed by path, try and process, so that ranks that failed
    together don't come back together."""
    full = min(options.longest_wait_s, options.first_wait_s * 2.0 ** min(failures - 1, 60))
    share = key("retry", path, failures, os.getpid(), socket.gethostname()) / 2**64
    return full * (0.5 + share)
