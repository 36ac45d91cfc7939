"""Images as PNG, and back from PNG or JPEG, by Pillow.

An image has shape (height, width, channels) and one byte for each channel. Files are not trusted:
the size of an image is checked before its pixels are decoded.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from cpprb_like.datasets._files import need
from cpprb_like.datasets._model import Array

COLORS = {1: "L", 3: "RGB", 4: "RGBA"}
PNG_LEVEL = 3


def encoded(image: Array, format: str) -> bytes:  # noqa: A002 (the argument of users)
    """An image as PNG."""
    module = need("PIL.Image", format)
    out = io.BytesIO()
    plain = image[:, :, 0] if image.shape[2] == 1 else image
    module.fromarray(plain).save(out, "PNG", compress_level=PNG_LEVEL)
    return out.getvalue()


def decoded(
    files: Sequence[bytes | None],
    shape: tuple[int, ...],
    name: str,
    format: str,  # noqa: A002
    kinds: tuple[str, ...] = ("PNG", "JPEG"),
) -> Array:
    """The images of encoded files, all of this shape. ``kinds`` are the accepted file formats."""
    made = np.empty((len(files), *shape), np.uint8)
    for image, data in zip(made, files, strict=True):
        image[...] = _decoded(data, shape, name, format, kinds)
    return made


def _decoded(
    data: bytes | None,
    shape: tuple[int, ...],
    name: str,
    format: str,  # noqa: A002
    kinds: tuple[str, ...],
) -> Array:
    module = need("PIL.Image", format)
    try:
        with module.open(io.BytesIO(data or b""), formats=kinds) as image:  # reads the header alone
            size = image.size[1], image.size[0]
            if size != shape[:2]:
                raise ValueError(f"size {shape[:2]}, got {size}")
            if image.mode[0] in "IF":
                raise ValueError(f"expected 8 bits a channel, got {image.mode}")
            mode = COLORS.get((*shape, 1)[2])
            if mode is None:
                raise ValueError(f"expected 1, 3 or 4 channels, as of no image of shape {shape}")
            plain = image if image.mode == mode else image.convert(mode)
            return np.asarray(plain, np.uint8).reshape(shape)
    except (OSError, ValueError, SyntaxError, struct.error, zlib.error) as error:
        raise ValueError(f"{name}: expected an image: {error}") from None
    except module.DecompressionBombError as error:
        raise ValueError(f"{name}: {error}") from None
