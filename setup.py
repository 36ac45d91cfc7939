"""The compiled modules, and the one place for Cython directives and compiler flags.

Environment variables, off unless given
---------------------------------------
CPPRB_LIKE_DEBUG=1
    Checks indexes and memoryviews, keeps C assertions, hardly optimizes.
CPPRB_LIKE_COVERAGE=1
    Counts which lines of the generated C are run (gcc); for ``make coverage``.
CPPRB_LIKE_SANITIZE=address
    Builds with this sanitizer of the C compiler (gcc and clang).
CPPRB_LIKE_ANNOTATE=1
    Writes a page for each module, in ``build/cython``, that shows which lines call into Python.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
from environment import NotReadyError, check_build

SOURCES = sorted(Path("cpprb_like").rglob("*.pyx"))
# The module of Cython's own code for typed memoryviews, without a source here. Without it this code
# is in each of 24 modules, which doubles the time of the C compiler. ``sys.modules`` has it by the
# last part of its name too, so that is no name of another package's.
SHARED = "cpprb_like._c._cython_for_cpprb_like"

DEBUG = os.environ.get("CPPRB_LIKE_DEBUG") == "1"
SANITIZE = os.environ.get("CPPRB_LIKE_SANITIZE", "")
COVERAGE = os.environ.get("CPPRB_LIKE_COVERAGE") == "1"
ANNOTATE = os.environ.get("CPPRB_LIKE_ANNOTATE") == "1"

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "nonecheck": False,  # cannot be had in functions without the interpreter lock
    "wraparound": False,  # when debugging too: a negative index is an error, not a row from the end
    "cdivision": True,  # operands are never negative ...
    "cdivision_warnings": DEBUG,  # ... and the debug build says so if one is
    "embedsignature": True,
    "show_performance_hints": not DEBUG,
    # No freethreading_compatible: what is promised to threads rests on the interpreter lock.
}

MACROS: list[tuple[str, str | None]] = [
    ("NPY_NO_DEPRECATED_API", "NPY_1_25_API_VERSION"),
    ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION"),  # NumPy 1.26 and later can load the modules
]

# Commands that build nothing: the generated C is that of the environment that builds in this tree.
DESCRIBING = ("egg_info", "dist_info", "sdist")
GENERATED = Path("build/cython")
RECIPE = GENERATED / "recipe.txt"


def forget_other_recipes() -> None:
    """Delete the generated C if it was made in another way than is asked for now.

    A debug and a release build write files of the same name, so the age of a file does not tell how
    it was made. New C is younger than any module, so the modules are built anew as well.
    """
    recipe = (
        f"{DEBUG=} {SANITIZE=} {COVERAGE=} {ANNOTATE=} CC={os.environ.get('CC')}\n"
        f"Python {sys.version}\nNumPy {np.__version__}\nCython {version('Cython')}\n"
        + Path(__file__).read_text(encoding="utf-8")
    )
    if not RECIPE.exists() or RECIPE.read_text(encoding="utf-8") != recipe:
        shutil.rmtree(GENERATED, ignore_errors=True)
        GENERATED.mkdir(parents=True)
        RECIPE.write_text(recipe, encoding="utf-8")


def need_compiler() -> None:
    """End with one line where nothing can be compiled; the translation would print hundreds."""
    try:
        check_build()
    except NotReadyError as error:
        sys.exit(f"cpprb_like is not built. {error}")


def extensions() -> list[Extension]:
    """Translate the modules to C, in a folder outside the package, unless nothing is built."""
    sources = {".".join(source.with_suffix("").parts): str(source) for source in SOURCES}
    is_built = not (sys.argv[1:2] and sys.argv[1] in DESCRIBING)
    if is_built:
        need_compiler()
        forget_other_recipes()
        sources[SHARED] = SHARED.replace(".", "/") + ".c"
    modules = [
        Extension(name, [source], include_dirs=[np.get_include()], define_macros=MACROS)
        for name, source in sources.items()
    ]
    if not is_built:
        return modules
    translated: list[Extension] = cythonize(
        modules,
        nthreads=os.cpu_count() or 1,
        build_dir=str(GENERATED),
        compiler_directives=DIRECTIVES,
        annotate=ANNOTATE,
        shared_utility_qualified_name=SHARED,
    )
    return translated


def compiler_flags(compiler_type: str) -> tuple[list[str], list[str]]:
    """Flags for the compiler and for the linker: none that hold for the build machine only."""
    if compiler_type == "msvc":
        return (["/Od", "/UNDEBUG"] if DEBUG else ["/O2"]), []
    # What newer compilers take for an error is one in the debug build of every compiler.
    checks = ["-g", "-UNDEBUG", "-Werror=incompatible-pointer-types", "-Werror=int-conversion"]
    # Python asks for debug symbols, which are four fifths of a module and a third of the time.
    compile_flags = ["-O1", *checks] if DEBUG else ["-O3", "-funroll-loops", "-g0"]
    if COVERAGE:  # by all threads, without the interpreter lock too
        return [*compile_flags, "--coverage", "-fprofile-update=atomic"], ["--coverage"]
    if not SANITIZE:
        return compile_flags, []
    sanitizer = f"-fsanitize={SANITIZE}"
    return [*compile_flags, sanitizer, "-g", "-fno-omit-frame-pointer"], [sanitizer]


class BuildExt(build_ext):
    """``build_ext`` with flags for the compiler at hand, on all cores."""

    def finalize_options(self) -> None:
        """Compile the modules side by side unless told otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        """Build; in place, directly: setuptools would go by the age of a copy elsewhere."""
        super(build_ext if self.inplace else BuildExt, self).run()

    def build_extensions(self) -> None:
        """Set the flags, then build."""
        n, at_once = len(self.extensions), self.parallel
        sys.stderr.write(f"==> compiling {n} modules, {at_once} at a time: this takes minutes\n")
        compile_flags, link_flags = compiler_flags(self.compiler.compiler_type)
        if COVERAGE:  # counts are written beside the objects, which pip would put elsewhere
            self.build_temp = "build/objects"
        for extension in self.extensions:
            extension.extra_compile_args = compile_flags
            extension.extra_link_args = link_flags
        super().build_extensions()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExt})
