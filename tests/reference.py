"""Plain NumPy versions of the papers' boxes: no blocks, no tricks, one line of the paper at a time."""

import numpy as np


def gaussian_gram(x, y, gamma):
    """exp(−γ‖x_n − y_m‖²), one pair at a time."""
    return np.array([[np.exp(-gamma * np.sum((a - b) ** 2)) for b in y] for a in x])


def gram_schmidt(gram, tolerance):
    """Sequential Gram–Schmidt on k(z_1, ·), ..., k(z_M, ·), in coordinates with respect to those functions.

    Returns:
      basis: rows are coefficient vectors of the orthonormal b_f, [F, M].
      kept: indices of the points that were not dropped.
    """
    basis, kept = [], []
    for m in range(len(gram)):
        residual = np.zeros(len(gram))
        residual[m] = 1.0
        for _ in range(2):  # twice is enough
            for b in basis:
                residual = residual - (b @ gram @ residual) * b
        squared = residual @ gram @ residual
        if squared > tolerance:
            basis.append(residual / np.sqrt(squared))
            kept.append(m)
    return np.array(basis), kept


def algorithm1(rows, points, gamma, noise, tolerance=1e-5):
    """[B] algorithm 1 with the noise vector given (its first F entries are used); returns α, β and w."""
    basis, kept = gram_schmidt(gaussian_gram(points, points, gamma), tolerance)  # lines 3, 4
    kernel_mean = gaussian_gram(points, rows, gamma).mean(axis=1)  # line 5
    alpha = basis @ kernel_mean  # line 6: <b_f, mean embedding>
    beta = alpha + noise[: len(alpha)]  # line 7
    return alpha, beta, basis.T @ beta, kept  # line 8


def distance(rows, points, weights, gamma):
    """‖(1/N) Σ k(x_n, ·) − Σ w_m k(z_m, ·)‖ by its definition ([B] B.1)."""
    squared = (
        gaussian_gram(rows, rows, gamma).mean()
        - 2 * weights @ gaussian_gram(points, rows, gamma).mean(axis=1)
        + weights @ gaussian_gram(points, points, gamma) @ weights
    )
    return np.sqrt(squared)
