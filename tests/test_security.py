import json

import pytest

from experiments import security
from experiments.common.errors import InputError


@pytest.mark.slow
def test_a_small_run_is_kept_and_tabulated(tmp_path):
    config = security.SecurityConfig(
        dims=(2,), epsilons=(1.0,), num_rows=3000, num_points=40, num_draws=2, output_dir=str(tmp_path)
    )
    result = security.run(config)
    assert json.loads((tmp_path / "security.json").read_text()) == result
    (cell,) = result["cells"]
    assert 1 < cell["secure_sigma"] / cell["simulated_sigma"] < 1.001
    assert len(cell["secure_distances"]) == 2
    assert security.markdown(result).count("\n") == 2
    assert security.run(config)["cells"] == result["cells"]  # not computed again


@pytest.mark.parametrize(
    ("change", "match"),
    [({"dims": ()}, "dims"), ({"num_points": 200_000}, "num_points"), ({"num_draws": 0}, "num_draws")],
)
def test_what_cannot_be_run(change, match):
    with pytest.raises(InputError, match=match):
        security.SecurityConfig(**change).validate()
