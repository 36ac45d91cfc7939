"""CleanRL's own scripts, as they are installed, with the one line of the documentation changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from optional import need

need("torch")
need("gymnasium")
need("stable_baselines3")
SCRIPTS = Path(next(iter(need("cleanrl", "make test-integrations").__path__)))

THEIRS = "from stable_baselines3.common.buffers import ReplayBuffer"
OURS = "from cpprb_like.integrations.stable_baselines3 import ReplayBuffer"
# Runs a script whose losses are printed and not left in files, where Python has no distutils too.
PROGRAM = """
import runpy, sys, types

class SummaryWriter:
    def __init__(self, folder): pass
    def add_text(self, name, text): pass
    def add_scalar(self, name, value, step):
        if name.startswith("losses"):
            print(name, step, float(value).hex())
    def close(self): pass

made = {"torch.utils.tensorboard": {"SummaryWriter": SummaryWriter}}
made |= {"distutils": {}, "distutils.util": {"strtobool": lambda text: text == "True"}}
for name, values in made.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(values)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def losses(script: Path, options: list[str]) -> list[str]:
    """What a script says of its losses, to the last bit."""
    command = [sys.executable, "-c", PROGRAM, str(script), *options]
    env = os.environ | {"OMP_NUM_THREADS": "1"}  # these networks are small
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=script.parent,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("losses")]


@pytest.mark.parametrize(
    ("script", "env", "steps"),
    [
        ("dqn.py", "CartPole-v1", 700),
        ("ddpg_continuous_action.py", "MountainCarContinuous-v0", 400),
    ],
)
def test_one_line_is_enough(script: str, env: str, steps: int, tmp_path: Path) -> None:
    """It draws the same batches, so each loss is the same, also when the buffer has wrapped."""
    text = (SCRIPTS / script).read_text(encoding="utf-8")
    assert THEIRS in text
    options = ["--env-id", env, "--total-timesteps", str(steps)]
    options += ["--learning-starts", "100", "--buffer-size", "250"]
    found = []
    for name, line in {"theirs": THEIRS, "ours": OURS}.items():
        (tmp_path / f"{name}.py").write_text(text.replace(THEIRS, line), encoding="utf-8")
        found.append(losses(tmp_path / f"{name}.py", options))
    assert len(found[0]) >= 6
    assert found[0] == found[1]
