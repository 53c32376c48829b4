"""Read the pictures of a row: paths, data URIs, bytes, or what data sets make of these, under `images` or
another key.

Called by the readers of rows. Reads only headers.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.spec.messages import show
from rljob_runtime.task.pictures.picture import RowPicture, size_of


def pictures_of(
    row: Mapping[str, Any], *, key: str, label: str, folder: Path
) -> tuple[RowPicture, ...] | str:
    """Return the row's pictures with their sizes, or what is wrong with the key; without pictures, an
    empty tuple.

    label: file and number of the row. folder: that of the file. Raises PictureError.
    """
    items = row.get(key)
    if items is None:
        return ()
    if not isinstance(items, list):
        return f"{key!r} is {show(items)}; must be a list of pictures"
    pictures: list[RowPicture] = []
    for number, item in enumerate(items):
        row_key = f"{key}[{number}]"
        content = _content(item)
        if content is None:
            return (
                f"{row_key} is {show(item)}; must be a path beside the file, a data URI, or a mapping with "
                "bytes or path"
            )
        picture = RowPicture(row=label, row_key=row_key, content=content, folder=folder)
        picture = _decode_data_uri(picture) if isinstance(content, str) else picture
        pictures.append(replace(picture, size=size_of(picture)))
    return tuple(pictures)


def _content(item: object) -> bytes | str | None:
    """Return the bytes, path or URI of an item, or None if it is none of them."""
    if isinstance(item, Mapping):  # as the package datasets writes pictures
        item = item.get("path") if item.get("bytes") is None else item["bytes"]
    return item if isinstance(item, bytes | str) and item else None


def _decode_data_uri(picture: RowPicture) -> RowPicture:
    """Return the picture, with its bytes if it is a data URI. Raises PictureError."""
    assert isinstance(picture.content, str)
    kind, _, location = picture.content.partition(":")
    if kind in ("http", "https", "file", "s3") and location.startswith("//"):
        raise picture.fault("is a URL; save the picture beside the data's file, and name its path")
    if kind != "data":
        return picture
    head, _, body = location.partition(",")
    if not head.endswith(";base64"):
        raise picture.fault("is a data URI without ';base64,'; only base64 is read")
    try:
        return replace(picture, content=base64.b64decode(body, validate=True))
    except (binascii.Error, ValueError) as error:
        raise picture.fault(f"is no base64: {error}; write the data URI again") from error
