"""An adversarial search for two rows whose random Fourier features are as far apart as possible, in a lattice.

The features of x and −x are apart by √((1 − c)/2) times the diameter 2√κ, where c is the mean cosine of the angles
2 ω_jᵀx. So the search needs a row for which all these angles are close to half a turn, up to whole turns. If the
frequencies are independent over the rational numbers, there are such rows (Kronecker's theorem). But they are far away,
and neither gradients nor random rows find them.

**The lattice.** Take rows x = h k with a step h and whole numbers k, and turns t_j = ω_j / 2π. The vectors

    (2h t_1ᵀk − m_1, ..., 2h t_nᵀk − m_n, k_1 / S, ..., k_d / S)

for all whole numbers k and m are a lattice of n + d dimensions. A vector of the lattice close to (½, ..., ½, *) is a
row for which all angles are close to half a turn. Reduction of the basis (Lenstra, Lenstra & Lovász 1982) and rounding
(Babai 1986) find one. The place * is free: each choice of it gives another row.

**Which maps it can reach.** An entry of a row has p bits, which is 24 in float32 and 53 in float64. Larger rows have no
more angles: an angle has p bits, too, so that those of larger rows are rounded to whole turns. So d columns have d p
bits. For 95 % of the diameter, c must be at most −0.805. That is so for a share of 2^(−1.2 n) of all angles of n
frequencies (Cramér's theorem). So no search can be expected to reach 95 % if 1.2 n is well above d p. This search needs
about 1.6 bits for a frequency, because a reduced basis is not the best one:

    columns  type     d p  95 % reached for J = 2n up to
    2        float32   48   48
    2        float64  106  128
    5        float32  120  128
    20       float32  480  128 (99.9 %; more was not tried)

The search is for maps whose rows have no bound. If ``FourierMap.radius`` is finite, the diameter is below 2√κ.
"""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np

from kme_jax._numerics.precision import precision_of
from tests import compiled

_GUARD_BITS = 20  # of the vectors of the lattice, so that their rounding to whole numbers has no effect
_BITS_AT_ONCE = 4  # the basis is then almost reduced at any time, and float64 is precise enough for its shape
_LOVASZ = 0.99
_STEPS = 2.0**-4, 2.0**-3, 2.0**-2  # the largest h ‖t_j‖₁: a larger h gives more rows, with more rounding of angles
_MOST_SCATTER = 0.06  # of targets about half a turn: without it, targets of few columns have few nearest vectors
_NUM_TARGETS = 10_000
_NUM_CANDIDATES = 100
_NUM_CHANGES = 20
_CLOSE = 0.99  # of the diameter: then no other step is tried


def furthest_waves(fourier, seed=0):
    """Two rows [2, d] in the type of the map, and the distance of their features as the map computes them."""
    turns, rng = np.asarray(fourier.turns), np.random.default_rng(seed)
    best, largest = np.zeros((2, fourier.dim), turns.dtype), 0.0
    for step in _STEPS:
        rows = _candidates(turns, step, rng)
        assert fourier.covers(rows).all()
        with precision_of(turns):
            features = np.asarray(compiled.features(fourier, jnp.asarray(np.concatenate([rows, -rows]))), np.float64)
        distances = np.linalg.norm(features[: len(rows)] - features[len(rows) :], axis=1)
        if distances.max(initial=0) > largest:
            row = rows[np.argmax(distances)]
            best, largest = np.stack([row, -row]), float(distances.max())
        if largest > _CLOSE * fourier.diameter:
            break
    return best, largest


def _candidates(turns, relative_step, rng):
    """Rows [candidates, d], in the type of the turns [n, d], with angles close to half a turn in exact arithmetic."""
    num_frequencies, dim = turns.shape
    bits = int(np.finfo(turns.dtype).nmant) + 1
    largest = np.abs(turns.astype(np.float64)).sum(axis=1).max()
    step = 2.0 ** math.floor(math.log2(relative_step / largest))
    basis = _reduced_lattice(turns, step, bits)
    vectors = basis.astype(np.float64) / 2.0 ** (bits + _GUARD_BITS)
    targets = rng.uniform(-0.45, 0.45, (_NUM_TARGETS, num_frequencies + dim))
    scatter = rng.uniform(0, _MOST_SCATTER, (_NUM_TARGETS, 1))
    targets[:, :num_frequencies] = 0.5 + scatter * rng.normal(size=(_NUM_TARGETS, num_frequencies))

    def cosines(found):
        """The mean cosine of vectors of the lattice [..., n + d], or 2 where the row is too large."""
        is_large = np.abs(found[..., num_frequencies:]).max(axis=-1) >= 0.5
        return np.where(is_large, 2, np.cos(2 * np.pi * found[..., :num_frequencies]).mean(axis=-1))

    numbers = _nearest(vectors, targets)
    numbers = numbers[np.argsort(cosines(numbers @ vectors))[:_NUM_CANDIDATES]]
    changes = np.concatenate([np.zeros((1, len(basis))), np.eye(len(basis)), -np.eye(len(basis))])
    for _ in range(_NUM_CHANGES):
        numbers += changes[np.argmin(cosines((numbers @ vectors)[:, None] + changes @ vectors), axis=1)]
    numbers = numbers[cosines(numbers @ vectors) < 2]
    multiples = numbers.astype(np.int64).astype(object) @ (basis[:, num_frequencies:] >> (_GUARD_BITS - 1))
    return (multiples.astype(np.float64) * step).astype(turns.dtype)


def _reduced_lattice(turns, step, bits):
    """A reduced basis of the lattice times 2^(p + 20), whole numbers of Python, [n + d, n + d]."""
    (num_frequencies, dim), scale = turns.shape, bits + _GUARD_BITS
    basis = np.zeros((num_frequencies + dim, num_frequencies + dim), object)
    for i in range(num_frequencies):
        basis[i, i] = 1 << scale
        for j in range(dim):
            basis[num_frequencies + j, i] = round(2 * Fraction(step) * Fraction(float(turns[i, j])) * 2**scale)
    for j in range(num_frequencies, num_frequencies + dim):
        basis[j, j] = 1 << (scale - 1)
    done = 0
    while done < bits:
        more = min(_BITS_AT_ONCE, bits - done)
        basis[:, num_frequencies:] >>= more  # exact: k is at most 2^done steps, in more and more bits
        done += more
        _reduce(basis)
    return basis


def _reduce(basis):
    """Lenstra, Lenstra & Lovász 1982, in place, with exchanges of many pairs at once."""
    size, first = len(basis), 0
    while True:
        triangle = np.linalg.qr(basis.astype(np.float64).T).R
        for i in range(1, size):
            multiples = np.zeros(i)
            for j in range(i - 1, -1, -1):
                multiples[j] = np.rint(triangle[j, i] / triangle[j, j])
                if multiples[j]:
                    triangle[: j + 1, i] -= multiples[j] * triangle[: j + 1, j]
            for j in np.flatnonzero(multiples):
                basis[i] -= int(multiples[j]) * basis[j]
        lengths = np.square(np.diag(triangle))
        falls = lengths[1:] + np.square(np.diag(triangle, 1)) < _LOVASZ * lengths[:-1]
        if not falls.any():
            return
        for i in range(first, size - 1, 2):
            if falls[i]:
                basis[[i, i + 1]] = basis[[i + 1, i]]
        first = 1 - first


def _nearest(vectors, targets):
    """The numbers of each vector in a sum near to a target (Babai 1986): [size, size] and [m, size] -> [m, size]."""
    orthogonal, triangle = np.linalg.qr(vectors.T)
    rest, numbers = targets @ orthogonal, np.zeros_like(targets)
    for i in range(len(vectors) - 1, -1, -1):
        numbers[:, i] = np.rint(rest[:, i] / triangle[i, i])
        rest -= numbers[:, i : i + 1] * triangle[:, i]
    return numbers
