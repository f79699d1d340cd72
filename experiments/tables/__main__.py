"""Releases of real tables: errors of marginals, and what a classifier learns from the synthetic rows.

python -m experiments.tables --data_dir=FOLDER                                  # Adult, adult_pgm and intrusion
python -m experiments.tables --data_dir=FOLDER --datasets=adult_pgm --epsilons=1 --num_seeds=1
python -m experiments.tables --data_dir=FOLDER --relation=add_remove            # the number of rows is private
python -m experiments.tables --data_dir=FOLDER --more_rows=4                    # and releases of four times the rows
python -m experiments.tables --data_dir=FOLDER --datasets=adult_pgm --relation=add_remove --peers=mst,aim \
    --peer_python=peers/bin/python                                              # after: pip install dpmm==0.1.9, there

A seed determines the split into private rows and test rows (Adult has the publisher's split), the controls, the
classifiers, and the public choices of a release. kme_jax.table.marginals compares marginals, and
experiments.tables.classifiers compares classifiers; the tables are in experiments.common.datasets. A δ of 1/N or more
would protect nobody: the next smaller power of ten replaces it. There are three controls, which are not private: the
real rows themselves, the real rows with each column shuffled ("independent columns"), and as many rows drawn from the
real rows with replacement ("real sample"). With --peers, other systems release the same rows, each in a process of its
own with a time limit; experiments.tables.live_peers says how. Each result is written to
<output_dir>/tables_<data set>.json when it is done, or to tables_<data set>_add_remove.json. An interrupted run
continues if flags, commit and machine are the same.
"""

from __future__ import annotations

import pathlib

from experiments.common.program import run_main
from experiments.tables.config import TablesConfig


def main(config: TablesConfig) -> None:
    """Runs the experiment, prints its tables and draws it."""
    from experiments.tables import plot, releases

    results = releases.run(config)
    print("\n\n".join(map(releases.markdown, results.values())))
    paths = [releases.result_path(config, name) for name in results]
    picture = plot.draw(paths, pathlib.Path(config.output_dir) / "tables.png")
    print(f"wrote {', '.join(map(str, paths))} and {picture}")


if __name__ == "__main__":
    run_main(main, TablesConfig)
