"""Pictures of a row: what stands under its key `images`, or another, as paths, data URIs, bytes or what data
sets make of these.

Called by the readers of rows. Looks at headers alone.
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
    """The row's pictures with their sizes, none where it has none, or what is wrong with the key. label: file
    and number of the row. folder: where the file is. Raises PictureError."""
    given = row.get(key)
    if given is None:
        return ()
    if not isinstance(given, list):
        return f"{key!r} is {show(given)}; must be a list of pictures"
    found: list[RowPicture] = []
    for number, item in enumerate(given):
        place = f"{key}[{number}]"
        content = _content(item)
        if content is None:
            return (
                f"{place} is {show(item)}; must be a path beside the file, a data URI, or a mapping with "
                "bytes or path"
            )
        picture = RowPicture(row=label, place=place, content=content, folder=folder)
        picture = _decoded(picture) if isinstance(content, str) else picture
        found.append(replace(picture, size=size_of(picture)))
    return tuple(found)


def _content(item: object) -> bytes | str | None:
    """Bytes, path or URI of an item; None where it is none of them."""
    if isinstance(item, Mapping):  # as the package datasets writes pictures
        item = item.get("path") if item.get("bytes") is None else item["bytes"]
    return item if isinstance(item, bytes | str) and item else None


def _decoded(picture: RowPicture) -> RowPicture:
    """The same with its bytes where it is a data URI. Raises PictureError."""
    assert isinstance(picture.content, str)
    kind, _, rest = picture.content.partition(":")
    if kind in ("http", "https", "file", "s3") and rest.startswith("//"):
        raise picture.fault("is a URL; save the picture beside the data's file, and name its path")
    if kind != "data":
        return picture
    head, _, body = rest.partition(",")
    if not head.endswith(";base64"):
        raise picture.fault("is a data URI without ';base64,'; only base64 is read")
    try:
        return replace(picture, content=base64.b64decode(body, validate=True))
    except (binascii.Error, ValueError) as error:
        raise picture.fault(f"is no base64: {error}; write the data URI again") from error
