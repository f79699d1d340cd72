"""Times the library, its peers and the device's own ceilings, on a CPU or an accelerator.

python -m experiments.benchmark                             # everything, into results/benchmark_cpu.{json,png}
python -m experiments.benchmark --quick                     # a tenth of the sizes, into results/quick/
python -m experiments.benchmark --cases=kernel_means --dims=2 --device=gpu
python -m experiments.benchmark --input=a/benchmark_cpu.json,b/benchmark_nvidia_h100_80gb_hbm3.json --output_dir=figures
                                                            # tables, and one picture, of earlier results

All contenders run in one process and on the same arrays. First each of them runs once, and its result is checked
against float64. Then they are timed by turns, round after round, and medians are compared. On an accelerator, a timing
is the mean of calls in a row that last 40 ms, after 20 ms of calls that do not count: a call after a pause is slower,
on the device and on the host. A timing includes everything that a caller waits for, and rows are on the
device before it or on the host, as the name of the task says. Points are on the host. The compiler's time is
measured in separate first calls: one with an empty persistent cache, and one that finds its programs in the cache. A
peer has a limited time: a slow one gets fewer rows, and its rate is that of these rows.
"""

from __future__ import annotations

import sys

from experiments.benchmark.config import BenchmarkCommand, BenchmarkConfig
from experiments.common.program import run_main
from experiments.common.results import check_output_dir, write_json


def main(command: BenchmarkCommand, config: BenchmarkConfig) -> None:
    """Runs the benchmark, or loads earlier results; writes, prints and draws them."""
    from experiments.benchmark import plot, report
    from experiments.benchmark.machine import choose_device
    from experiments.benchmark.run import default_num_rows, run
    from experiments.benchmark.timing import WrongResultError

    if command.input:
        results = report.merge([report.load(path) for path in command.input])
        folder = check_output_dir(command.output_dir or "results")
        picture = folder / "benchmark.png"
    else:
        choose_device(command.device)
        config = command.applied_to(config, default_num_rows())
        config.validate()
        folder = check_output_dir(config.output_dir)
        try:
            results = [run(config, lambda result: write_json(folder / report.file_name(result), result))]
        except WrongResultError as error:
            sys.exit(f"error: {error}")
        picture = (folder / report.file_name(results[0])).with_suffix(".png")
    paths = [folder / report.file_name(result) for result in results]
    for path, result in zip(paths, results, strict=True):
        write_json(path, result)
    plot.draw(paths, picture)
    print("\n\n".join(map(report.table, results)))
    print(f"wrote {', '.join(map(str, paths))} and {picture}")


if __name__ == "__main__":
    # Without a cache of compiled programs, because the benchmark measures the compiler's time.
    run_main(main, BenchmarkCommand, BenchmarkConfig, compile_cache=False)
