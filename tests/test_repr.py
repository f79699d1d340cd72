"""The text of every object of the library is short, and shows no values of arrays."""

import dataclasses
import importlib
import inspect
import pathlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kme_jax
from kme_jax import (
    Gaussian,
    GaussianSum,
    IntegerEmbedding,
    Ledger,
    MeanEmbedding,
    PrivacyBudget,
    SubspaceMap,
    WeightedSample,
    pytree_dataclass,
)
from kme_jax._numerics.short_repr import MAX_LENGTH, in_full, short_repr
from kme_jax.generators.networks import MLP
from kme_jax.generators.settings import Training
from kme_jax.table import Categorical, Numeric, Schema
from kme_jax.table.check import ColumnCheck

FOLDERS = sorted((pathlib.Path(__file__).parent / "data/folders_of_0.1").iterdir())
VALUE = 0.7312987


def _classes():
    for module in pkgutil.walk_packages(kme_jax.__path__, "kme_jax."):
        if module.name.endswith("__main__"):
            continue
        for name, cls in vars(importlib.import_module(module.name)).items():
            ours = inspect.isclass(cls) and cls.__module__ == module.name and not name.startswith("_")
            if ours and (dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")) and not inspect.isabstract(cls):
                yield cls


CLASSES = sorted(set(_classes()), key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


def _filled(cls, value):
    """An object with the same value in all fields. It is not valid: the text of such an object is short, too."""
    if hasattr(cls, "_fields"):
        return cls(*[value] * len(cls._fields))
    instance = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(instance, field.name, value)
    return instance


_NESTED = _filled(SubspaceMap, np.full(3, VALUE))
HOSTILE = (
    np.full((50, 40), VALUE),
    [np.full((50, 40), VALUE)] * 1000,
    dict.fromkeys(map(str, range(100)), jnp.full(7, VALUE)),
    _NESTED,
    [[_NESTED] * 100] * 100,
    "x" * 100_000,
    10**5000,
    None,
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__.removeprefix('kme_jax.')}.{cls.__name__}")
def test_every_class_is_short_and_hides_arrays(cls):
    for value in HOSTILE:
        text = repr(_filled(cls, value))
        assert text.startswith(f"{cls.__name__}(")
        assert len(text) <= MAX_LENGTH
        assert "0.73" not in text
        if "SENSITIVE" in cls.__doc__:
            assert "SENSITIVE" in text


def test_a_check_of_a_column_names_its_counts_and_hides_them():
    expected = "ColumnCheck(SENSITIVE, 'age', 'numeric', counts in .missing, .unreadable and .moved)"
    assert repr(ColumnCheck("age", "numeric", 31, 41, 59)) == expected


def test_the_sensitive_classes_say_so():
    assert {MeanEmbedding, IntegerEmbedding, ColumnCheck} <= {cls for cls in CLASSES if "SENSITIVE" in cls.__doc__}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_releases_say_their_budget_and_noise(folder):
    artifact = kme_jax.load(folder)
    text = repr(artifact)
    assert len(text) <= 200
    assert text.startswith(f"{type(artifact).__name__}(")
    statement = artifact.statement
    for part in (f"ε={statement['epsilon']:g}", f"δ={statement['delta']:g}", f"N={statement['num_rows']}"):
        assert part in text
    assert ("secure noise" in text) == statement["private"]
    assert ("NOT PRIVATE" in text) != statement["private"]


def test_a_noisy_embedding_in_words():
    noisy = kme_jax.load(FOLDERS[0].parent / "measurement_of_frequencies").noisy
    text = repr(noisy)
    assert "Matern32(length_scale=0.5)" in text
    assert f"coordinates=f64[{len(noisy.coordinates)}]" in text
    assert "secure gaussian noise of scale" in text
    assert "NOT PRIVATE, simulated gaussian noise" in repr(dataclasses.replace(noisy.mechanism, secure=False))
    assert repr(WeightedSample(np.zeros((1000, 2)), np.zeros(1000))) == (
        "WeightedSample(points=f64[1000, 2], weights=f64[1000], mechanism=None)"
    )


def test_settings_show_their_values():
    assert repr(PrivacyBudget(1.0, 1e-6)) == "PrivacyBudget(epsilon=1.0, delta=1e-06)"
    assert repr(Gaussian(0.5)) == "Gaussian(gamma=0.5)"
    assert repr(Gaussian(jnp.float32(0.5))) == "Gaussian(gamma=0.5)"
    assert repr(MLP((3, 4))) == "MLP(widths=(3, 4), code=5, styles=0)"
    assert "upper=99, integer=True" in repr(Numeric("age", 0, 99, True))
    schema = Schema((Numeric("age", 0, 99), Categorical("job", ("a", "b"))))
    assert repr(schema) == "Schema(2 columns: age, job)"
    assert repr(Ledger("people.ledger")) == "Ledger(path='people.ledger')"


def test_a_traced_number_has_no_value():
    texts = []
    jax.jit(lambda gamma: texts.append(repr(Gaussian(gamma))) or gamma)(1.0)
    assert texts == ["Gaussian(gamma=f32[])"]


def test_a_text_written_in_the_class_is_kept():
    @pytree_dataclass
    @dataclasses.dataclass(frozen=True)
    class Own:
        field: int

        def __repr__(self) -> str:
            return "my own words"

    @pytree_dataclass
    @dataclasses.dataclass(frozen=True, repr=False)
    class Inherited(Own):
        more: int

    @short_repr
    @dataclasses.dataclass
    class Generated:
        field: int

    assert repr(Own(3)) == "my own words"
    assert repr(Inherited(3, 4)) == "my own words"
    assert repr(Generated(3)).endswith("Generated(field=3)")
    assert in_full(Own(3)) == "my own words"


def test_in_full_is_what_dataclasses_write():
    """Privacy statements and checkpoints depend on it, so it must not change, and must show every value."""
    kernel = Gaussian(0.1234567890123) * Gaussian(2.0) + GaussianSum(np.ones((2, 3)))
    assert in_full(kernel) == (
        "Sum(left=Product(left=Gaussian(gamma=0.1234567890123), right=Gaussian(gamma=2.0)), "
        "right=GaussianSum(2 terms, 3 columns))"
    )
    many = tuple(range(1, 1000))
    assert in_full((MLP(many), Training(), (), 1)) == (
        f"(MLP(widths={many!r}, code=5, styles=0), Training(num_steps=1000, num_cycles=5, batch_size=500, "
        "learning_rate=0.005, decay=None, decay_steps=1, unbiased=True, features_per_step=None, borrow=True, "
        "num_generators=1), (), 1)"
    )
    assert len(repr(MLP(many))) < 100
