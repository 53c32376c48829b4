"""A picture of a row, read safely: a file beside the data, or bytes.

Called where rows are checked, which looks at headers alone, and where prompts are asked, which decodes
pixels. Whatever is wrong with a picture is a `PictureError`, of Pillow's many types of error too.

A picture is a PNG, JPEG, WebP or GIF, whatever its name says, and becomes 8-bit RGB: turned as its EXIF
says, transparent parts over white, of 16 bits the upper 8, CMYK without its colour profile. EXIF that
cannot be read is passed over. Animations are refused, and of a JPEG with several pictures (MPO, which
phones write) the first is taken.
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
"""Of what is decoded, before a processor scales it; 8192 × 8192, about 256 MB of memory."""
MAX_ASPECT = 200
"""Longer side by shorter side: the limit of Qwen's processors."""
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
"""By EXIF's orientation; from 5 on, width and height change places."""

Pixels = NDArray[np.uint8]
"""RGB, [height, width, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPicture:
    """Where a picture is found. row: file and number of its row. place: its key
    in the row, e.g. `images[0]`. content: the bytes of a file, or its path, which starts at `folder` and
    does not leave it. size: width and height, once its header was read. drawn: what a
    blank picture is shown in place of, by which it is told apart; empty for others."""

    row: str
    place: str
    content: bytes | str
    folder: Path = Path()
    size: tuple[int, int] = (0, 0)
    drawn: bytes = b""

    @property
    def key(self) -> str:
        """Tells pictures apart: a file by its path, bytes by what they are."""
        if isinstance(self.content, bytes):
            return xxh3_128_hexdigest(self.drawn or self.content)
        return os.path.normpath(self.folder / self.content)

    @property
    def shown(self) -> str:
        """Its name in messages."""
        of_bytes = isinstance(self.content, bytes)
        what = f"{len(self.content)} bytes" if of_bytes else repr(self.content)
        return f"{self.place} ({what if len(what) <= 80 else f'{what[:77]}...'})"

    def fault(self, what: str) -> PictureError:
        """The error of this picture. what: a clause, and the remedy."""
        fault = f"{self.shown} {what}"
        return PictureError(f"{self.row}: {fault}", fault=fault)


def size_of(picture: RowPicture) -> tuple[int, int]:
    """Width and height in pixels, as `pixels_of` gives them, from the header alone. Raises PictureError."""
    with _opened(picture) as image:
        width, height = image.size
        return (height, width) if _orientation(image) >= 5 else (width, height)


def pixels_of(picture: RowPicture) -> Pixels:
    """The decoded picture. Raises PictureError."""
    with _opened(picture) as image:
        turn = TURNS.get(_orientation(image))
        image.load()
        flat = _rgb(image)
        pixels = np.array(flat if turn is None else flat.transpose(turn))
    height, width, _ = pixels.shape
    if picture.size not in ((0, 0), (width, height)):
        was = "{} × {}".format(*picture.size)
        raise picture.fault(f"is {width} × {height}, and its header said {was}; it has changed")
    return pixels


@contextlib.contextmanager
def _opened(picture: RowPicture) -> Iterator[Image.Image]:
    """The picture with its header read and its limits checked; errors within are its errors."""
    try:
        with _stream(picture) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's about odd metadata
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
    except Exception as error:  # Pillow raises of any type, by what is spoiled
        what = f"cannot be decoded ({type(error).__name__}: {error}); make it again"
        raise picture.fault(what) from error


def _stream(picture: RowPicture) -> BinaryIO:
    if isinstance(picture.content, bytes):
        _check_bytes(picture, len(picture.content))
        return io.BytesIO(picture.content)
    try:
        stream = _open(picture, picture.content)
    except FileNotFoundError as error:
        what = f"is no file in {picture.folder}; paths start where the data's file is"
        raise picture.fault(what) from error
    except (OSError, ValueError, RuntimeError) as error:  # a null byte; a loop of links
        raise picture.fault(f"cannot be opened: {error}") from error
    with contextlib.ExitStack() as closing:
        closing.enter_context(stream)
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise picture.fault("is no regular file")
        _check_bytes(picture, found.st_size)
        closing.pop_all()
    return stream


def _open(picture: RowPicture, path: str) -> BinaryIO:
    folder = picture.folder.resolve()
    file = (folder / path).resolve()
    if not file.is_relative_to(folder):
        raise picture.fault(f"lies outside {folder}, by its path or a link; copy it into there")
    quickly = os.O_NONBLOCK | os.O_NOFOLLOW  # a pipe without a writer; a link that came since
    return open(file, "rb", opener=lambda name, flags: os.open(name, flags | quickly))


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
        what = f"is {width} × {height}; one side is at most {MAX_ASPECT} times the other: cut it"
        raise picture.fault(what)
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise picture.fault("is an animation; save the frame that is meant as a picture")


def _too_large(pixels: str) -> str:
    return f"has {pixels} pixels; at most {MAX_PIXELS} are decoded: scale it down"


def _orientation(image: Image.Image) -> int:
    """EXIF's, from 1 to 8; 1 where there is none. Looks at what stands before the pixels."""
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif", b""))
        found = exif.get(ORIENTATION)
    except Exception:  # Pillow raises of any type, by what is spoiled
        return 1
    return found if found in TURNS else 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    over, white = image.convert("RGBA"), Image.new("RGB", image.size, "white")
    white.paste(over, mask=over)
    return white


def _eight_bits(image: Image.Image) -> Image.Image:
    """Of 16-bit grey; its transparent grey becomes white."""
    grey = np.asarray(image)
    upper = (grey.clip(0, 2**16 - 1) >> 8).astype(np.uint8)
    if (transparent := image.info.get("transparency")) is not None:
        upper[grey == transparent] = 255
    return Image.fromarray(upper)
