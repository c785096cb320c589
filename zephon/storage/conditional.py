"""Ranges of an object on the condition that it is the one that was listed: another one in its place is answered with 412.

`cat_file` of fsspec's file systems has no way to say so, and gives no headers, so these ask for themselves. Services and servers that
don't know the condition are found out by what they say of the object whose bytes they send: its tag, its generation, its time. Files of
Hugging Face lie at a commit, which doesn't change; of other file systems the version is asked for now and then
(`FsspecStore._check_version`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from zephon.storage.faults import ReplacedError

if TYPE_CHECKING:
    from zephon.storage.remote import Facts

Answer = tuple[bytes, bool]
"""The bytes, and whether they are known to be of the listed object."""


def conditional_range(scheme: str | None) -> Callable[..., Answer] | None:
    """A function `(fs, inner, start, stop, facts, deadline) -> Answer` for this scheme; None: there is no such request.

    It raises `ReplacedError` where the answer is of another object.
    """
    return _RANGES.get(scheme or "")


def _s3(fs: Any, inner: str, start: int, stop: int, known: Facts, deadline: Mapping[str, float]) -> Answer:
    from fsspec.asyn import sync  # noqa: PLC0415 - only remote stores need it

    bucket, key, version = fs.split_path(inner)
    more = {"VersionId": version} if version else {}

    async def get() -> Answer:
        answer = await fs._call_s3(
            "get_object",
            Bucket=bucket,
            Key=key,
            Range=f"bytes={start}-{stop - 1}",
            IfMatch=f'"{known.etag}"',
            **more,
            **fs.req_kw,
        )
        async with answer["Body"] as body:
            data = bytes(await body.read())
        _compare("tag", known.etag, str(answer.get("ETag", "")))
        return data, True

    return sync(fs.loop, get, **deadline) if known.etag else _plain(fs, inner, start, stop, deadline)


def _azure(fs: Any, inner: str, start: int, stop: int, known: Facts, deadline: Mapping[str, float]) -> Answer:
    from azure.core import MatchConditions  # noqa: PLC0415 - comes with adlfs
    from fsspec.asyn import sync  # noqa: PLC0415

    container, blob, version = fs.split_path(inner)

    async def get() -> Answer:
        async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
            answer = await client.download_blob(
                offset=start, length=stop - start, version_id=version, etag=f'"{known.etag}"',
                match_condition=MatchConditions.IfNotModified, max_concurrency=fs.max_concurrency, **fs._timeout_kwargs,
            )  # fmt: skip
            return bytes(await answer.readall()), True

    return sync(fs.loop, get, **deadline) if known.etag else _plain(fs, inner, start, stop, deadline)


def _google(fs: Any, inner: str, start: int, stop: int, known: Facts, deadline: Mapping[str, float]) -> Answer:
    from fsspec.asyn import sync  # noqa: PLC0415

    async def get() -> Answer:
        try:
            headers, data = await fs._call(
                "GET", fs.url(inner), headers={"Range": f"bytes={start}-{stop - 1}"}, ifGenerationMatch=known.generation
            )
        except FileExistsError as error:  # gcsfs's word for 412
            raise ReplacedError("it has another generation") from error
        return bytes(data), _compare("generation", known.generation, headers.get("x-goog-generation", ""))

    return sync(fs.loop, get, **deadline) if known.generation else _plain(fs, inner, start, stop, deadline)


def _web(fs: Any, inner: str, start: int, stop: int, known: Facts, deadline: Mapping[str, float]) -> Answer:
    from fsspec.asyn import sync  # noqa: PLC0415

    headers = {**fs.kwargs.get("headers", {}), "Range": f"bytes={start}-{stop - 1}"}
    if known.etag and not known.etag.startswith("W/"):  # a weak tag never matches
        headers["If-Match"] = f'"{known.etag}"'

    async def get() -> Answer:
        session = await fs.set_session()
        async with session.get(fs.encode_url(inner), **{**fs.kwargs, "headers": headers}) as answer:
            data = await answer.read()
            fs._raise_not_found_for_status(answer, inner)
        _compare("size", str(known.size), answer.headers.get("Content-Range", "").rpartition("/")[2].replace("*", ""))
        if known.etag:
            return data, _compare("tag", known.etag, answer.headers.get("ETag", ""))
        return data, _compare("time of change", known.version, answer.headers.get("Last-Modified", ""))

    made: Answer = sync(fs.loop, get, **deadline)
    return made


def _plain(fs: Any, inner: str, start: int, stop: int, deadline: Mapping[str, float]) -> Answer:
    return bytes(fs.cat_file(inner, start=start, end=stop, **deadline)), False


def _compare(what: str, listed: str, found: str) -> bool:
    """Whether the answer says what was listed; False: it doesn't say. Raises `ReplacedError` where it says something else."""
    was, now = (tag.removeprefix("W/").strip('"') for tag in (listed, found))
    if was and now and was != now:
        raise ReplacedError(f"its {what} was {was}, and is {now}")
    return bool(was and now)


_RANGES: Mapping[str, Callable[..., Answer]] = {
    **dict.fromkeys(("s3", "s3a"), _s3),
    **dict.fromkeys(("az", "abfs", "abfss"), _azure),
    **dict.fromkeys(("gs", "gcs"), _google),
    **dict.fromkeys(("http", "https"), _web),
}
