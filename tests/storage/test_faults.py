"""What the clients' own exceptions mean; each is raised by its real class."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import aiohttp
import botocore.exceptions
import pytest
import requests
from azure.core import exceptions as azure
from gcsfs.retry import HttpError
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from zephon.storage import StoreOptions
from zephon.storage.faults import Fault, TruncatedError, diagnose
from zephon.storage.retry import FailedError, retrying, wait_before


def boto(status: int, code: str, **headers: str) -> Exception:
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    return botocore.exceptions.ClientError(answer, "GetObject")  # type: ignore[arg-type]


def web(status: int, **headers: str) -> Exception:
    info = aiohttp.RequestInfo(URL("http://x/"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://x/"))
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return aiohttp.ClientResponseError(info, (), status=status, headers=named)


def caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


def of_azure(kind: type[Exception], status: int, code: str) -> Exception:
    made: Any = kind("m")
    made.status_code, made.error_code = status, SimpleNamespace(value=code)
    return made  # type: ignore[no-any-return]


CASES = [
    (Fault.BUSY, boto(503, "SlowDown")),
    (Fault.BUSY, caused(OSError(errno.EBUSY, "Please reduce your request rate"), boto(503, "503"))),
    (Fault.PASSING, boto(500, "InternalError")),
    (Fault.PASSING, boto(400, "RequestTimeout")),
    (Fault.DENIED, boto(400, "ExpiredToken")),
    (Fault.DENIED, boto(400, "400")),
    (Fault.DENIED, caused(PermissionError("Access Denied"), boto(403, "AccessDenied"))),
    (Fault.DENIED, botocore.exceptions.NoCredentialsError()),
    (Fault.GONE, caused(FileNotFoundError("k"), boto(404, "NoSuchKey"))),
    (Fault.GONE, FileNotFoundError("k")),
    (Fault.RANGE, boto(416, "InvalidRange")),
    (Fault.FINAL, boto(400, "InvalidArgument")),
    (Fault.PASSING, botocore.exceptions.ReadTimeoutError(endpoint_url="u")),
    (Fault.PASSING, botocore.exceptions.EndpointConnectionError(endpoint_url="u")),
    (Fault.PASSING, botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2)),
    (Fault.PASSING, botocore.exceptions.ResponseStreamingError(error="e")),
    (Fault.BUSY, web(429)),
    (Fault.PASSING, web(502)),
    (Fault.PASSING, caused(FileNotFoundError("u"), web(500))),
    (Fault.GONE, caused(FileNotFoundError("u"), web(404))),
    (Fault.DENIED, caused(FileNotFoundError("u"), web(401))),
    (Fault.FINAL, web(405)),
    (Fault.FINAL, web(501)),
    (Fault.PASSING, aiohttp.ServerDisconnectedError()),
    (Fault.PASSING, aiohttp.ClientPayloadError("x")),
    (Fault.PASSING, aiohttp.ClientOSError(errno.ECONNRESET, "x")),
    (Fault.PASSING, caused(aiohttp.ClientPayloadError("x"), aiohttp.http_exceptions.ContentLengthError("x"))),
    (Fault.PASSING, aiohttp.ServerTimeoutError()),
    (Fault.PASSING, TimeoutError()),
    (Fault.PASSING, ConnectionResetError()),
    (Fault.PASSING, OSError(errno.ENETUNREACH, "x")),
    (Fault.PASSING, TruncatedError("x")),
    (Fault.PASSING, requests.exceptions.ChunkedEncodingError()),
    (Fault.PASSING, requests.exceptions.ReadTimeout()),
    (Fault.PASSING, requests.exceptions.ConnectionError()),
    (Fault.BUSY, HttpError({"code": 429, "message": "x"})),
    (Fault.PASSING, HttpError({"code": "502", "message": "x"})),
    (Fault.DENIED, HttpError({"code": 401, "message": "Invalid Credentials"})),
    (Fault.DENIED, OSError("Forbidden: https://b/o\nno")),
    (Fault.BUSY, OSError("Forbidden: https://b/o\nrateLimitExceeded")),
    (Fault.BUSY, of_azure(azure.HttpResponseError, 503, "ServerBusy")),
    (Fault.PASSING, of_azure(azure.HttpResponseError, 500, "OperationTimedOut")),
    (Fault.DENIED, of_azure(azure.ClientAuthenticationError, 403, "AuthenticationFailed")),
    (Fault.GONE, of_azure(azure.ResourceNotFoundError, 404, "BlobNotFound")),
    (Fault.RANGE, of_azure(azure.HttpResponseError, 416, "InvalidRange")),
    (Fault.PASSING, azure.ServiceRequestError("x")),
    (Fault.PASSING, azure.IncompleteReadError("x")),
    (Fault.FINAL, ValueError("x")),
    (Fault.FINAL, OSError(errno.EISDIR, "x")),
]


@pytest.mark.parametrize(("expected", "error"), CASES, ids=lambda case: repr(case)[:50])
def test_an_exception_means_what_its_client_says(expected: Fault, error: Exception) -> None:
    assert diagnose(error).fault is expected


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (web(503, Retry_After="7"), 7.0),
        (web(503, Retry_After="Wed, 21 Oct 2015 07:28:30 GMT", Date="Wed, 21 Oct 2015 07:28:00 GMT"), 30.0),
        (web(503, Retry_After="Wed, 21 Oct 2015 07:28:30 GMT"), None),
        (web(503, Retry_After="soon"), None),
        (web(503), None),
        (boto(503, "SlowDown", **{"retry-after": "3"}), 3.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_of_the_server_s_own_clock(error: Exception, seconds: float | None) -> None:
    assert diagnose(error).wait_s == seconds


@given(st.integers(1, 200), st.text(max_size=20), st.floats(0, 10), st.floats(0, 60))
def test_a_wait_doubles_with_bounded_jitter_and_ends_at_the_longest(
    failures: int, path: str, first: float, longest: float
) -> None:
    options = StoreOptions(first_wait_s=first, longest_wait_s=longest)
    full = min(longest, first * 2.0 ** min(failures - 1, 60))
    assert full * 0.5 <= wait_before(failures, path, options) <= full * 1.5
    assert wait_before(failures, path, options) == wait_before(failures, path, options)


def test_tries_are_counted_with_the_one_after_a_refresh() -> None:
    quick = StoreOptions(retries=2, first_wait_s=0, longest_wait_s=0)
    refreshed: list[int] = []
    errors = iter([ConnectionResetError(), PermissionError("no"), ConnectionResetError(), ConnectionResetError()])

    def attempt() -> None:
        raise next(errors)

    with pytest.raises(FailedError) as caught:
        retrying("p", attempt, quick, lambda: refreshed.append(1))
    assert (caught.value.tries, refreshed) == (4, [1])
