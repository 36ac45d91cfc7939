"""``DeviceReplay``: what users meet besides histories: draws, errors, files, compiled programs."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer, load
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers import Prioritized, Recency
from cpprb_like.schedules import Linear
from cpprb_like.views import Among, FrameStacks, NStep, Sequences

torch = need("torch")
from torch.utils._python_dispatch import TorchDispatchMode

from cpprb_like.device import DeviceReplay

FLAG = {"shape": (), "dtype": torch.bool}
FIELDS: dict[str, Any] = {
    "obs": {"shape": 3, "dtype": torch.bfloat16},
    "act": {"shape": (), "dtype": torch.int64},
    "rew": {"shape": ()},
    "terminated": FLAG,
    "truncated": FLAG,
}
N = 4


def replay_of(steps: int = 8, **options: Any) -> DeviceReplay:
    """A replay of so many steps of four environments."""
    return DeviceReplay(steps * N, FIELDS, n_envs=N, next_of="obs", **options)


def steps_from(start: int, count: int, ends: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """A block of steps whose observations are numbers of steps."""
    rng = torch.Generator().manual_seed(seed + start)
    times = torch.arange(start, start + count)[:, None, None]
    obs = (times % 128 + torch.zeros(N, 3)).bfloat16()
    over = torch.rand(count, N, generator=rng) < ends
    return {
        "obs": obs,
        "next_obs": obs + 1,
        "act": torch.arange(start * N, (start + count) * N).reshape(count, N),
        "rew": torch.ones(count, N),
        "terminated": over,
        "truncated": torch.zeros_like(over),
    }


def one(block: dict[str, Any]) -> dict[str, Any]:
    """The first step of a block."""
    return {name: values[0] for name, values in block.items()}


class NoSync(TorchDispatchMode):  # type: ignore[misc]
    """Refuses what would wait for a device, or has a shape that depends on values."""

    WAITS = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique",
        "is_nonzero",
        "aten.equal",
    )

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function)
        assert not any(word in name for word in self.WAITS), name
        assert "aten.index.Tensor" not in name, "an index by a mask"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampler", [None, Prioritized()])
def test_no_call_waits_for_the_device(sampler: Any) -> None:
    """Adds, draws and updates use no operation that needs values on the host."""
    replay = replay_of(sampler=sampler)
    view = replay.view(NStep((1, 2)), Sequences(2, burn_in=1, stride=2), FrameStacks({"obs": 2}))
    replay.add(**steps_from(0, 6))
    with NoSync():
        replay.add(**one(steps_from(6, 1)), final=torch.ones(N, dtype=torch.bool))
        batch = replay.sample(8, indexes=True)
        view.sample(8)
        replay.update(batch["indexes"], act=batch["act"])
        replay.on_episode_end()
        if sampler is not None:
            replay.update_priorities(batch["indexes"], batch["rew"])
    with pytest.raises(AssertionError), NoSync():
        torch.ones(3).sum().item()  # the mode would notice


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [None, Prioritized(beta=0.5)])
def test_a_training_step_is_compiled_whole(sampler: Any) -> None:
    """``torch.compile(fullgraph=True)`` compiles once, and gives the same batches."""
    plain, compiled = replay_of(sampler=sampler), replay_of(sampler=sampler)

    def program(replay: DeviceReplay, view: Any, step: dict[str, Any]) -> Any:
        replay.add(**step)
        batch = view.sample(8)
        if sampler is not None:
            replay.update_priorities(batch["indexes"], batch["rew"])
        return batch

    views = [replay.view(NStep(2, gamma=0.9)) for replay in (plain, compiled)]
    for replay in (plain, compiled):
        replay.add(**steps_from(0, 3))
    whole = torch.compile(program, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=False, recompile_limit=2):
        for t in range(3, 8):
            step = one(steps_from(t, 1))
            expected, found = program(plain, views[0], step), whole(compiled, views[1], step)
            assert all(torch.equal(expected[name], found[name]) for name in expected)
    torch._dynamo.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sampler", [None, Prioritized()])
def test_a_cuda_graph_replays_a_training_step(sampler: Any) -> None:
    """Calls do not synchronise, are captured, and give what a processor gives."""
    on_cuda, plain = replay_of(sampler=sampler, device="cuda"), replay_of(sampler=sampler)
    step = {name: values.cuda() for name, values in one(steps_from(0, 1)).items()}
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            on_cuda.add(**step)
            on_cuda.sample(8)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            on_cuda.add(**step)
            batch = on_cuda.sample(8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    plain.add(**one(steps_from(0, 1)))
    plain.sample(8)
    for t in range(1, 6):
        for name, values in one(steps_from(t, 1)).items():
            step[name].copy_(values)
        graph.replay()
        plain.add(**one(steps_from(t, 1)))
        expected = plain.sample(8)
        assert all(torch.equal(batch[name].cpu(), expected[name]) for name in expected)


def test_draws_are_uniform_over_the_rows_that_can_be_drawn() -> None:
    """Rows with lost or unknown next values are left out, and all others are as likely."""
    replay = replay_of(16, finals=N)
    block = steps_from(0, 20, ends=0.2)
    block["next_obs"][block["terminated"]] = 99
    replay.add(**block)
    whole = replay.sample(40_000, fields=["act"])["act"]
    bootstraps = replay.sample(40_000, fields=["act", "next_obs"])["act"]

    for drawn, rows in ((whole, 16 * N), (bootstraps, 16 * N - replay.stats()["lost"])):
        counts = torch.bincount(drawn)
        counts = counts[counts > 0].double()
        assert len(counts) == rows
        expected = 40_000 / rows
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < rows + 5 * (2 * rows) ** 0.5


def test_random_n_is_uniform() -> None:
    """With a range each row has its own n, and what is read of it is that of this n."""
    replay = replay_of(32)
    replay.add(**steps_from(0, 32))
    batch = replay.view(NStep((2, 4), gamma=0.5, discount=True)).sample(6_000)
    sums = torch.tensor([1.5, 1.75, 1.875])
    n = 2 + torch.searchsorted(sums, batch["rew"])
    assert torch.equal(sums[n - 2], batch["rew"])
    torch.testing.assert_close(batch["discount"], 0.5**n)
    torch.testing.assert_close(batch["next_obs"].float(), batch["obs"].float() + n[:, None])
    assert torch.bincount(n)[2:].min() > 1_850


def test_prioritized_draws_follow_the_weights() -> None:
    """Frequencies are those of the priorities, over two levels of sums and past the ring's end."""
    steps = 1100  # 4,400 rows: two levels
    replay = replay_of(steps, sampler=Prioritized(1.0, eps=0.0, beta=1.0))
    replay.add(**steps_from(0, steps))
    replay.add(**steps_from(steps, 50))
    indexes = replay._rows.handles(replay._state, torch.arange(steps * N))
    priorities = (torch.arange(steps * N) % 5).float()
    replay.update_priorities(indexes, priorities)

    for source in (replay, replay.view(NStep(9))):
        batch = source.sample(50_000)
        slots = batch["indexes"] % (steps * N)
        assert (priorities[slots] > 0).all()
        share = torch.bincount(slots % 5, minlength=5) / 50_000
        torch.testing.assert_close(share, torch.arange(5) / 10, atol=0.01, rtol=0)
        torch.testing.assert_close(batch["weights"], 1 / priorities[slots])
        if source is not replay:  # the newest 8 steps wait
            newest = 49 * N - 8 * N + torch.arange(8 * N) + N
            assert not torch.isin(slots, newest).any()


def test_wrong_priorities_are_told_and_change_nothing() -> None:
    """The sums stay sound, and rows without any weight are not drawn."""
    replay = replay_of(sampler=Prioritized(1.0, eps=0.0))
    replay.add(**steps_from(0, 8))
    handles = replay.sample(6)["indexes"].unique()
    zeros = torch.zeros(8 * N)
    everything = replay._rows.handles(replay._state, torch.arange(8 * N))
    replay.update_priorities(everything, zeros)
    with pytest.raises(RuntimeError, match="no row"):
        replay.sample(2)
    replay.update_priorities(everything, zeros + 1)
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(RuntimeError, match="finite numbers"):
            replay.update_priorities(handles, torch.full((len(handles),), wrong))
    assert float(replay._rows.weights.total(replay._state)) == 8 * N  # type: ignore[union-attr]


def test_beta_is_given_to_a_draw() -> None:
    """A number or a tensor takes the place of that of the sampler; others are refused."""
    replay = replay_of(sampler=Prioritized(1.0, beta=0.5, eps=0.0))
    replay.add(**steps_from(0, 8))
    handles = replay._rows.handles(replay._state, torch.arange(8 * N))
    replay.update_priorities(handles, 1.0 + torch.arange(8 * N) % 2)
    for beta, least in ((None, 0.5**0.5), (1.0, 0.5), (torch.tensor(2.0), 0.25)):
        assert float(replay.sample(64, beta=beta)["weights"].min()) == pytest.approx(least)
    for wrong in (-1.0, float("nan"), torch.ones(3), torch.tensor(1)):
        with pytest.raises(ValueError, match="beta"):
            replay.sample(2, beta=wrong)
    with pytest.raises(TypeError, match=r"beta.*schedule"):
        replay_of(sampler=Prioritized(beta=Linear(0.0, 1.0, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": None}, "missing fields"),
        ({"more": torch.zeros(N)}, "unknown fields"),
        ({"rew": torch.zeros(N, dtype=torch.float64)}, "rew.*float32.*float64"),
        ({"rew": torch.zeros(N + 1)}, r"rew.*\(4,\).*\(5,\)"),
        ({"rew": torch.zeros(2, N)}, "as many steps"),
        ({"rew": np.zeros(N, "f4")}, "rew.*expected a tensor"),
        ({"rew": torch.zeros(N, device="meta")}, "rew.*cpu.*meta"),
        ({"final": torch.ones(N)}, "final.*bools"),
        ({"final": torch.ones(3, dtype=torch.bool)}, "final.*bools"),
    ],
)
def test_a_wrong_step_changes_nothing(change: dict[str, Any], message: str) -> None:
    """The message names the field, what was expected and what came."""
    replay = replay_of()
    replay.add(**one(steps_from(0, 1)))
    before = {name: copy.deepcopy(x) for name, x in replay.state_dict().items()}
    step = {**one(steps_from(1, 1)), **change}
    step = {name: value for name, value in step.items() if value is not None}
    with pytest.raises((TypeError, ValueError), match=message):
        replay.add(**step)
    assert before.pop("declaration") == replay.state_dict()["declaration"]
    for name, state in before.items():
        assert torch.equal(state, replay.state_dict()[name]), name


def test_errors_of_draws_and_views() -> None:
    """Draws without rows, windows that do not fit, and layers of the host alone."""
    replay = replay_of()
    with pytest.raises(NotEnoughDataError, match=r"at least 1 steps.*got 0"):
        replay.sample(2)
    replay.add(**steps_from(0, 2))
    with pytest.raises(NotEnoughDataError, match=r"at least 3 steps.*got 2"):
        replay.view(NStep(3)).sample(2)
    with pytest.raises(ValueError, match="at most 8 steps, got windows of 9"):
        replay.view(Sequences(8), NStep(2))
    with pytest.raises(ValueError, match="at least 1 step"):
        replay.add(**steps_from(2, 0))
    with pytest.raises(TypeError, match="on a device"):
        replay.view(Among("act"))
    with pytest.raises(ValueError, match="next value"):
        replay.view(FrameStacks({"next_obs": 2}))
    with pytest.raises(ValueError, match=r"fields.*nothing"):
        replay.sample(2, fields="nothing")
    with pytest.raises(TypeError, match="Prioritized"):
        replay.sample(2, beta=0.5)
    with pytest.raises(TypeError, match="Prioritized"):
        replay.update_priorities(torch.zeros(1, dtype=torch.int64), torch.zeros(1))
    replay.clear()
    with pytest.raises(NotEnoughDataError):
        replay.sample(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 30}, "multiple of n_envs"),
        ({"finals": 3}, "finals"),
        ({"batch_size": 3}, "unknown options.*batch_size.*sampler"),
        ({"sampler": Recency(0.5)}, "Uniform or Prioritized"),
        ({"env_dict": {"tokens": {"shape": ("T",)}}}, "fixed shape"),
        ({"env_dict": {"x": {"shape": (), "dtype": "U3"}}}, "'x'.*dtype of numbers"),
        ({"env_dict": {"final": {"shape": ()}}}, "final.*options of add"),
        ({"env_dict": {"weights": {"shape": ()}}, "sampler": Prioritized()}, "weights"),
        ({"env_dict": {"x": {"shape": (), "dtype": torch.float8_e5m2}}}, "'x'.*write single rows"),
        ({"env_dict": {"x": {"shape": 0}}}, "with elements"),
    ],
)
def test_wrong_declarations(options: dict[str, Any], message: str) -> None:
    """The message names the argument."""
    given: dict[str, Any] = {"size": 32, "env_dict": FIELDS, "n_envs": N} | options
    if given["env_dict"] is FIELDS:
        given["next_of"] = "obs"
    with pytest.raises((TypeError, ValueError), match=message):
        DeviceReplay(given.pop("size"), given.pop("env_dict"), **given)


def test_memory_is_checked_before_it_is_allocated() -> None:
    """The message lists the bytes of each field."""
    with pytest.raises(MemoryError, match=r"(?s)obs: .*TiB.*flags: .*links: "):
        replay_of(1 << 42)


@pytest.mark.parametrize("sampler", [None, Prioritized(1.0, eps=0.0)])
def test_rows_go_to_the_host_and_back(sampler: Any, tmp_path: Any) -> None:
    """All rows are the same on both sides, and a saved buffer comes back bit for bit."""
    need("ml_dtypes")
    replay = replay_of(sampler=sampler)
    replay.add(**steps_from(0, 11, ends=0.1))
    replay.on_episode_end()
    replay.add(**steps_from(11, 2))
    if sampler is not None:
        batch = replay.sample(8)
        replay.update_priorities(batch["indexes"], 1 + torch.rand(8))
    host = replay.to_host(seed=1)
    host.check()
    host.save(tmp_path / "rows")
    loaded: Any = load(tmp_path / "rows")
    back = DeviceReplay.from_host(loaded)

    assert len(host) == len(back) == len(replay)
    values = host.get_all_transitions()
    assert sorted(values["act"].tolist()) == list(range(5 * N, 13 * N))
    for layers in ((), (NStep(3, gamma=0.5),), (Sequences(3),)):
        found = []
        for one_of in (replay, back):
            slots = (
                torch.arange(5 * N, 10 * N) % (8 * N) if one_of is replay else torch.arange(5 * N)
            )
            reading = one_of.view(*layers)._reading
            fields = one_of._rows.plan.fields
            found.append(one_of._rows.read(one_of._state, reading, fields, slots, None))
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    if sampler is not None:
        weights = [r._state["level_0"][: 8 * N].sort().values for r in (replay, back)]
        torch.testing.assert_close(*weights)


def test_rows_without_known_next_values_are_absent_on_the_host() -> None:
    """The row before one of them ends its episode as truncated, so nothing runs past it."""
    need("ml_dtypes")
    replay = replay_of()
    block = steps_from(0, 6)
    block["truncated"][3, 1] = True
    replay.add(**block, final=False)
    host = replay.to_host(seed=0)

    assert len(host) == 6 * N - 1
    assert not (host.get_all_transitions()["act"] == 3 * N + 1).any()
    batch = host.view(NStep(3, discount=True)).sample(500)
    ended = batch["act"] == 2 * N + 1
    assert ended.any()
    np.testing.assert_array_equal(batch["rew"][ended], 1.0)


@pytest.mark.parametrize("sampler", [None, Prioritized(1.0, eps=0.0)])
@pytest.mark.parametrize("fields", [None, ["act"]])
def test_rows_without_known_next_values_come_back(sampler: Any, fields: Any, tmp_path: Any) -> None:
    """By a saved buffer: the others are drawn as often as before. They were refused."""
    need("ml_dtypes")
    replay = replay_of(sampler=sampler, finals=8 * N)
    block = steps_from(0, 8)
    block["truncated"][[1, 4, 5], [0, 1, 1]] = True  # of two of four environments
    replay.add(**block, final=False)
    shares = np.ones(8 * N)
    if sampler is not None:
        shares = np.arange(1.0, 8 * N + 1)
        indexes = torch.arange(8 * N)
        replay.update_priorities(indexes, torch.from_numpy(shares).float())
    replay.to_host(seed=0).save(tmp_path / "rows")
    loaded: Any = load(tmp_path / "rows")
    back = DeviceReplay.from_host(loaded)

    assert len(back) == len(loaded) == 8 * N - 3
    unknown = block["act"][[1, 4, 5], [0, 1, 1]].numpy()
    shares[unknown] = 0
    drawn = torch.cat([back.sample(512, fields=fields)["act"] for _ in range(40)])
    counts = np.bincount(drawn.numpy(), minlength=8 * N)
    expected = len(drawn) * shares / shares.sum()
    assert (counts[unknown] == 0).all()
    assert (abs(counts - expected) < 5 * np.sqrt(expected) + 1e-9).all()
    other = replay_of(sampler=sampler, finals=back.stats()["finals"])
    other.load_state_dict(back.state_dict())
    assert other.stats() == back.stats()
    assert not np.isin(other.sample(512, fields=fields)["act"], unknown).any()


def test_environments_that_paused_come_back() -> None:
    """Each environment has its own rows; an episode goes on over the steps that it lacked."""
    rb = ReplayBuffer(24, {"x": {"shape": ()}, "done": {"shape": ()}}, n_envs=3)
    for t in range(6):
        rb.add_where([True, t % 2 == 0, False], x=[t, 10 + t, 0], done=[0, t == 2, 0])
    back = DeviceReplay.from_host(rb)
    assert len(back) == 9
    assert sorted({*back.sample(500)["x"].tolist()}) == [0, 1, 2, 3, 4, 5, 10, 12, 14]
    batch = back.view(Sequences(2)).sample(500)
    pairs = {
        tuple(map(int, row[mask])) for row, mask in zip(batch["x"], batch["mask"], strict=True)
    }
    assert pairs == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (10, 12), (12,)}
    stacks = {*map(tuple, back.view(FrameStacks({"x": 2})).sample(500)["x"].int().tolist())}
    firsts, pairs = {(0, 0), (10, 10), (14, 14)}, pairs - {(12,)} | {(4, 5)}
    assert stacks == firsts | pairs
    back.add(x=torch.tensor([6.0, 16.0, 26.0]), done=torch.zeros(3))
    assert {12.0, 16.0, 26.0} <= {*back.sample(500)["x"].tolist()}
    assert len(back) == 12
    back.clear()
    assert len(back) == 0


def test_the_host_refuses_what_a_device_cannot_hold() -> None:
    """Values of any length, and sizes that are no multiple."""
    with pytest.raises(ValueError, match="multiple"):
        DeviceReplay.from_host(ReplayBuffer(7, {"x": {"shape": ()}}, n_envs=2))
    ragged = ReplayBuffer(8, {"x": {"shape": ("T",)}}, room={"T": 8})
    with pytest.raises(ValueError, match="fixed shape"):
        DeviceReplay.from_host(ragged)


@pytest.mark.parametrize("sampler", [None, Prioritized(1.0, eps=0.0)])
def test_a_host_form_that_was_rewound_comes_back(sampler: Any) -> None:
    """Steps that are absent in all environments are left out: their rows were refused."""
    need("ml_dtypes")
    replay = replay_of(sampler=sampler)
    replay.add(**steps_from(0, 6))
    if sampler is not None:
        batch = replay.sample(8)
        replay.update_priorities(batch["indexes"], 1 + torch.rand(8))
    host = replay.to_host(seed=0)
    assert host.rewind(4 * N) == 2 * N
    later = steps_from(6, 3)
    exact = {name: later[name].float() for name in ("obs", "next_obs")}
    host.add(**{name: values.numpy() for name, values in (later | exact).items()})
    back = DeviceReplay.from_host(host)
    again = back.to_host(seed=0)
    assert len(back) == len(again) == 6 * N  # the oldest step is overwritten
    expected, found = host.get_all_transitions(), again.get_all_transitions()
    orders = np.argsort(expected["act"]), np.argsort(found["act"])
    for name in ("act", "obs", "next_obs"):
        np.testing.assert_array_equal(expected[name][orders[0]], found[name][orders[1]])
    batch = back.view(Sequences(2)).sample(500)  # none goes from a step before to one after
    assert not ((batch["act"] // N == 3).any(1) & (batch["act"] // N == 6).any(1)).any()
    if sampler is not None:
        weights: Any = [rb.sampler.row_weights(rb.ring.present_slots()) for rb in (host, again)]
        np.testing.assert_allclose(np.sort(weights[0]), np.sort(weights[1]), rtol=1e-5)


def test_next_values_from_the_host_have_room() -> None:
    """Short episodes get more room by default; too little room is told, and no row is lost."""
    rb = ReplayBuffer(32, {"x": {"shape": ()}, "done": {"shape": ()}}, n_envs=2, next_of="x")
    for t in range(20):
        rb.add(x=[t, t], next_x=[t + 0.5, t + 0.5], done=[0, t % 2])
    replay = DeviceReplay.from_host(rb, finals=32)
    assert replay.stats()["lost"] == 0
    with pytest.raises(ValueError, match=r"finals: 18 have no room .* of 12 rows"):
        DeviceReplay.from_host(rb)


def test_rows_without_next_values_weigh_nothing() -> None:
    """So rows that are never drawn do not keep the greatest priority, and starve the others."""
    replay = replay_of(16, sampler=Prioritized(1.0, eps=0.0), finals=N)
    block = steps_from(0, 16)
    block["truncated"][3::4] = True
    replay.add(**block, final=False)
    for _ in range(20):
        batch = replay.sample(64)
        replay.update_priorities(batch["indexes"], torch.full((64,), 1e-5))
    assert len(replay.sample(64)["act"].unique()) > 40


def test_a_replay_is_freed_at_once() -> None:
    """Nothing waits for the garbage collector, as memory of a device is scarce."""
    replay = replay_of()
    known = weakref.ref(replay)
    del replay
    assert known() is None


@pytest.mark.parametrize("shift", [0, 1])
def test_large_steps_wrap(shift: int) -> None:
    """Steps of some 100 KB, which are written in another way, lie in their places."""
    replay = DeviceReplay(12, {"x": {"shape": 8192}}, n_envs=4, next_of="x")
    values = torch.arange(7 * 4 * 8192.0)
    for t, count in ((0, 1), (1, 2), (3, 1), (4, 2)):
        rows = torch.cat([values[:shift], values[t * 4 * 8192 :]])[shift:]
        x, following = (rows[k * 4 * 8192 :][: count * 4 * 8192] for k in (0, 1))
        replay.add(x=x.view(count, 4, 8192), next_x=following.reshape(count, 4, 8192))
    batch = replay.sample(99, indexes=True)
    assert replay.stats()["lost"] == 0
    assert torch.equal(batch["x"][:, 0], batch["indexes"] * 8192.0)
    assert torch.equal(batch["next_x"], batch["x"] + 4 * 8192)
    assert batch["indexes"].unique().tolist() == list(range(12, 24))


def test_rows_of_the_replay_itself_are_added() -> None:
    """Values may lie in the memory that they are written to: those from before the call count."""
    replay = DeviceReplay(12, {"x": {"shape": 20}}, n_envs=3, next_of="x")
    rows = replay.state_dict()["values.x"]
    replay.add(x=torch.arange(60.0).view(3, 20), next_x=torch.ones(3, 20))
    before = rows.clone()
    replay.add(x=rows[:3], next_x=rows[2:5])
    batch = replay.sample(99, indexes=True)
    k = batch["indexes"] - 3
    assert torch.equal(batch["next_x"][k >= 0], before[2 + k[k >= 0]])
    assert torch.equal(batch["x"][k >= 0], before[k[k >= 0]])


def test_steps_at_odd_places_of_memory_are_compared() -> None:
    """Tensors that begin amid others, and expanded ones, are as good as their copies."""
    replay = DeviceReplay(12, {"x": {"shape": 2}}, n_envs=3, next_of="x")
    big = torch.arange(20.0)
    for t in range(3):
        x = big[t + 1 : t + 7].view(3, 2)
        replay.add(x=x, next_x=big[t + 2 : t + 8].view(3, 2))
    assert replay.stats()["lost"] == 0
    batch = replay.sample(50)
    assert torch.equal(batch["next_x"], batch["x"] + 1)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int16", "int64", "bfloat16", "float16", "float32", "float64", "complex64"],
)
def test_next_values_are_compared_byte_by_byte(dtype: str) -> None:
    """NaN equals itself, 0 differs from -0, and one number that differs takes room of its own."""
    kind = getattr(torch, dtype)
    fields = {"x": {"shape": 3, "dtype": kind}}
    replay = DeviceReplay(12, fields, n_envs=3, next_of="x")
    odd = float("nan") if kind.is_floating_point else 1
    x = torch.tensor([[0, 1, odd], [1, 0, 1], [1, 1, 0]]).to(kind)
    other = x.clone()
    other[1, 1] = -other[1, 1] if kind.is_floating_point else 1
    replay.add(x=x, next_x=other)
    replay.add(x=x, next_x=x)
    links = replay._state["links"][:3]
    assert (links >= 12).tolist() == [False, True, False]
    whole = torch.view_as_real if kind.is_complex else torch.Tensor.clone
    promised = whole(replay._state["values"]["x"][links])
    torch.testing.assert_close(promised, whole(other), rtol=0, atol=0, equal_nan=True)


def test_a_state_goes_on_bit_for_bit(tmp_path: Any) -> None:
    """A replay with the state of another one draws the same batches, also after a file."""
    replay, other = replay_of(seed=3), replay_of(seed=4)
    replay.add(**steps_from(0, 5))
    replay.sample(4)
    torch.save(replay.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    for r in (replay, other):
        r.add(**steps_from(5, 4))
    batches = [r.view(NStep(2)).sample(16) for r in (replay, other)]
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[0])
    with pytest.raises(ValueError, match=r"same arguments.*size=64.*size=32"):
        replay_of(16).load_state_dict(replay.state_dict())


def test_random_numbers_are_uniform_and_depend_on_the_seed() -> None:
    """Draws of one replay differ from call to call, and those of two seeds from each other."""
    replays = [replay_of(4096, seed=seed) for seed in (0, 0, 1)]
    for replay in replays:
        replay.add(**steps_from(0, 4096))
    first, same, other = (replay.sample(1000, fields="act")["act"] for replay in replays)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert not torch.equal(first, replays[0].sample(1000, fields="act")["act"])
    counts = torch.bincount(replays[0].sample(200_000, fields="act")["act"] // 1024, minlength=16)
    chi_square = float(((counts - 12_500.0) ** 2 / 12_500).sum())
    assert chi_square < 50
