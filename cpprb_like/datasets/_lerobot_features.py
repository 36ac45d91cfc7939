"""The features of LeRobot: which column a field is, numbers in lists, and images as PNG.

Not here: files (``_lerobot``), and PNG (``_images``).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import converted, is_native, is_plain, need
from cpprb_like.datasets._images import COLORS, decoded, encoded
from cpprb_like.datasets._model import Array, Field, Header, Place

__all__ = [
    "DEFAULTS",
    "DONE",
    "NAME",
    "OBSERVATION",
    "ROLES",
    "TERMINATED",
    "TRUNCATED",
    "Feature",
    "Statistics",
    "feature_of",
    "features_of",
    "is_held",
]

NAME = "lerobot"
DEFAULTS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
REWARD, DONE = "next.reward", "next.done"
TERMINATED, TRUNCATED = "next.terminated", "next.truncated"
OBSERVATION = "observation"
ROLES = {
    OBSERVATION: "obs",
    "action": "act",
    REWARD: "rew",
    DONE: "done",
    TERMINATED: "terminated",
    TRUNCATED: "truncated",
}
TAKEN = {*DEFAULTS, "task"}
MOST_AXES = 5  # of LeRobot's arrays
PIECE = 1 << 18  # numbers that are float64 at a time


class Feature(NamedTuple):
    """A column of LeRobot, and the field that it is in a buffer."""

    column: str
    field: Field
    is_image: bool = False

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, channels = (*self.field.shape, 1)[:3]
        return height, width, channels

    @property
    def numbers(self) -> Field:
        """What the lists hold: a single number is a list of one."""
        return Field(self.column, self.field.dtype, self.field.shape or (1,))

    def to_json(self) -> dict[str, Any]:
        """What ``info.json`` says of it."""
        if self.is_image:
            names = ["height", "width", "channels"]
            return {"dtype": "image", "shape": list(self.image_shape), "names": names}
        numbers = self.numbers
        return {"dtype": str(numbers.dtype), "shape": list(numbers.shape), "names": None}

    # ------------------------------------------------------------------ values

    def to_arrow(self, values: Array) -> Any:
        """Values of shape (n, ...) as an array of Arrow."""
        pa = need("pyarrow", NAME)
        if self.is_image:
            data = pa.array([encoded(image, NAME) for image in self._images(values)], pa.binary())
            paths = pa.nulls(len(values), pa.string())
            return pa.StructArray.from_arrays([data, paths], names=["bytes", "path"])
        shape = self.numbers.shape
        made = pa.array(np.ascontiguousarray(values).reshape(-1))
        if shape == (1,):
            return made
        if len(shape) == 1:
            return pa.FixedSizeListArray.from_arrays(made, shape[0])
        for length in reversed(shape):
            offsets = np.arange(0, len(made) + 1, length, dtype=np.int32)
            made = pa.ListArray.from_arrays(pa.array(offsets), made)
        return made

    def from_arrow(self, found: Any) -> Array:
        """The values of an array of Arrow; ``ValueError`` if they are others."""
        pa = need("pyarrow", NAME)
        if isinstance(found, pa.ExtensionArray):
            found = found.storage
        n, field, numbers = len(found), self.field, self.numbers
        if self.is_image:
            return self._from_images(found)
        values, shape = _arrow.flat(found, self.column)
        fits = np.can_cast(values.dtype, numbers.dtype, "same_kind")
        if math.prod(shape) != math.prod(numbers.shape) or not fits:
            raise ValueError(
                f"{self.column}: expected {numbers.dtype} of shape {numbers.shape}, "
                f"got {values.dtype} of shape {shape}"
            )
        if values.dtype != field.dtype:
            values = converted(values, numbers.dtype, self.column)
        whole: Array = np.ascontiguousarray(values).reshape(n, *field.shape)
        return whole

    def _images(self, values: Array) -> Array:
        """Values as images, with an axis of channels."""
        return values.reshape(len(values), *self.image_shape)

    def _from_images(self, found: Any) -> Array:
        data = _arrow.part(found, ("bytes",), self.column)
        images = [decoded(value.as_py(), self.image_shape, self.column, NAME) for value in data]
        return np.stack(images) if images else np.zeros((0, *self.image_shape), np.uint8)

    def samples(self, values: Array) -> Array:
        """What statistics are of: numbers, or the channels of each pixel."""
        if self.is_image:
            return self._images(values).reshape(-1, self.image_shape[2])
        return values.reshape(len(values), *self.numbers.shape)


# ---------------------------------------------------------------------- fields as features


def _is_image(field: Field) -> bool:
    """Whether values are images: uint8 of shape (height, width), or with 1 or 3 channels."""
    is_colors = len(field.shape) == 2 or (len(field.shape) == 3 and field.shape[2] in (1, 3))
    return field.dtype == np.uint8 and is_colors and all(field.shape)


def features_of(header: Header) -> dict[str, Feature]:
    """The feature of each field, but for next observations of the row after, and flags of ends."""
    made: dict[str, Feature] = {}
    taken: set[str] = set()
    for name, path in header.places(ROLES, TAKEN).items():
        column = ".".join(path)
        if name in header.observations:
            is_image = _is_image(header[name])
            column = ".".join((OBSERVATION, *_observation(path[1:], is_image=is_image)))
            while column in taken:
                column += "_"
            taken.add(column)
        field = header.stored(name)
        made[name] = Feature(column, field, name not in header.actions and _is_image(field))
    return made


def is_held(field: Field) -> bool:
    """Whether LeRobot has such values: neither uint64 nor more than five axes."""
    return is_plain(field) and field.dtype != np.uint64 and len(field.shape) <= MOST_AXES


def _observation(path: Place, *, is_image: bool) -> Place:
    """How LeRobot names an observation: ``state``, ``image``, or ``images.top``."""
    parts = path
    if not parts:
        return ("image",) if is_image else ("state",)
    return ("images", *parts) if is_image and parts[0] not in ("image", "images") else parts


# ---------------------------------------------------------------------- features as fields


def feature_of(column: str, name: str, found: Any) -> Feature | None:
    """A feature as ``info.json`` tells it; None if a buffer cannot hold such values."""
    if not isinstance(found, dict):
        raise ValueError(f"{column}: expected features as JSON objects, got {found!r}")
    kind, shape = found.get("dtype"), found.get("shape")
    if not isinstance(kind, str) or not isinstance(shape, list) or len(shape) > MOST_AXES:
        raise ValueError(f"{column}: expected a feature with dtype and shape, got {found!r}")
    if not all(type(length) is int and 0 <= length < 1 << 40 for length in shape):
        raise ValueError(f"{column}: expected a shape, got {shape!r}")
    if kind == "image":
        names = found.get("names")
        if len(shape) != 3:
            raise ValueError(f"{column}: expected height, width and channels, got {shape}")
        is_first = (
            str(names[0]).startswith("channel")
            if isinstance(names, list) and names
            else (shape[2] not in COLORS)
        )
        lengths = (*shape[1:], shape[0]) if is_first else tuple(shape)
        if lengths[2] not in COLORS:
            raise ValueError(f"{column}: expected 1, 3 or 4 channels, got {shape}")
        return Feature(column, Field(name, np.dtype(np.uint8), lengths), is_image=True)
    try:
        dtype = np.dtype(kind)
    except (TypeError, ValueError, SyntaxError):
        return None
    if not is_native(dtype):
        return None
    return Feature(column, Field(name, dtype, () if shape == [1] else tuple(shape)))


# ---------------------------------------------------------------------- statistics


class Statistics:
    """Least, greatest, mean and deviation of samples that come in pieces (Chan et al., 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self._least: Any = np.inf
        self._greatest: Any = -np.inf
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, samples: Array) -> None:
        """Samples of shape (n, ...)."""
        step = max(1, PIECE // max(1, samples[:1].size))
        for start in range(0, len(samples), step):
            piece = samples[start : start + step].astype(np.float64)
            with np.errstate(all="ignore"):
                self._merge(piece)

    def _merge(self, piece: Array) -> None:
        n, mean = self.count + len(piece), piece.mean(axis=0)
        away = mean - self._mean
        self._least = np.minimum(self._least, piece.min(axis=0))
        self._greatest = np.maximum(self._greatest, piece.max(axis=0))
        self._mean = self._mean + away * (len(piece) / n)
        between = np.square(away) * (self.count * len(piece) / n)
        self._squares = self._squares + np.square(piece - mean).sum(axis=0) + between
        self.count = n

    def to_json(self, feature: Feature) -> dict[str, list[Any]]:
        """As LeRobot has them: of images by channel, of values from 0 to 1."""
        count, scale, shape = self.count, 1.0, np.shape(self._mean) or (1,)
        if feature.is_image:
            height, width, channels = feature.image_shape
            count, scale, shape = count // (height * width), 255.0, (channels, 1, 1)
        with np.errstate(all="ignore"):
            found = {
                "min": self._least,
                "max": self._greatest,
                "mean": self._mean,
                "std": np.sqrt(self._squares / max(1, self.count)),
            }
            made = {name: np.reshape(one / scale, shape).tolist() for name, one in found.items()}
        return {**made, "count": [count]}
