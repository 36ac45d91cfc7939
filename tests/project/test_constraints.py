"""The commands install exact versions, which stand in constraints/."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import environment
import fixed_versions
import pytest
import renew_constraints
from optional import need

ROOT = Path(__file__).resolve().parents[2]
NAMES = renew_constraints.names()


def named(text: str) -> set[str]:
    """The packages that the lines of a file of requirements name."""
    words = re.findall(r"^([A-Za-z][\w.-]*)", text, re.MULTILINE)
    return {fixed_versions.normalized(word) for word in words}


def constraints(name: str) -> str:
    """A file of exact versions."""
    return (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_line_fixes_a_version(name: str) -> None:
    """Each line is a name, one version and perhaps the machines for which it holds."""
    lines = [line for line in constraints(name).splitlines() if not line.startswith("#")]

    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!]+( ; .*)?", line)] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_file_names_is_fixed(name: str) -> None:
    """A package that is added without a renewal has no version, and is found here."""
    source = ROOT / "constraints" / f"{name}.in"
    text = source.read_text(encoding="utf-8") if source.exists() else ""

    assert {*named(text), "pip"} <= named(constraints(name))


@pytest.mark.parametrize("name", ["tree", "oldest"])
def test_extras_are_fixed(name: str) -> None:
    """The packages of the extras that the commands install have versions, and so has the build."""
    tomllib = need("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted: set[str] = set()
    waiting = [*renew_constraints.EXTRAS[name]]
    while waiting:
        for requirement in [*project["dependencies"], *extras[waiting.pop()]]:
            inner = re.fullmatch(r"cpprb_like\[(.*)\]", requirement)
            if inner:
                waiting += inner[1].split(",")
            else:
                wanted |= named(requirement)

    assert wanted <= named(constraints(name))
    assert named("\n".join(environment.build_requirements())) <= named(constraints("build"))


def test_no_file_says_where_packages_come_from() -> None:
    """Versions hold for each index of packages, so none is named."""
    for path in (ROOT / "constraints").iterdir():
        assert not re.search(r"https?:|--(extra-)?index|find-links", path.read_text("utf-8")), path


def test_packages_without_a_fixed_version_are_named() -> None:
    """Another version and an unknown package are reported; spelling and local builds make none."""
    allowed = fixed_versions.pins("numpy==2.2.6 ; python_version < '3.11'\nml-dtypes==0.6.0\n")
    allowed |= fixed_versions.pins("numpy==2.4.6 ; python_version >= '3.11'\ntorch==2.13.0\n")
    fine = [("numpy", "2.4.6"), ("ML_dtypes", "0.6.0"), ("torch", "2.13.0+cpu")]

    assert fixed_versions.complaints([*fine, ("cpprb_like", "0.1.0")], allowed) == []
    assert fixed_versions.complaints([*fine, ("numpy", "2.4.7"), ("left-pad", "1.0")], allowed) == [
        "left-pad 1.0",
        "numpy 2.4.7",
    ]


@pytest.mark.slow
def test_environment_with_another_package_fails_where_versions_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check looks into the environment: a stray package there ends the command."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = environment.interpreter(folder)
    monkeypatch.setenv(fixed_versions.SWITCH, "checked")
    fixed_versions.check_if_asked(python, "tree")
    (packages,) = {*folder.glob("**/site-packages")} - {*folder.glob("lib64/**")}
    stray = packages / "left_pad-1.0.dist-info"
    stray.mkdir()
    (stray / "METADATA").write_text("Metadata-Version: 2.1\nName: left-pad\nVersion: 1.0\n")

    with pytest.raises(SystemExit, match=r"fixed version in constraints/tree\.txt: left-pad 1\.0"):
        fixed_versions.check_if_asked(python, "tree")
    monkeypatch.setenv(fixed_versions.SWITCH, "fixed")
    fixed_versions.check_if_asked(python, "tree")


def test_newest_versions_are_installed_without_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable decides for all commands; a misspelt value ends them."""
    monkeypatch.delenv(fixed_versions.SWITCH, raising=False)
    assert [Path(word).name for word in fixed_versions.options("ray")[1::2]] == [
        "ray.txt",
        "build.txt",
    ]
    monkeypatch.setenv(fixed_versions.SWITCH, "newest")
    assert fixed_versions.options("ray") == []
    monkeypatch.setenv(fixed_versions.SWITCH, "latest")
    with pytest.raises(SystemExit, match="expected 'fixed', 'newest' or 'checked', got 'latest'"):
        fixed_versions.options("ray")


def test_nothing_installs_packages_of_any_version() -> None:
    """The Makefile and the CI install by the tools that fix versions."""
    for name in ("Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"\bpip (install|wheel)\b|-m pip", text), name
    calls = r'PIP_INSTALL|"pip", "?(install|wheel)|"-m", "pip"'
    callers = [
        path.name
        for folder in ("tools", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(calls, path.read_text("utf-8"))
    ]
    # Peers and the NumPy of counted instructions have versions of their own, and the resolver is
    # the newest, as it mends the versions of others.
    assert sorted(callers) == [
        "check_wheel.py",
        "environment.py",
        "environments.py",
        "library_environment.py",
        "renew_constraints.py",
        "toolchain.py",
    ]
