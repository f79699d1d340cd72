import dataclasses
import json

import numpy as np
import pytest

from experiments import accuracy, common, plots


@pytest.fixture
def tiny(tmp_path):
    return accuracy.AccuracyConfig(
        dims=(2,), sizes=(5, 40), epsilons=(0.1, 1.0), num_rows=400, num_draws=3, output_dir=str(tmp_path)
    )


def test_a_small_run_and_its_picture(tiny, tmp_path):
    result = accuracy.run(tiny)
    assert json.loads((tmp_path / "accuracy.json").read_text()) == result
    assert [(cell["num_points"], cell["epsilon"]) for cell in result["cells"]] == [
        (5, 0.1),
        (5, 1.0),
        (40, 0.1),
        (40, 1.0),
    ]
    for cell in result["cells"]:
        steps = {name: values["mean"] for name, values in cell["steps"].items()}
        assert steps["diameter"] < steps["calibration"] < steps["published"]
        assert len(cell["distances"]["improved"]) == 3
        better = min(cell["uniform"], steps["diameter"])
        assert cell["ratio_to_better"] == pytest.approx(steps["improved"] / better)
        assert cell["ratio_to_published"] == pytest.approx(steps["published"] / steps["improved"])
    text = accuracy.table(result)
    assert len(text.splitlines()) == 6
    assert f"{result['cells'][0]['steps']['improved']['mean']:.3g}" in text
    assert plots.draw_accuracy(tmp_path / "accuracy.json", tmp_path / "a.png").stat().st_size > 10_000


def test_an_interrupted_run_goes_on(tiny, tmp_path):
    first = accuracy.run(tiny)
    kept = dict(first, cells=[dict(first["cells"][0], uniform=-1.0)])
    common.write_json(tmp_path / "accuracy.json", kept)
    again = accuracy.run(tiny)
    assert again["cells"][0]["uniform"] == -1.0  # not computed again
    np.testing.assert_allclose(
        [c["distances"]["improved"] for c in again["cells"]],
        [c["distances"]["improved"] for c in first["cells"]],
        rtol=1e-6,
    )
    other = accuracy.run(dataclasses.replace(tiny, sizes=(5,), epsilons=(0.1,), num_draws=1))
    assert other["cells"][0]["uniform"] > 0  # other flags: from the start
    assert other["cells"][0]["never_worse"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": ()}, "--sizes must be positive"),
        ({"dims": (2, 2)}, "--dims must be positive and different"),
        ({"sizes": (500,)}, "--sizes has 500, more than --num_rows=400"),
        ({"num_draws": 0}, "--num_draws must be at least 1"),
        ({"epsilons": (2.0,)}, "classical"),
        ({"delta": 0.0}, "delta"),
        ({"gamma_scale": float("inf")}, "--gamma_scale must be positive and finite"),
        ({"data_seed": -1}, "--data_seed must be in"),
    ],
)
def test_bad_flags_are_one_line(tiny, change, message):
    with pytest.raises(common.InputError, match=message) as error:
        accuracy.run(dataclasses.replace(tiny, **change))
    assert "\n" not in str(error.value)


def test_the_readme_shows_the_committed_table():
    result = json.loads((common.REPOSITORY / "figures" / "accuracy.json").read_text())
    assert accuracy.markdown(result) in (common.REPOSITORY / "README.md").read_text()
