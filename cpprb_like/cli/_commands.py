"""The commands ``inspect``, ``report``, ``verify``, ``convert``, ``copy`` and ``top``."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

import cpprb_like
from cpprb_like import checkpoint
from cpprb_like.cli import _convert
from cpprb_like.cli._inspect import describe
from cpprb_like.cli._inspect import inspect as look_at
from cpprb_like.report import text as texts

EXPECTED = (ImportError, KeyError, MemoryError, OSError, TypeError, ValueError)
PATH = click.Path(path_type=Path)
NO_SYNC = click.option(
    "--no-sync", is_flag=True, help="Do not wait for the disk: a crash soon after may cost NEW."
)


class Commands(click.Group):
    """Commands whose errors are one line on standard error, and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends without a message
        except EXPECTED as error:
            raise click.ClickException(_line(error)) from None


def _line(error: BaseException) -> str:
    """The message of an error, in one line."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    return texts.clean(" ".join(text.split())) or type(error).__name__


@contextmanager
def _naming(path: Path, source: Path | None = None) -> Iterator[None]:
    """Add the name of the file to an error, or that of a ``source`` that is damaged."""
    try:
        yield
    except (BrokenPipeError, ImportError):
        raise
    except EXPECTED as error:
        if source is not None and isinstance(error, checkpoint.DamagedError):
            path = source
        text = _line(error)
        name = texts.clean(path.name)
        raise click.ClickException(text if name in text else f"{path}: {text}") from None


@contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[None]:
    """Remove the folder of a new checkpoint, and parents made for it, if the checkpoint fails."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    except BlockingIOError:
        raise  # another program saves to this folder
    except BaseException:
        with suppress(OSError):
            if new and not checkpoint.states(folder):
                shutil.rmtree(folder, ignore_errors=True)
                for parent in new[1:]:
                    parent.rmdir()
        raise


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(cpprb_like.__version__, package_name="cpprb_like")
def commands() -> None:
    """Look at, check, convert and copy saved replay buffers.

    No code in a file is run, so files from unknown sources are safe.
    """


@commands.command()
@click.argument("path", type=PATH, metavar="FOLDER_OR_FILE")
@click.option("--state", type=int, metavar="K", help="Which state of the folder; the newest.")
@click.option("--reward", metavar="FIELD", help="The field of rewards; rew, reward or rewards.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def inspect(path: Path, state: int | None, reward: str | None, as_json: bool) -> None:
    """Show what is in a checkpoint folder, in a data set, or in a file of cpprb's.

    Of a data set --reward reads the rows; without it only its metadata are read.
    """
    with _naming(path):
        found = look_at(path, state, reward)
    if as_json:
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        click.echo(texts.report(found))


@commands.command()
@click.argument("source", type=PATH, metavar="FOLDER_OR_FILE_OR_NAME")
@click.option("-o", "--out", type=PATH, metavar="PAGE", help="The page; report.html.")
@click.option("--state", type=int, metavar="K", help="Which state of the folder; the newest.")
@click.option("--reward", metavar="FIELD", help="The field of rewards; rew, reward or rewards.")
@click.option("--text", "as_text", is_flag=True, help="Print it as text, and write no page.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, and write no page.")
def report(
    source: Path,
    out: Path | None,
    state: int | None,
    reward: str | None,
    as_text: bool,
    as_json: bool,
) -> None:
    """Write a page that shows what rows are like, and what looks wrong with them.

    Of a checkpoint folder, a data set, a file of cpprb's, or the running SharedReplay of a name,
    which is copied and not changed.
    """
    if (as_text or as_json) and out is not None:
        raise ValueError("--out: expected none, as --text and --json write no page")
    with _naming(source):
        found = describe(source, state, reward)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    elif as_text:
        click.echo(str(found))
    else:
        page = out or Path("report.html")
        found.save(page)
        click.echo(f"{page}: {texts.plural(len(found.findings), 'finding')}")


@commands.command()
@click.argument("folder", type=PATH)
def verify(folder: Path) -> None:
    """Check every file of every state: exit code 1 if one is damaged."""
    with _naming(folder):
        found = checkpoint.verify(folder)
    click.echo(_verdicts(found))
    if not all(verdict.is_in_order for verdict in found):
        raise click.exceptions.Exit(1)


def _verdicts(found: list[checkpoint.Verdict]) -> str:
    """The report of ``verify``."""
    lines = []
    for verdict in found:
        words = "OK" if verdict.is_in_order else "DAMAGED"
        files = f"{texts.plural(verdict.files, 'file')}, {texts.amount(verdict.nbytes)}"
        lines.append(f"state {verdict.number}: {words}" + (f"  {files}" if verdict.files else ""))
        damage = [("", each.name, each.content, each.message) for each in verdict.damage]
        lines += texts.table(damage) if damage else []
        for ring, (lost, rows) in verdict.lost.items():
            where = f" of buffer {ring}" if len(verdict.lost) > 1 or ring else ""
            lines.append(f"  lost: {lost:,} of {texts.plural(rows, 'row')}{where}")
        if verdict.fatal:
            lines.append(f"  cannot be loaded: {verdict.fatal}")
        elif not all(each.is_beside for each in verdict.damage):
            lines.append("  load(folder, salvage=True) loads the rest")
        elif verdict.damage:
            whole = [other.number for other in found if other.is_in_order]
            which = f"state={whole[-1]} of both" if whole else "no other state"
            lines.append(f"  load() loads the rows without it; {which} has rows and files together")
    return "\n".join(map(texts.clean, lines))


@commands.command()
@click.argument("source", type=PATH)
@click.argument("new", type=PATH)
@click.option("--from", "kind", type=click.Choice(_convert.KINDS), help="What SOURCE is.")
@click.option("--to", type=click.Choice(_convert.KINDS), help="What NEW is; by default, by suffix.")
@click.option("--size", type=int, metavar="N", help="Capacity; as many as there are rows.")
@click.option("--split", metavar="NAME", help="Of SOURCE, a data set that has several.")
@click.option("--strict", is_flag=True, help="Refuse what has no place in a buffer, or in NEW.")
@click.option("--observation", metavar="A,B", help="The fields of observations, for a data set.")
@click.option("--action", metavar="A,B", help="The fields of actions, for a data set.")
@click.option("--reward", metavar="FIELD", help="The field of rewards; of cpprb's, what is summed.")
@click.option("--nstep", type=int, metavar="N", help="Steps that rows of cpprb's sum, if they do.")
@click.option("--gamma", type=float, show_default="0.99", help="Their discount.")
@NO_SYNC
def convert(
    source: Path,
    new: Path,
    kind: str | None,
    to: str | None,
    size: int | None,
    split: str | None,
    strict: bool,
    observation: str | None,
    action: str | None,
    reward: str | None,
    nstep: int | None,
    gamma: float | None,
    no_sync: bool,
) -> None:
    """Make a checkpoint, a data set or a file of cpprb's of any of these.

    The kind of SOURCE follows from its files, that of NEW from its suffix: a checkpoint has none.
    --no-sync is for checkpoints: other files are always put on the disk.
    """
    with _naming(source):
        kind = kind or _convert.kind_of(source)
    written = _convert.written_as(new, to)
    warned: list[str] = []
    if written == _convert.CHECKPOINT:
        _expect_none(new)
    given: dict[str, Any] = {"split": split, "strict": strict or None, "observation": observation}
    given |= {"action": action, "reward": reward, "nstep": nstep, "gamma": gamma}
    given |= {"no-sync": no_sync or None}
    _convert.check_options([name for name in given if given[name] is not None], kind, written)
    with _naming(source):
        beside = None
        if kind == _convert.CHECKPOINT:
            newest = checkpoint.inspect(source).state
            buffer = _convert.read_saved(source, size, newest)
            beside = checkpoint.beside_of(source, newest)
        elif kind == _convert.CPPRB:
            discount = 0.99 if gamma is None else gamma
            options: dict[str, Any] = {"nstep": nstep, "gamma": discount, "reward": reward}
            buffer, _, warned = _convert.read(source, size, **options)
        else:
            buffer, warned = _convert.read_dataset(source, kind, size, split, strict=strict)
        about = _convert.about_of(source, kind, written, split)
    with _naming(new, source):
        if written == _convert.CHECKPOINT:
            with _whole_or_nothing(new):
                buffer.save(new, sync=not no_sync, beside=beside)
        elif written == _convert.CPPRB:
            new = _convert.write_transitions(buffer, new)
        else:
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                buffer.export(
                    new,
                    written,
                    strict=strict,
                    observation=_names(observation),
                    action=_names(action),
                    reward=reward,
                    about=about,
                )
            warned += [str(warning.message) for warning in found]
    for text in warned:
        click.echo(f"Warning: {_line(ValueError(text))}", err=True)
    click.echo(f"{new}: {texts.plural(len(buffer), 'row')}")


def _names(text: str | None) -> list[str] | None:
    """The names of fields in a text with commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


@commands.command()
@click.argument("folder", type=PATH)
@click.argument("new", type=PATH)
@click.option("--size", type=int, metavar="N", help="Another capacity.")
@click.option(
    "--codec", type=click.Choice(["zlib", "lzma", "none"]), help="Of the copy's files; as they are."
)
@click.option("--level", type=int, metavar="L", help="Of the codec, 0 to 9.")
@click.option("--fields", metavar="A,B", help="Only these fields.")
@click.option("--state", type=int, metavar="K", help="Which state of the folder; the newest.")
@NO_SYNC
def copy(
    folder: Path,
    new: Path,
    size: int | None,
    codec: str | None,
    level: int | None,
    fields: str | None,
    state: int | None,
    no_sync: bool,
) -> None:
    """Copy a state of a checkpoint to a new folder.

    With --size or --fields the object is loaded and saved, so its classes have to be of this
    package; otherwise its files are copied, whatever it is.
    """
    chosen = None if codec in (None, "none") else codec
    if size is None and fields is None:
        stored = checkpoint.AS_IT_IS if codec is None else chosen
        with _naming(folder), _whole_or_nothing(new):
            checkpoint.copy(folder, new, state=state, codec=stored, level=level, sync=not no_sync)
    else:
        _expect_none(new)
        names = _names(fields)
        with _naming(folder):
            state = checkpoint.inspect(folder, state=state).state
            found = checkpoint.load(folder, size=size, fields=names, state=state, decode=bytes)
            beside = checkpoint.beside_of(folder, state)
        options: dict[str, Any] = {"codec": chosen, "level": level, "beside": beside}
        with _naming(new, folder), _whole_or_nothing(new):
            found.save(new, sync=not no_sync, encode=bytes, **options)
    files = checkpoint.read_folder(new, lambda opened: opened.state.files)
    nbytes = texts.amount(sum(file.nbytes for file in files))
    click.echo(f"{new}: {texts.plural(len(files), 'file')}, {nbytes}")


def _expect_none(folder: Path) -> None:
    if checkpoint.states(folder):
        raise FileExistsError(f"{folder}: there is a checkpoint already")


@commands.command()
@click.argument("name", metavar="NAME_OR_PREFIX")
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document for each look.")
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, metavar="S")
def top(name: str, once: bool, as_json: bool, every: float) -> None:
    """Watch a shared replay of a running job, or a buffer in files (mmap_prefix).

    Shows counts, rates and members, every S seconds until Ctrl-C, or until the replay ends.
    """
    try:
        from cpprb_like.cli import _top  # noqa: PLC0415 (it imports rich)
    except ImportError as error:
        raise click.ClickException(
            f"top needs rich: pip install 'cpprb_like[cli]' ({error})"
        ) from error
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    now = _top.look(name)
    with ExitStack() as stack:
        live = None if once or as_json else stack.enter_context(Live(_top.shown(now)))
        while True:
            if as_json:
                click.echo(json.dumps(now))
            elif live is None:
                Console().print(_top.shown(now))
            else:
                live.update(_top.shown(now), refresh=True)
            if once:
                return
            time.sleep(every)
            before = now
            try:
                now = _top.look(name)
            except FileNotFoundError:
                click.echo(f"{name} has ended", err=True)
                return
            now["rates"] = _top.rates(before, now)
