"""Which images browsers are given: told by their own bytes, before anybody decodes them."""

import io
import struct

import pytest
from tests.dashboard.made_traces import png

from hud_dashboard.trace.image_headers import ImageRefusedError, raster


def drawn(form, **options):
    """An image file as Pillow writes it."""
    pictures = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pictures.new("RGB", (30, 20), "teal").save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("form", "options", "media_type"),
    [
        ("PNG", {}, "image/png"),
        ("JPEG", {}, "image/jpeg"),
        ("JPEG", {"progressive": True}, "image/jpeg"),
        ("GIF", {}, "image/gif"),
        ("WEBP", {}, "image/webp"),
        ("WEBP", {"lossless": True}, "image/webp"),
    ],
)
def test_the_kinds_that_browsers_draw_are_known_with_their_sizes(form, options, media_type):
    found = raster(drawn(form, **options))
    assert (found.media_type, found.width, found.height, found.pictures) == (media_type, 30, 20, 1)


def test_moving_images_count_all_their_pictures():
    pictures = pytest.importorskip("PIL.Image")
    frames = [pictures.new("RGB", (30, 20), (shade, 0, 0)) for shade in (0, 90, 200)]
    for form in ("GIF", "PNG", "WEBP"):
        file = io.BytesIO()
        frames[0].save(file, form, save_all=True, append_images=frames[1:], duration=50)
        assert raster(file.getvalue()).pictures == 3, form


def test_many_large_pictures_in_one_image_are_refused():
    head = b"GIF89a" + struct.pack("<HH", 5000, 5000) + b"\0\0\0"
    assert raster(head + b"\x21\xf9\x04" * 10).pictures == 10
    with pytest.raises(ImageRefusedError, match="too much to show"):
        raster(head + b"\x21\xf9\x04" * 1000)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_image_that_is_cut_off_anywhere_is_refused_or_read_but_breaks_nothing(form):
    whole = drawn(form)
    for length in range(min(64, len(whole))):
        try:
            raster(whole[:length])
        except ImageRefusedError:
            continue


def test_screens_of_8k_are_shown_and_what_is_far_larger_is_not():
    assert raster(png(declared=(7680, 4320))).width == 7680
    with pytest.raises(ImageRefusedError, match="60,000 × 60,000 pixels"):
        raster(png(declared=(60_000, 60_000)))
