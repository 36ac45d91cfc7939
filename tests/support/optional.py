"""Packages that a test can do without, and those that a leg of the CI says must be there.

``CPPRB_LIKE_REQUIRE="torch,pandas"`` makes the tests that need one of these fail where it is not,
so that no leg is green because it ran nothing. Without it they are skipped, with the reason.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

VARIABLE = "CPPRB_LIKE_REQUIRE"
# By the names that are imported. What is not here cannot be required: a misspelt name would require
# nothing, and say nothing.
PACKAGES = {
    "Cython": "Cython",
    "PIL": "Pillow",
    "ale_py": "ale-py",
    "av": "PyAV",
    "brax": "Brax",
    "cleanrl": "CleanRL",
    "click": "click",
    "cpprb": "cpprb",
    "cv2": "opencv-python-headless",
    "d4rl": "D4RL",
    "dm_env": "dm-env",
    "embodied": "embodied, of DreamerV3,",
    "envpool": "EnvPool",
    "gym": "Gym",
    "h5py": "h5py",
    "gymnasium": "Gymnasium",
    "highway_env": "HighwayEnv",
    "jax": "JAX",
    "lerobot": "LeRobot",
    "matplotlib": "matplotlib",
    "minari": "Minari",
    "ml_dtypes": "ml_dtypes",
    "datasets": "Hugging Face's datasets",
    "mlflow": "mlflow-skinny",
    "mypy": "mypy",
    "pandas": "pandas",
    "prometheus_client": "prometheus_client",
    "pyarrow": "pyarrow",
    "pyright": "pyright",
    "ray": "Ray, with RLlib,",
    "resource": "resource, which is of Unix,",
    "rich": "rich",
    "selenium": "Selenium",
    "stable_baselines3": "Stable-Baselines3",
    "tensorboard": "TensorBoard",
    "tensordict": "tensordict",
    "tensorflow": "TensorFlow",
    "tensorflow_datasets": "TensorFlow Datasets",
    "tf_agents": "TF-Agents",
    "tianshou": "Tianshou",
    "tomllib": "tomllib, which is of Python 3.11",
    "torch": "PyTorch",
    "torch_geometric": "PyG (torch_geometric)",
    "torchrl": "TorchRL",
    "torchvision": "torchvision",
    "tqdm": "tqdm",
    "transformers": "transformers",
    "trl": "TRL",
    "typing_extensions": "typing_extensions",
    "wandb": "Weights & Biases",
}


def required() -> list[str]:
    """The packages that must be there; ``ValueError`` if one is not known."""
    names = os.environ.get(VARIABLE, "").replace(",", " ").split()
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        raise ValueError(f"{VARIABLE}: expected some of {', '.join(PACKAGES)}; got {unknown}")
    return names


def need(name: str, why: str = "") -> Any:
    """The package of this name, or a skipped test; where it is required, a failed one."""
    package = name.partition(".")[0]
    reason = f"{PACKAGES[package]} is not installed" + (f": {why}" if why else "")
    if package not in required():
        return pytest.importorskip(name, reason=reason)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.fail(f"{reason}, and {VARIABLE} says that it is ({error})", pytrace=False)
