"""Read a picture of a row safely, from a file in the data's folder or from bytes.

Called when rows are checked, which reads only headers, and when prompts are requested, which decodes
pixels. Any fault of a picture is a `PictureError`, including Pillow's many types of error.

A picture is a PNG, JPEG, WebP or GIF, whatever its name, and becomes 8-bit RGB. It is turned by its EXIF
orientation. Transparent parts are put over white, of 16 bits the upper 8 are used, and CMYK is converted
without its colour profile. Unreadable EXIF is ignored. Animations are refused. Of a JPEG with several
pictures (MPO, which phones write) the first one is used.
"""

import contextlib
import io
import os
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from xxhash import xxh3_128_hexdigest

from rljob_runtime.errors import PictureError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_BYTES = 64 * 2**20
MAX_PIXELS = 2**26
"""Limit of a decoded picture, before a processor scales it: 8192 × 8192, about 256 MB of memory."""
MAX_ASPECT = 200
"""Limit of longer side by shorter side, as in Qwen's processors."""
ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transpositions by EXIF's orientation; from 5 on, width and height are exchanged."""

Pixels = NDArray[np.uint8]
"""RGB values, [height, width, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPicture:
    """The source of a picture. row: file and number of its row. row_key: its key in the row, e.g.
    `images[0]`.

    content: the bytes of a file, or its path, which is relative to `folder` and stays within it. size:
    width and height, once its header was read. drawn: the bytes of the picture that a blank one replaces,
    which identify it; empty for others.
    """

    row: str
    row_key: str
    content: bytes | str
    folder: Path = Path()
    size: tuple[int, int] = (0, 0)
    drawn: bytes = b""

    @property
    def key(self) -> str:
        """Return what identifies the picture: the path of a file, or a hash of bytes."""
        if isinstance(self.content, bytes):
            return xxh3_128_hexdigest(self.drawn or self.content)
        return os.path.normpath(self.folder / self.content)

    @property
    def shown(self) -> str:
        """Return its name in messages."""
        has_bytes = isinstance(self.content, bytes)
        source = f"{len(self.content)} bytes" if has_bytes else repr(self.content)
        return f"{self.row_key} ({source if len(source) <= 80 else f'{source[:77]}...'})"

    def fault(self, reason: str) -> PictureError:
        """Return an error about this picture. reason: a clause, and the remedy."""
        fault = f"{self.shown} {reason}"
        return PictureError(f"{self.row}: {fault}", fault=fault)


def size_of(picture: RowPicture) -> tuple[int, int]:
    """Return width and height in pixels, as in `pixels_of`, from the header alone. Raises
    PictureError."""
    with _open_image(picture) as image:
        width, height = image.size
        return (height, width) if _orientation(image) >= 5 else (width, height)


def pixels_of(picture: RowPicture) -> Pixels:
    """Decode the picture and return its pixels. Raises PictureError."""
    with _open_image(picture) as image:
        turn = TURNS.get(_orientation(image))
        image.load()
        flat = _rgb(image)
        pixels = np.array(flat if turn is None else flat.transpose(turn))
    height, width, _ = pixels.shape
    if picture.size not in ((0, 0), (width, height)):
        earlier = "{} × {}".format(*picture.size)
        raise picture.fault(f"is {width} × {height}, and its header said {earlier}; it has changed")
    return pixels


@contextlib.contextmanager
def _open_image(picture: RowPicture) -> Iterator[Image.Image]:
    """Open the picture with its header read and its limits checked. Errors within the context become
    its PictureErrors."""
    try:
        with _stream(picture) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about unusual metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(stream, formats=FORMATS) as image:
                _check(picture, image)
                yield image
    except PictureError:
        raise
    except UnidentifiedImageError as error:
        raise picture.fault("is no PNG, JPEG, WebP or GIF, or its header is broken") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise picture.fault(_too_large(f"more than {Image.MAX_IMAGE_PIXELS}")) from error
    except Exception as error:  # the type of Pillow's error depends on the damage
        reason = f"cannot be decoded ({type(error).__name__}: {error}); make it again"
        raise picture.fault(reason) from error


def _stream(picture: RowPicture) -> BinaryIO:
    if isinstance(picture.content, bytes):
        _check_bytes(picture, len(picture.content))
        return io.BytesIO(picture.content)
    try:
        stream = _open(picture, picture.content)
    except FileNotFoundError as error:
        reason = f"is no file in {picture.folder}; paths start where the data's file is"
        raise picture.fault(reason) from error
    except (OSError, ValueError, RuntimeError) as error:  # a null byte; a loop of links
        raise picture.fault(f"cannot be opened: {error}") from error
    with contextlib.ExitStack() as closing:
        closing.enter_context(stream)
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise picture.fault("is no regular file")
        _check_bytes(picture, status.st_size)
        closing.pop_all()
    return stream


def _open(picture: RowPicture, path: str) -> BinaryIO:
    folder = picture.folder.resolve()
    file = (folder / path).resolve()
    if not file.is_relative_to(folder):
        raise picture.fault(f"lies outside {folder}, by its path or a link; copy it into there")
    safe_flags = os.O_NONBLOCK | os.O_NOFOLLOW  # a pipe without a writer; a link created since
    return open(file, "rb", opener=lambda name, flags: os.open(name, flags | safe_flags))


def _check_bytes(picture: RowPicture, size: int) -> None:
    if not size:
        raise picture.fault("is empty")
    if size > MAX_BYTES:
        raise picture.fault(f"has {size} bytes; at most {MAX_BYTES} are read: scale it down")


def _check(picture: RowPicture, image: Image.Image) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise picture.fault(f"is {width} × {height}: it has no pixels")
    if width * height > MAX_PIXELS:
        raise picture.fault(_too_large(f"{width} × {height}"))
    if max(width, height) > MAX_ASPECT * min(width, height):
        reason = f"is {width} × {height}; one side is at most {MAX_ASPECT} times the other: cut it"
        raise picture.fault(reason)
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise picture.fault("is an animation; save the frame that is meant as a picture")


def _too_large(pixels: str) -> str:
    return f"has {pixels} pixels; at most {MAX_PIXELS} are decoded: scale it down"


def _orientation(image: Image.Image) -> int:
    """Return EXIF's orientation, from 1 to 8, or 1 if there is none. Reads only what precedes the
    pixels."""
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif", b""))
        orientation = exif.get(ORIENTATION)
    except Exception:  # the type of Pillow's error depends on the damage
        return 1
    return orientation if orientation in TURNS else 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    over, white = image.convert("RGBA"), Image.new("RGB", image.size, "white")
    white.paste(over, mask=over)
    return white


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit grey to 8 bits; its transparent grey becomes white."""
    grey = np.asarray(image)
    upper = (grey.clip(0, 2**16 - 1) >> 8).astype(np.uint8)
    if (transparent := image.info.get("transparency")) is not None:
        upper[grey == transparent] = 255
    return Image.fromarray(upper)
