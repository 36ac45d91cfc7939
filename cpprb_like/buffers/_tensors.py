"""Batches as tensors: ``to=`` and ``device=`` of ``batches`` and ``epoch``.

On the CPU tensors share memory with the fresh arrays of the batch. Copies to a CUDA device go
through pinned memory. PyTorch and JAX are imported on first use.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.narrow_dtypes import name_of
from cpprb_like._machine.forks import INNERMOST, watch

ToName: TypeAlias = Literal["numpy", "torch", "jax"]
To: TypeAlias = ToName | Callable[[dict[str, NDArray[Any]]], Any]

NAMES = ("numpy", "torch", "jax")
PACKAGES = {"torch": "PyTorch", "jax": "JAX"}
WIDE = 8  # bytes of numbers that JAX supports only with jax_enable_x64
ALIGNMENT = 64  # bytes, of columns in a block of the device
STAYS = np.ndarray, np.generic  # types of columns that no library takes
LARGE = 2**18  # bytes of a batch that takes longer to copy than a draw into given arrays to prepare

_registering = threading.RLock()
watch(_registering, INNERMOST)  # no other lock is taken under it


class TensorBatch(dict[str, Any]):
    """Batch whose columns are attributes too, such as of ``batches(to="torch")``.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}}, seed=0)
    >>> rb.add(rew=[1, 2, 3])
    0
    >>> batch = next(rb.batches(2, to="numpy"))
    >>> batch.rew is batch["rew"]
    True
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"{name!r}: expected one of the columns {', '.join(self)}"
            ) from None

    def to(self, device: Any, **options: Any) -> TensorBatch:
        """The batch with its tensors on another device.

        Parameters
        ----------
        device : object
            Device for the method ``to`` of the tensors, or ``to_device`` of JAX arrays.
        **options : object
            Further arguments of that method, such as ``non_blocking``.

        Returns
        -------
        TensorBatch
            A new batch. It shares the columns that are NumPy arrays or numbers.
        """
        return type(self)(
            (name, value if isinstance(value, STAYS) else self._move(value, device, options))
            for name, value in self.items()
        )

    def _move(self, value: Any, device: Any, options: dict[str, Any]) -> Any:
        """A tensor on another device."""
        return value.to(device, **options)


class JaxBatch(TensorBatch):
    """A batch of arrays of JAX, which move between devices by ``to_device``."""

    __slots__ = ()

    def _move(self, value: Any, device: Any, options: dict[str, Any]) -> Any:
        return value.to_device(device, **options)


class Conversion:
    """Conversion of a batch in two steps: in the thread that draws, and in the learner's thread."""

    def room(self) -> dict[str, NDArray[Any]] | None:
        """Arrays into which the next batch is drawn; None for new arrays."""
        return None

    def make(self, batch: Mapping[str, NDArray[Any]]) -> Any:
        """Convert a batch in the thread that draws it."""
        raise NotImplementedError

    def hand_out(self, made: Any) -> Any:
        """Finish the conversion in the thread of the learner."""
        return made


class Columns(Conversion):
    """Converts each column by a function; with None, columns stay arrays."""

    def __init__(self, convert: Callable[[NDArray[Any]], Any] | None) -> None:
        self._convert = convert

    def make(self, batch: Mapping[str, NDArray[Any]]) -> TensorBatch:
        """A batch of the converted columns."""
        convert = self._convert
        if convert is None:
            return TensorBatch(batch)
        return TensorBatch({name: convert(values) for name, values in batch.items()})


class Called(Conversion):
    """Converts the dict by a function of the caller."""

    def __init__(self, function: Callable[[dict[str, NDArray[Any]]], Any]) -> None:
        self._function = function

    def make(self, batch: Mapping[str, NDArray[Any]]) -> Any:
        """The result of the function."""
        try:
            return self._function(dict(batch))
        except StopIteration as error:  # a StopIteration would end a loop over the batches silently
            raise RuntimeError("to: the function raised StopIteration") from error


class OfJax(Conversion):
    """Converts columns to JAX arrays; columns of dtypes that JAX lacks stay NumPy arrays.

    ``jax.enable_x64``, the support of 64-bit numbers, is a setting of a thread. So the thread of
    the learner makes the arrays.
    """

    def __init__(self, jax: Any, device: Any) -> None:
        self._jax, self._device = jax, device

    def make(self, batch: Mapping[str, NDArray[Any]]) -> JaxBatch:
        return JaxBatch(batch)

    def hand_out(self, made: JaxBatch) -> JaxBatch:
        has_wide = self._jax.config.jax_enable_x64
        for name, values in made.items():
            if has_wide or not _is_wide(values.dtype):
                made[name] = self._convert(values)
        return made

    def _convert(self, array: NDArray[Any]) -> Any:
        """An array of JAX over the same memory, or a copy of it on the device."""
        is_narrow = name_of(array.dtype) is not None
        if array.dtype.kind not in "biufc" and not is_narrow:
            return array
        try:
            found = (self._jax.numpy.asarray if is_narrow else self._jax.dlpack.from_dlpack)(array)
        except (BufferError, TypeError):
            return array
        return found if self._device is None else self._jax.device_put(found, self._device)


def _is_wide(dtype: np.dtype[Any]) -> bool:
    """Whether JAX rounds such numbers unless ``jax_enable_x64`` is set."""
    return dtype.itemsize // (2 if dtype.kind == "c" else 1) >= WIDE


def conversion(to: To | None, device: Any = None) -> Conversion | None:
    """The conversion for the arguments ``to`` and ``device``; None for batches of arrays.

    Raises ``TypeError`` or ``ValueError`` for wrong arguments, ``ImportError`` without the package.
    """
    if to is None or to == "numpy":
        if device is not None and str(device) != "cpu":
            raise ValueError(f"device: NumPy's arrays are on the CPU, got {device!r}")
        return None if to is None else Columns(None)
    if to == "torch":
        return _by_torch(device)
    if to == "jax":
        return _by_jax(device)
    if not callable(to):
        raise TypeError(f"to: expected one of {', '.join(NAMES)}, or a function, got {to!r}")
    if device is not None:
        raise TypeError(f"device: the function to= decides where a batch is, got {device!r}")
    return Called(to)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"to={name!r} needs {PACKAGES[name]} (pip install 'cpprb_like[{name}]'): {error}"
        ) from error


@dataclass(frozen=True)
class ColumnPlace:
    """A column of a batch in a block of memory; a plain array if ``place`` is None."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    torch_dtype: Any
    place: slice | None


class PinnedBatch(dict[str, NDArray[Any]]):
    """Arrays of a batch, in one block of pinned memory if they have a place. A draw fills them."""

    __slots__ = ("arrays", "pinned", "places")

    def __init__(self, pinned: Any, places: Mapping[str, ColumnPlace]) -> None:
        self.pinned, self.places = pinned, places
        room = pinned.numpy()
        for name, column in places.items():
            if column.place is None:
                self[name] = np.empty(column.shape, column.dtype)
            else:
                self[name] = room[column.place].view(column.dtype).reshape(column.shape)
        self.arrays = dict(self)

    def take(self, batch: Mapping[str, NDArray[Any]]) -> bool:
        """Copy columns that are not in the arrays yet; false if columns and arrays do not match."""
        if self.arrays.keys() != batch.keys():
            return False
        for name, own in self.arrays.items():
            values = batch[name]
            if values.shape != own.shape or values.dtype != own.dtype:
                return False
            if values is not own:  # a column of a sampler, which draws into arrays of its own
                own[...] = values
        return True


class OnCuda(Conversion):
    """Converts to tensors on a CUDA device. The drawing thread copies; the learner's thread waits.

    A large batch is drawn into one block of pinned memory. One copy to the device runs in parallel
    with computations. A small batch, or one with columns unknown before the draw, is first copied
    into such a block. PyTorch caches pinned memory, and reuses it after the end of its copy.

    ``as_tensor`` makes a tensor over an array, or returns the array if none has its dtype.
    """

    def __init__(self, torch: Any, device: Any, as_tensor: Callable[[NDArray[Any]], Any]) -> None:
        self._torch = torch
        self._as_tensor = as_tensor
        self._stream = torch.cuda.Stream(device)
        self._device = self._stream.device  # has a number: the current device may change
        self._places: dict[str, ColumnPlace] | None = None  # of the last batch that was copied

    def room(self) -> PinnedBatch | None:
        """Arrays for the next batch if the last batch was large; else None."""
        places = self._places
        return None if places is None or _end(places) < LARGE else self._empty(places)

    def make(self, batch: Mapping[str, NDArray[Any]]) -> Any:
        """Begin the copy to the device. Columns without a dtype of PyTorch stay arrays."""
        pinned = batch
        if not isinstance(pinned, PinnedBatch):  # values of any length have other shapes each time
            fits = self._places is not None and all(
                name in self._places and self._places[name].shape == values.shape
                for name, values in batch.items()
            )
            self._places = self._places if fits else self._placed(batch)
            pinned = self._empty(self._places or {})
        if not pinned.take(batch):
            self._places = self._placed(batch)
            pinned = self._empty(self._places)
            pinned.take(batch)
        with self._torch.cuda.stream(self._stream):
            block = pinned.pinned.to(self._device, non_blocking=True)
            arrived = self._torch.cuda.Event()
            arrived.record(self._stream)
        columns: dict[str, Any] = dict(batch)
        for name, column in pinned.places.items():
            if column.place is not None:
                columns[name] = block[column.place].view(column.torch_dtype).view(column.shape)
        return columns, block, arrived

    def _placed(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, ColumnPlace]:
        """Places of the columns of such batches in a block."""
        found, end = {}, 0
        for name, values in batch.items():
            tensor, place = self._as_tensor(values), None
            if tensor is not values:
                place = slice(end, end + values.nbytes)
                end += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
            found[name] = ColumnPlace(values.shape, values.dtype, tensor.dtype, place)
        return found

    def _empty(self, places: Mapping[str, ColumnPlace]) -> PinnedBatch:
        pinned = self._torch.empty(_end(places), dtype=self._torch.uint8, pin_memory=True)
        return PinnedBatch(pinned, places)

    def hand_out(self, made: Any) -> TensorBatch:
        """The columns. The current stream of the learner waits for their copy."""
        columns, block, arrived = made
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(arrived)
        block.record_stream(stream)  # its memory is not reused before the stream is done
        return TensorBatch(columns)


def _end(places: Mapping[str, ColumnPlace]) -> int:
    """The bytes of a block with these places."""
    return max((column.place.stop for column in places.values() if column.place), default=0)


def as_torch(torch: Any, array: NDArray[Any]) -> Any:
    """A tensor over the same memory; the array itself if PyTorch lacks its dtype."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        own = getattr(torch, array.dtype.name, None) if name_of(array.dtype) is not None else None
        if own is None or not isinstance(own, torch.dtype) or not own.is_floating_point:
            return array
        return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).view(own)


def _by_torch(given: Any) -> Conversion:
    torch = _package("torch")
    try:
        device = torch.device("cpu" if given is None else given)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device: {error}") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():  # PyTorch's message names neither
            raise ValueError(f"device: PyTorch finds no CUDA device here, got {given!r}")
        return OnCuda(torch, device, partial(as_torch, torch))
    if device.type == "cpu":
        return Columns(lambda array: as_torch(torch, array))

    def convert(array: NDArray[Any]) -> Any:
        tensor = as_torch(torch, array)
        return tensor if tensor is array else tensor.to(device)

    return Columns(convert)


@cache
def _register(jax: Any, kind: type[TensorBatch]) -> None:
    jax.tree_util.register_pytree_node(
        kind,
        lambda batch: (list(batch.values()), tuple(batch)),
        lambda names, values: kind(zip(names, values, strict=True)),
    )


def _by_jax(given: Any) -> Conversion:
    jax = _package("jax")
    with _registering:  # JAX raises if a class is registered twice
        for kind in (TensorBatch, JaxBatch):
            _register(jax, kind)  # as containers, so ``jax.jit`` takes them
    device = given
    if isinstance(given, str):
        try:
            device = jax.devices(given)[0]
        except RuntimeError as error:
            raise ValueError(f"device: {error}") from error

    return OfJax(jax, device)
