"""The examples run from end to end in their short form, too short to learn."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
gymnasium = need("gymnasium")
need("stable_baselines3")
need("h5py", "an example reads a data set of Minari")
need("matplotlib", "the examples draw their learning curves")
need("jax", "an example learns with it")
need("tqdm", "the examples show their progress")

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = [
    "action_chunks.py",
    "cartpole_actors.py",
    "cartpole_dqn.py",
    "device_dqn_jax.py",
    "device_td3.py",
    "graph_dqn.py",
    "her_bits.py",
    "jax_dqn.py",
    "offline_minari.py",
    "ppo.py",
    "r2d2_memory.py",
    "rainbow_frames.py",
    "rlpd.py",
    "sac_pendulum.py",
    "sb3_per.py",
    "token_policy.py",
    "world_model.py",
]


# Runs an example and says how many points its longest line has.
PROGRAM = """
import runpy, sys
from matplotlib.axes import Axes
drawn, plot = [], Axes.plot
def count(self, *args, **options):
    lines = plot(self, *args, **options)
    drawn.extend(len(line.get_xdata()) for line in lines)
    return lines
Axes.plot = count
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv.pop(1))
runpy.run_path(sys.argv[0], run_name="__main__")
print("points:", max(drawn))
"""
SPAWNS = "cartpole_actors.py"  # processes that import the script: it is run as it is


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_its_score_and_draws(name: str, tmp_path: Path) -> None:
    """The last line is the score, and the picture is where the example says that it is.

    A line of the picture has two points or more; it had one or none, as quick runs ended too soon.
    """
    script, options = str(FOLDER / name), ["--quick", "--seed", "1"]
    command = [script] if name == SPAWNS else ["-c", PROGRAM, script, str(FOLDER)]
    done = subprocess.run(
        [sys.executable, *command, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if name != SPAWNS:
        assert int(lines.pop().removeprefix("points: ")) >= 2
    assert re.fullmatch(r"score: -?\d+\.\d+ \(.+ of \d+ \w+.*\)", lines[-1]), done.stdout
    found = re.search(r"^Picture: (.+)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    picture = Path(found[1])
    assert picture.parent == tmp_path
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "%|" in done.stderr  # a progress bar


def test_every_example_has_a_quick_form() -> None:
    """So that a loop over the folder ends soon; those without a learner take no options."""
    without = [path.name for path in FOLDER.glob("*.py") if '"--quick"' not in path.read_text()]
    assert sorted(without) == ["own_layer.py", "tensor_envs.py"]


@pytest.mark.parametrize(("name", "discrete"), [("Pendulum", False), ("CartPole", True)])
def test_environments_of_tensors_are_those_of_gymnasium(name: str, discrete: bool) -> None:
    """From the same states steps are the same, and an episode ends where the next one begins."""
    envs = runpy.run_path(str(FOLDER / "tensor_envs.py"))[name](3, seed=1)
    twins: list[Any] = [gymnasium.make(f"{name}-v1").unwrapped for _ in range(3)]
    for twin in twins:
        twin.reset(seed=0)
    rng, ends = np.random.default_rng(0), 0
    for step in range(1, envs.limit + 1):
        for twin, state in zip(twins, envs.state.double().numpy(), strict=True):
            twin.state = state
        acts = rng.integers(2, size=3) if discrete else rng.uniform(-2.5, 2.5, (3, 1)).astype("f4")
        obs, reward, terminated, truncated, info = envs.step(torch.from_numpy(acts))
        for k, twin in enumerate(twins):
            expected, gain, is_final, *_ = twin.step(acts[k])
            np.testing.assert_allclose(info["final_obs"][k], expected, atol=1e-5)
            assert float(reward[k]) == pytest.approx(float(gain), abs=1e-4)
            assert bool(terminated[k]) == is_final
            assert bool(truncated[k]) == (step == envs.limit and not discrete)
            over = bool(terminated[k] | truncated[k])
            assert bool(info["_final_obs"][k]) == over
            ends += over
            assert np.allclose(obs[k], expected, atol=1e-5) != over
            if discrete:
                twin.steps_beyond_terminated = None
    assert ends >= 3
