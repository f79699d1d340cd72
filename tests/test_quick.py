"""``--quick``: every experiment has it, its sizes are valid and smaller, and it never writes into figures/."""

import dataclasses
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from experiments.accuracy.config import AccuracyConfig
from experiments.audit.config import AuditConfig
from experiments.distributed import DistributedConfig
from experiments.figures.all_panels import quick_config
from experiments.figures.config import MixtureConfig
from experiments.inference.coverage import PointsCoverageConfig
from experiments.inference.detection import DetectionConfig
from experiments.mechanisms import MechanismsConfig
from experiments.merf.cnn import CnnConfig
from experiments.merf.gaussians import GaussiansConfig
from experiments.merf.images import ImagesConfig
from experiments.merf.rare import RareConfig
from experiments.merf.tables import MerfTablesConfig
from experiments.rates.config import RatesConfig
from experiments.rivals.config import RivalsConfig
from experiments.security import SecurityConfig
from experiments.shift.config import ShiftConfig
from experiments.streams import StreamsConfig
from experiments.tables.bias import BiasConfig
from experiments.tables.config import TablesConfig
from experiments.tables.constrained import ConstrainedConfig
from experiments.tables.coverage import CoverageConfig
from experiments.tables.hard import HardConfig
from experiments.tables.planned import PlannedConfig
from experiments.tables.scale import ScaleConfig
from experiments.tables.throughput import ThroughputConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = [
    AccuracyConfig,
    AuditConfig,
    BiasConfig,
    CnnConfig,
    ConstrainedConfig,
    CoverageConfig,
    DetectionConfig,
    DistributedConfig,
    GaussiansConfig,
    HardConfig,
    ImagesConfig,
    MechanismsConfig,
    MerfTablesConfig,
    MixtureConfig,
    PlannedConfig,
    PointsCoverageConfig,
    RareConfig,
    RatesConfig,
    RivalsConfig,
    ScaleConfig,
    SecurityConfig,
    ShiftConfig,
    StreamsConfig,
    TablesConfig,
    ThroughputConfig,
]
REDRAWS = "experiments.figures.redraw"  # it computes nothing


def _programs():
    for path in sorted((ROOT / "experiments").rglob("*.py")):
        text = path.read_text()
        if re.search(r"^    run_main\(", text, re.MULTILINE):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name, re.findall(r"\b\w+(?:Config|Command)\b", re.search(r"^    run_main\((.*)\)$", text, re.M)[1])


def test_every_program_has_it():
    programs = dict(_programs())
    assert len(programs) >= 11
    quick = set()
    for name, configs in programs.items():
        classes = [getattr(importlib.import_module(name), config) for config in configs]
        if any("quick" in {f.name for f in dataclasses.fields(cls)} or cls in CONFIGS for cls in classes):
            quick.add(name)
    assert set(programs) - quick == {REDRAWS}


@pytest.mark.parametrize("cls", CONFIGS)
def test_quick_values_are_valid_and_small(cls):
    full = cls(**{"data_dir": "x"} if "data_dir" in {f.name for f in dataclasses.fields(cls)} else {})
    quick = full.quick_run()
    quick.validate()
    assert quick.output_dir == "results/quick"
    sizes = [field.name for field in dataclasses.fields(cls) if "quick" in field.metadata]
    assert sizes
    for name in sizes:
        before, after = getattr(full, name), getattr(quick, name)
        if isinstance(before, tuple):
            assert len(after) <= len(before)
            assert max(after) <= max(before) if not isinstance(after[0], str) else set(after) <= set(before)
        elif before:
            assert after < before
        else:  # None or 0: what the experiment chooses
            assert after > 0
    kept = full.quick_run("output_dir", *sizes)
    assert kept == full


def test_quick_figures_are_a_tenth():
    """The sizes of ``experiments.figures --quick`` are as they were."""
    quick = quick_config(MixtureConfig(output_dir="here"))
    assert quick == MixtureConfig(
        num_rows=10_000,
        max_points=1000,
        num_noise_draws=100,
        num_repeats=1,
        num_features=1000,
        joint_steps=30,
        improved_trajectories=1,
        improved_sizes=(100,),
        improved_draws=1,
        output_dir="here",
    )


EXPERIMENT = """
import dataclasses
import json

from experiments.common.config import Config, flag
from experiments.common.program import run_main


@dataclasses.dataclass(frozen=True)
class SmallConfig(Config):
    num_rows: int = flag(1000, "N.", quick=10)
    dims: tuple[int, ...] = flag((2, 5), "D.", quick=(2,))
    seed: int = flag(3, "Seed.")
    output_dir: str = flag("results", "Folder.")


if __name__ == "__main__":
    run_main(lambda config: print(json.dumps(dataclasses.asdict(config))), SmallConfig, compile_cache=False)
"""


def _run(tmp_path, *words):
    (tmp_path / "small.py").write_text(EXPERIMENT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, "-m", "small", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)


@pytest.mark.long
def test_flags_beside_it_count(tmp_path):
    config = json.loads(_run(tmp_path, "--quick", "--dims=4,5", "--num_rows=1000").stdout)
    assert config == {"num_rows": 1000, "dims": [4, 5], "seed": 3, "output_dir": "results/quick"}
    config = json.loads(_run(tmp_path, "--quick", f"--output_dir={tmp_path}").stdout)
    assert config == {"num_rows": 10, "dims": [2], "seed": 3, "output_dir": str(tmp_path)}


@pytest.mark.long
def test_it_is_off_by_default_and_says_its_sizes(tmp_path):
    assert json.loads(_run(tmp_path).stdout)["num_rows"] == 1000
    text = " ".join(_run(tmp_path, "--help").stdout.split())
    assert "--num_rows=10 --dims=2 --output_dir=results/quick" in text


@pytest.mark.long
def test_it_never_writes_into_figures(tmp_path):
    refused = _run(tmp_path, "--quick", "--output_dir=figures")
    assert refused.returncode == 2
    assert refused.stderr == "error: --quick never writes into figures/: give another --output_dir\n"
