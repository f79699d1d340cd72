"""Arrays of public functions have shapes in their types, and these are checked while tests run."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Float, PRNGKeyArray

import kme_jax
from kme_jax import Bounds, Gaussian, NormalProposal, WeightedSample, gram, kernels
from kme_jax._numerics.shapes import AnyArray
from kme_jax.storage import codec
from kme_jax.synthesis import lasso
from tests import shapes
from tests.shapes import ShapeError

# Public functions, methods and fields whose arrays have no fixed shape or kind of numbers: none of these computes.
BARE = {
    "kme_jax.storage.codec.decode",
    "kme_jax.storage.codec.decode_embedding",
    "kme_jax.storage.codec.encode",
    "kme_jax.storage.codec.encode_embedding",
    "kme_jax.storage.folders.arrays_writer",
}


def _modules():
    names = [module.name for module in pkgutil.walk_packages(kme_jax.__path__, "kme_jax.")]
    public = [name for name in names if "._" not in name and ".__" not in name and not name.startswith("kme_jax.cli")]
    return [importlib.import_module(name) for name in public]


def _annotations():
    """(name, type): of everything public in the package."""
    for module in _modules():
        for owner in [module, *shapes.public_classes(module)]:
            prefix = module.__name__ if owner is module else f"{module.__name__}.{owner.__name__}"
            for name, function, _ in shapes.public_functions(owner):
                for parameter, hint in shapes.hints_of(function, name, owner).items():
                    yield f"{prefix}.{name}", parameter, hint
            if dataclasses.is_dataclass(owner):
                for field, hint in shapes.fields_of(owner).items():
                    yield f"{prefix}.{field}", "field", hint


def test_arrays_of_public_functions_have_shapes():
    bare = {name for name, _, hint in _annotations() if shapes.mentions_bare_array(hint)}
    assert sorted(bare) == sorted(BARE)


def test_the_check_sees_the_package():
    """Otherwise the test above could look at nothing."""
    shaped = {name for name, _, hint in _annotations() if shapes.mentions_shape(hint)}
    assert {"kme_jax.gram.gram", "kme_jax.kernels.base.Kernel.pairwise", "kme_jax.domain.Bounds.lower"} <= shaped
    assert len(shaped) > 200


@pytest.mark.parametrize("hint", [np.ndarray, jax.Array | None, list[np.ndarray], tuple[jax.Array, int], AnyArray])
def test_an_array_without_a_shape_is_found(hint):
    assert shapes.mentions_bare_array(hint)
    assert not shapes.mentions_shape(hint)


# -- the check of calls


class OneTooMany(kernels.Kernel):
    """A kernel whose values have one row too many."""

    diagonal_bound, is_nonnegative = 1.0, True

    def __call__(self, x, y):
        return jnp.exp(-jnp.sum(jnp.square(x - y)))

    def pairwise(self, x, y, *, expand=False):
        return jnp.zeros((len(x) + 1, len(y)))


def test_a_wrong_result_is_refused():
    points = np.zeros((3, 2))
    with pytest.raises(ShapeError, match=r"the result of kme_jax\.gram\.gram: .*\[4, 3\]"):
        gram.gram(OneTooMany(), points)


def _differences(x: Float[AnyArray, "n d"], y: Float[AnyArray, "m d"]) -> Float[AnyArray, "n m"]:
    """It takes two numbers of columns, and broadcasts them."""
    return (x[:, None] - y[None]).sum(axis=2)


_DIFFERENCES = shapes.checked(_differences, inspect.get_annotations(_differences), "differences")


def test_wrong_arguments_are_refused_although_the_function_takes_them():
    with pytest.raises(ShapeError, match=r"differences\(y\): .*\[4, 1\]"):
        _DIFFERENCES(np.zeros((3, 2)), np.zeros((4, 1)))
    assert _DIFFERENCES(np.zeros((3, 2)), np.zeros((4, 2))).shape == (3, 4)


def test_the_error_of_the_function_comes_first():
    with pytest.raises(ValueError, match="expected 2 columns"):
        gram.kernel_sums(Gaussian(1.0), np.zeros((3, 2)), np.zeros((4, 1)))


def test_traced_calls_are_checked():
    points = jnp.zeros((5, 3, 2))
    assert jax.jit(jax.vmap(_DIFFERENCES))(points, points).shape == (5, 3, 3)
    with pytest.raises(ShapeError):
        jax.jit(jax.vmap(_DIFFERENCES))(points, points[..., :1])


def _halves(rows: Float[np.ndarray, "n d"], size: int) -> Iterator[Float[np.ndarray, "_ d"]]:
    yield rows[:size]
    yield rows[size:].reshape(-1, 2)


def test_generators_are_checked():
    """When they yield: so their own errors come first, too."""
    halves = shapes.checked(_halves, inspect.get_annotations(_halves), "halves")
    assert [half.shape for half in halves(np.zeros((5, 2)), 2)] == [(2, 2), (3, 2)]
    with pytest.raises(ShapeError, match="an item of halves"):
        list(halves(np.zeros((5, 4)), 2))
    with pytest.raises(ShapeError, match=r"halves\(rows\)"):
        next(halves(np.zeros((5, 4), int), 2))
    ((weights, _),) = lasso.lasso_path(np.eye(3), np.ones(3), 0.1, [3])
    assert weights.shape == (3,)


# -- the check of fields


def test_fields_that_do_not_fit_each_other_are_refused():
    with pytest.raises(ShapeError, match=r"WeightedSample\.weights"):
        WeightedSample(np.zeros((3, 2)), np.ones(4) / 4)


def test_pytrees_that_jax_builds_are_not_checked():
    sample = WeightedSample(np.zeros((3, 2)), np.ones(3) / 3)
    leaves, structure = jax.tree.flatten(sample)
    assert jax.tree.unflatten(structure, [object() for _ in leaves]).mechanism is None
    stacked = jax.tree.map(lambda *arrays: np.stack(arrays), sample, sample)
    assert stacked.points.shape == (2, 3, 2)
    halved = jax.vmap(lambda one: dataclasses.replace(one, weights=one.weights / 2))(stacked)
    assert halved.weights.shape == (2, 3)
    with pytest.raises(ShapeError):
        dataclasses.replace(sample, weights=stacked.weights)


# -- the codec


def _encoded(value):
    arrays = {}
    return codec.encode(value, arrays, "value"), arrays


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mean: mean[:, None], r"NormalProposal\.mean: expected Float \[d\], got float64 \[2, 1\]"),
        (lambda mean: mean.astype(np.int64), r"NormalProposal\.mean: expected Float \[d\], got int64 \[2\]"),
    ],
)
def test_an_array_that_does_not_fit_its_field_is_refused(change, message):
    tree, arrays = _encoded(NormalProposal(np.zeros(2), np.ones(2)))
    assert np.array_equal(codec.decode(tree, arrays, NormalProposal).scale, np.ones(2))
    arrays["value.mean"] = change(arrays["value.mean"])
    with pytest.raises(ValueError, match=message):
        codec.decode(tree, arrays, NormalProposal)


def test_dimensions_of_one_name_agree_within_an_object_only():
    tree, arrays = _encoded((NormalProposal(np.zeros(2), np.ones(2)), Bounds.create([0, 0, 0], [1, 1, 1])))
    pair = codec.decode(tree, arrays, tuple[NormalProposal, Bounds])
    assert [part.dim for part in pair] == [2, 3]
    arrays["value.1.upper"] = np.ones(2)
    with pytest.raises(ValueError, match=r"Bounds\.upper: expected Float \[d\], got float64 \[2\]"):
        codec.decode(tree, arrays, tuple[NormalProposal, Bounds])


def test_an_annotation_without_a_shape_takes_any_array():
    tree, arrays = _encoded(np.zeros((2, 3), np.int32))
    for expected in (np.ndarray, jax.Array, np.ndarray | None):
        assert codec.decode(tree, arrays, expected).shape == (2, 3)


def test_what_is_read_is_an_array_of_numpy():
    """Whatever the annotation says: files hold no others."""
    tree, arrays = _encoded(np.zeros((2, 3)))
    for expected in (Float[jax.Array, "n d"], Float[AnyArray, "n d"]):
        assert type(codec.decode(tree, arrays, expected)) is np.ndarray


def test_keys_are_typed_or_of_the_old_kind():
    assert shapes.mentions_shape(PRNGKeyArray)
    assert inspect.signature(kernels.orthogonal_normal).parameters["key"].annotation == "PRNGKeyArray"
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert kernels.orthogonal_normal(key, (3, 2)).shape == (3, 2)
