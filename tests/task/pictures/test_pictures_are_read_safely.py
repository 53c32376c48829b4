"""Every picture is read as the documented RGB, or refused by one kind of error that names row and picture."""

import io
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rljob_runtime.errors import PictureError
from rljob_runtime.task.pictures.picture import (
    MAX_BYTES,
    MAX_PIXELS,
    RowPicture,
    pixels_of,
    size_of,
)

ROW = "words.jsonl:3"


def of_bytes(content: bytes) -> RowPicture:
    return RowPicture(row=ROW, row_key="images[0]", content=content)


def of_file(folder: Path, name: str) -> RowPicture:
    return RowPicture(row=ROW, row_key="images[1]", content=name, folder=folder)


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(width: int, height: int, mode: str = "RGB", *, seed: int = 0) -> Image.Image:
    bands = 4 if mode.endswith("A") else 3
    drawn = np.random.default_rng(seed).integers(0, 256, (height, width, bands), dtype=np.uint8)
    return Image.fromarray(drawn).convert(mode)


def fault_of(picture: RowPicture) -> str:
    """What the header is refused for, or the pixels."""
    with pytest.raises(PictureError) as raised:
        size_of(picture)
        pixels_of(picture)
    assert str(raised.value).startswith(f"{ROW}: {picture.row_key} (")
    return str(raised.value)


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Grey of 8 bits, with whatever sizes its header shall tell."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_a_lossless_picture_keeps_its_pixels_and_tells_its_size_from_its_header(tmp_path):
    drawn = noise(7, 3)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "drawn.txt").write_bytes(saved(drawn, "WEBP", lossless=True))

    for picture in (of_bytes(saved(drawn)), of_file(tmp_path, "inner/drawn.txt")):
        assert size_of(picture) == (7, 3)
        assert np.array_equal(pixels_of(picture), np.asarray(drawn))


@pytest.mark.parametrize("mode", ["1", "L", "P"])
@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_grey_and_palettes_become_rgb(mode, kind):
    drawn = noise(8, 8, mode)

    assert np.array_equal(pixels_of(of_bytes(saved(drawn, kind))), np.asarray(drawn.convert("RGB")))


def test_transparent_parts_are_white():
    red = Image.new("RGBA", (1, 4))
    red.putdata([(255, 0, 0, alpha) for alpha in (0, 51, 204, 255)])
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 9, 9, 9])
    palette.putdata([0, 1])

    shown = pixels_of(of_bytes(saved(red)))
    of_palette = pixels_of(of_bytes(saved(palette, transparency=0)))
    of_grey = pixels_of(of_bytes(saved(Image.new("LA", (1, 1), (0, 0)))))

    assert shown[:, 0].tolist() == [[255, 255, 255], [255, 204, 204], [255, 51, 51], [255, 0, 0]]
    assert of_palette[0].tolist() == [[255, 255, 255], [9, 9, 9]]
    assert of_grey.tolist() == [[[255, 255, 255]]]


def test_of_sixteen_bits_the_upper_eight_are_kept():
    deep = Image.fromarray(np.array([[0, 255, 256, 0x8000, 0xFFFF]], dtype=np.uint16))

    assert pixels_of(of_bytes(saved(deep)))[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    shown = pixels_of(of_bytes(saved(deep, transparency=256)))
    assert shown[0, :, 0].tolist() == [0, 0, 255, 128, 255]


def test_cmyk_becomes_rgb_by_its_inks():
    inks = Image.new("CMYK", (16, 16), (255, 0, 0, 0))

    shown = pixels_of(of_bytes(saved(inks, "JPEG", quality=100)))

    assert np.abs(shown[8, 8].astype(int) - [0, 255, 255]).max() <= 2


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_picture_is_turned_as_its_camera_was_held(turn):
    upright = noise(6, 4)
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    held = upright.transpose(undo[turn]) if turn in undo else upright
    exif = Image.Exif()
    exif[0x0112] = turn

    for kind in ("PNG", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        picture = of_bytes(saved(held, kind, exif=exif, **options))
        assert size_of(picture) == (6, 4)
        assert np.array_equal(pixels_of(picture), np.asarray(upright))


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0broken", b"Exif\0\0MM\0\x2a\xff\xff\xff\xff", b"\xff" * 9]
)
def test_exif_that_cannot_be_read_is_passed_over(exif):
    assert size_of(of_bytes(saved(noise(6, 4), "JPEG", exif=exif))) == (6, 4)


def test_of_a_phones_picture_with_a_second_one_behind_it_the_first_is_taken():
    second = Image.new("RGB", (8, 8), "black")
    white = saved(Image.new("RGB", (8, 8), "white"), "MPO", save_all=True, append_images=[second])

    assert pixels_of(of_bytes(white)).min() == 255


def test_one_pixel_is_a_picture():
    assert pixels_of(of_bytes(saved(Image.new("RGB", (1, 1), (1, 2, 3))))).tolist() == [[[1, 2, 3]]]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_an_animation_is_refused_and_one_frame_is_not(kind):
    frames = [noise(8, 8, seed=seed) for seed in range(3)]

    moving = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    still = saved(frames[0], kind, save_all=True)

    assert "is an animation; save the frame" in fault_of(of_bytes(moving))
    assert size_of(of_bytes(still)) == (8, 8)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ((1, 1000), "is 1 × 1000; one side is at most 200 times the other"),
        ((201, 1), "is 201 × 1; one side"),
        ((8193, 8193), "has 8193 × 8193 pixels; at most 67108864 are decoded"),
        ((2**31 - 1, 2**31 - 1), "pixels; at most 67108864 are decoded"),
        ((0, 5), ""),
    ],
)
def test_what_a_header_claims_is_refused_before_a_pixel_is_decoded(size, said):
    assert said in fault_of(of_bytes(png(*size)))


def test_sides_of_one_to_two_hundred_are_a_picture():
    assert size_of(of_bytes(saved(noise(200, 1)))) == (200, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no PNG, JPEG, WebP or GIF"),
        (saved(noise(4, 4), "TIFF"), "is no PNG, JPEG, WebP or GIF"),
        (saved(noise(4, 4), "BMP"), "is no PNG, JPEG, WebP or GIF"),
        (b"\0" * (MAX_BYTES + 1), f"has {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are read"),
        (png(100, 100, b"\0" * 50), "cannot be decoded"),
    ],
)
def test_what_is_no_picture_is_refused(content, said):
    assert said in fault_of(of_bytes(content))


def test_a_file_is_found_in_its_folder_alone(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(saved(noise(4, 4)))
    (folder / "own.png").write_bytes(saved(noise(5, 4)))
    (folder / "link.png").symlink_to("own.png")
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "loop.png").symlink_to("loop.png")
    os.mkfifo(folder / "pipe.png")

    assert size_of(of_file(folder, "link.png")) == (5, 4)
    assert size_of(of_file(folder, str(folder / "own.png"))) == (5, 4)
    for name in ("../secret.png", str(tmp_path / "secret.png"), "out.png"):
        assert "lies outside" in fault_of(of_file(folder, name))
    assert "is no file in" in fault_of(of_file(folder, "missing.png"))
    for name in (".", "pipe.png", "/dev/zero"):
        assert fault_of(of_file(folder, name))
    for name in ("loop.png", "null\0byte.png", "x" * 5000):
        assert "cannot be opened" in fault_of(of_file(folder, name))


def test_a_large_file_is_refused_unread(tmp_path):
    with open(tmp_path / "large.png", "wb") as file:
        file.truncate(2**40)

    assert "has 1099511627776 bytes" in fault_of(of_file(tmp_path, "large.png"))


def test_the_error_goes_from_process_to_process_whole():
    with pytest.raises(PictureError) as raised:
        size_of(of_bytes(b""))

    copy = pickle.loads(pickle.dumps(raised.value))

    assert (str(copy), copy.fault) == (str(raised.value), raised.value.fault)
    assert copy.fault == "images[0] (0 bytes) is empty"


def test_pictures_are_told_apart_by_path_or_by_bytes(tmp_path):
    one, other = saved(noise(4, 4)), saved(noise(4, 4, seed=1))

    assert of_bytes(one).key == of_bytes(bytes(one)).key != of_bytes(other).key
    assert of_file(tmp_path, "a.png").key == of_file(tmp_path, "./b/../a.png").key
    assert of_file(tmp_path, "a.png").key != of_file(tmp_path / "b", "a.png").key


KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("RGB", "PNG", {}), ("RGBA", "PNG", {}), ("P", "PNG", {"transparency": 3}), ("LA", "PNG", {}),
    ("RGB", "JPEG", {}), ("CMYK", "JPEG", {}), ("L", "JPEG", {"progressive": True}),
    ("RGB", "WEBP", {}), ("RGBA", "WEBP", {"lossless": True}), ("P", "GIF", {"transparency": 1}),
]  # fmt: skip
PICTURES = [
    saved(noise(13, 9, mode), kind, **options)
    for mode, kind, options in KINDS
] + [
    saved(Image.fromarray(np.arange(117, dtype=np.uint16).reshape(9, 13) * 500)),
    saved(noise(13, 9), "GIF", save_all=True, append_images=[noise(13, 9, seed=1)]),
]  # fmt: skip


@settings(max_examples=400)
@given(picture=st.sampled_from(PICTURES[:-1]), share=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_an_error_or_lacks_nothing_of_the_picture(picture, share):
    cut = of_bytes(picture[: int(share * len(picture))])

    try:
        shown = pixels_of(cut)
    except PictureError:
        return

    assert np.array_equal(shown, pixels_of(of_bytes(picture)))


@settings(max_examples=600)
@given(picture=st.sampled_from(PICTURES), data=st.data())
def test_whatever_bytes_a_file_has_it_is_a_picture_within_limits_or_the_error(picture, data):
    mangled = bytearray(picture)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(mangled) - 1))
        mangled[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        mangled = mangled or bytearray(b"x")

    try:
        width, height = size_of(of_bytes(bytes(mangled)))
        shown = pixels_of(of_bytes(bytes(mangled)))
    except PictureError:
        return

    assert shown.shape == (height, width, 3) and shown.dtype == np.uint8
    assert 0 < width * height <= MAX_PIXELS
