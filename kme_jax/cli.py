"""The command kme-jax: from a private file to a folder that may be published, and what one does with it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import pathlib
import shlex
import shutil
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from absl import app, flags
from absl.flags import argparse_flags
from scipy.spatial import cKDTree
from tqdm import tqdm

import kme_jax
from kme_jax._numerics.compile_cache import use_compile_cache
from kme_jax._numerics.precision import Progress, hide_absent_devices
from kme_jax._numerics.text import printable
from kme_jax.domain import Bounds
from kme_jax.kernels import Gaussian, Kernel, Laplacian, Matern32, Matern52
from kme_jax.points import evaluate as evaluation
from kme_jax.points.files import read_rows, write_rows
from kme_jax.points.measure import measure, plan_map, plan_mechanism
from kme_jax.points.plan import plan
from kme_jax.points.release import Measurement, Release
from kme_jax.privacy import statement
from kme_jax.privacy.budget import PrivacyBudget, check_num_rows
from kme_jax.privacy.ledger import Ledger, Spending
from kme_jax.storage import files
from kme_jax.storage.folders import check_folder

KERNELS: dict[str, Callable[[float], Kernel]] = {
    "gaussian": lambda length: Gaussian(1 / (2 * length**2)),
    "laplacian": lambda length: Laplacian(1 / length),
    "matern32": Matern32,
    "matern52": Matern52,
}

_TABLE_ROOM = 1 << 26  # bytes
_RELEASES = ("release", "table release")

_DESCRIPTION = """Publish a synthetic database instead of a private one, with differential privacy.

a table of any columns: describe it, publish it
  kme-jax schema people.parquet --output=schema.json     # then fill in bounds and categories
  kme-jax check people.parquet --schema=schema.json      # for the curator's eyes only: does the schema fit?
  kme-jax release people.parquet --schema=schema.json --epsilon=1 --delta=1e-6 --output=published
  kme-jax sample published --where="age>=65" --num_rows=1000 --output=old.csv
a few columns of numbers: what accuracy to expect (reads no file)
  kme-jax plan --num_rows=50000 --dim=2 --epsilon=0.1,1,10 --delta=1e-6
from a private file to a folder that may be published
  kme-jax release people.csv --columns=age,income --lower=0,0 --upper=100,2e5 \\
    --epsilon=1 --delta=1e-6 --output=published
what was done, and how private it is
  kme-jax show published
rows for anyone
  kme-jax sample published --num_rows=10000 --output=synthetic.csv
errors, for the curator's eyes only
  kme-jax evaluate published --against=people.csv

kme-jax COMMAND --help explains each. Compiled programs, which hold no private value, are kept in ~/.cache/kme_jax;
KME_JAX_CACHE_DIR names another folder, and KME_JAX_CACHE_DIR=off keeps none."""

_RELEASE = """Read a private file, and write a folder that may be published.

With --schema, the file is a table of any columns, .csv or .parquet, and the folder has synthetic.parquet (as many rows
as the private table), report.html (pictures, and the privacy statement in words), schema.json, privacy.json (the
statement), measurements.npz and rows.npz (what other rows can be drawn from). Name the column that others are to
predict as --target, if there is one. Cells of any type are accepted, and what cannot be read counts as missing: run
kme-jax check beforehand to see whether the schema fits.

With --lower and --upper, it has a few columns of numbers, and the folder has points.npz (synthetic points and their
weights), release.npz (the noisy embedding, from which other points can be made) and privacy.json. Entries beyond a
bound are moved to it, and what is no number counts as the middle, for no error may depend on a value: fill in missing
entries beforehand, where that is not what they should count as.

Privacy is for one row. Schema, bounds, names, kernel, points and budget must come from public knowledge, never from
the file.

What is spent is recorded in a ledger beside the file, which is the curator's and is not published. A second release
of the same file is refused unless --again says so; what was spent adds up, and the statement says it. The ledger
knows files by name: a copy, a hard link, a file that was renamed, or the same rows in another file it takes for other
rows. Give the first one's --ledger and --database for them."""


_DEBUG = "After an error show where it was raised. This may show private values: look at it before you pass it on."


class InputError(ValueError):
    """What the user can put right: one line, exit status 2."""


class _Parser(argparse_flags.ArgumentParser):
    def error(self, message):
        raise InputError(f"{message}; see {self.prog} --help")


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from error


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _seed(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**32):
        raise argparse.ArgumentTypeError(f"expected a whole number below 2^32, got {text!r}")
    return int(text)


def _add_file_flags(parser: argparse.ArgumentParser, *, columns: bool = True) -> None:
    if columns:
        parser.add_argument(
            "--columns",
            type=_words,
            metavar="A,B,...",
            help="Columns to read, by their names in the header line of a .csv file; or names for all columns of "
            "another file (x1, x2, ... without). They are published.",
        )
    parser.add_argument(
        "--no-header", dest="header", action="store_false", help="A .csv file whose first line is a row already."
    )
    parser.add_argument("--array", metavar="NAME", help="The array of a .npz file that has several.")


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernel", choices=sorted(KERNELS), help="The kernel, of columns scaled to [0, 1]. Default: gaussian."
    )
    parser.add_argument(
        "--length",
        type=float,
        metavar="L",
        help="Its length, as a share of the columns' ranges: finer structure is lost. Default: 0.03 √d for d columns, "
        "or twice the distance from a public point to its neighbour (median) up to √(d/6)/2, if that is longer.",
    )
    parser.add_argument(
        "--num_features", type=int, metavar="J", help="Fourier features, even; at most. Default: 10000."
    )
    parser.add_argument(
        "--seed", type=_seed, default=0, help="Of public randomness. Noise has none, and differs every time."
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kme-jax", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debug", action="store_true", help=_DEBUG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run, text: str, description: str | None = None):
        found = commands.add_parser(
            name,
            help=text,
            description=description or text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            inherited_absl_flags=None,
        )
        found.set_defaults(run=run)
        found.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=_DEBUG)
        return found

    sub = command("release", _release, "From a private file to a folder that may be published.", _RELEASE)
    sub.add_argument("file", help="Private rows: .csv or .parquet with --schema; otherwise .csv, .npy or .npz.")
    sub.add_argument("--schema", metavar="FILE", help="What the columns are, see kme-jax schema --help.")
    sub.add_argument("--target", metavar="COLUMN", help="With --schema: the column that others are to predict.")
    sub.add_argument(
        "--num_rows", type=int, metavar="N", help="With --schema: synthetic rows. Default: as many as private ones."
    )
    _add_file_flags(sub)
    sub.add_argument("--lower", type=_numbers, metavar="A,B,...", help="Public lower bounds, one for each column.")
    sub.add_argument(
        "--upper",
        type=_numbers,
        metavar="A,B,...",
        help="Public upper bounds. Write --lower=-1,-1 with the = sign where the first is negative.",
    )
    sub.add_argument("--epsilon", type=float, required=True, help="ε of (ε, δ)-differential privacy, positive.")
    sub.add_argument("--delta", type=float, required=True, help="δ, below 1/N; 1e-6, say.")
    sub.add_argument("--output", required=True, metavar="FOLDER", help="A new folder.")
    sub.add_argument(
        "--points",
        metavar="FILE",
        help="Public rows like the private ones, organised like the private file and complete: they are reweighted, "
        "and published. Nothing is where they are not: take hundreds for a few columns, of all kinds of rows.",
    )
    _add_model_flags(sub)
    sub.add_argument("--num_points", type=int, metavar="M", help="Synthetic points, without --points. Default: 1000.")
    sub.add_argument(
        "--ledger",
        metavar="FILE",
        help="What was spent on what. Default: beside the file, with its name and .ledger. It knows rows by name: for "
        "a copy of a file, a hard link to it, a new name of it, or the same rows in another one, give the first one's "
        "--ledger and --database.",
    )
    sub.add_argument("--database", metavar="NAME", help="The rows' name in the ledger. Default: the file's.")
    sub.add_argument("--again", action="store_true", help="Release rows that were released before; it adds up.")

    sub = command(
        "schema",
        _schema,
        "Draft the schema of a table, to be filled in.",
        "Write a draft of what the columns of a .csv or .parquet file are: names, and types where the file has them.\n"
        "Bounds and categories are for you to fill in, from public knowledge. Only for a file that is not private,\n"
        "--public fills them in from the rows. Kinds of columns: numeric (lower, upper, and integer or a step),\n"
        "categorical and ordinal (categories), datetime (lower, upper, resolution); any may be nullable.",
    )
    sub.add_argument("file", help="A .csv or .parquet file.")
    sub.add_argument("--output", required=True, metavar="FILE", help="A new .json file.")
    sub.add_argument("--public", action="store_true", help="The file is NOT private: fill in what its rows say.")

    sub = command(
        "check",
        _check,
        "How a private table is read by its schema. NOT PRIVATE.",
        "Count, for every column, cells that are missing, cells that are no value of the column, and cells beyond a "
        "bound.\nNOT PRIVATE: the counts are exact, and for the curator alone. Nothing is written, and nothing is "
        "spent.\nA wrong kind or unit of a column is seen here, and nowhere else: a release accepts cells of any type.",
    )
    sub.add_argument("file", help="The private table, .csv or .parquet.")
    sub.add_argument("--schema", required=True, metavar="FILE", help="What the columns are, see kme-jax schema --help.")

    sub = command(
        "synthesise",
        _synthesise,
        "Other synthetic points for a release; spends nothing.",
        "Make other synthetic points from the noisy embedding of a release, as often as you like: nothing is spent. "
        "It also\nfinishes a release that was interrupted, from what it left in FOLDER.measured.",
    )
    sub.add_argument("folder", help="A release.")
    sub.add_argument("--output", required=True, metavar="FOLDER", help="A new folder.")
    sub.add_argument(
        "--num_points", type=int, metavar="M", help="Synthetic points, unless they were given. Default: 1000."
    )
    sub.add_argument(
        "--num_rows", type=int, metavar="N", help="Of a table. Default: as many as there were private ones."
    )
    sub.add_argument("--seed", type=_seed, default=0, help="Of the synthesis.")

    sub = command("show", _show, "What a release is, and how private.")
    sub.add_argument("folder", help="A release.")
    sub.add_argument("--json", action="store_true", help="Print the privacy statement as JSON.")

    sub = command(
        "sample",
        _sample,
        "Synthetic rows, without weights, as a file.",
        "Write synthetic rows for tools that know of no weights: every point as often as its weight says.",
    )
    sub.add_argument("folder", help="A release.")
    sub.add_argument(
        "--output", required=True, metavar="FILE", help="A new file: .csv, .parquet for a table, .npz for numbers."
    )
    sub.add_argument("--num_rows", type=int, default=10_000, metavar="N", help="How many rows. Default: 10000.")
    sub.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help='Of a table: only rows with, say, "age>=65" or "sex=Female"; by = != < <= > >=. Of several, all hold.',
    )
    sub.add_argument("--seed", type=_seed, default=0, help="Of the sampling.")
    sub.add_argument(
        "--weighted",
        action="store_true",
        help="Write the points themselves, with a last column named weight; of a table, rows that show more of what is "
        "rare, with weights.",
    )

    sub = command(
        "plan",
        _plan,
        "What accuracy to expect; reads no rows.",
        "Say how large the noise will be, for one ε or several, and how large errors of a mean and of a probability\n"
        "are to be expected. Reads no file: errors are those for made-up tables, which takes as long as some releases.",
    )
    sub.add_argument("--num_rows", type=int, required=True, metavar="N", help="N, the number of private rows.")
    sub.add_argument("--dim", type=int, required=True, metavar="D", help="D, the number of columns.")
    sub.add_argument("--epsilon", type=_numbers, required=True, metavar="E,...", help="One ε or several.")
    sub.add_argument("--delta", type=float, required=True, help="δ, below 1/N.")
    sub.add_argument(
        "--public_points",
        type=int,
        metavar="M",
        help="Plan for M public points, not for bounds alone. Uniform ones stand in for them, also for the default of "
        "--length, which is shorter for points in clusters.",
    )
    _add_model_flags(sub)
    sub.add_argument("--no-errors", dest="errors", action="store_false", help="Only the noise: at once.")
    sub.add_argument("--json", action="store_true", help="Print JSON.")

    sub = command("evaluate", _evaluate, "Errors of a release against the private rows. NOT PRIVATE.")
    sub.add_argument("folder", help="A release.")
    sub.add_argument("--against", required=True, metavar="FILE", help="The private file.")
    _add_file_flags(sub, columns=False)
    sub.add_argument("--output", metavar="FILE", help="Write the errors to a new .json file, too. NOT PRIVATE.")
    sub.add_argument(
        "--no-distance", dest="distance", action="store_false", help="Without Δ, which takes N² kernel evaluations."
    )
    return parser


# -- what they share


@contextlib.contextmanager
def _bar(name: str) -> Iterator[Progress]:
    """A progress bar on a terminal, and nothing elsewhere."""
    with tqdm(desc=name, total=1, bar_format="{l_bar}{bar:24}| {elapsed}<{remaining}", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def _say(text: str) -> None:
    """Prints lines; what they have from elsewhere has gone through ``printable`` before."""
    print(printable(text, lines=True))


def _say_line(text: str) -> None:
    print(printable(text))


def _say_json(value: object) -> None:
    """Prints JSON, in ASCII without control characters."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def _default_length(points: np.ndarray) -> float:
    """Twice the median distance from one of the public points [M, d] in [0, 1]^d to the nearest other one, 0 if there
    is none: kernels that do not reach from point to point cannot stand for rows in between. At most 1000 are asked. No
    more than half of √(d/6), the root mean square distance of uniform rows, beyond which all rows look alike."""
    points = np.unique(points, axis=0)
    if len(points) < 2:
        return 0.0
    some = points[np.random.default_rng(0).permutation(len(points))[:1000]]
    reach = 2 * float(np.median(cKDTree(points).query(some, 2)[0][:, 1]))
    return min(reach, math.sqrt(points.shape[1] / 6) / 2)


def _length(args: argparse.Namespace, dim: int, points: np.ndarray | None = None) -> float:
    """The kernel's length; one that is not given depends on public points [M, d] in [0, 1]^d, if there are any."""
    if args.length is None:
        return max(0.03 * math.sqrt(dim), 0.0 if points is None else _default_length(points))
    return args.length


def _kernel(args: argparse.Namespace, length: float) -> Kernel:
    if not 1e-4 <= length <= 100:
        raise InputError(f"--length must be between 0.0001 and 100 times the columns' ranges, got {length:g}")
    return KERNELS[args.kernel or "gaussian"](length)


def _num_features(args: argparse.Namespace) -> int:
    num_features = 10_000 if args.num_features is None else args.num_features
    if not 2 <= num_features <= 10**6 or num_features % 2:
        raise InputError(f"--num_features must be even and from 2 to a million, got {num_features}")
    return num_features


def _num_points(args: argparse.Namespace, given: bool) -> int:
    if args.num_points is None:
        return 1000
    if given:
        raise InputError("--num_points does not apply where points were given: all of them are used")
    if not 1 <= args.num_points <= 10**6:
        raise InputError(f"--num_points must be from 1 to a million, got {args.num_points}")
    return args.num_points


def _budget(epsilon: float, delta: float) -> PrivacyBudget:
    budget = PrivacyBudget(epsilon, delta)
    if delta == 0:
        raise InputError("--delta must be above 0: the noise is Gaussian; 1e-9, say")
    return budget


def _num_rows(num_rows: int | None) -> int | None:
    if num_rows is not None and not 1 <= num_rows <= 10**9:
        raise InputError(f"--num_rows must be from 1 to a billion, got {num_rows}")
    return num_rows


def _tables(*names: str) -> list[types.ModuleType]:
    """Modules of kme_jax.table, which need pyarrow."""
    try:
        return [importlib.import_module(f"kme_jax.table.{name}") for name in names]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('tables need pyarrow: pip install "kme_jax[tables]"') from error


def _resolved(path: str | os.PathLike) -> pathlib.Path:
    """The path without links; one that goes in a circle as it is, for what opens it says so."""
    return pathlib.Path(os.path.realpath(path))


def _measured(output: pathlib.Path) -> pathlib.Path:
    return output.with_name(output.name + ".measured")


# -- the commands


def _places(args: argparse.Namespace, room: int) -> tuple[pathlib.Path, pathlib.Path, Ledger, str]:
    """Where a release goes, where its measurement is kept until it is there, the ledger, and the rows' name in it."""
    output = check_folder(args.output, room)
    measured = _measured(output)
    if measured.exists() or measured.is_symlink():
        raise InputError(
            f"{measured} exists, from a run that was interrupted: finish it with kme-jax synthesise {measured} "
            f"--output={output}, or remove it"
        )
    source = _resolved(args.file)  # a link is another name of the same rows
    ledger = Ledger(pathlib.Path(args.ledger or f"{source}.ledger"))
    if _resolved(ledger.path) in (_resolved(output), _resolved(measured)):
        raise InputError(f"--ledger={args.ledger}: is where the release goes")
    return output, measured, ledger, source.name if args.database is None else args.database


@contextlib.contextmanager
def _kept(args: argparse.Namespace, size: dict[str, int | None], places) -> Iterator[None]:
    """Adds to any error, and to an interruption, how to go on from what was measured, if that is kept."""
    output, measured, _, _ = places
    try:
        yield
    except BaseException as error:
        if measured.is_dir():  # there was none before
            more = f" --seed={args.seed}" + "".join(f" --{name}={n}" for name, n in size.items() if n is not None)
            error.__notes__ = [
                f"what was measured is kept: kme-jax synthesise {shlex.quote(str(measured))} "
                f"--output={shlex.quote(str(output))}{more} goes on from there, and spends nothing"
            ]
        raise


def _finished(args: argparse.Namespace, result, places) -> None:
    """What follows when the release is written."""
    output, measured, ledger, _ = places
    shutil.rmtree(measured, ignore_errors=True)
    _say(statement.describe(result.statement))
    _say_line(f"wrote {output}; what was spent is in {args.ledger or ledger.path.name}, which is not to be published")


def _release(args: argparse.Namespace) -> None:
    if args.schema is not None:
        _release_table(args)
    elif args.lower is None or args.upper is None:
        raise InputError("give --schema for a table, or --lower and --upper for columns of numbers; see --help")
    else:
        for name in ("target", "num_rows"):
            if getattr(args, name) is not None:
                raise InputError(f"--{name} needs --schema")
        _release_points(args)


def _release_table(args: argparse.Namespace) -> None:
    for name in ("columns", "array", "lower", "upper", "points", "kernel", "length", "num_features", "num_points"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} does not apply with --schema")
    if not args.header:
        raise InputError("--no-header does not apply with --schema: the file needs the names of its columns")
    schema, readers, table_release, table_measure = _tables("schema", "readers", "release", "measure")
    budget, num_rows = _budget(args.epsilon, args.delta), _num_rows(args.num_rows)
    if os.path.exists(args.schema) and not os.path.isfile(args.schema):  # a pipe would be waited for
        raise InputError(f"{args.schema}: is not a file")
    known = schema.Schema.read(args.schema)
    table_release.check_columns(known, args.target)
    places = _places(args, _TABLE_ROOM)
    _, measured, ledger, database = places
    source, size = readers.open_table(args.file, known), {"num_rows": num_rows}
    _num_rows(source.num_rows if num_rows is None else num_rows)
    with _kept(args, size, places):
        with _bar("rows") as progress:
            result = table_measure.measure_table(
                source,
                known,
                budget=budget,
                target=args.target,
                spending=Spending(ledger, database, allow_repeat=args.again),
                folder=measured,
                progress=progress,
            )
        _finish(result, size, args.seed, places[0])
    _finished(args, result, places)


def _release_points(args: argparse.Namespace) -> None:
    bounds = Bounds.create(args.lower, args.upper, args.columns)
    if args.header and args.columns and all(map(_is_number, args.columns)):
        raise InputError("--columns are numbers: names are published; if the file has no header line, say --no-header")
    budget = _budget(args.epsilon, args.delta)
    num_features = _num_features(args)
    num_points = _num_points(args, args.points is not None)
    places = _places(args, 16 * (bounds.dim + 1) * num_points)
    _, measured, ledger, database = places

    def read(path):
        return read_rows(path, columns=args.columns, num_columns=bounds.dim, header=args.header, array=args.array)

    points = None
    if args.points is not None:
        if os.path.exists(args.points) and os.path.exists(args.file) and os.path.samefile(args.points, args.file):
            raise InputError("--points is the private file: public points are published as they are")
        points = np.asarray(read(args.points), np.float64)
        if len(gaps := np.flatnonzero(~np.isfinite(points).all(axis=1))):
            place = f"{args.points}: row {gaps[0] + 1}"
            raise InputError(f"{place} has no number in some column; public points have to be complete")
        if beyond := int(((points < bounds.lower) | (points > bounds.upper)).any(axis=1).sum()):
            warnings.warn(
                f"{args.points}: {beyond} of {len(points)} rows are beyond a bound, moved to it", stacklevel=1
            )
    kernel = _kernel(args, _length(args, bounds.dim, None if points is None else bounds.to_unit(points)))
    rows, size = read(args.file), {"num_points": num_points if points is None else None}
    with _kept(args, size, places):
        with _bar("rows") as progress:
            result = measure(
                rows,
                kernel,
                points,
                budget=budget,
                bounds=bounds,
                spending=Spending(ledger, database, allow_repeat=args.again),
                folder=measured,
                num_features=num_features,
                seed=args.seed,
                progress=progress,
            )
        del rows
        _finish(result, size, args.seed, places[0])
    _finished(args, result, places)


def _schema(args: argparse.Namespace) -> None:
    output = files.check_new_file(args.output, (".json",))
    schema, drafts = _tables("schema", "draft")
    draft, left_out = drafts.draft_schema(args.file, public=args.public)
    schema.write_json(output, draft)
    for name, reason in left_out.items():
        _say_line(f"left out: {name}: {reason}")
    what = "filled in from the rows, which is for public files only" if args.public else "fill in what is null"
    _say_line(f"wrote {output}: {len(draft['columns'])} columns, named by the file's header; {what}")


def _check(args: argparse.Namespace) -> None:
    schema, readers, check = _tables("schema", "readers", "check")
    source = readers.open_table(args.file, schema.Schema.read(args.schema))
    print(check.describe(check.check_table(source), source.num_rows))


def _finish(measurement, size: dict[str, int | None], seed: int, output: pathlib.Path):
    given = {name: number for name, number in size.items() if number is not None}
    with _bar("synthesis") as progress:
        result = measurement.synthesise(**given, seed=seed, progress=progress)
    result.save(output)
    return result


def _synthesise(args: argparse.Namespace) -> None:
    loaded = kme_jax.load(args.folder, (*_RELEASES, "measurement", "table measurement"))
    measurement = getattr(loaded, "measurement", loaded)
    if isinstance(measurement, Measurement):
        if args.num_rows is not None:
            raise InputError("--num_rows is for tables: give --num_points")
        size = {"num_points": _num_points(args, measurement.proposal is None)}
    else:
        if args.num_points is not None:
            raise InputError("--num_points does not apply to a table: give --num_rows")
        size = {"num_rows": _num_rows(args.num_rows)}
    output = check_folder(args.output)
    result = _finish(measurement, size, args.seed, output)
    made = f"{len(result.sample.points)} points" if isinstance(result, Release) else f"{result.table.num_rows} rows"
    _say_line(f"wrote {output}: {made}; nothing was spent")
    if measurement is loaded:
        _say_line(f"{args.folder} is not needed any more")


def _show(args: argparse.Namespace) -> None:
    release = kme_jax.load(args.folder, (*_RELEASES, "generator"))
    if args.json:
        _say_json(release.statement)
        return
    _say(statement.describe(release.statement))
    if hasattr(release, "generator"):
        made = release.generator
        shares = "" if made.shares is None else f", shares of the classes {', '.join(f'{s:.3f}' for s in made.shares)}"
        _say(f"\nA generator, {type(made.network).__name__}{shares}; kme_jax.load(...).sample(1000) makes rows")
        _say_line(f"‖μ̃ − μ_G‖² = {made.report.fit:.3g}; that of the noise alone would be {made.report.expected:.3g}")
        return
    if not isinstance(release, Release):
        _say(f"\n{release.table.num_rows} rows of {len(release.columns)} columns; report.html shows them:")
        for column in release.schema.columns:
            missing = ", or missing" * column.nullable
            _say_line(f"{printable(column.name):<30.30} {column.kind}, {column.num_values} values{missing}")
        return
    sample, bounds = release.sample, release.measurement.bounds
    _say(f"\n{len(sample.points)} points, whose weights are a probability distribution:")
    _say_line(f"{'column':<20} {'lower':>12} {'upper':>12} {'mean':>12}")
    means = sample.expectation(lambda z: z)
    for i, name in enumerate(release.columns):
        limits = (math.nan, math.nan) if bounds is None else (bounds.lower[i], bounds.upper[i])
        _say_line(f"{printable(name):<20.20} {limits[0]:12.5g} {limits[1]:12.5g} {means[i]:12.5g}")


def _sample(args: argparse.Namespace) -> None:
    _num_rows(args.num_rows)
    files.check_new_file(args.output, (".csv", ".npz", ".parquet"))
    release = kme_jax.load(args.folder, _RELEASES)
    output = files.check_new_file(args.output, (".csv", ".npz" if isinstance(release, Release) else ".parquet"))
    if not release.statement["private"]:
        print("warning: NOT PRIVATE: the noise of this release was simulated; do not publish its rows", file=sys.stderr)
    if not isinstance(release, Release):
        (readers,) = _tables("readers")
        table = release.sample(args.num_rows, seed=args.seed, where=args.where, weighted=args.weighted)
        readers.write_table(output, table)
        _say_line(f"wrote {output}: {table.num_rows} rows")
        return
    if args.where:
        raise InputError("--where is for releases of tables")
    if args.weighted:
        if "weight" in release.columns:
            raise InputError("--weighted: a column is named weight already")
        rows = np.concatenate([release.sample.points, release.sample.weights[:, None]], axis=1)
        names = (*release.columns, "weight")
    else:
        rows, names = release.sample.quantise(args.num_rows, args.seed), release.columns
        rows = np.random.default_rng(args.seed).permutation(rows)
    write_rows(output, rows, names)
    _say_line(f"wrote {output}: {len(rows)} rows")


def _plan(args: argparse.Namespace) -> None:
    if not 1 <= args.dim <= 10_000:
        raise InputError(f"--dim must be from 1 to 10000, got {args.dim}")
    if args.public_points is not None and not 1 <= args.public_points <= 20_000:
        raise InputError(f"--public_points must be from 1 to 20000, got {args.public_points}")
    num_features = _num_features(args)
    budgets = [_budget(epsilon, args.delta) for epsilon in args.epsilon]
    for budget in budgets:
        check_num_rows(args.num_rows, budget)
    public = Bounds.create(np.zeros(args.dim), np.ones(args.dim)).proposal
    if args.public_points is not None:  # stand-ins
        public = np.random.default_rng(args.seed).uniform(size=(args.public_points, args.dim))
    length = _length(args, args.dim, None if args.public_points is None else public)
    kernel = _kernel(args, length)
    feature_map = plan_map(kernel, public, num_features=num_features, bounded=True, seed=args.seed)
    proposal = public if args.public_points is None else None
    plans = []
    for budget in budgets:
        mechanism = plan_mechanism(args.num_rows, feature_map, budget)
        with _bar(f"ε = {budget.epsilon:g}") as progress:
            plans.append(plan(feature_map, mechanism, proposal, errors=args.errors, progress=progress))
    if args.json:
        names = ("num_features", "noise_norm", "mean_error", "probability_error")
        common = [
            {"epsilon": p.mechanism.epsilon, "delta": p.mechanism.delta, "sigma": p.mechanism.scale} for p in plans
        ]
        found = [first | {name: getattr(p, name) for name in names} for first, p in zip(common, plans, strict=True)]
        _say_json(found)
        return
    found = f"{plans[0].num_features} features, length {length:.3g}"
    _say_line(f"{args.num_rows} rows of {args.dim} columns, δ = {args.delta:g}: {found}")
    _say_line(f"{'ε':>8} {'σ':>10} {'noise norm':>12}" + f" {'mean ±':>10} {'probability ±':>14}" * args.errors)
    for p in plans:
        numbers = f"{p.mechanism.epsilon:8g} {p.mechanism.scale:10.3g} {p.noise_norm:12.3g}"
        _say_line(numbers + (f" {p.mean_error:10.2g} {p.probability_error:14.2g}" if args.errors else ""))
    if args.errors:
        _say_line("mean ±: of a column, as a share of its range; probability ±: that a column is below some level")


def _evaluate(args: argparse.Namespace) -> None:
    output = None if args.output is None else files.check_new_file(args.output, (".json",))
    if output is not None and _resolved(args.folder) in _resolved(output).parents:
        raise InputError(f"{output}: errors are NOT PRIVATE, and do not belong into what is published")
    release = kme_jax.load(args.folder, _RELEASES)
    found, text = (_evaluated_points if isinstance(release, Release) else _evaluated_table)(args, release)
    if output is not None:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(found, indent=2, allow_nan=False) + "\n")
    _say(text)


def _evaluated_table(args: argparse.Namespace, release) -> tuple[dict, str]:
    for name, given in {"no-header": not args.header, "array": args.array, "no-distance": not args.distance}.items():
        if given:
            raise InputError(f"--{name} does not apply to a table")
    readers, evaluate_table = _tables("readers", "evaluate")
    found = evaluate_table.evaluate_table(release, readers.open_table(args.against, release.schema))
    return found, evaluate_table.describe_table(found)


def _evaluated_points(args: argparse.Namespace, release: Release) -> tuple[dict, str]:
    if release.measurement.bounds is None:
        raise InputError(f"{args.folder}: it was made without bounds, so there is nothing to read the file by")
    named = pathlib.Path(args.against).suffix == ".csv" and args.header
    rows = read_rows(
        args.against,
        columns=release.columns if named else None,
        num_columns=len(release.columns),
        header=args.header,
        array=args.array,
    )
    with _bar("distance") as progress:
        found = evaluation.evaluate(release, rows, distance=args.distance, progress=progress)
    return found, evaluation.describe(found)


# -- the program


_MOST_LETTERS = 1000  # of an error, which may repeat an argument


def _warn(message, *_, **__) -> None:
    print(f"warning: {printable(_line_of(message))}", file=sys.stderr)


def _line_of(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _MOST_LETTERS else f"{line[:_MOST_LETTERS]}..."


def _one_line(error: BaseException, text: str = "") -> str:
    parts = [text or str(error) or type(error).__name__, *getattr(error, "__notes__", [])]
    return printable("; ".join(map(_line_of, parts)))


def _wants_trace(arguments: Sequence[str]) -> bool:
    words = list(arguments)
    return "--debug" in words[: words.index("--") if "--" in words else len(words)]


def _guarded(work: Callable[[], None], debug: bool = False) -> int:
    """Runs it, and turns whatever is raised into one line and an exit status."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            work()
            sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on; what was to be done is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as error:
        _trace(debug)
        print(_one_line(error, "interrupted"), file=sys.stderr)
        return 130
    except (ValueError, OSError, ModuleNotFoundError, MemoryError, flags.Error) as error:
        _trace(debug)
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    except Exception as error:
        # Not its text, which nobody has looked at: it may show what a private cell holds.
        _trace(debug)
        text = f"{type(error).__name__}: this is a defect of kme-jax: please report it (--debug shows where it is)"
        print(f"error: {_one_line(error, text)}", file=sys.stderr)
        return 2
    return 0


def _trace(debug: bool) -> None:
    if debug:
        print(printable(traceback.format_exc(), lines=True), file=sys.stderr, end="")


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    if any("\0" in word for word in arguments):  # which no system passes on, and no file has in its name
        raise InputError("an argument has a null byte")
    words = list(arguments)
    for word in words[: words.index("--") if "--" in words else len(words)]:
        if word.startswith("--") and word.endswith("=--"):  # which argparse takes for no value at all
            raise InputError(f"{word}: -- is no value")
    return _parser().parse_args(words)


def main(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit status: 0, or 2 after one line that says what to put right, or 130.

    Args:
      arguments: what follows the program's name.
    """

    def work():
        args = _parsed(arguments)
        args.run(args)

    return _guarded(work, _wants_trace(arguments))


def run() -> None:
    """The program kme-jax, by absl: its flags are in --helpfull."""

    for stream in filter(None, (sys.stdout, sys.stderr)):  # one that is closed is None
        stream.reconfigure(errors="replace")  # ε and ρ, on terminals that have none

    def parse(arguments):
        parsed: list[argparse.Namespace] = []
        status = _guarded(lambda: parsed.append(_parsed(arguments[1:])), _wants_trace(arguments[1:]))
        return parsed[0] if parsed else sys.exit(status)

    def work(args):
        hide_absent_devices()
        use_compile_cache()
        args.run(args)

    app.run(lambda args: _guarded(lambda: work(args), args.debug), flags_parser=parse)
