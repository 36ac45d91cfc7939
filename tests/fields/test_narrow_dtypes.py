"""Fields of ml_dtypes, such as bfloat16 and int4: added, drawn, saved, and handed to learners."""

from __future__ import annotations

import copy
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer, checkpoint
from cpprb_like._arguments.narrow_dtypes import descr_of, name_of, named
from cpprb_like._files.json_codec import _parsed
from cpprb_like.processes import SharedReplay

ml_dtypes: Any = need("ml_dtypes", "pip install ml_dtypes")
NAMES = [
    name
    for name in dir(ml_dtypes)
    if isinstance(getattr(ml_dtypes, name), type)
    and name.startswith(("bfloat", "float", "int", "uint"))
]
FLOATS = [name for name in NAMES if "float" in name]
WRONG: dict[str, tuple[Any, ...]] = {
    "bfloat16": (1e39, 1e300),
    "float8_e4m3fn": (500.0, np.inf),
    "float8_e5m2": (1e6,),
    "float8_e8m0fnu": (0.0, -1.0),
    "float4_e2m1fn": (7.0, np.nan, np.inf),
    "int4": (8, -9, 0.5, np.nan),
    "uint2": (4, -1),
}


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of this name."""
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def values_of(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Random values that every one of these dtypes has: powers of 2, or 0."""
    choices = [1, 2, 4] if "float" in dtype.name else [0]
    return np.random.default_rng(seed).choice(choices, shape).astype(dtype)


def filled(name: str, cls: Any = ReplayBuffer, **options: Any) -> Any:
    """A buffer that has wrapped, with values in records, in blocks, in chains and in structures."""
    dtype = dtype_of(name)
    mixed = np.dtype([("a", dtype), ("b", "u1"), ("c", dtype, (2,))])
    fields = {
        "x": {"shape": (), "dtype": dtype},
        "obs": {"shape": (2, 3), "dtype": dtype},
        "wide": {"shape": 200, "dtype": dtype},
        "mixed": {"shape": (), "dtype": mixed},
    }
    rb = cls(8, fields, next_of="obs", stack_compress={"obs": 1}, seed=0, **options)
    for t in range(11):
        mix = np.zeros((), mixed)
        mix["a"], mix["b"], mix["c"] = values_of(dtype, (), t), t, values_of(dtype, (2,), t)
        rb.add(
            x=values_of(dtype, (), t),
            obs=values_of(dtype, (2, 3), t),
            next_obs=values_of(dtype, (2, 3), t + 1),
            wide=values_of(dtype, (200,), t),
            mixed=mix,
        )
    return rb


def check_same(one: Any, two: Any) -> None:
    """Both batches have the same arrays, byte for byte."""
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.dtype == two[name].dtype, name
        assert values.shape == two[name].shape, name
        assert values.tobytes() == two[name].tobytes(), name


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    """A checkpoint has the values as bytes, and the name of their dtype beside them.

    It had NumPy's "<V2", so a folder that was saved could not be loaded, nor salvaged.
    """
    rb = filled(name)
    rows = rb.get_all_transitions()
    rb.save(tmp_path)
    check_same(rows, ReplayBuffer.load(tmp_path).get_all_transitions())
    assert checkpoint.verify(tmp_path)[0].is_in_order
    restored = filled(name)
    restored.clear()
    restored.restore(tmp_path)
    check_same(rows, restored.get_all_transitions())
    for file in tmp_path.glob("*.npy"):
        np.load(file, allow_pickle=False)  # NumPy alone reads each
    max(tmp_path.glob("*.npy"), key=lambda path: path.stat().st_size).write_bytes(b"")
    with pytest.warns(UserWarning, match="loaded without"):
        ReplayBuffer.load(tmp_path, salvage=True)


@pytest.mark.parametrize("name", NAMES)
def test_copied_mapped_and_shared(name: str, tmp_path: Path) -> None:
    """Pickles, copies, files in place of memory, and other processes have the same values."""
    rb = filled(name)
    rows = rb.get_all_transitions()
    check_same(rows, pickle.loads(pickle.dumps(rb)).get_all_transitions())
    check_same(rows, copy.deepcopy(rb).get_all_transitions())
    mapped = filled(name, mmap_prefix=tmp_path / "rows")
    check_same(rows, mapped.get_all_transitions())
    del mapped
    fields: Any = {"x": {"shape": (), "dtype": dtype_of(name)}}
    with SharedReplay(8, fields, writers=1) as replay:
        value = values_of(dtype_of(name), ())
        replay.actor().add(x=value)
        found = SharedReplay.attach(replay.name).learner(seed=0).sample(3)["x"]
        assert found.dtype == dtype_of(name)
        assert found.tobytes() == 3 * value.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_values_that_have_no_name_of_their_own(name: str, tmp_path: Path) -> None:
    """Numbers, dtypes and small arrays that a sampler keeps come back as well."""
    value = values_of(dtype_of(name), (3,))
    rb = PrioritizedReplayBuffer(4, {"x": {"shape": ()}})
    rb.sampler.__dict__["extra"] = {
        "a": value,
        "b": value[0],
        "c": value.dtype,
        "d": value.dtype.type,
    }
    rb.save(tmp_path)
    found = PrioritizedReplayBuffer.load(tmp_path).sampler.__dict__["extra"]
    assert found["a"].tobytes() == value.tobytes()
    assert found["a"].dtype == found["b"].dtype == found["c"] == np.dtype(found["d"]) == value.dtype


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_files_of_transitions(name: str, safe: bool, tmp_path: Path) -> None:
    """Files of cpprb's have them as the nearest dtype of NumPy's own that has all values."""
    dtype = dtype_of(name)
    fields: Any = {"x": {"shape": (), "dtype": dtype}, "obs": {"shape": 2, "dtype": dtype}}
    one, two = (ReplayBuffer(4, fields, next_of="obs") for _ in range(2))
    rows = values_of(dtype, (6, 2))
    one.add(x=values_of(dtype, (5,), 1), obs=rows[:5], next_obs=rows[1:])
    one.save_transitions(tmp_path / "rows", safe=safe)
    two.load_transitions(tmp_path / "rows")
    assert np.array_equal(two.get_all_transitions()["obs"], rows[1:5])
    with pytest.raises(ValueError, match="no numbers, texts or bytes"):
        filled(name).save_transitions(tmp_path / "others")


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_taken(name: str) -> None:
    """Python's and NumPy's numbers go in where the dtype has them, and come out for others."""
    dtype = dtype_of(name)
    value = 1 if "float" in name else 0
    rb = ReplayBuffer(20, {"x": {"shape": (), "dtype": dtype}})
    given = [value, float(value), np.float32(value), np.int64(value), [value] * 2, bool(value)]
    for one in (*given, np.full(3, value, np.float16), values_of(dtype, (2,)), [float(value)]):
        rb.add(x=one)
    plain = ReplayBuffer(20, {"x": {"shape": ()}, "n": {"shape": (), "dtype": "i4"}})
    plain.add(x=values_of(dtype, (2,)), n=values_of(dtype, (2,)))
    expected = values_of(dtype, (2,)).astype(np.float32)
    assert np.array_equal(plain.get_all_transitions()["x"], expected)
    assert np.array_equal(plain.get_all_transitions()["n"], expected)


@pytest.mark.parametrize("name", WRONG)
def test_numbers_that_it_does_not_have_are_refused(name: str) -> None:
    """Some of these dtypes have no infinity, NaN, sign or 0, and would hold something else."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": dtype_of(name)}})
    for wrong in WRONG[name]:
        for given in (wrong, [wrong], np.array(wrong), np.full(2, wrong)):
            with pytest.raises(
                ValueError, match=f"field 'x': expected {name}, got .* cannot hold|no integer"
            ):
                rb.add(x=given)
    with pytest.raises(ValueError, match="field 'x'"):
        rb.add(x="one")
    assert len(rb) == 0


def test_floats_are_rounded_as_ml_dtypes_rounds_them() -> None:
    """Rounding is no change of meaning, as for float16."""
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [rng.normal(size=1000) * 10.0 ** rng.integers(-3, 3, 1000), [np.nan, np.inf]]
    )
    rb = ReplayBuffer(2000, {"x": {"shape": (), "dtype": ml_dtypes.bfloat16}})
    rb.add(x=values)
    found = rb.get_all_transitions()["x"]
    assert found.tobytes() == values.astype(ml_dtypes.bfloat16).tobytes()


def test_a_field_of_these_ends_no_episode_without_a_word() -> None:
    """None of them is a flag or a reward: that is said when the buffer is made."""
    for name in ("bfloat16", "float8_e5m2"):
        fields: Any = {"rew": {"dtype": getattr(ml_dtypes, name)}, "done": {"shape": ()}}
        with pytest.raises(ValueError, match=f"expected fields of floats, got 'rew' of {name}"):
            ReplayBuffer(8, fields, Nstep={"size": 2, "rew": "rew"})
        with pytest.warns(UserWarning, match="'done'"):
            ReplayBuffer(8, {"done": {"shape": (), "dtype": getattr(ml_dtypes, name)}})


def test_torch_gets_its_own_dtypes() -> None:
    """Batches are tensors of bfloat16 and float8 over the same memory; tensors of them go in."""
    torch = need("torch", "make test-torch")
    for name in FLOATS:
        own = getattr(torch, name, None)
        rb = ReplayBuffer(
            8, {"x": {"shape": 3, "dtype": dtype_of(name)}, "f": {"shape": 3}}, seed=0
        )
        rows = values_of(dtype_of(name), (4, 3))
        rb.add(x=rows, f=np.zeros((4, 3)))
        batch = next(rb.batches(5, to="torch"))
        if own is None:
            assert isinstance(batch["x"], np.ndarray)
            continue
        assert batch["x"].dtype == own
        tensor = torch.from_numpy(rows.astype(np.float32)).to(own)
        before = len(rb)
        rb.add(x=tensor, f=tensor)
        assert rb[before : before + 4]["x"].tobytes() == rows.tobytes()
        assert np.array_equal(rb[before : before + 4]["f"], rows.astype(np.float32))
        out = {"x": torch.zeros(5, 3).to(own), "f": torch.zeros(5, 3)}
        rb.sample(5, out=out)
        assert np.isin(out["x"].float().numpy(), [1, 2, 4]).all()


def test_jax_gets_its_own_dtypes() -> None:
    """Batches are arrays of bfloat16, float8 and int4, and arrays of JAX go in."""
    need("jax", "make test-torch")
    from jax import numpy as jnp  # noqa: PLC0415 (optional)

    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        rb = ReplayBuffer(8, {"x": {"shape": 3, "dtype": dtype_of(name)}}, seed=0)
        rows = values_of(dtype_of(name), (4, 3))
        rb.add(x=jnp.asarray(rows))
        batch = next(rb.batches(5, to="jax"))
        assert isinstance(batch["x"], jnp.ndarray)
        assert batch["x"].dtype == dtype_of(name)
        assert rb.get_all_transitions()["x"].tobytes() == rows.tobytes()


def test_names_in_files() -> None:
    """A name has its byte order, and nothing but a dtype of ml_dtypes is taken for one."""
    for name in NAMES:
        text = name_of(dtype_of(name))
        assert text is not None
        assert named(text) == dtype_of(name)
    for wrong in ("<f4", "|V2", "<float16", "bfloat16", "|finfo", "<float8_e4m3fn.", "<bcomplex32"):
        assert named(wrong) is None
    for wrong in (">bfloat16", "<float8_none", "<float8_e4m3fn"):
        with pytest.raises(ValueError, match="no dtype"):
            named(wrong)
    padded: Any = {"names": ["a", "b"], "formats": [ml_dtypes.bfloat16, "f4"], "offsets": [0, 4]}
    dtype: Any = np.dtype(padded | {"itemsize": 12})
    assert descr_of(dtype)[0] == ("a", "<bfloat16")
    assert np.dtype([tuple(one) for one in descr_of(dtype, as_bytes=True)]).itemsize == 12


def test_a_checkpoint_of_them_needs_ml_dtypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the error names the dtype, and how to get it."""
    filled("bfloat16").save(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    _parsed.cache_clear()  # as in a new process
    with pytest.raises(ImportError, match=r"bfloat16 need ml_dtypes \(pip install ml_dtypes\)"):
        ReplayBuffer.load(tmp_path)


def test_names_that_are_forged_are_damage(tmp_path: Path) -> None:
    """Nothing but known names is looked up in ml_dtypes."""
    filled("bfloat16").save(tmp_path)
    (path,) = tmp_path.glob("state-*.json")
    text = path.read_bytes().split(b"\n")[0].replace(b"<bfloat16", b"<float8_os")
    assert json.loads(text)
    path.write_bytes(text + f"\n{zlib.crc32(text):08x}\n".encode())
    with pytest.raises(ValueError, match="no dtype '<float8_os'"):
        ReplayBuffer.load(tmp_path)
