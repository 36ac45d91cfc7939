"""Parts of a saved cluster besides the states of its hosts: the manifest, learners, parameters.

Not here: the rows and the priorities of a host, which are a checkpoint of its shared replay.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like._files.opening import open_regular, read_bytes
from cpprb_like._machine.file_systems import replacing
from cpprb_like.checkpoint import states
from cpprb_like.checkpoint._manifest import name_of
from cpprb_like.errors import DamagedError
from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.processes._saving import read_saved
from cpprb_like.ray._parameters import ALONE
from cpprb_like.samplers._base import Sampler

__all__ = [
    "MANIFEST",
    "STATES",
    "SavedLearner",
    "read_manifest",
    "read_parameters",
    "save_host",
    "state_of",
    "write_manifest",
    "write_parameters",
]

MANIFEST = "cluster.json"
FORMAT = 2
STATES = "a", "b"  # folders of the states of hosts: a save leaves the one that is named alone
PARAMETERS = "parameters.npz"


def save_host(replay: SharedReplay, folder: str | Path, learners: Mapping[str, Learner]) -> int:
    """Save the rows of a host and learners of this process; returns the state's number."""
    moment = time.time()
    replay.save(folder, learners=learners)
    number = states(folder)[-1]
    os.utime(Path(folder) / name_of(number), (moment, moment))  # rows after that are not in it
    return number


def read_manifest(folder: Path) -> dict[str, Any]:
    """What ``save`` wrote last."""
    try:
        manifest = json.loads(read_bytes(folder / MANIFEST))
        is_sound = (
            manifest["format"] == FORMAT
            and manifest["states"] in STATES
            and bool(manifest["hosts"])
        )
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder}: no cluster was saved there") from None
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedError(f"{folder / MANIFEST}: {error!r}") from error
    if not is_sound:
        raise DamagedError(f"{folder / MANIFEST}: expected format {FORMAT}, got {manifest}")
    return dict(manifest)


def write_manifest(folder: Path, **entries: Any) -> None:
    """Name the states of all hosts, which completes the save."""
    with replacing(folder / MANIFEST) as unfinished:
        unfinished.write_text(json.dumps({"format": FORMAT, **entries}), encoding="utf-8")


def write_parameters(folder: Path, values: Any) -> None:
    """Save an array or a dict of arrays."""
    arrays = dict(values) if isinstance(values, Mapping) else {ALONE: values}
    folder.mkdir(parents=True, exist_ok=True)
    # NumPy 1.26 leaves an archive open after an error of the disk; Python closes it too late.
    archive = io.BytesIO()
    np.savez(archive, **arrays)
    with replacing(folder / PARAMETERS) as unfinished:
        unfinished.write_bytes(archive.getbuffer())


def read_parameters(folder: Path) -> Any:
    """What ``write_parameters`` saved."""
    with open_regular(folder / PARAMETERS) as file, np.load(file, allow_pickle=False) as saved:
        arrays = dict(saved)
    return arrays.get(ALONE, arrays) if set(arrays) == {ALONE} else arrays


@dataclass(frozen=True)
class SavedLearner:
    """A learner of a saved cluster.

    Attributes
    ----------
    folders : dict of str
        Folder of the state of each host, by the number of the host.
    name : str
        Name of the learner in these states.
    draws, seed : int
        Number of batches drawn so far, and the seed of the generators at hosts.
    generator : dict
        State of the generator.
    flags : dict of bool
        Attributes of the sampler that differ at the hosts.
    """

    folders: Mapping[int, str]
    name: str
    draws: int
    seed: int
    generator: Mapping[str, Any]
    flags: Mapping[str, bool]

    @classmethod
    def of(cls, manifest: Mapping[str, Any], base: Path, name: str) -> SavedLearner:
        """The learner of this name; ``ValueError`` if there is none."""
        known = manifest["learners"]
        if name not in known:
            raise ValueError(f"learner {name!r}: expected one of {sorted(known)}")
        folders = {
            int(host.removeprefix("host-")): str(base / manifest["states"] / host)
            for host in manifest["hosts"]
        }
        return cls(folders, **known[name])

    def sampler(self) -> Sampler:
        """Its sampler."""
        folder = next(iter(self.folders.values()))
        found = read_saved(folder, None, lambda saved: saved.learner(self.name)).sampler
        for name, value in self.flags.items():
            setattr(found, name, value)
        return found

    def rng(self) -> np.random.Generator:
        """Its generator."""
        kind = str(self.generator["bit_generator"])
        known = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
        if kind not in known:
            raise ValueError(f"generator of a learner: expected one of {known}, got {kind}")
        bits = getattr(np.random, kind)()
        bits.state = {**self.generator}
        return np.random.Generator(bits)


def state_of(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a generator, as JSON holds it."""
    plain: dict[str, Any] = json.loads(
        json.dumps(rng.bit_generator.state, default=lambda array: array.tolist())
    )
    return plain
