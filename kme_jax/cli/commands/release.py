"""kme-jax release: from a private file to a folder that may be published."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shlex
import shutil
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import kme_jax
from kme_jax.cli import model, parsing, sizes
from kme_jax.cli.artifacts import real_path, synthesise_and_save
from kme_jax.cli.errors import InputError, check_devices
from kme_jax.cli.printing import print_line, print_lines, progress_bar, report_of

if TYPE_CHECKING:
    import numpy as np

SUMMARY = "Read a private file and write a folder that may be published."
DESCRIPTION = """Read a private file and write a folder that may be published.

A table with columns of any kind needs --schema. The file is .csv, .csv.gz, .parquet, .arrow or .feather, or a folder of
such files with the same columns. The folder of the release has
  synthetic.parquet  synthetic rows, as many as there are private rows, or as their noisy count says
  report.html        pictures, and the privacy statement in words
  schema.json        the schema
  privacy.json       the privacy statement
  measurements.npz   the noisy measurements
  rows.npz           what kme-jax sample draws more rows from
If one column is to be predicted from the others, name it with --target. Cells of every type are accepted. A cell that
cannot be read counts as missing. Run kme-jax check first: it shows whether the schema fits.

A few columns of numbers need --lower and --upper. The file may also be .npy or .npz. The folder has
  points.npz         synthetic points and their weights
  release.npz        the noisy embedding, from which kme-jax synthesise makes other points
  privacy.json       the privacy statement
A number beyond a bound is moved to the bound. A cell that is not a number counts as the middle of the bounds. Neither
raises an error, because an error would depend on a private value. If the middle is wrong for missing cells, fill them
in first.

The guarantee protects one row. --relation says which databases it compares. If people have several rows each, name the
column that tells them apart with --person: the guarantee then protects all rows of a person. The schema, bounds, names,
kernel, points and budget must come from public knowledge, never from the file.

A ledger beside the file records what is spent. The ledger is for the curator: do not publish it. A second release of
the same file is refused without --again. With --again the budgets add up, and the statement gives the total. The
ledger knows a file by its name. A copy, a hard link, a renamed file and a second file with the same rows count as
other rows. For these, give the --ledger and the --database of the first release."""

_ROOM_OF_A_TABLE = 1 << 26  # bytes
_FLAGS_OF_POINTS = ("columns", "array", "lower", "upper", "points", "kernel", "length", "num_features", "num_points")
_FLAGS_OF_TABLES = (*("target", "num_rows", "relation", "person", "max_rows", "dry_run", "processes"),)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "file",
        help="The private rows: a file, a folder or the address of a folder, such as s3://bucket/rows. .npy and .npz "
        "files need --lower and --upper.",
    )
    parser.add_argument(
        "--schema", metavar="FILE", help="The schema: a description of the columns. See kme-jax schema --help."
    )
    parser.add_argument(
        "--target", metavar="COLUMN", help="With --schema: the column that is to be predicted from the others."
    )
    parser.add_argument(
        "--num_rows",
        type=int,
        metavar="N",
        help="With --schema: the number of synthetic rows. Default: the number of private rows, or its noisy count.",
    )
    parser.add_argument(
        "--relation",
        choices=sizes.RELATIONS,
        help="With --schema: what the guarantee hides. replace_one, the default: the content of one row. The number of "
        "rows is then public. add_remove: whether one row is in the file. The number of rows is then private, and a "
        "noisy count replaces it. Other tools often mean add_remove by differential privacy. Its noise is smaller.",
    )
    sizes.add_person_flags(parser)
    sizes.add_text_flags(parser)
    parser.add_argument(
        "--columns",
        type=parsing.names,
        metavar="A,B,...",
        help="The columns to read, by their names in the file. For a file without names (.npy, .npz, --no_header): "
        "names for all of its columns; default: x1, x2 and so on. The names are published.",
    )
    sizes.add_file_flags(parser)
    parser.add_argument(
        "--lower", type=parsing.numbers, metavar="A,B,...", help="Public lower bounds, one for each column."
    )
    parser.add_argument(
        "--upper",
        type=parsing.numbers,
        metavar="A,B,...",
        help="Public upper bounds, one for each column. Write the = sign if the first bound is negative: --lower=-1,-1",
    )
    parser.add_argument("--epsilon", type=float, required=True, help="ε of (ε, δ)-differential privacy, above 0.")
    parser.add_argument("--delta", type=float, required=True, help="δ, above 0 and well below 1/N. For example: 1e-6.")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="A new folder.")
    parser.add_argument(
        "--points",
        metavar="FILE",
        help="Public rows without missing cells, in a file like the private one. The release publishes them with new "
        "weights, and has no other points: give hundreds of rows of all kinds for a few columns.",
    )
    model.add_flags(parser)
    parser.add_argument(
        "--num_points",
        type=int,
        metavar="M",
        help=f"The number of synthetic points, without --points. Default: {sizes.DEFAULT_NUM_POINTS}.",
    )
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="The file that records what is spent. Default: the private file's name with .ledger added. The ledger "
        "knows rows by a name. For a copy, a hard link or a new name of a file, or a second file with the same rows, "
        "give the --ledger and --database of the first release.",
    )
    parser.add_argument(
        "--database", metavar="NAME", help="The name of the rows in the ledger. Default: the file's name."
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        default=None,
        help="With --schema: check the flags, the columns of the file, the folder, the ledger and its cap. Release "
        "nothing, and spend nothing.",
    )
    parser.add_argument(
        "--partials",
        metavar="FOLDER",
        help="A folder that keeps what is finished. If the command is interrupted, the same command "
        "goes on, and spends no more. The folder holds sums of private rows: do not publish it. They are deleted at "
        "the end.",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="P",
        help="With --schema: the number of processes that read rows. More than one help with a folder of files, or "
        "with a Parquet file. Default: 1.",
    )
    parser.add_argument(
        "--again", action="store_true", help="Release rows that were released before. The budgets add up."
    )


@dataclasses.dataclass(frozen=True)
class _Places:
    """The folders and the ledger of a release.

    Attributes:
      output: the folder of the release.
      measured: the folder that keeps the measurement until the release is written.
      spending: the ledger, and the name of the rows in it.
      ledger_name: the path of the ledger, as the user gave it, or from the current folder.
    """

    output: pathlib.Path
    measured: pathlib.Path
    spending: kme_jax.Spending
    ledger_name: str

    @classmethod
    def check(cls, args: argparse.Namespace, room: int) -> _Places:
        """The folders and the ledger, checked before any budget is spent.

        Args:
          args: the arguments of the command.
          room: the number of bytes that the release needs.

        Raises:
          InputError: if one of the folders exists, or the ledger is in the place of one of them.
          ReleaseError: if the folder cannot be written.
        """
        from kme_jax.storage.folders import check_folder

        output = check_folder(args.output, room)
        measured = output.with_name(output.name + ".measured")
        if measured.exists() or measured.is_symlink():
            raise InputError(
                f"{measured} exists: a run was interrupted. Finish it with kme-jax synthesise {measured} "
                f"--output={output}, or remove the folder"
            )
        if "://" in args.file and (args.ledger is None or args.database is None):
            raise InputError(f"{args.file} is not on this machine: give --ledger and --database")
        source = real_path(args.file)  # a link is another name of the same rows
        ledger = kme_jax.Ledger(pathlib.Path(args.ledger or f"{source}.ledger"))
        folders = real_path(output), real_path(measured)
        if real_path(ledger.path) in folders:
            raise InputError(f"--ledger={args.ledger}: this is a folder of the release")
        if args.partials is not None and real_path(args.partials) in folders:
            raise InputError(f"--partials={args.partials}: this is a folder of the release, and the sums are private")
        database = source.name if args.database is None else args.database
        spending = kme_jax.Spending(ledger, database, allow_repeat=args.again)
        return cls(output, measured, spending, args.ledger or _path_from_here(ledger.path))


def _path_from_here(path: pathlib.Path) -> str:
    """The path, without the current folder if it is in there."""
    here = real_path(".")
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@contextlib.contextmanager
def _flags_in_errors() -> Iterator[None]:
    """Errors of the ledger, and notes, name the flag of the command, and not the argument of Python."""
    from kme_jax.privacy.ledger import REPEAT, LedgerError

    try:
        yield
    except BaseException as error:
        if isinstance(error, LedgerError):
            error.args = tuple(str(text).replace(REPEAT, "--again") for text in error.args)
        error.__notes__ = [note.replace(REPEAT, "--again") for note in getattr(error, "__notes__", [])]
        raise


@contextlib.contextmanager
def _measurement_is_kept(places: _Places, seed: int, size: Mapping[str, int | None]) -> Iterator[None]:
    """Adds a note to any error or interruption: how to finish the release, if its measurement was saved."""
    try:
        with _flags_in_errors():
            yield
    except BaseException as error:
        if places.measured.is_dir():  # there was no such folder before
            flags = f" --seed={seed}" + "".join(f" --{name}={n}" for name, n in size.items() if n is not None)
            error.__notes__ = [
                f"the measurement is saved: kme-jax synthesise {shlex.quote(str(places.measured))} "
                f"--output={shlex.quote(str(places.output))}{flags} finishes the release, and spends no budget"
            ]
        raise


def _finish(places: _Places, measurement: Any, size: Mapping[str, int | None], seed: int) -> Any:
    release = synthesise_and_save(measurement, size, seed, places.output)
    shutil.rmtree(places.measured, ignore_errors=True)
    return release


def _report(places: _Places, release: Any) -> None:
    from kme_jax.privacy.statement import describe

    with report_of(f"the release is complete: {places.output}; the ledger {places.ledger_name} records what was spent"):
        print_lines(describe(release.statement))
        print_line(
            f"wrote {places.output}; the ledger {places.ledger_name} records what was spent: do not publish the ledger"
        )
        page = places.output / "report.html"
        if page.exists():  # a release of points has no report
            print_line(f"read the report first: open {shlex.quote(str(page))}")


def run(args: argparse.Namespace) -> None:
    """Does the work.

    Raises:
      ValueError: if an argument or a file is not valid.
      OSError: if a file cannot be read or written.
    """
    if args.schema is not None:
        _release_table(args)
    elif args.lower is None or args.upper is None:
        raise InputError("give --schema for a table, or --lower and --upper for columns of numbers; see --help")
    else:
        for name in _FLAGS_OF_TABLES:
            if getattr(args, name) is not None:
                raise InputError(f"--{name} needs --schema")
        _release_points(args)


def _release_table(args: argparse.Namespace) -> None:
    for name in _FLAGS_OF_POINTS:
        if getattr(args, name) is not None:
            raise InputError(f"--{name} does not apply with --schema")
    if not args.header:
        raise InputError("--no_header does not apply with --schema: the file needs the names of its columns")
    from kme_jax.privacy.budget import check_num_rows
    from kme_jax.privacy.composition import Composition
    from kme_jax.table.measure import measure_table
    from kme_jax.table.readers import open_table
    from kme_jax.table.release import check_columns, check_relation
    from kme_jax.table.schema import Schema

    sizes.check_persons(args)
    budget = sizes.budget(args.epsilon, args.delta, args.relation, args.max_rows, args.person)
    sizes.check_num_rows(args.num_rows)
    if os.path.exists(args.schema) and not os.path.isfile(args.schema):  # a pipe would block
        raise InputError(f"{args.schema}: is not a file")
    schema = Schema.read(args.schema)
    check_columns(schema, args.target)
    check_relation(schema, budget.relation)
    places = _Places.check(args, _ROOM_OF_A_TABLE)
    source = open_table(
        args.file,
        schema,
        person=args.person,
        max_rows=budget.max_rows,
        encoding=args.encoding,
        separator=args.separator,
    )
    size = {"num_rows": args.num_rows}
    if budget.relation == sizes.RELATIONS[0]:
        source.check_size()
        sizes.check_num_rows(source.num_rows if args.num_rows is None else args.num_rows)
    if args.dry_run:
        if budget.relation == sizes.RELATIONS[0]:
            check_num_rows(source.num_rows, budget)
        with _flags_in_errors():
            places.spending.check(Composition.planned(budget))
        print_line(f"{args.file} has the columns of {args.schema}, and {args.output} can be made; nothing was spent")
        return
    check_devices()
    with _measurement_is_kept(places, args.seed, size):
        with progress_bar("rows") as progress:
            measurement = measure_table(
                source,
                schema,
                budget=budget,
                target=args.target,
                spending=places.spending,
                folder=places.measured,
                partials=args.partials,
                processes=1 if args.processes is None else args.processes,
                progress=progress,
            )
        release = _finish(places, measurement, size, args.seed)
    _report(places, release)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _release_points(args: argparse.Namespace) -> None:
    from kme_jax.points.files import read_rows
    from kme_jax.storage.rows import open_rows

    bounds = kme_jax.Bounds.create(args.lower, args.upper, args.columns)
    if args.header and args.columns and all(map(_is_number, args.columns)):
        raise InputError(
            "--columns expects names, which are published, and got numbers: if the file has no header line, give "
            "--no_header"
        )
    budget = sizes.budget(args.epsilon, args.delta)
    num_features = model.num_features(args)
    num_points = sizes.num_points(args, args.points is not None)
    places = _Places.check(args, 16 * (bounds.dim + 1) * num_points)

    layout = sizes.layout(args) | {"columns": args.columns, "num_columns": bounds.dim}
    points = None
    if args.points is not None:
        _refuse_private_file(args)
        points = _public_points(args, bounds, read_rows(args.points, **layout))
    unit_points = None if points is None else bounds.to_unit(points)
    kernel = model.kernel(args, model.length(args, bounds.dim, unit_points))
    rows, size = open_rows(args.file, **layout), {"num_points": num_points if points is None else None}
    check_devices()
    with _measurement_is_kept(places, args.seed, size):
        with progress_bar("rows") as progress:
            measurement = kme_jax.measure(
                rows,
                kernel,
                points,
                budget=budget,
                bounds=bounds,
                spending=places.spending,
                folder=places.measured,
                num_features=num_features,
                seed=args.seed,
                progress=progress,
                partials=args.partials,
            )
        release = _finish(places, measurement, size, args.seed)
    _report(places, release)


def _refuse_private_file(args: argparse.Namespace) -> None:
    if os.path.exists(args.points) and os.path.exists(args.file) and os.path.samefile(args.points, args.file):
        raise InputError("--points is the private file: public points are published as they are")


def _public_points(args: argparse.Namespace, bounds: kme_jax.Bounds, points: np.ndarray) -> np.ndarray:
    """The public points [M, d] in float64.

    Raises:
      InputError: if the points have missing cells.
    """
    import numpy as np

    points = np.asarray(points, np.float64)
    incomplete = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(incomplete):
        raise InputError(
            f"{args.points}: row {incomplete[0] + 1} does not have a number in every column, and public points need one"
        )
    if num_beyond := int(((points < bounds.lower) | (points > bounds.upper)).any(axis=1).sum()):
        warnings.warn(
            f"{args.points}: {num_beyond} of {len(points)} rows were beyond a bound, and were moved to it", stacklevel=1
        )
    return points
