"""What is promised to whoever installs, builds or develops the package."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import check_wheel
import environment
import numpy as np
import pytest
from optional import PACKAGES, VARIABLE, need

import cpprb_like

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "tools" / "bootstrap.py"
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def bootstrap(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the bootstrap command with environment variables of its own."""
    return subprocess.run(
        [sys.executable, str(BOOTSTRAP), *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def is_one_sentence(text: str) -> bool:
    """One line that ends in a full stop and is no traceback."""
    return text.endswith(".\n") and text.count("\n") == 1


@pytest.fixture
def installed() -> importlib.metadata.Distribution:
    """What the installer knows of the package."""
    try:
        return importlib.metadata.distribution("cpprb_like")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("built in place, but not installed")


def test_version_is_stated_once(installed: importlib.metadata.Distribution) -> None:
    """The installer and ``cpprb_like.__version__`` say the same."""
    assert installed.version == cpprb_like.__version__


def test_numpy_is_the_only_dependency(installed: importlib.metadata.Distribution) -> None:
    """Installing the package without extras installs NumPy and nothing else."""
    requirements = installed.requires or []

    assert [line for line in requirements if "extra ==" not in line] == ["numpy>=1.26"]


def test_supported_versions_of_python_agree() -> None:
    """The oldest and newest Python are the same for pip, for ``make`` and for ``.ci/run``."""
    classified = re.findall(r"Python :: (3\.\d+)\"", PYPROJECT)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    oldest = re.search(r"OLDEST_PYTHON = (\(.*?\))", BOOTSTRAP.read_text(encoding="utf-8"))
    assert oldest is not None

    assert 'requires-python = ">={}.{}"'.format(*ast.literal_eval(oldest[1])) in PYPROJECT
    assert "{}.{}".format(*ast.literal_eval(oldest[1])) == classified[0]
    assert f"OLDEST={classified[0]}\n" in ci
    assert f"NEWEST='{' '.join(classified[:-4:-1])}'" in ci
    wheels = re.findall(r'"cp(3)(\d+)-\*"', PYPROJECT)
    assert [".".join(version) for version in wheels] == classified


def test_bootstrap_reads_the_build_requirements() -> None:
    """The bootstrap installs what the build system asks for, on every Python."""
    tomllib = need("tomllib")

    expected = tomllib.loads(PYPROJECT)["build-system"]["requires"]

    assert environment.build_requirements() == expected


def test_every_optional_package_is_there_in_some_leg() -> None:
    """What tests can do without is required once, so that no test skips in every leg of the CI."""
    legs = [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", ".ci/run")]
    lists = re.findall(rf"(?:{VARIABLE}=|packages_of_tests\+?=,?)([\w,]+)", "".join(legs))

    assert {*PACKAGES} - {name for names in lists for name in names.split(",")} == set()


def test_wheels_are_tested_alike_everywhere() -> None:
    """The wheels of a release undergo the tests that ``make wheel`` makes."""
    tomllib = need("tomllib")

    there = tomllib.loads(PYPROJECT)["tool"]["cibuildwheel"]

    assert tuple(there["test-sources"]) == check_wheel.TEST_SOURCES
    assert [word for word in there["test-command"].split() if word.startswith("tests/")] == [
        *check_wheel.NOT_FOR_WHEELS
    ]


def test_no_flag_ties_the_build_to_one_machine() -> None:
    """Wheels run on every machine of their platform, and floats keep their meaning."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")

    assert not re.search(r"-march|-mtune|-mcpu|/arch|fast-math|-Ofast", setup)


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 9, 18)])
def test_too_old_python_is_reported_in_one_sentence(version: tuple[int, int, int]) -> None:
    """A Python that is too old says which one to install, and exits non-zero."""
    program = f"import sys, runpy; sys.version_info = {version}; runpy.run_path({str(BOOTSTRAP)!r})"

    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert run.returncode != 0
    assert is_one_sentence(run.stderr)
    assert "needs CPython 3.10 or newer" in run.stderr
    assert f"{version[0]}.{version[1]}" in run.stderr


def test_bootstrap_parses_on_old_pythons() -> None:
    """The file that tells an old Python that it is too old has no syntax that it does not know."""
    ast.parse(BOOTSTRAP.read_text(encoding="utf-8"), feature_version=(3, 4))
    assert not re.search(r"[^\w]f[\"']", BOOTSTRAP.read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", ["no-such-compiler -pthread", "false"])
def test_missing_compiler_is_reported_in_one_sentence(command: str, tmp_path: Path) -> None:
    """Without a working C compiler the set-up names what to install and leaves nothing behind."""
    run = bootstrap("--venv", str(tmp_path / "venv"), "test", CC=command)

    assert run.returncode != 0
    assert is_one_sentence(run.stderr)
    assert f"'{command}'" in run.stderr
    assert "install" in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["bdist_wheel", "editable_wheel", "build_ext"])
def test_build_without_compiler_ends_in_one_line(command: str, tmp_path: Path) -> None:
    """Where nothing can be compiled, nothing is translated, and one line says what to install.

    ``pip install .`` printed 400 lines of the translation and of each module's failure.
    """
    need("Cython")
    if sys.platform == "win32":
        pytest.skip("setuptools finds the compiler")
    environ = {name: value for name, value in os.environ.items() if name != "CC"}
    run = subprocess.run(
        [sys.executable, "setup.py", "--quiet", command],
        cwd=ROOT,
        env=environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode != 0
    assert run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.startswith("cpprb_like is not built. No C compiler: there is no '")
    assert "install" in run.stderr
    assert run.stdout == ""


def test_missing_headers_are_reported_in_one_sentence(tmp_path: Path) -> None:
    """Without Python.h the set-up names the missing file and what to install."""
    with pytest.raises(environment.NotReadyError) as refusal:
        environment.check_headers(str(tmp_path))

    assert is_one_sentence(f"{refusal.value}\n")
    assert f"no Python.h in {tmp_path}" in str(refusal.value)
    assert "install" in str(refusal.value)


def test_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    """Naming a folder with other things in it as the environment deletes none of them."""
    (tmp_path / "thesis.tex").write_text("years of work")

    run = bootstrap("--venv", str(tmp_path), "test")

    assert run.returncode != 0
    assert is_one_sentence(run.stderr)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_this_machine_passes_its_own_check() -> None:
    """The checks accept the machine that built the modules under test."""
    if sys.platform == "win32":
        pytest.skip("setuptools finds the compiler")
    environment.check_venv()
    environment.check_compiler(os.environ.get("CC") or sysconfig.get_config_var("CC"))
    environment.check_headers(sysconfig.get_path("include"))


PROBE = '''
cdef extern from *:
    """
    #ifdef NDEBUG
    #define IS_DEBUG 0
    #else
    #define IS_DEBUG 1
    #endif
    """
    bint IS_DEBUG

is_debug = IS_DEBUG
'''
# Lines of setup.py about a module that the probe does not need, and that takes 20 s to compile.
OF_SHARED_MODULE = (
    'sources[SHARED] = SHARED.replace(".", "/") + ".c"',
    "shared_utility_qualified_name=SHARED,",
)


@pytest.mark.slow
def test_switching_between_debug_and_release_builds_anew(tmp_path: Path) -> None:
    """The modules in the tree are those of the last build, and a build without a change is none."""
    need("Cython")
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for line in OF_SHARED_MODULE:
        assert line in setup
        setup = setup.replace(line, "")
    (tmp_path / "setup.py").write_text(setup, encoding="utf-8")
    (tmp_path / "tools").mkdir()
    for name in ("environment.py", "fixed_versions.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
    (tmp_path / "cpprb_like").mkdir()
    (tmp_path / "cpprb_like" / "__init__.py").touch()
    (tmp_path / "cpprb_like" / "probe.pyx").write_text(PROBE)

    def build(debug: str) -> tuple[bool, int]:
        """Build, and tell what came out and when it was written."""
        environ = os.environ | {"CPPRB_LIKE_DEBUG": debug, "CPPRB_LIKE_SANITIZE": ""}
        for command in (
            [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
            [sys.executable, "-c", "import cpprb_like.probe as probe; print(probe.is_debug)"],
        ):
            run = subprocess.run(
                command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
            )
        (module,) = (tmp_path / "cpprb_like").glob("probe.*[!x]")
        return run.stdout == "True\n", module.stat().st_mtime_ns

    release = build("")
    assert build("") == release
    debug = build("1")
    again = build("")

    assert [release[0], debug[0], again[0]] == [False, True, False]
    assert release[1] < debug[1] < again[1]


@needs_make
@pytest.mark.parametrize("target", ["test", "demo"])
def test_make_without_python_is_reported_in_one_sentence(target: str) -> None:
    """``make`` with a Python that does not run says what to install."""
    outside_make = {
        name: value for name, value in os.environ.items() if not re.match("M(AKE|FLAGS)", name)
    }
    run = subprocess.run(
        ["make", target, "PYTHON=no-such-python"],
        cwd=ROOT,
        env=outside_make,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode != 0
    told = [line for line in run.stderr.splitlines() if not line.startswith("make: ***")]
    assert len(told) == 1
    assert "install CPython 3.10 or newer" in told[0]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small package in the shape of ours."""
    package = tmp_path / "cpprb_like"
    (package / "integrations").mkdir(parents=True)
    for name in ("__init__.py", "_core.pyx", "_core.pyi", "py.typed", "integrations/__init__.py"):
        (package / name).touch()
    return tmp_path


WHEEL = [
    "cpprb_like/__init__.py",
    "cpprb_like/_core.cpython-312-x86_64-linux-gnu.so",
    "cpprb_like/_core.pyi",
    "cpprb_like/integrations/__init__.py",
    "cpprb_like/py.typed",
    "cpprb_like-0.1.0.dist-info/METADATA",
]


def test_wheel_check_accepts_a_whole_wheel(tree: Path) -> None:
    """A wheel with every module, compiled, with stubs and the mark of a typed package, is fine."""
    assert check_wheel.complaints(WHEEL, tree) == []


@pytest.mark.parametrize("number", range(5))
def test_wheel_check_notices_what_is_missing(tree: Path, number: int) -> None:
    """Each file that a user needs is asked for."""
    (complaint,) = check_wheel.complaints(WHEEL[:number] + WHEEL[number + 1 :], tree)

    assert complaint.endswith("is missing")
    assert WHEEL[number].partition(".cpython")[0] in complaint


@pytest.mark.parametrize(
    "name", ["cpprb_like/_core.c", "cpprb_like/_core.pyx", "tests/test_core.py", "setup.py"]
)
def test_wheel_check_notices_what_should_not_be_there(tree: Path, name: str) -> None:
    """Sources of compiled modules, and what is not the package, are no part of a wheel."""
    assert check_wheel.complaints([*WHEEL, name], tree) == [f"{name} should not be there"]


def test_sdist_check_notices_generated_files() -> None:
    """An sdist holds what people wrote."""
    names = ["cpprb_like-0.1.0/setup.py", "cpprb_like-0.1.0/cpprb_like/_core.c"]

    assert check_wheel.sdist_complaints(names) == [f"{names[1]} should not be there"]


@pytest.mark.slow
def test_sampler_of_the_contributors_guide_works() -> None:
    """The sampler that CONTRIBUTING.md shows draws the newest rows of a ring that has wrapped."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names: dict[str, Any] = {}

    exec(block, names)

    rb = names["rb"]
    for first in range(0, 2500, 500):
        rb.add(number=np.arange(first, first + 500))
    assert set(rb.sample(2000)["number"]) == set(range(2400, 2500))
