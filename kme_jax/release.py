"""What leaves the building: a private embedding, a synthetic database made from it, and the privacy statement."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

import jax
import numpy as np

from kme_jax.algorithms import check_before_long_work, public_feature_map, synthesise
from kme_jax.embedding import integer_embedding
from kme_jax.feature_maps.integer import integer_map
from kme_jax.kernels import Kernel
from kme_jax.ledger import Ledger
from kme_jax.numerics import Progress
from kme_jax.privacy.budget import PrivacyBudget
from kme_jax.privacy.mechanisms import PrivateEmbedding, perturb_securely, secure_mechanism
from kme_jax.privacy.statement import privacy_statement
from kme_jax.proposals import NormalProposal
from kme_jax.serialisation import decode, encode
from kme_jax.synthesis.sample import WeightedSample

RELEASE_VERSION = 1
_FILES = ("points.npz", "release.npz", "privacy.json")


class ReleaseError(ValueError):
    """A folder that cannot be written, or is no release."""


@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """A release. All of it is public.

    Attributes:
      private: the noisy embedding.
      sample: the synthetic database that stands for it.
      statement: the privacy statement, see ``kme_jax.privacy.statement``.
      proposal: where the synthesis expected rows to be; None where points were public.
      seed: of frequencies and synthesis.
    """

    private: PrivateEmbedding
    sample: WeightedSample
    statement: dict[str, Any]
    proposal: NormalProposal | None
    seed: int

    def resynthesise(self, num_points: int = 1000, *, seed: int | None = None, progress: Progress | None = None):
        """Another synthetic database for the same embedding, a :class:`Release`. It spends nothing.

        Args:
          num_points: M; all points are used where they were public.
          seed: of the synthesis; the release's own if None.
          progress: called with (work done, work at most).
        """
        seed = self.seed if seed is None else seed
        key = jax.random.split(jax.random.key(seed))[1]
        sample = synthesise(key, self.private, self.proposal, num_points, progress=progress)
        return dataclasses.replace(self, sample=sample, seed=seed)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes points.npz (points and weights), release.npz (the embedding and what it takes to use it) and
        privacy.json into a new folder: all of it, or nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        folder = pathlib.Path(folder)
        if folder.exists() or folder.is_symlink():
            raise ReleaseError(f"{folder} exists: a release is never overwritten; choose another folder")
        arrays = {"coordinates": self.private.coordinates}
        tree = {
            "release_version": RELEASE_VERSION,
            "feature_map": encode(self.private.feature_map, arrays, "feature_map"),
            "mechanism": encode(self.private.mechanism, arrays, "mechanism"),
            "proposal": encode(self.proposal, arrays, "proposal"),
            "seed": self.seed,
            "statement": self.statement,
        }
        arrays["json"] = np.frombuffer(json.dumps(tree, allow_nan=False).encode(), np.uint8)
        try:
            temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        except OSError as error:
            raise ReleaseError(f"{folder.parent}: cannot be written ({error.strerror})") from error
        try:
            np.savez_compressed(temporary / "release.npz", **arrays)
            np.savez_compressed(temporary / "points.npz", points=self.sample.points, weights=self.sample.weights)
            (temporary / "privacy.json").write_text(json.dumps(self.statement, indent=2, allow_nan=False) + "\n")
            for path in [temporary / name for name in _FILES] + [temporary]:
                _flush(path)
            os.chmod(temporary, 0o755)
            os.rename(temporary, folder)  # fails if somebody has put a file, or a folder with something in it, there
        except OSError as error:
            raise ReleaseError(f"{folder}: cannot be written ({error.strerror or error})") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is there, and complete, whether or not this can be flushed
            _flush(folder.parent)
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Release:
        """A release that :meth:`save` has written.

        Raises:
          ReleaseError: it is none, is damaged, or of a later version.
        """
        folder = pathlib.Path(folder)
        if not folder.is_dir():
            raise ReleaseError(f"{folder}: no such folder")
        missing = [name for name in _FILES if not (folder / name).is_file()]
        if missing:
            raise ReleaseError(f"{folder}: is no release, it has no {missing[0]}")
        arrays, points = _load_arrays(folder / "release.npz"), _load_arrays(folder / "points.npz")
        with _damaged(folder / "release.npz"):
            tree = json.loads(arrays["json"].tobytes())
            version = tree["release_version"]
        if version != RELEASE_VERSION:
            raise ReleaseError(
                f"{folder}: is of version {version}, this is kme_jax for version {RELEASE_VERSION}: update"
            )
        with _damaged(folder / "release.npz"):
            private = PrivateEmbedding(
                decode(tree["feature_map"], arrays), arrays["coordinates"], decode(tree["mechanism"], arrays)
            )
            if private.coordinates.shape != (private.feature_map.num_features,):
                raise ValueError("another number of coordinates than of features")
            proposal, statement, seed = decode(tree["proposal"], arrays), tree["statement"], tree["seed"]
        with _damaged(folder / "privacy.json"):
            if json.loads((folder / "privacy.json").read_text()) != statement:
                raise ValueError("it is not the statement of this release")
        with _damaged(folder / "points.npz"):
            sample = WeightedSample(points["points"], points["weights"], private.mechanism)
            if sample.points.ndim != 2 or sample.weights.shape != sample.points.shape[:1]:
                raise ValueError("points and weights do not fit")
        return cls(private, sample, statement, proposal, seed)


@contextlib.contextmanager
def _damaged(path: pathlib.Path):
    try:
        yield
    except Exception as error:  # whatever damaged bytes lead to
        raise ReleaseError(f"{path}: is damaged ({error})") from error


def _load_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}  # an AttributeError, if it is one array
    except Exception as error:
        raise ReleaseError(f"{path}: is damaged ({error})") from error


def _flush(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def release(
    rows: np.ndarray,
    kernel: Kernel,
    public: np.ndarray | NormalProposal,
    *,
    epsilon: float,
    delta: float,
    ledger: Ledger | None = None,
    database: str = "",
    again: bool = False,
    num_points: int = 1000,
    num_features: int = 10_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Release:
    """``kme_jax.improved`` with noise that may be published.

    Formal guarantee: (ε, δ)-differential privacy for one row, N public, with integer sums and OpenDP's noise, see
    ``kme_jax.privacy.perturb_securely``. Rows enter through ``integer_embedding`` alone. The ledger, if there is one,
    is written and flushed before noise is drawn. A row that the map does not cover (``FeatureMap.covers``: an entry
    that is NaN, infinite, or beyond what the proposal reaches) counts as the zero vector, and in N.

    Args:
      rows: the private database x, [N, d].
      kernel: k, with a bandwidth that does not come from the private rows; shift-invariant for a proposal.
      public: points z, [M, d], which are not protected, or a proposal.
      epsilon: ε > 0.
      delta: δ in (0, 1/N).
      ledger: of the curator.
      database: the name of the rows in the ledger.
      again: whether rows of that name may have been released before; what is spent adds up.
      num_points: M, for a proposal.
      num_features: J, even, for a proposal; at most, on a lattice.
      seed: of frequencies and synthesis, public. The noise has none.
      progress: called with (work done, work at most) by the synthesis.

    Raises:
      ValueError: shapes, a budget or an option that cannot be; a spent budget (``LedgerError``).
      ModuleNotFoundError: OpenDP is not installed.
    """
    budget = PrivacyBudget(epsilon, delta)
    if num_points < 1:
        raise ValueError(f"num_points must be at least 1, got {num_points}")
    check_before_long_work(rows, public, budget)
    num_rows = len(rows)
    if delta >= 1 / num_rows:
        raise ValueError(f"delta must be below 1/N = {1 / num_rows:.2g}, got {delta}: a larger one protects nobody")
    feature_key, solver_key = jax.random.split(jax.random.key(seed))
    feature_map = public_feature_map(feature_key, kernel, public, num_features=num_features)
    mechanism = secure_mechanism(integer_map(feature_map, num_rows), num_rows, budget)
    encode(feature_map, {}, "feature_map")  # a kernel that cannot be written is refused before anything is spent
    embedding = integer_embedding(feature_map, rows)
    total = None if ledger is None else ledger.spend(database, mechanism, again=again)
    private = perturb_securely(embedding, budget)
    proposal = public if isinstance(public, NormalProposal) else None
    sample = synthesise(solver_key, private, proposal, num_points, progress=progress)
    return Release(private, sample, privacy_statement(private, total=total), proposal, seed)
