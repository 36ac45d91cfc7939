"""The demo learns, and says so; when it does not, it says that."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import need
from scale import LONG

from cpprb_like import checkpoint

need("gymnasium", "the demo plays Gymnasium's CartPole")
need("matplotlib", "the demo draws with matplotlib")
need("tqdm", "the demo shows its progress with tqdm")

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "cartpole_dqn.py"
ACTORS = SCRIPT.with_name("cartpole_actors.py")
SEEDS = range(3) if LONG else [2]  # the seed that learns in the fewest steps


def run(
    folder: Path, *options: str, script: Path = SCRIPT, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """The demo as a program of its own, in an empty folder."""
    command = [sys.executable, str(script), *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
    )


def assert_picture(path: Path) -> None:
    """A PNG that is more than a blank page."""
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


@pytest.mark.parametrize("options", [(), ("--prioritized",)], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_agent_learns(tmp_path: Path, seed: int, options: tuple[str, ...]) -> None:
    """Greedy episodes reach a mean return of 475; the picture is there, and named."""
    done = run(tmp_path, "--seed", str(seed), *options)
    assert done.returncode == 0, done.stderr
    found = re.search(r"mean return (\d+) over 20 greedy episodes", done.stdout)
    assert found is not None
    assert int(found[1]) >= 475
    assert str(tmp_path / "cartpole_dqn.png") in done.stdout
    assert_picture(tmp_path / "cartpole_dqn.png")


def test_an_agent_that_did_not_learn_fails(tmp_path: Path) -> None:
    """Too few steps end with an error that says how far it came; the picture is there as well.

    With ``--prioritized`` steps are drawn by priority, and the picture shows that.
    """
    pictures = []
    for options, has_weights in (((), False), (("--prioritized",), True)):
        done = run(tmp_path, "--steps", "1500", "--picture", "short.png", *options)
        assert done.returncode != 0
        assert "Not learned: mean return" in done.stderr
        assert_picture(tmp_path / "short.png")
        pictures.append((tmp_path / "short.png").read_bytes())
        assert re.search(r"^ReplayBuffer\(", done.stdout, re.MULTILINE), done.stdout
        assert ("(sampler)" in done.stdout) is has_weights, done.stdout
    assert pictures[0] != pictures[1]


RESUMED = """
import sys
sys.path.insert(0, sys.argv[1])
import cartpole_dqn as demo
from pathlib import Path
demo.WARM_UP, demo.SAVE_EVERY, demo.EXPLORATION_STEPS = 100, 150, 300
demo.evaluate = lambda network, *_: float(network.flat.sum())
for folder in (None, Path("run"), Path("run")):  # the third goes on where the second saved last
    buffer, curve = demo.train(0, 400, True, folder)
    sums = [rows["obs"].sum() for rows in (buffer.get_all_transitions(), buffer.sample(99))]
    print(curve, *sums)
for options in ((1, 400, True), (0, 500, True), (0, 400, False)):
    try:
        demo.train(*options, Path("run"))
    except ValueError as error:
        print(error)
"""


def test_a_resumed_agent_ends_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    """The same weights after each hundred steps, the same rows and the same draws."""
    (tmp_path / "resumed.py").write_text(RESUMED)
    done = run(tmp_path, str(SCRIPT.parent), script=tmp_path / "resumed.py")
    assert done.returncode == 0, done.stderr
    found = checkpoint.describe(tmp_path / "run")
    assert found["beside"].keys() == {"networks.npz", "run.pkl"}
    assert 150 <= found["buffers"][0]["rows"] < 400
    whole, *others = done.stdout.splitlines()
    assert whole.count("(") == 5
    assert others[:2] == [whole] * 2
    began = "{'seed': 0, 'steps': 400, 'prioritized': True}"
    assert [line.partition(", as it began")[0] for line in others[2:]] == [
        f"run: expected {began}"
    ] * 3


@pytest.mark.skipif(not LONG, reason="takes minutes: CPPRB_LIKE_LONG=1 runs it")
def test_actors_in_processes_reach_the_solved_return(tmp_path: Path) -> None:
    """Greedy episodes of what the learner learned from them reach a mean return of 475."""
    done = run(tmp_path, "--seed", "0", script=ACTORS, seconds=1800)
    assert done.returncode == 0, done.stderr
    found = re.search(r"mean return (\d+) over 20 greedy episodes", done.stdout)
    assert found is not None
    assert int(found[1]) >= 475


def test_actors_in_processes_and_a_learner_keep_pace(tmp_path: Path) -> None:
    """The short form, too few steps to learn: it ends with all actors, and says how far it came."""
    done = run(tmp_path, "--steps", "1500", "--actors", "2", script=ACTORS)
    assert "Not learned: mean return" in done.stderr
    stats = re.search(r"^{.*}$", done.stdout, re.MULTILINE)
    assert stats is not None
    found = ast.literal_eval(stats[0])
    assert abs((found["inserts"] - 1000) * 64 - found["samples"]) <= 33 * 64
    assert done.stdout.count("kind='actor'") == 2
