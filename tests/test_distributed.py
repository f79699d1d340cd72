"""The experiment on distributed releases: simulated clusters, and engines on one machine."""

import json
import time

import pytest

from experiments import distributed
from experiments.common.errors import InputError
from experiments.common.processes import Measured


def test_a_simulated_cluster_counts_what_is_sent():
    one, many = (distributed.simulate(10**6, workers, 3, "replace_one") for workers in (1, 1000))
    assert one["refused"] is many["refused"] is None
    assert len(one["passes"]) == len(many["passes"]) == 3
    assert one["passes"][0]["num_features"] == many["passes"][0]["num_features"]
    assert {of["messages"] for of in one["passes"]} == {2}
    assert {of["messages"] for of in many["passes"]} == {2 * 1000 + 63}
    for of_one, of_many in zip(one["passes"], many["passes"], strict=True):
        assert of_many["driver_bytes"] <= 64 * of_many["partial_bytes"]
        assert 8 * of_one["num_features"] <= of_one["partial_bytes"] <= 8 * of_one["num_features"] + 2000
        assert of_many["bytes"] > 1000 * of_many["partial_bytes"]
    assert 0 < one["largest_sum_share_of_range"] <= one["room"]["share_of_range"] < 1


def test_what_could_overflow_is_refused_before_it_starts():
    many = distributed.simulate(10**12, 4, 3, "replace_one")
    assert many["refused"] is None
    assert many["largest_sum_share_of_range"] <= many["room"]["share_of_range"] < 1
    private = distributed.simulate(10**12, 4, 3, "add_remove")
    assert private["refused"] == "source: a table with a private number of rows has at most 1,000,000,000"
    assert private["passes"] == []
    far = distributed.simulate(2**55, 4, 3, "replace_one")
    assert "more than can be summed exactly" in far["refused"]


def _here(function, *arguments):
    started = time.perf_counter()
    return Measured(function(*arguments), time.perf_counter() - started, 0)


@pytest.mark.slow
def test_a_small_run_is_kept_and_tabulated(tmp_path):
    pytest.importorskip("dask.dataframe")
    config = distributed.DistributedConfig(
        num_rows=(1000,),
        num_workers=(2,),
        num_columns=(3,),
        measured_rows=1000,
        engines=("one_process", "dask"),
        num_repeats=1,
        output_dir=str(tmp_path),
    )
    result = distributed.run(config, _here)
    assert json.loads((tmp_path / "distributed.json").read_text()) == result
    assert [cell["kind"] for cell in result["cells"]] == ["simulated", "simulated", "measured", "measured"]
    assert distributed.run(config, _here)["cells"] == result["cells"]  # not computed again
    assert distributed.markdown(result).count("\n") == distributed.engines_markdown(result).count("\n") == 3


@pytest.mark.parametrize(
    ("change", "match"),
    [({"num_rows": ()}, "num_rows"), ({"engines": ("hadoop",)}, "engines"), ({"num_repeats": 0}, "num_repeats")],
)
def test_what_cannot_be_run(change, match):
    with pytest.raises(InputError, match=match):
        distributed.DistributedConfig(**change).validate()
