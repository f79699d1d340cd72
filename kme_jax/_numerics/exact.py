"""Products of a matrix and a vector of integers, without rounding."""

from __future__ import annotations

import numpy as np

_DIGIT_BITS, _TOTAL_DIGIT_BITS = 14, 16


def _digits(values: np.ndarray, bits: int) -> list[np.ndarray]:
    """Integers in float64 or int64 as Σ_i digit_i 2^(i bits), with digits of absolute value at most 2^(bits−1)."""
    digits = []
    while values.any():
        if values.dtype == np.int64:
            upper = (values + (1 << (bits - 1))) >> bits
            digits.append((values - (upper << bits)).astype(np.float64))
        else:
            upper = np.rint(np.ldexp(values, -bits))
            digits.append(values - np.ldexp(upper, bits))
        values = upper
    return digits or [np.zeros(values.shape)]


def exact_product(matrix: np.ndarray, vector: np.ndarray, bits: int) -> np.ndarray:
    """round(A v) for A = round(2^bits matrix) / 2^bits, without any rounding before: products of digits, whose sums are
    exact in float64 in any order.

    Args:
      matrix: [F, M], M < 2^20.
      vector: int64 [M].

    Returns:
      [F], Python integers.
    """
    total = np.zeros(len(matrix), object)
    digits = _digits(vector, _TOTAL_DIGIT_BITS)
    for start in range(0, len(matrix), 512):
        rows = slice(start, start + 512)
        for i, left in enumerate(_digits(np.rint(np.ldexp(matrix[rows], bits)), _DIGIT_BITS)):
            for j, right in enumerate(digits):
                product = (left @ right).astype(np.int64).astype(object)
                total[rows] += product * (1 << (i * _DIGIT_BITS + j * _TOTAL_DIGIT_BITS))
    return (total + (1 << (bits - 1))) // (1 << bits)
