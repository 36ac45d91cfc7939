"""The restricted unpickler reads plain data and arrays, and refuses everything else."""

from __future__ import annotations

import datetime as dt
import fractions
import os
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import FILE_DTYPES, SHAPES, random_array, same

from cpprb_like.checkpoint._restricted_pickle import PickledObject, load, plain

PROTOCOLS = (3, 4, 5)
NUMPY_1 = b"numpy.core.multiarray"
NUMPY_2 = b"numpy._core.multiarray"


class Tree:
    """A class whose instances are allowed."""

    def __init__(self) -> None:
        self.nodes = [np.arange(3.0), np.arange(2)]
        self.greatest = np.float32(2.5)


class Harm:
    """A class whose pickles run a program when they are loaded."""

    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(st.data(), st.integers(0, 2**32))
def test_arrays_of_every_dtype_come_back(protocol: int, data: st.DataObject, seed: int) -> None:
    """Numbers, texts and bytes, in either order, and as part of a tuple or dict."""
    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from(FILE_DTYPES))
    values = random_array(rng, np.dtype(dtype), (3, *data.draw(st.sampled_from(SHAPES))))
    if data.draw(st.booleans()):
        values = np.asfortranarray(values)

    found = load(pickle.dumps({"x": values, "y": (values, [values])}, protocol))

    assert same(values, plain(found["x"]).copy())
    assert same(values, plain(found["y"][0]).copy())
    assert same(values, plain(found["y"][1][0]).copy())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_data_come_back(protocol: int) -> None:
    """Numbers of NumPy become those of Python, and an array of one object that object."""
    data = {
        "n": [0, 255, 256, -1, 1 << 40, -(1 << 70), 0.5, True, None],
        "text": ("", "é", b"", b"x" * 300, "y" * 300),
        3: {np.str_("key"): np.int64(4), "same": [np.float64(0.5)] * 2},
    }
    boxed = np.empty((), object)
    boxed[()] = data
    assert load(pickle.dumps(data, protocol)) == data
    assert plain(load(pickle.dumps(boxed, protocol))) == data


def test_either_name_of_the_module_of_numpy_is_known() -> None:
    """NumPy 1 and NumPy 2 name their module differently."""
    data = pickle.dumps(np.arange(3), 3)
    for name in (NUMPY_1, NUMPY_2):
        here = data.replace(NUMPY_2, name).replace(NUMPY_1, name)
        assert plain(load(here)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("allowed", [f"{__name__}.Tree", "Tree"])
def test_an_allowed_class_becomes_its_attributes(protocol: int, allowed: str) -> None:
    """The object has no methods of the original, and arrays in it are arrays."""
    found = load(pickle.dumps([Tree(), Tree()], protocol), objects=[allowed])
    for tree in found:
        assert isinstance(tree, PickledObject)
        assert [plain(level).tolist() for level in tree.state["nodes"]] == [[0, 1, 2], [0, 1]]
        assert tree.state["greatest"] == 2.5


def assembled(*opcodes: bytes) -> bytes:
    """A pickle of these opcodes."""
    return b"\x80\x04" + b"".join(opcodes) + b"."


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + b"cnumpy\nndarray\nK\x00\x85C\x01b\x87R"
DTYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00%s\x89\x88\x87R"
DEEP = b")" + b"\x85" * 300_000
REFUSED: dict[str, tuple[bytes, str]] = {
    "function": (pickle.dumps(Harm()), r"asks for \w+\.system"),
    "class": (pickle.dumps(fractions.Fraction(1, 2)), r"asks for fractions\.Fraction"),
    "class, not allowed": (pickle.dumps(Tree()), r"asks for .*\.Tree"),
    "attribute of an allowed one": (
        assembled(b"\x8c\x05numpy\x8c\x11ndarray.__class__\x93"),
        r"ndarray\.__class__",
    ),
    "old function": (b"cos\nsystem\n(S'exit 1'\ntR.", "opcode STRING is not allowed"),
    "instance": (b"(S'exit 1'\nios\nsystem\n.", "is not allowed"),
    "extension": (assembled(b"\x82\x01"), "opcode EXT1 is not allowed"),
    "persistent": (b"Px\n.", "opcode PERSID is not allowed"),
    "set": (pickle.dumps({1}, 4), "opcode EMPTY_SET is not allowed"),
    "date": (pickle.dumps(dt.date(2000, 1, 1)), r"asks for datetime\.date"),
    "objects": (pickle.dumps(np.array([{}], object)), "holds Python objects"),
    "object record": (pickle.dumps(np.zeros(2, "i4,O")), "of several parts are not read"),
    "record": (pickle.dumps(np.zeros(2, "i4,f4")), "of several parts are not read"),
    "times": (pickle.dumps(np.zeros(2, "M8[s]")), "expected numbers, texts or bytes"),
    "deep key": (assembled(b"}", DEEP, b"Ns"), "nested too deep"),
    "deep name": (assembled(ARRAY, DEEP, b"b"), "nested too deep"),
    "wide key": (assembled(b"}NN\x86\x94", b"h\x00h\x00\x86\x94", b"Ns"), "memo"),
    "far memo": (assembled(b"Nr\xff\xff\xff\x7f"), "memo has gaps"),
    "empty memo": (assembled(b"h\x00"), "memo"),
    "no mark": (assembled(b"N", b"t"), "a mark is missing"),
    "no value": (assembled(b"\x86"), "a value is missing"),
    "two values": (assembled(b"NN"), "values are left"),
    "no end": (b"\x80\x04N", ""),
    "long": (b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.", ""),
    "text": (b"\x80\x04X\xff\xff\xff\xffx.", ""),
    "attributes of a class": (assembled(RECONSTRUCT, b"}\x8c\x06valuesNsb"), "missing 1 required"),
    "slots of a class": (assembled(RECONSTRUCT, b"N}\x8c\x06valuesNs\x86b"), "missing 1 required"),
    "short array": (
        assembled(ARRAY, b"(K\x01K\x02\x85", DTYPE % b"f8", b"\x89C\x01xtb"),
        "takes 16 bytes, and has 1",
    ),
    "address": (
        assembled(ARRAY, b"(K\x01K\x01\x85", DTYPE % b"O8", b"\x89C\x08xxxxxxxxtb"),
        "holds Python objects",
    ),
    "negative": (
        assembled(ARRAY, b"(K\x01J\xff\xff\xff\xff\x85", DTYPE % b"f8", b"\x89C\x00tb"),
        "expected a length",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_refused(case: str) -> None:
    """The error is a ``ValueError`` that says what is not allowed; nothing is run."""
    data, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"no pickle of plain data: .*{message}"):
        load(data)


def test_a_pickle_does_not_change_the_stand_ins() -> None:
    """The cases above set attributes of a class, which later loads would see."""
    for case in ("attributes of a class", "slots of a class"):
        with pytest.raises(ValueError, match="no pickle"):
            load(REFUSED[case][0])
    empty = load(assembled(ARRAY))
    assert plain(empty) is None


@given(st.data())
def test_damaged_pickles_are_refused_or_read(data: st.DataObject) -> None:
    """Any change of bytes leads to a value or to a ``ValueError``."""
    record = np.zeros(2, [("a", "<f4", (2,)), ("b", "<M8[s]")])
    sound = pickle.dumps(
        {"x": record, "y": [np.arange(3), np.int8(3)]}, data.draw(st.sampled_from(PROTOCOLS))
    )
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = load(bytes(damaged))
    except ValueError:
        return
    if type(found) is dict:
        for value in found.values():
            plain(value)
