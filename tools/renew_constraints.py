"""Write the files of constraints/ anew, with the newest versions: the command ``make constraints``.

The sources are the build requirements and extras of pyproject.toml, and ``constraints/NAME.in``.
``constraints/held.txt`` has what is not moved on. What the files are for is in
``fixed_versions``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from environment import PIP_INSTALL, ROOT, build_requirements, interpreter
from fixed_versions import FOLDER

OLDEST_PYTHON = "3.10"
RESOLVER = ROOT / ".venv-constraints"
# The extras of pyproject.toml whose packages a file has.
EXTRAS = {"oldest": ("test",), "tree": ("dev", "docs")}


def names() -> list[str]:
    """The files of exact versions."""
    return sorted({*EXTRAS, *(path.stem for path in FOLDER.glob("*.in"))})


def resolver() -> Path:
    """The newest uv, in an environment of its own: it is needed to mend the versions of others."""
    python = interpreter(RESOLVER)
    subprocess.run([sys.executable, "-m", "venv", str(RESOLVER)], check=True)
    subprocess.run([str(python), *PIP_INSTALL, "--upgrade", "uv"], check=True)
    return python


def renew(chosen: Sequence[str], *, keep: bool) -> None:
    """Resolve anew and write the files; ``keep`` moves no version on that still fits."""
    python = resolver()
    for name in chosen:
        target, source = FOLDER / f"{name}.txt", FOLDER / f"{name}.in"
        print(f"==> {target.relative_to(ROOT)}", flush=True)
        words = [str(source)] if source.exists() else []
        if name in EXTRAS:
            words += ["pyproject.toml", *(f"--extra={extra}" for extra in EXTRAS[name])]
        with tempfile.TemporaryDirectory() as folder:
            further = Path(folder, "further.in")
            build = build_requirements() if name in ("build", "tree") else []
            further.write_text("\n".join(["pip", *build]), encoding="utf-8")
            output = Path(folder, "output.txt")
            if keep and target.exists():
                output.write_bytes(target.read_bytes())
            subprocess.run(
                [
                    *(str(python), "-m", "uv", "pip", "compile", "--quiet", "--universal"),
                    *("--python-version", OLDEST_PYTHON, "--no-annotate", "--no-header"),
                    *("--no-emit-index-url", "--no-emit-find-links"),
                    *("--constraint", str(FOLDER / "held.txt")),
                    *("--output-file", str(output), *words, str(further)),
                ],
                cwd=ROOT,
                env=os.environ | {"UV_PYTHON_DOWNLOADS": "never"},
                check=True,
            )
            header = "# Written by 'make constraints'.\n"
            target.write_text(header + output.read_text(encoding="utf-8"), encoding="utf-8")


def main() -> None:
    """Renew the files."""
    parser = argparse.ArgumentParser(description="Write the exact versions in constraints/ anew.")
    parser.add_argument("names", nargs="*", help="files, without their suffix; else all")
    parser.add_argument("--keep", action="store_true", help="move no version on that still fits")
    chosen = parser.parse_args()
    unknown = sorted({*chosen.names} - {*names()})
    if unknown:
        parser.error(f"expected some of {names()}, got {unknown}")
    try:
        renew(chosen.names or names(), keep=chosen.keep)
    except subprocess.CalledProcessError as error:
        sys.exit(f"This failed, for the reason above: {' '.join(map(str, error.cmd))}")


if __name__ == "__main__":
    main()
