"""A leg of the CI that says which packages it has does not pass by skipping their tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from optional import VARIABLE, required

TESTS = Path(__file__).resolve().parents[1]


def test_every_optional_package_can_be_required() -> None:
    """Tests ask for packages in one way only, which ``CPPRB_LIKE_REQUIRE`` governs."""
    files = [path for path in TESTS.rglob("*.py") if not path.match("support/optional.py")]
    word = "importor" + "skip"
    assert [path.name for path in files if word in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", []), ("torch", ["torch"]), ("torch,jax", ["torch", "jax"]), (" dm_env  cv2 ", None)],
)
def test_names_are_read(
    value: str, expected: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names stand between commas or blanks."""
    monkeypatch.setenv(VARIABLE, value)
    assert required() == (["dm_env", "cv2"] if expected is None else expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        ("", 0, "1 skipped"),
        ("jax", 0, "1 skipped"),
        ("envpool", 1, "EnvPool is not installed, and CPPRB_LIKE_REQUIRE says that it is"),
        ("envpol", 4, "CPPRB_LIKE_REQUIRE: expected some of"),
    ],
)
def test_what_is_required_and_missing_fails(
    value: str, code: int, words: str, tmp_path: Path
) -> None:
    """Skipped where nothing is required, failed where it is; a misspelt name ends the run."""
    program = "from optional import need\n\ndef test_it():\n    need('envpool')\n"
    (tmp_path / "test_it.py").write_text(program, encoding="utf-8")
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text("utf-8"), "utf-8")
    (tmp_path / "envpool.py").write_text("raise ModuleNotFoundError('envpool')\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # not the project's
    path = os.pathsep.join([str(tmp_path), str(TESTS / "support")])
    options = ["-q", "-rs", "-c", str(tmp_path / "pytest.ini"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path],
        env={**os.environ, VARIABLE: value, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done
