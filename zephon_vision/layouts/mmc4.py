"""MMC4: sentences, and images that belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zephon.errors import DataError
from zephon_vision.layouts._build import Builder
from zephon_vision.layouts.base import Kind, Layout, Row, texts_of


class Mmc4(Layout):
    """`text_list`, and `image_info`: a list with `matched_text_index`. Each image goes before the sentence that it matches, as
    OpenFlamingo has it; several may go before one. Sentences are joined with a space.

    The pictures are those of the image column, parallel to `image_info`, if there is one; else `image_name` under the media root.
    """

    name: ClassVar[str] = "mmc4"

    def claims(self, kinds: Mapping[str, Kind]) -> dict[str, str] | None:
        """`text_list` and `image_info`."""
        if "text_list" in kinds and "image_info" in kinds:
            return {"text_list": "text_list", "image_info": "image_info"}
        return None

    def write(self, row: Row, out: Builder) -> None:
        """Sentences and images in turn, without roles."""
        sentences = texts_of(row.fields["text_list"], "text_list")
        infos = row.fields["image_info"] or []
        if row.images is not None and len(row.images) != len(infos):
            raise DataError(f"images don't match image_info: the row has {len(row.images)} images and {len(infos)} infos")
        before: dict[int, list[int]] = {}
        for number, info in enumerate(infos):
            place = info.get("matched_text_index") if isinstance(info, Mapping) else None
            if not isinstance(place, int) or not 0 <= place < len(sentences):
                raise DataError(f"an image matches no text: matched_text_index is {place!r} of {len(sentences)} texts")
            before.setdefault(place, []).append(row.images[number] if row.images is not None else _named(info, out))
        last = len(sentences) - 1
        for place, sentence in enumerate(sentences):
            for image in before.get(place, ()):
                out.image(image)
            if sentence is not None:
                out.text(sentence if place == last else sentence + " ")


def _named(info: Mapping[str, Any], out: Builder) -> int:
    given = info.get("image_name")
    return out.inline(given if given is not None else info.get("raw_url"))
