"""Ranges of an object on the condition that it is the one that was listed: another one in its place is answered with 412.

`cat_file` of s3fs and adlfs has no way to say so. Google's and Hugging Face's clients have none at all: objects of the first are asked
for their version now and then (`FsspecStore._check_version`), files of the second lie at a commit, which doesn't change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SURE = ("s3", "s3a", "az", "abfs", "abfss")
"""Schemes whose services keep to the condition always. Of web servers, many don't."""


def conditional_range(scheme: str | None) -> Callable[..., bytes] | None:
    """A function `(fs, inner, start, stop, etag, deadline) -> bytes` for this scheme; None: there is no such request."""
    return _RANGES.get(scheme or "")


def _s3(fs: Any, inner: str, start: int, stop: int, etag: str, deadline: Mapping[str, float]) -> bytes:
    from fsspec.asyn import sync  # noqa: PLC0415 - only remote stores need it

    bucket, key, version = fs.split_path(inner)
    more = {"VersionId": version} if version else {}

    async def get() -> bytes:
        answer = await fs._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", IfMatch=f'"{etag}"', **more, **fs.req_kw
        )
        async with answer["Body"] as body:
            return bytes(await body.read())

    return bytes(sync(fs.loop, get, **deadline))


def _azure(fs: Any, inner: str, start: int, stop: int, etag: str, deadline: Mapping[str, float]) -> bytes:
    from azure.core import MatchConditions  # noqa: PLC0415 - comes with adlfs
    from fsspec.asyn import sync  # noqa: PLC0415

    container, blob, version = fs.split_path(inner)

    async def get() -> bytes:
        async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
            answer = await client.download_blob(
                offset=start, length=stop - start, version_id=version, etag=f'"{etag}"',
                match_condition=MatchConditions.IfNotModified, max_concurrency=fs.max_concurrency, **fs._timeout_kwargs,
            )  # fmt: skip
            return bytes(await answer.readall())

    return bytes(sync(fs.loop, get, **deadline))


def _http(fs: Any, inner: str, start: int, stop: int, etag: str, deadline: Mapping[str, float]) -> bytes:
    plain = {"start": start, "end": stop, **deadline}
    if etag.startswith("W/"):  # a weak tag never matches
        return bytes(fs.cat_file(inner, **plain))
    headers = {**fs.kwargs.get("headers", {}), "If-Match": f'"{etag}"'}
    return bytes(fs.cat_file(inner, headers=headers, **plain))


_RANGES: Mapping[str, Callable[..., bytes]] = {
    **dict.fromkeys(("s3", "s3a"), _s3),
    **dict.fromkeys(("az", "abfs", "abfss"), _azure),
    **dict.fromkeys(("http", "https"), _http),
}
