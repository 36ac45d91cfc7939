"""Folders that somebody has damaged, or forged: at random, by seeds."""

from __future__ import annotations

import copy
import json
import random
import re
import zlib
from typing import Any

from crashing_disk import Folder

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    255,
    2**31,
    2**40,
    10**15,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e308,
    "",
    "x",
    "lock",
    "../../etc/passwd",
    "/dev/zero",
    "s1-0.npy",
    "state-000001.json",
    "os.system",
    "builtins.eval",
    "ReplayBuffer",
    "PrioritizedReplayBuffer",
    "Prioritized",
    "Uniform",
    "Recency",
    "View",
    "Mixture",
    "Linear",
    "caller's ReplayBuffer",
    "object",
    "O",
    "|O",
    "<f8",
    "<i8",
    "|u1",
    "<U1000000",
    "<M8[ns]",
    "|V1000000000",
    [],
    {},
    [[]],
    [0],
    [1, 2, 3],
    [-1],
    [10**15],
    [2**40, 2**40],
    [["x", "<f8"]],
    [["x", "<f8", [10**9]]],
    {"$": "float", "value": "nan"},
    {"$": "float", "value": "inf"},
    {"$": "float", "value": "1"},
    {"$": "tuple", "values": []},
    {"$": "tuple", "values": 5},
    {"$": "dict", "pairs": [[[], 1]]},
    {"$": "set", "values": [[]]},
    {"$": "deque", "values": [1], "most": -1},
    {"$": "bytes", "hex": "zz"},
    {"$": "array", "number": 0},
    {"$": "array", "number": -1},
    {"$": "again", "number": 0},
    {"$": "again", "number": 99},
    {"$": "objects", "number": 0},
    {"$": "class", "name": "ReplayBuffer"},
    {"$": "class", "name": "os.system"},
    {"$": "dtype", "descr": "O"},
    {"$": "dtype", "descr": "<f8"},
    {"$": "external", "number": 9, "path": "", "type": "f"},
    {"$": "random", "number": 9, "state": [3, [1], None]},
    {"$": "random state", "number": 9, "state": {}},
    {"$": "scalar", "value": ["<f8", [], "00" * 8]},
    {"$": "scalar", "value": ["|O", [], "00" * 8]},
    {"$": "small array", "value": ["<f8", [2], "00" * 16]},
    {"$": "small array", "value": ["<i8", [10**6, 10**6, 0], ""]},
    {"$": "object", "number": 9, "class": "Uniform", "state": {}},
    {"$": "object", "number": 9, "class": "Recency", "state": {"least": -5}},
    {"$": "object", "number": 9, "class": "NStep", "state": {}},
    {"$": "object", "number": 9, "class": "os.system", "state": {}},
    {"$": "rows", "number": 9, "class": "ReplayBuffer", "ring": 0, "state": {}},
    {"$": "rows", "number": 9, "class": "Uniform", "ring": 0, "state": {}},
    {"$": "generator", "number": 9, "class": "eval", "state": {}},
    {"$": "nonsense", "number": 9},
)


def damaged(files: Folder, rng: random.Random) -> tuple[Folder, str]:
    """The folder after an accident, of the disk or of its owner."""
    found = dict(files)
    name = rng.choice(sorted(files))
    other = rng.choice(sorted(files))
    data = bytearray(files[name])
    what = rng.choice(["flip", "flips", "cut", "grow", "swap", "remove", "copy", "zero", "rename"])
    if what == "flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif what == "flips" and data:
        for _ in range(rng.randrange(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif what == "cut":
        del data[rng.randrange(len(data) + 1) :]
    elif what == "grow":
        data += rng.randbytes(rng.randrange(1, 600))
    elif what == "zero" and data:
        start = rng.randrange(len(data))
        stop = min(len(data), start + 512)
        data[start:stop] = bytes(stop - start)
    elif what == "swap":
        found[other], data = files[name], bytearray(files[other])
    elif what == "copy":
        data = bytearray(files[other])
    found[name] = bytes(data)
    if what == "remove":
        del found[name]
    elif what == "rename":
        found[rng.choice([name + "x", "state-000009.json", "s9-9.npy"])] = found.pop(name)
    return found, f"{what} of {name}, with {other}"


def forged(files: Folder, rng: random.Random) -> tuple[Folder, str]:
    """The folder after somebody has edited it, who knows how checksums are made."""
    found = dict(files)
    name = max(name for name in files if name.startswith("state-"))
    manifest = json.loads(files[name].splitlines()[0])
    told = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if rng.random() < 0.35:
            told.append(_edit_file(manifest, found, rng))
        else:
            told.append(_edit_value(manifest, rng))
    found[name] = sealed(manifest)
    return found, "; ".join(told)


def sealed(manifest: Any) -> bytes:
    """The bytes of a manifest, with its checksum."""
    text = json.dumps(manifest, separators=(",", ":")).encode()
    # Lists in lists, which are too deep for Python's own encoder.
    text = re.sub(rb'"deep (\d+)"', lambda m: b"[" * int(m[1]) + b"]" * int(m[1]), text)
    return text + f"\n{zlib.crc32(text):08x}\n".encode()


def _edit_file(manifest: Any, found: Folder, rng: random.Random) -> str:
    try:
        file = rng.choice(files_in(manifest))
        data = bytearray(found[file["name"]])
    except (LookupError, TypeError):
        return "nothing"
    head = 12 + int.from_bytes(data[8:12], "little")
    width = rng.choice([1, 1, 8])
    if file.get("codec") is not None or len(data) - head < width:
        return "nothing"
    for _ in range(rng.randrange(1, 5)):
        at = head + rng.randrange((len(data) - head) // width) * width
        number = rng.choice([0, 1, 2, 3, 255, 2**31, 2**63 - 1, 2**64 - 1, rng.randrange(2**64)])
        if rng.random() < 0.3:  # one more, or less
            number = int.from_bytes(data[at : at + width], "little") + rng.choice([1, -1])
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    found[file["name"]] = bytes(data)
    file["crc32"] = zlib.crc32(data)
    return f"bytes of {file['name']}"


def is_file(value: Any) -> bool:
    """Whether a value of a manifest is a file."""
    return isinstance(value, dict) and {"name", "nbytes", "crc32"} <= value.keys()


def files_in(manifest: Any) -> list[dict[str, Any]]:
    """All files of a manifest."""
    return [holder[key] for holder, key, _ in _places(manifest, "") if is_file(holder[key])]


def _edit_value(manifest: Any, rng: random.Random) -> str:
    places = list(_places(manifest, ""))
    # Every kind of place as often as any other: there are many files, and one capacity.
    kinds: dict[str, list[Any]] = {}
    for holder, key, path in places:
        kinds.setdefault("".join(c for c in path if not c.isdigit()), []).append(
            (holder, key, path)
        )
    holder, key, path = rng.choice(kinds[rng.choice(sorted(kinds))])
    value = holder[key]
    what = rng.choice(["hostile", "hostile", "number", "delete", "double", "other", "deep"])
    if what == "number" and type(value) is int:
        value = holder[key] = value + rng.choice([1, -1, value, 2**32, -value - 1, 10**9])
    elif what == "delete":
        del holder[key]
        return f"delete {path}"
    elif what == "double" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
        return f"double {path}"
    elif what == "other":
        other = rng.choice(places)
        holder[key] = copy.deepcopy(other[0][other[1]])
        return f"{path} = what is at {other[2]}"
    elif what == "deep":
        holder[key] = f"deep {rng.choice([30, 200, 900, 5000, 100_000])}"
        return f"{path} = deep"
    else:
        value = holder[key] = copy.deepcopy(rng.choice(HOSTILE))
    return f"{path} = {value!r}"


def _places(value: Any, path: str) -> Any:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, entry in items:
        yield value, key, f"{path}.{key}"
        yield from _places(entry, f"{path}.{key}")
