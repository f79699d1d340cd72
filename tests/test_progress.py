"""One argument ``progress`` everywhere: False, True for a bar, or a function."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import kme_jax
from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, improved, mean_embedding, perturb
from kme_jax._numerics.progress import progress_bar, shows_progress


class _Bar:
    """In place of tqdm: it keeps what it was told."""

    made = ()

    def __init__(self, *, desc, total, bar_format, disable):
        self.description, self.total, self.bar_format, self.disable, self.n = desc, total, bar_format, bool(disable), 0
        self.seen = [(desc, "bar" in bar_format, 0, total)]
        self.closed = False
        _Bar.made = (*_Bar.made, self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def set_description(self, text, refresh):
        self.description = text

    def update(self, more):
        self.n += more
        self.seen.append((self.description, "bar" in self.bar_format, self.n, self.total))

    def refresh(self):
        pass


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr("tqdm.auto.tqdm", _Bar)
    monkeypatch.setattr(_Bar, "made", ())
    return lambda: _Bar.made


def _functions():
    """All functions and methods with an argument ``progress`` that a person may call."""
    for module in pkgutil.walk_packages(kme_jax.__path__, "kme_jax."):
        if "._numerics" in module.name or module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.startswith("_") or getattr(value, "__module__", "") != module.name:
                continue
            methods = vars(value).items() if inspect.isclass(value) else [("", value)]
            for method, function in methods:
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{module.name}.{name}.{method}".rstrip("."), inspect.signature(function)


# What the library calls itself, with a function or None: feature maps and their integers, and the fit of a table.
_INNER = ("weighted_sum", "sum_on_device", "sum", "Sum.add", "classes", "mixture.fit")


def test_the_argument_is_the_same_everywhere():
    functions = {name: signature for name, signature in _functions() if "progress" in signature.parameters}
    functions = {name: signature for name, signature in functions.items() if not name.endswith(_INNER)}
    assert len(functions) >= 30
    for name, signature in functions.items():
        argument = signature.parameters["progress"]
        assert argument.default is False, name
        assert argument.kind is inspect.Parameter.KEYWORD_ONLY, name
        assert argument.annotation == "Progress | bool", name


@pytest.mark.parametrize(
    "name",
    [
        "kme_jax.points.measure.release",
        "kme_jax.points.release.Measurement.synthesise",
        "kme_jax.table.measure.release_table",
        "kme_jax.table.release.TableMeasurement.synthesise",
        "kme_jax.generators.algorithm.dp_merf",
        "kme_jax.generators.release.GeneratorMeasurement.synthesise",
        "kme_jax.generators.train.train_generator",
        "kme_jax.algorithms.three_steps.improved",
        "kme_jax.synthesis.posterior.posterior_mean",
    ],
)
def test_long_work_has_it(name):
    assert "progress" in dict(_functions())[name].parameters


def test_a_bar_says_compiling_until_something_is_done(bars):
    with progress_bar("work") as progress:
        progress(0, 7)
        progress(2, 7)
        progress(7, 7)
    (bar,) = bars()
    assert bar.closed
    assert bar.seen == [
        ("work (compiling)", False, 0, 1),
        ("work (compiling)", False, 0, 7),
        ("work", True, 2, 7),
        ("work", True, 7, 7),
    ]


def test_a_bar_ends_after_work_that_says_nothing(bars):
    with progress_bar("work"):
        pass
    assert bars()[0].seen[-1] == ("work", True, 1, 1)


def test_a_bar_is_closed_by_an_error(bars):
    @shows_progress("work")
    def fail(progress=False):
        progress(1, 2)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail(progress=True)
    assert bars()[0].closed
    assert bars()[0].n == 1


def test_only_true_makes_a_bar(bars):
    @shows_progress("work")
    def work(progress=False):
        return progress

    def own(done, total):
        pass

    assert work(progress=own) is own
    assert work() is False
    assert work(progress=None) is None
    assert not bars()
    assert callable(work(progress=True))
    assert len(bars()) == 1


def test_results_with_bars_are_the_same(bars, monkeypatch):
    def weights(noisy, public, *, signed, progress):
        assert progress is True  # it is passed on
        return noisy.coordinates, None

    monkeypatch.setattr("kme_jax.algorithms.three_steps.adaptive_weights", weights)
    rng = np.random.default_rng(0)
    arguments = jax.random.key(0), rng.normal(size=(100, 2)), Gaussian(0.5), rng.normal(size=(5, 2))
    with_bars = improved(*arguments, budget=PrivacyBudget(1.0, 1e-6), progress=True)
    assert [bar.description for bar in bars()] == ["rows"]
    assert all(bar.closed and bar.n == bar.total for bar in bars())
    subspace = SubspaceMap.from_points(*arguments[2:])
    without = perturb(arguments[0], mean_embedding(subspace, arguments[1]), PrivacyBudget(1.0, 1e-6))
    np.testing.assert_array_equal(with_bars, without.coordinates)


def test_real_bars_go_to_standard_error(capfd):
    with progress_bar("work", only_on_terminals=True) as progress:
        progress(1, 2)
    assert capfd.readouterr() == ("", "")  # not a terminal
    with progress_bar("work") as progress:
        progress(1, 2)
        progress(2, 2)
    out, err = capfd.readouterr()
    assert not out
    assert err.index("work (compiling)") < err.index("work: 100%")


@pytest.mark.long
def test_tqdm_is_imported_for_a_bar_only():
    code = "import sys, kme_jax; from kme_jax import *; import kme_jax.points.release; print('tqdm' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
