"""The experiment on rows that are read in batches."""

import dataclasses

import numpy as np
import pytest

from experiments import streams
from experiments.common.errors import InputError
from experiments.common.processes import Measured
from kme_jax import open_rows

SMALL = streams.StreamsConfig(num_rows=(3000, 5000), rows_in_files=1000, num_features=16, cores=64)


def _here(function, *arguments):
    return Measured(function(*arguments), 0.0, 2**20)


def test_made_up_rows_are_the_same_again_and_in_files(tmp_path):
    rows = np.concatenate(list(streams.rows_of(2000)))
    np.testing.assert_array_equal(rows, np.concatenate(list(streams.rows_of(2000))))
    assert 10 < np.isnan(rows[:, 4]).sum() < 100
    assert np.corrcoef(rows[:, 2], rows[:, 3])[0, 1] > 0.4
    for name in streams.FILES:
        streams.write_rows(tmp_path / name, 2000)
        (batch,) = open_rows(tmp_path / name, columns=streams.NAMES).batches()
        np.testing.assert_array_equal(batch, rows, err_msg=name)


@pytest.mark.long
def test_a_small_run(tmp_path):
    config = dataclasses.replace(SMALL, output_dir=str(tmp_path))
    result = streams.run(config, _here)
    sizes = [(cell["source"], cell["num_rows"]) for cell in result["cells"]]
    assert sizes == [("function", 3000), ("function", 5000), *((source, 1000) for source in streams.FILES.values())]
    assert {cell["num_features"] for cell in result["cells"]} == {16}
    assert [path.name for path in tmp_path.iterdir()] == ["streams.json"]
    lines = streams.markdown(result).splitlines()
    assert lines[-1].startswith("| function, *estimated* | 1,000,000,000 |")
    assert len({line.count("|") for line in lines}) == 1
    assert streams.run(config, lambda *_: pytest.fail("a record is computed again")) == result


@pytest.mark.parametrize(
    "changes", [{"num_rows": (1,)}, {"rows_in_files": 1}, {"num_features": 3}, {"cores": 0}, {"length": -1.0}], ids=str
)
def test_what_cannot_be_is_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        dataclasses.replace(SMALL, **changes).validate()
