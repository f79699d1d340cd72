"""Numbers of [H], table 1 (means of five runs), typed in from the paper: hard-label areas, or weighted F1.

They are not from this machine, rows, split or versions of the classifiers: see ``table_files`` for what differs.
"""

from __future__ import annotations

SOURCE = "Harder, Adamczewski, Park (2021), DP-MERF, table 1; δ = 1e-5, ε = 1 except for real and non-DP"
COLUMNS = ("real", "DP-CGAN", "DP-GAN", "DP-MERF", "DP-MERF, no noise")
# ROC, and PRC: average precision.
AREAS = {
    "adult": ((0.730, 0.509, 0.511, 0.650, 0.653), (0.639, 0.444, 0.445, 0.564, 0.570)),
    "census": ((0.747, 0.655, 0.529, 0.686, 0.692), (0.415, 0.216, 0.166, 0.358, 0.369)),
    "cervical": ((0.786, 0.519, 0.485, 0.545, 0.896), (0.493, 0.200, 0.183, 0.184, 0.737)),
    "credit": ((0.923, 0.664, 0.435, 0.772, 0.898), (0.874, 0.356, 0.150, 0.637, 0.774)),
    "epileptic": ((0.797, 0.578, 0.505, 0.611, 0.616), (0.617, 0.241, 0.196, 0.340, 0.335)),
    "isolet": ((0.893, 0.511, 0.540, 0.547, 0.733), (0.728, 0.198, 0.205, 0.404, 0.424)),
}
F1 = {"covtype": (0.643, 0.285, 0.492, 0.467, 0.513), "intrusion": (0.959, 0.302, 0.251, 0.850, 0.856)}


def quoted(name: str) -> dict[str, dict[str, float]]:
    """The paper's numbers for a data set, {column: {metric: value}}."""
    if name in F1:
        return {column: {"f1": value} for column, value in zip(COLUMNS, F1[name], strict=True)}
    areas = zip(COLUMNS, *AREAS[name], strict=True)
    return {column: {"hard_roc": roc, "hard_prc": prc} for column, roc, prc in areas}
