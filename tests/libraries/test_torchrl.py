"""The buffer for TorchRL: what comes out is what a collector put in, and an agent learns."""

from __future__ import annotations

import pickle
import re
import time
import warnings
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
need("torchrl")
tensordict = need("tensordict")

from tensordict import TensorDict
from tensordict.nn import TensorDictModule

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRL's imports warn of TorchRL
    from torchrl.collectors import Collector, MultiSyncCollector
    from torchrl.data import LazyTensorStorage
    from torchrl.data import ReplayBuffer as TheirReplayBuffer
    from torchrl.envs import (
        Compose,
        DTypeCastTransform,
        GymEnv,
        MultiStepTransform,
        RewardScaling,
        SerialEnv,
        StepCounter,
        TransformedEnv,
    )
    from torchrl.modules import (
        DistributionalQValueActor,
        EGreedyModule,
        NormalParamExtractor,
        ProbabilisticActor,
        QValueActor,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives import (
        A2CLoss,
        DDPGLoss,
        DistributionalDQNLoss,
        DQNLoss,
        SoftUpdate,
        ValueEstimators,
    )

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.integrations.torchrl import TensorDictReplayBuffer
from cpprb_like.samplers import Prioritized

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # TorchRL's own


def steps(n: int, n_envs: int = 1, start: int = 0) -> Any:
    """Numbered steps whose next observation is that of the following step."""
    count = torch.arange(start, start + n, dtype=torch.float32)[:, None]
    if n_envs > 1:
        count = count + 1000 * torch.arange(n_envs)[:, None, None]
    done = count.long() % 5 == 4
    root_done = {"done": torch.zeros_like(done), "terminated": torch.zeros_like(done)}
    following = {
        "observation": count + 1, "pixels": {"left": (count + 1).byte()},
        "reward": count, "terminated": done, "truncated": torch.zeros_like(done), "done": done,
    }  # fmt: skip
    root = {
        "observation": count,
        "pixels": {"left": count.byte()},
        "action": count.long(),
        **root_done,
    }
    return TensorDict({**root, "next": following}, count.shape[:-1])


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("compress", [False, True])
def test_what_goes_in_comes_out(n_envs: int, compress: bool) -> None:
    """Nested entries, each of its type; rows that were overwritten are gone."""
    rb = TensorDictReplayBuffer(30, batch_size=200, n_envs=n_envs, compress=compress, seed=0)
    for start in range(0, 60, 4):
        rb.extend(steps(4, n_envs, start))
    assert len(rb) == 30
    assert rb.write_count == 60 * n_envs
    batch = rb.sample()
    assert set(batch.keys(True, True)) == set(steps(1).keys(True, True))
    number = batch["observation"]
    assert (number % 1000 >= 60 - 30 // n_envs).all()
    assert len(number.unique()) == 30
    expected = TensorDict({name: batch[name] for name in ("observation", "action")}, [200])
    assert (expected["action"] == number.long()).all()
    assert (batch["pixels", "left"] == number.byte()).all()
    assert (batch["next", "observation"] == number + 1).all()
    assert (batch["next", "done"] == (number.long() % 5 == 4)).all()
    assert batch["next", "done"].dtype == torch.bool


def test_n_step_returns() -> None:
    """Rewards are summed up to the end of the episode, and ``gamma`` is what bootstraps."""
    rb = TensorDictReplayBuffer(30, n_steps=3, gamma=0.5, seed=0)
    rb.extend(steps(20))
    batch = rb.sample(100)
    number = batch["observation"].ravel()
    left = (4 - number % 5).clamp(max=2)
    expected = sum(0.5**k * (number + k) * (k <= left) for k in range(3))
    torch.testing.assert_close(batch["next", "reward"].ravel(), expected)
    assert (batch["next", "observation"].ravel() == number + left + 1).all()
    ended = batch["next", "terminated"].ravel()
    gamma = torch.where(ended, 0.0, 0.5**3)
    torch.testing.assert_close(batch["gamma"].ravel(), gamma)


@pytest.mark.parametrize(
    ("key", "value", "got"),
    [
        ("task", tensordict.NonTensorData("push"), "NonTensorData"),
        (("next", "note"), tensordict.NonTensorStack(*"abcde"), "NonTensorStack"),
        ("half", torch.zeros(5, 1, dtype=torch.bfloat16), "a tensor of torch.bfloat16"),
    ],
)
def test_an_entry_that_is_no_array_is_refused_by_name(key: Any, value: Any, got: str) -> None:
    """What was no tensor was dropped without a word, and of a dtype NumPy's error was all."""
    rb = TensorDictReplayBuffer(30, seed=0)
    data = steps(5).set(key, value)
    with pytest.raises(TypeError, match=rf"^extend: .*{re.escape(repr(key))}.*, got {got}: "):
        rb.extend(data)
    assert len(rb) == 0
    rb.extend(data.exclude(key))
    with pytest.raises(TypeError, match=r"^extend: "):
        rb.extend(data)
    assert len(rb) == 5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("index", {"sampler": Prioritized()}),
        ("priority_weight", {"sampler": Prioritized()}),
        ("indexes", {"sampler": Prioritized()}),
        ("gamma", {"n_steps": 3}),
        ("discount", {"n_steps": 3}),
        ("steps_to_next_obs", {"n_steps": 3}),
        (("next", "original_reward"), {"n_steps": 3}),
        ("nonterminal", {"n_steps": 3}),
    ],
)
def test_an_entry_called_as_what_a_batch_gets_is_refused(name: Any, options: Any) -> None:
    """Its values were replaced in what was drawn; without the option they come back."""
    data = steps(9).set(name, torch.full((9, 1), 7.0))
    rb = TensorDictReplayBuffer(30, seed=0, **options)
    field = name if isinstance(name, str) else "_".join(name)
    refused = rf"^extend: expected .* other names than \['{field}'\]"
    with pytest.raises(ValueError, match=refused):
        rb.extend(data)
    assert rb.buffer is None
    rb.extend(data.exclude(name))
    with pytest.raises(ValueError, match=refused):
        rb.extend(data)
    plain = TensorDictReplayBuffer(30, seed=0)
    plain.extend(data)
    assert (plain.sample(4)[name] == 7).all()


def plain(start: int, stop: int, **flags: Any) -> Any:
    """Numbered steps with these flags, or entries, and a reward of 1."""
    number = torch.arange(float(start), float(stop))[:, None]
    following = {"observation": number + 1, "reward": torch.ones_like(number), **flags}
    return TensorDict({"observation": number, "next": following}, [len(number)])


def windows(rb: Any) -> set[tuple[float, ...]]:
    """The rows that can be drawn: observation, the next one, return and discount factor."""
    batch = rb.sample(1000)
    columns = batch["observation"], batch["next", "observation"], batch["next", "reward"]
    rows = torch.stack([*(column.ravel() for column in columns), batch["gamma"].ravel()], 1)
    return {tuple(row) for row in rows.tolist()}


@pytest.mark.parametrize(
    ("names", "factor"),
    [
        (("done",), 0.0),
        (("done", "terminated"), 0.0),
        (("done", "truncated"), 0.25),
        (("truncated",), 0.25),
        (("terminated",), 0.0),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_episodes_end_by_the_flags_that_there_are(
    names: Any, factor: float, compress: bool
) -> None:
    """``done`` was stored and ended nothing where ``terminated`` was missing."""
    ended = (torch.arange(10) == 4)[:, None]
    rb = TensorDictReplayBuffer(100, n_steps=2, gamma=0.5, compress=compress, seed=0)
    rb.extend(plain(0, 10, **dict.fromkeys(names, ended)))
    found = windows(rb)
    assert (3, 5, 1.5, factor) in found
    assert (4, 5, 1, 2 * factor) in found
    assert {at for at, *_ in found} == set(range(9))
    assert {f for at, *_, f in found if at not in (3, 4)} == {0.25}
    stored = {("next", name) for name in names}
    assert set(rb.sample(2).keys(True, True)) == {
        "observation", "gamma", "steps_to_next_obs", "nonterminal", ("next", "observation"),
        ("next", "reward"), ("next", "original_reward"), *stored,
    }  # fmt: skip


def test_done_beside_terminated_truncates() -> None:
    """Where ``truncated`` is missing, what is done and not terminated was truncated."""
    rb = TensorDictReplayBuffer(100, n_steps=2, gamma=0.5, seed=0)
    done = (torch.arange(10) == 4)[:, None]
    rb.extend(plain(0, 10, done=done, terminated=torch.zeros_like(done)))
    assert {(3, 5, 1.5, 0.25), (4, 5, 1, 0.5)} < windows(rb)


@pytest.mark.parametrize("compress", [False, True])
def test_a_reset_between_two_calls_ends_the_episode(compress: bool) -> None:
    """Returns reached from the rows of one call to those of the next, whatever lay between."""
    flag = torch.zeros(5, 1, dtype=torch.bool)
    rb = TensorDictReplayBuffer(100, n_steps=3, gamma=0.5, compress=compress, seed=0)
    for start in (0, 5, 50):
        rb.extend(plain(start, start + 5, terminated=flag))
    found = {(at, to) for at, to, *_ in windows(rb)}
    expected = {(at, at + 3) for at in (*range(8), 50, 51, 52)} | {(8, 10), (9, 10)}
    assert found == expected
    with pytest.raises(TypeError, match="more"):  # which does not follow either
        rb.extend(plain(70, 75, terminated=flag, more=flag))
    rb.extend(plain(55, 60, terminated=flag))
    assert (54.0, 57.0) in {(at, to) for at, to, *_ in windows(rb)}
    rb.empty()
    assert rb._resets._last == {}
    for at in (0, 1, 2, 7, 8, 9):
        rb.add(plain(at, at + 1, terminated=flag[:1])[0])
    assert {(at, to) for at, to, *_ in windows(rb)} == {(0, 3), (1, 3), (2, 3), (7, 10)}


@pytest.mark.parametrize("n_envs", [1, 2])
def test_another_trajectory_is_another_episode(n_envs: int) -> None:
    """In the middle of a call too, of each environment by itself."""
    rb = TensorDictReplayBuffer(100, n_envs=n_envs, n_steps=2, seed=0)
    data = plain(0, 6, terminated=torch.zeros(6, 1, dtype=torch.bool))
    data["collector", "traj_ids"] = torch.tensor([0, 0, 0, 1, 1, 1])
    if n_envs == 2:
        other = plain(100, 106, terminated=torch.zeros(6, 1, dtype=torch.bool))
        other["collector", "traj_ids"] = torch.tensor([2, 2, 2, 2, 3, 3])
        data = torch.stack([data, other])
    rb.extend(data)
    found = {(at, to) for at, to, *_ in windows(rb)}
    expected = {(0, 2), (1, 3), (2, 3), (3, 5), (4, 6)}
    if n_envs == 2:
        expected |= {(100, 102), (101, 103), (102, 104), (103, 104), (104, 106)}
    assert found == expected


def test_a_refused_call_with_resets_changes_nothing() -> None:
    """Its first part is not added when a later one cannot be, and no episode ends."""
    flag = torch.zeros(6, 1, dtype=torch.bool)
    rb = TensorDictReplayBuffer(100, n_steps=2, seed=0)
    data = plain(0, 6, terminated=flag)
    data["collector", "traj_ids"] = torch.arange(6)
    data["number"] = torch.arange(6, dtype=torch.int32)
    rb.extend(data)
    data["number"] = torch.arange(6) + (torch.arange(6) == 5) * 2**40
    with pytest.raises(ValueError, match="number"):
        rb.extend(data)
    assert rb.write_count == 6
    assert rb.buffer is not None
    assert rb.buffer.get_current_episode_len() == 1


def cartpole() -> Any:
    """CartPole, whose steps are counted."""
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())


def cartpoles(n_envs: int) -> Any:
    """One or several of them, one behind the other."""
    return cartpole() if n_envs == 1 else SerialEnv(n_envs, cartpole)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize("compress", [True, False])
def test_a_collector_fills_it(n_envs: int, extend: bool, compress: bool) -> None:
    """With ``replay_buffer=``: batch by batch, or step by step; the rows are those of the episodes.

    Random at first, as long as ``write_count`` says.
    """
    rb = TensorDictReplayBuffer(
        1000, batch_size=256, n_envs=n_envs, sampler=Prioritized(), compress=compress, seed=0
    )
    collector = Collector(
        cartpoles(n_envs), None, frames_per_batch=12, total_frames=240, init_random_frames=24,
        replay_buffer=rb, extend_buffer=extend,
    )  # fmt: skip
    assert all(given is None for given in collector)
    collector.shutdown()
    assert len(rb) == rb.write_count == 240
    batch = rb.sample()
    assert (batch["next", "step_count"] == batch["step_count"] + 1).all()
    assert batch["next", "done"].any()
    rows = rb.buffer.get_all_transitions() if rb.buffer is not None else {}
    following = rows["observation"].reshape(-1, n_envs, 4)[1:]
    goes_on = ~rows["next_done"].reshape(-1, n_envs)[:-1]
    said = rows["next_observation"].reshape(-1, n_envs, 4)[:-1]
    assert (following == said)[goes_on].all()
    assert (following != said)[~goes_on].any(axis=-1).all()


def test_a_collector_fills_it_from_a_thread() -> None:
    """``start`` returns at once, and the learner draws at the same time."""
    rb = TensorDictReplayBuffer(1000, batch_size=32, sampler=Prioritized(), seed=0)
    collector = Collector(
        cartpole(), None, frames_per_batch=8, total_frames=-1, replay_buffer=rb, extend_buffer=True
    )
    collector.start()
    try:
        end = time.monotonic() + 60
        while rb.write_count < 200 and time.monotonic() < end:
            if len(rb):
                batch = rb.sample()
                assert (batch["next", "step_count"] == batch["step_count"] + 1).all()
                rb.update_priority(batch["index"], torch.rand(32))
    finally:
        collector.async_shutdown()
    assert rb.write_count >= 200


def test_collectors_of_several_processes_are_refused_with_advice() -> None:
    """Their processes would each fill a buffer that is not drawn from."""
    rb = TensorDictReplayBuffer(100, seed=0)
    with pytest.raises(AttributeError, match=r"hand what it gives to extend\(\)"):
        MultiSyncCollector(
            [cartpole], None, frames_per_batch=8, total_frames=16, replay_buffer=rb
        ).shutdown()


def test_transforms() -> None:
    """Those of TorchRL, and functions: of batches in order, of steps the other way round."""
    rb = TensorDictReplayBuffer(30, batch_size=20, sampler=Prioritized(), seed=0)
    scaled = RewardScaling(loc=1.0, scale=2.0, in_keys=[("next", "reward")])
    assert rb.append_transform(scaled) is rb
    rb.append_transform(lambda data: data.set("seen", data["next", "reward"] + 1))
    rb.extend(steps(20))
    batch = rb.sample()
    assert (batch["next", "reward"] == 2 * batch["observation"] + 1).all()
    assert (batch["seen"] == 2 * batch["observation"] + 2).all()
    batch["td_error"] = batch["seen"].squeeze(-1)
    rb.update_tensordict_priority(batch)
    again = pickle.loads(pickle.dumps(TensorDictReplayBuffer(3).append_transform(scaled)))
    again.extend(steps(3))
    batch = again.sample(3)
    assert (batch["next", "reward"] == 2 * batch["observation"] + 1).all()
    with pytest.raises(TypeError, match="expected a transform or a function, got int"):
        rb.append_transform(3)


def test_transforms_of_steps() -> None:
    """The inverse is what is stored; with ``invert`` batches have it, and a function is no part."""
    cast = DTypeCastTransform(torch.float64, torch.float32, in_keys_inv=["observation"])
    rb = TensorDictReplayBuffer(30, batch_size=8, seed=0).append_transform(Compose(cast))
    data = steps(20)
    rb.extend(data)
    assert rb.buffer is not None
    assert rb.buffer.get_all_transitions()["observation"].dtype == np.float64
    assert data["observation"].dtype == torch.float32  # as it was handed over

    other = TensorDictReplayBuffer(30, batch_size=8, seed=0)
    other.append_transform(lambda data: data.set("action", data["action"] + 100), invert=True)
    other.extend(steps(20))
    batch = other.sample()
    assert (batch["action"] == batch["observation"].long() + 100).all()


def test_a_transform_that_keeps_steps_back() -> None:
    """TorchRL's n-step transform returns nothing until it has so many steps."""
    rb = TensorDictReplayBuffer(30, batch_size=30, seed=0)
    rb.append_transform(MultiStepTransform(n_steps=3, gamma=0.5))
    rb.extend(steps(2))
    assert len(rb) == 0
    for start in range(2, 22, 2):
        rb.extend(steps(2, 1, start))
    batch = rb.sample()
    number = batch["observation"].ravel()
    left = (4 - number % 5).clamp(max=2)
    expected = sum(0.5**k * (number + k) * (k <= left) for k in range(3))
    torch.testing.assert_close(batch["next", "reward"].ravel(), expected)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_collectors_may_reset_at_each_iteration(n_envs: int) -> None:
    """They mark no end then: returns went from the end of a batch to the start of the next."""
    env = cartpoles(n_envs)
    collector = Collector(env, None, frames_per_batch=8, total_frames=80, reset_at_each_iter=True)
    rb = TensorDictReplayBuffer(1000, n_envs=n_envs, n_steps=3, seed=0)
    for data in collector:
        rb.extend(data if n_envs == 1 else data.exclude("collector"))
    collector.shutdown()
    batch = rb.sample(2000)
    steps_on = batch["next", "step_count"] - batch["step_count"]
    assert steps_on.min() >= 1
    assert steps_on.max() == 3


def test_two_entries_of_one_field_are_refused() -> None:
    """The value of one of them was lost."""
    rb = TensorDictReplayBuffer(30, seed=0)
    data = plain(0, 3).set("next_observation", torch.zeros(3, 1))
    with pytest.raises(ValueError, match="would both be the field"):
        rb.extend(data)
    assert rb.buffer is None


def test_priorities_come_back() -> None:
    """By index, from the entry that a loss writes; without priorities nothing happens."""
    rb = TensorDictReplayBuffer(30, batch_size=64, sampler=Prioritized(alpha=1.0, eps=0.0), seed=0)
    rb.extend(steps(20))
    batch = rb.sample()
    assert batch["priority_weight"].shape == batch["index"].shape == (64,)
    batch["td_error"] = (batch["observation"] == 7).float().requires_grad_()
    rb.update_tensordict_priority(batch)
    rb.update_priority(torch.arange(20), (torch.arange(20) == 7).float())
    assert (rb.sample(50)["observation"] == 7).all()
    plain = TensorDictReplayBuffer(30, seed=0)
    plain.extend(steps(20))
    plain.update_tensordict_priority(plain.sample(5))


def test_what_is_refused_changes_nothing() -> None:
    """Other entries, other shapes, no steps."""
    rb = TensorDictReplayBuffer(30, seed=0)
    with pytest.raises(ValueError, match="nothing was added yet"):
        rb.sample(4)
    rb.add(steps(1)[0])
    with pytest.raises(ValueError, match="expected a batch_size"):
        rb.sample()
    for wrong in (steps(2).exclude("action"), steps(2).set("more", torch.zeros(2))):
        with pytest.raises(TypeError, match=r"action|more"):
            rb.extend(wrong)
    with pytest.raises(ValueError, match=r"expected shape \(T,\)"):
        rb.extend(steps(2, 3))
    with pytest.raises(ValueError, match=r"expected shape \(3, T\)"):
        TensorDictReplayBuffer(30, n_envs=3).extend(steps(2))
    assert len(rb) == 1
    again = pickle.loads(pickle.dumps(rb))
    assert (again.sample(3) == rb.sample(3)).all()
    rb.empty()
    with pytest.raises(NotEnoughDataError):
        rb.sample(1)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_an_agent_learns_from_a_collector(n_envs: int) -> None:
    """DQN on CartPole, with priorities, compressed next observations and vector environments."""
    torch.manual_seed(0)
    np.random.seed(0)

    def make() -> Any:
        return TransformedEnv(
            GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter()
        )

    env: Any = make() if n_envs == 1 else SerialEnv(n_envs, make)
    env.set_seed(0)
    layers = [torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)]
    network = torch.nn.Sequential(*layers)
    actor = QValueActor(
        network, spec=make().action_spec, action_space="categorical", in_keys=["observation"]
    )
    greedy = EGreedyModule(env.action_spec, annealing_num_steps=3000, eps_end=0.05)
    policy = tensordict.nn.TensorDictSequential(actor, greedy)
    loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, tau=0.02)
    optimizer = torch.optim.Adam(loss.parameters(), 2e-3)
    rb = TensorDictReplayBuffer(
        10_000, batch_size=64, n_envs=n_envs, sampler=Prioritized(), compress=True, seed=0
    )
    collector = Collector(env, policy, frames_per_batch=64, total_frames=6_000)
    lengths = []
    for data in collector:
        rb.extend(data)
        greedy.step(data.numel())
        ended = data["next", "done"]
        lengths += data["next", "step_count"][ended].tolist()
        if len(rb) < 500:
            continue
        for _ in range(16):
            batch = rb.sample()
            losses = loss(batch)
            optimizer.zero_grad()
            losses["loss"].backward()
            optimizer.step()
            target.step()
            rb.update_tensordict_priority(batch)
    collector.shutdown()
    assert np.mean(lengths[:20]) < 40
    assert np.mean(lengths[-20:]) > 70


@pytest.mark.parametrize("method", ["add", "extend"])
def test_what_is_no_tensordict_is_refused(method: str) -> None:
    """It was an AttributeError of its own."""
    rb = TensorDictReplayBuffer(10, batch_size=2)
    with pytest.raises(TypeError, match="expected a TensorDict of steps, got dict"):
        getattr(rb, method)({"observation": torch.ones(3, 2)})


# ---------------------------------------------------------------------- n-step targets

GAMMA, LAMBDA, N_STEPS = 0.9, 0.8, 3
ESTIMATORS = [
    (DQNLoss, ValueEstimators.TD0),
    (DQNLoss, ValueEstimators.TD1),
    (DQNLoss, ValueEstimators.TDLambda),
    (DDPGLoss, ValueEstimators.TD0),
    (DDPGLoss, ValueEstimators.TD1),
    (DDPGLoss, ValueEstimators.TDLambda),
    (A2CLoss, ValueEstimators.TD0),
    (A2CLoss, ValueEstimators.TD1),
    (A2CLoss, ValueEstimators.TDLambda),
    (A2CLoss, ValueEstimators.GAE),
    (A2CLoss, ValueEstimators.VTrace),
]
ESTIMATOR_NAMES = [f"{loss.__name__}-{kind.name}" for loss, kind in ESTIMATORS]


def valued(n: int, flag: str, ends: Any = ()) -> Any:
    """``n`` steps with random rewards, observations and actions; some end by ``flag``."""
    generator = torch.Generator().manual_seed(3)
    observation = torch.randn(n + 1, 4, generator=generator)
    ended = torch.zeros(n, 1, dtype=torch.bool)
    ended[list(ends)] = True
    flags = {"terminated": torch.zeros_like(ended), "truncated": torch.zeros_like(ended)}
    following = {
        "observation": observation[1:],
        "reward": torch.randn(n, 1, generator=generator),
        **flags,
        "done": ended,
        flag: ended,
    }
    root = {
        "observation": observation[:-1],
        "number": torch.arange(n),
        "action": torch.tanh(torch.randn(n, 2, generator=generator)),
        "action_log_prob": torch.randn(n, generator=generator),
    }
    return TensorDict({**root, "next": following}, [n])


def n_step_rows(data: Any, n_steps: int = N_STEPS, gamma: float = GAMMA) -> tuple[Any, Any]:
    """All n-step rows of some steps in their order, of this buffer and of TorchRL's transform."""
    theirs = TheirReplayBuffer(
        storage=LazyTensorStorage(len(data)),
        transform=MultiStepTransform(n_steps=n_steps, gamma=gamma),
    )
    theirs.extend(data.clone())
    expected = theirs[:]
    ours = TensorDictReplayBuffer(len(data) + 10, n_steps=n_steps, gamma=gamma, seed=0)
    ours.extend(data)
    drawn = ours.sample(100 * len(data))
    first = {number: place for place, number in enumerate(drawn["number"].tolist())}
    return drawn[[first[number] for number in expected["number"].tolist()]], expected


def make_loss(loss: Any, kind: Any, gamma: float = GAMMA) -> Any:
    """A loss module with networks of its own, always the same ones."""
    torch.manual_seed(0)
    if loss is DQNLoss:
        network = torch.nn.Linear(4, 2)
        value = QValueActor(network, in_keys=["observation"], action_space="one-hot")
        made = loss(value, action_space="one-hot", delay_value=True)
    elif loss is DDPGLoss:
        actor = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["action"])
        value = ValueOperator(torch.nn.Bilinear(4, 2, 1), in_keys=["observation", "action"])
        made = loss(actor, value, delay_value=True)
    else:
        network = torch.nn.Sequential(torch.nn.Linear(4, 4), NormalParamExtractor())
        module = TensorDictModule(network, ["observation"], ["loc", "scale"])
        actor = ProbabilisticActor(
            module, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
        )
        made = loss(actor, ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"]))
    hyper = {"lmbda": LAMBDA} if kind.name in ("TDLambda", "GAE") else {}
    made.make_value_estimator(kind, gamma=gamma, **hyper)
    return made


def losses(loss: Any, kind: Any, rows: Any) -> dict[str, Any]:
    """What a loss module makes of some rows, by name; its TD errors too."""
    rows = rows.clone()
    if loss is DQNLoss:
        rows["action"] = torch.nn.functional.one_hot(rows["action"].argmax(-1), 2)
    found = make_loss(loss, kind)(rows)
    named = {key: value.detach() for key, value in found.items() if key.startswith("loss")}
    return named | {key: rows[key] for key in ("td_error", "value_target") if key in rows}


def assert_same_losses(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """The same names and values."""
    assert ours.keys() == theirs.keys() != set()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize(("loss", "kind"), ESTIMATORS, ids=ESTIMATOR_NAMES)
def test_n_step_targets_are_those_of_torchrls_transform(loss: Any, kind: Any) -> None:
    """Batches lacked ``steps_to_next_obs``, so that losses bootstrapped with gamma ** 1.

    Rows in the order of time, as a trajectory, and by themselves, across truncated ends.
    """
    ours, theirs = n_step_rows(valued(40, "truncated"))
    assert_same_losses(losses(loss, kind, ours), losses(loss, kind, theirs))
    found, without = (
        losses(loss, kind, rows) for rows in (ours, ours.exclude("steps_to_next_obs"))
    )
    assert any(not torch.allclose(value, without[key]) for key, value in found.items())

    ours, theirs = n_step_rows(valued(60, "truncated", [10, 11, 30, 44]))
    assert_same_losses(
        losses(loss, kind, ours.unsqueeze(-1)), losses(loss, kind, theirs.unsqueeze(-1))
    )


def test_entries_are_those_of_torchrls_transform() -> None:
    """``steps_to_next_obs``, ``nonterminal``, ``gamma``, rewards before and after, next values."""
    ours, theirs = n_step_rows(valued(60, "truncated", [10, 11, 30, 44]))
    entries = set(theirs.keys(True, True))
    assert set(ours.keys(True, True)) == entries
    of_last = {("next", "truncated"), ("next", "done")}
    for key in entries - of_last:
        assert ours[key].dtype == theirs[key].dtype
        torch.testing.assert_close(ours[key].reshape(theirs[key].shape), theirs[key])
    ends = theirs["number"] + theirs["steps_to_next_obs"] - 1
    expected = torch.isin(ends, torch.tensor([10, 11, 30, 44]))
    for key in of_last:
        assert (ours[key].ravel() == expected).all()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_steps_to_the_next_observation(n_envs: int, compress: bool) -> None:
    """The number of each row, after the ring went round and in calls of any length."""
    rb = TensorDictReplayBuffer(30, n_envs=n_envs, n_steps=3, compress=compress, seed=0)
    for start, stop in ((0, 1), (1, 17), (17, 18), (18, 60)):
        rb.extend(steps(stop - start, n_envs, start))
    batch = rb.sample(500)
    number = batch["observation"].long() % 1000
    left = (4 - number % 5).clamp(max=2)
    assert (batch["steps_to_next_obs"] == left + 1).all()
    assert (batch["nonterminal"] == (left > 0).ravel()).all()
    assert (batch["next", "original_reward"] == batch["observation"]).all()
    rb.empty()
    rb.extend(steps(9, n_envs))
    assert rb.sample(100)["steps_to_next_obs"].unique().tolist() == [1, 2, 3]


def test_nothing_is_added_to_the_return_of_a_terminated_episode() -> None:
    """The flags are of the last step; TorchRL's are of the first, with the final value added."""
    ours, theirs = n_step_rows(valued(40, "terminated", [10, 30]))
    ended = ours["next", "terminated"].ravel()
    assert ended.sum() == 2 * N_STEPS
    module = make_loss(A2CLoss, ValueEstimators.TD0)
    target, other = (
        module.value_estimator.value_estimate(
            rows, target_params=module.target_critic_network_params
        ).ravel()
        for rows in (ours.clone(), theirs.clone())
    )
    torch.testing.assert_close(target[ended], theirs["next", "reward"].ravel()[ended])
    torch.testing.assert_close(target[~ended], other[~ended])
    torch.testing.assert_close(ours["gamma"].ravel(), torch.where(ended, 0.0, theirs["gamma"]))


def test_distributional_targets() -> None:
    """``steps_to_next_obs`` has the axis of the rewards: it goes along the batch, not the atoms."""
    rows, _ = n_step_rows(valued(40, "truncated", [10, 30]))
    rows["action"] = torch.nn.functional.one_hot(rows["action"].argmax(-1), 2)
    found = []
    for gamma, drawn in ((GAMMA, rows), (GAMMA**N_STEPS, rows.exclude("steps_to_next_obs"))):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(4, 14), torch.nn.Unflatten(-1, (7, 2)))
        actor = DistributionalQValueActor(
            network, in_keys=["observation"], support=torch.linspace(-9, 9, 7),
            action_space="one-hot",
        )  # fmt: skip
        module = DistributionalDQNLoss(actor, gamma=gamma, delay_value=True)
        found.append(module(drawn[rows["steps_to_next_obs"].ravel() == N_STEPS])["loss"])
    torch.testing.assert_close(*found)
