"""The device: rows in tensors where the simulator is, for PyTorch and for JAX.

``_plan`` reads the declaration, ``_readings`` the layers of a view. ``_rows`` is the arithmetic of
rows: it adds, draws and reads, and is written once over the array functions of ``_torch_arrays`` or
``_jax_arrays``. ``_weights`` has the sums of prioritized draws. ``_torch`` and ``_jax`` are what
users hold. ``_host`` converts from and to a ``ReplayBuffer``.
May import: all rooms up to ``buffers``, PyTorch and JAX.
"""

from importlib.util import find_spec

from cpprb_like._arguments.later import attach


def _hidden() -> list[str]:
    """Modules whose package is not installed: their names are not listed in ``__all__``."""
    return [f"{__name__}._{package}" for package in ("torch", "jax") if not find_spec(package)]


__getattr__, __dir__ = attach(__name__, __file__, _hidden)
