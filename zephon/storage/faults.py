"""What a store's exception means: gone, denied, busy, passing, or final.

The clients (botocore, aiohttp, requests, azure-core, gcsfs, huggingface_hub) agree on nothing but HTTP, so exceptions are read by
status, by the store's error code, and by class *names* along the chain of causes; no client library is imported for it.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any


class Fault(enum.Enum):
    """What is to be done about it."""

    GONE = "gone"  # there is no such object
    DENIED = "denied"  # credentials: refresh them once
    BUSY = "busy"  # the store asks for fewer requests
    PASSING = "passing"  # connection, time-out, server error
    CHANGED = "changed"  # it is not the version that was asked for
    RANGE = "range"  # the range lies beyond the object's end
    FINAL = "final"


@dataclass(frozen=True)
class Diagnosis:
    """A fault, the exception in the chain that tells it, and the seconds that the store asks us to wait."""

    fault: Fault
    because: BaseException
    wait_s: float | None = None


class TruncatedError(Exception):
    """Fewer bytes came than the range has. Internal: it is retried, and becomes a `DataError`."""


class ReplacedError(Exception):
    """What came is not of the object that was listed. Internal: it becomes a `DataError`, as the status does that stores have for it."""

    status = 412


_GONE = {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError", "ResourceNotFoundError"}
_CREDENTIALS = {
    "ClientAuthenticationError",
    "CredentialRetrievalError",
    "CredentialUnavailableError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "PermissionError",
    "RefreshError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
}
_CREDENTIAL_CODES = {
    "AccessDenied",
    "AuthenticationFailed",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_BUSY_CODES = {
    "BandwidthLimitExceeded",
    "RequestLimitExceeded",
    "RequestThrottled",
    "ServerBusy",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
_PASSING_CODES = {"InternalError", "OperationTimedOut", "RequestTimeout", "RequestTimeoutException"}
_PASSING = {
    "ChecksumError",
    "ChunkedEncodingError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionError",
    "EOFError",
    "FlexibleChecksumError",
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "NetworkError",
    "ProtocolError",
    "RemoteProtocolError",
    "ResponseParserError",
    "ResponseStreamingError",
    "ServiceRequestError",
    "ServiceResponseError",
    "Timeout",
    "TimeoutError",
    "TimeoutException",
    "TransportError",
    "TruncatedError",
}
_NEVER_PASSING = {"CertificateError", "ClientConnectorCertificateError", "SSLCertVerificationError"}
_PASSING_ERRNOS = {
    errno.EAGAIN,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
}


def diagnose(error: BaseException) -> Diagnosis:
    """What this exception, or what caused it, means."""
    chain = list(_causes(error))
    for one in chain:
        if _names(one) & _GONE:
            return Diagnosis(Fault.GONE, one)
    for one in chain:
        if "HttpProcessingError" in _names(one):  # aiohttp's parser: a body that was cut has the "status" 400 there
            return Diagnosis(Fault.PASSING, one)
        status, code = _answer(one)
        if status is not None or code:
            fault = _fault_of_answer(status, code, str(one))
            return Diagnosis(fault, one, _asked_wait(one))
    for one in chain:
        told = _fault_of_exception(one)
        if told is not None:
            return Diagnosis(told, one)
    return Diagnosis(Fault.GONE if isinstance(error, FileNotFoundError) else Fault.FINAL, error)


def say(error: BaseException) -> str:
    """One line about it; many time-outs have no words of their own."""
    text = " ".join(str(error).split())[:300]
    name = type(error).__name__
    status, _ = _answer(error)
    known = f"HTTP {status}: " if status is not None and str(status) not in text else ""
    return known + (f"{name}: {text}" if text else name)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen and len(seen) < 10:
        seen.add(id(one))
        yield one
        one = one.__cause__


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _answer(error: BaseException) -> tuple[int | None, str]:
    """The HTTP status and the store's own code, as far as the exception has them."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        code = str(response.get("Error", {}).get("Code", ""))
        return _status(response.get("ResponseMetadata", {}).get("HTTPStatusCode")), code
    azure = getattr(error, "error_code", None)
    code = str(getattr(azure, "value", azure) or "")
    for owner, name in ((error, "status"), (error, "status_code"), (response, "status_code"), (error, "code")):
        # one by one: aiohttp warns at the mere sight of `code`
        status = _status(getattr(owner, name, None))
        if status is not None:
            return status, code
    return None, code


def _status(value: Any) -> int | None:
    usable = isinstance(value, int | str) and str(value).isdigit() and 100 <= int(value) < 600
    return int(value) if usable else None


def _fault_of_answer(status: int | None, code: str, text: str) -> Fault:
    if status == 412 or code == "PreconditionFailed":
        return Fault.CHANGED
    if status == 416 or code in ("InvalidRange", "416"):
        return Fault.RANGE
    if status in (404, 410) or code in ("NoSuchKey", "NoSuchBucket", "404"):
        return Fault.GONE
    if status == 429 or status == 503 or code in _BUSY_CODES or "reduce your request rate" in text:
        return Fault.BUSY
    # a HEAD has no body: S3 answers one with an expired token by a bare 400
    if status in (401, 403) or code in _CREDENTIAL_CODES or (status == 400 and code == "400"):
        return Fault.DENIED
    if code in _PASSING_CODES or status in (408, 425) or (status is not None and status >= 500 and status not in (501, 505)):
        return Fault.PASSING
    return Fault.FINAL


def _fault_of_exception(error: BaseException) -> Fault | None:
    names = _names(error)
    text = str(error)
    if names & _NEVER_PASSING:
        return Fault.FINAL
    if names & _CREDENTIALS or text.startswith("Forbidden:"):  # gcsfs has no better sign of a 403
        return Fault.BUSY if "rate limit" in text.lower() or "rateLimit" in text else Fault.DENIED
    if names & _PASSING or (isinstance(error, OSError) and error.errno in _PASSING_ERRNOS):
        return Fault.PASSING
    return None


def _asked_wait(error: BaseException) -> float | None:
    """The seconds of a `Retry-After`, in either of its two forms; the date is taken against the answer's own clock."""
    headers = _headers(error)
    asked = headers.get("retry-after", "").strip()
    if not asked:
        return None
    try:
        return max(0.0, float(asked))
    except ValueError:
        until, now = _date(asked), _date(headers.get("date", ""))
        return max(0.0, (until - now).total_seconds()) if until and now else None


def _headers(error: BaseException) -> dict[str, str]:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        found = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    else:
        found = getattr(error, "headers", None) or getattr(response, "headers", None)
    try:
        return {str(name).lower(): str(value) for name, value in (found or {}).items()}
    except AttributeError:
        return {}


def _date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
