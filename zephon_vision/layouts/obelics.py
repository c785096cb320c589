"""OBELICS and OmniCorpus: web documents as parallel lists of images and texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zephon.errors import DataError
from zephon_vision.layouts._build import Builder
from zephon_vision.layouts.base import Kind, Layout, Row, texts_of


class Obelics(Layout):
    """`images` and `texts`, lists of one length; at each index one of the two is null. Where both are, an image is missing (it could not
    be downloaded). The text is taken as it stands, nothing is put between texts."""

    name: ClassVar[str] = "obelics"

    def claims(self, kinds: Mapping[str, Kind]) -> dict[str, str] | None:
        """`texts` as a list of strings, beside `images`."""
        if kinds.get("texts") in ("texts", "null") and kinds.get("images") in ("texts", "images", "null"):
            return {"texts": "texts", "mask": "images"}
        return None

    def write(self, row: Row, out: Builder) -> None:
        """Texts and images in turn, without roles."""
        texts = texts_of(row.fields["texts"], "texts")
        present: list[Any] = row.fields["mask"] or []
        if len(present) != len(texts):
            raise DataError(f"images and texts are not parallel: the row has {len(present)} images and {len(texts)} texts")
        images = row.images or ()
        for index, (text, has_image) in enumerate(zip(texts, present, strict=True)):
            if text is not None and has_image:
                raise DataError(f"images and texts overlap: both are there at index {index}")
            if text is None:
                out.image(images[index] if has_image and index < len(images) else out.missing())
            else:
                out.text(text)
