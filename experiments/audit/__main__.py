"""Attacks on the releases: is the noise as large as the privacy statement says?

python -m experiments.audit                       # all mechanisms and maps, some minutes
python -m experiments.audit --epsilons=1 --num_runs=20000

For each feature map there are two neighbouring databases whose sums differ as much as a search could achieve. An
attacker knows both databases and sees one noisy embedding. He decides which database it is from, by the likelihood
ratio and a threshold that separate runs have fixed. His errors, with Clopper-Pearson confidence bounds, give a lower
bound of μ (Gaussian differential privacy, Dong, Roth & Su 2022) or of a pure ε. A lower bound above the claim would
prove that the claim is wrong. Two mechanisms that are broken on purpose show that the attack works.

Two more attacks are on how cells become codes. One compares codes of many random neighbouring tables, in containers of
many kinds (``experiments.audit.containers``). The other looks at releases of two DataFrames, where one cell changes the
type of its column. Both are also made against the library's former encoder, whose defect they have to detect. Results
go to <output_dir>/audit.json and audit.png.
"""

from __future__ import annotations

import pathlib

from experiments.audit.config import AuditConfig
from experiments.common.program import run_main


def main(config: AuditConfig) -> None:
    """Runs all attacks, prints their table and draws them."""
    from experiments.audit import plot, run

    result = run.run(config)
    path = pathlib.Path(config.output_dir) / "audit.json"
    picture = plot.draw(path, path.with_suffix(".png"))
    print(f"{run.markdown(result)}\nwrote {path} and {picture}")
    unexpected = [cell for cell in result["cells"] if cell["violated"] != cell["should_be_violated"]]
    for cell in unexpected:
        print(f"UNEXPECTED: {cell['mechanism']}, {cell['map']}, ε = {cell['epsilon']:g}")


if __name__ == "__main__":
    run_main(main, AuditConfig)
