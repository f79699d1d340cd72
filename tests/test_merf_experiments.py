"""experiments.merf at a tiny size, and bad input to them."""

import dataclasses
import gzip
import json
import math
import struct
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.common.errors import InputError
from experiments.merf import classifiers, cnn, gaussians, image_files, images, plot, rare, release, resnet
from kme_jax import PrivacyBudget
from kme_jax.privacy.calibration import gaussian_epsilon

FAST = ("gaussian_nb", "lda")


def _idx(path, array, packed=True):
    content = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    if packed:
        path = path.with_name(path.name + ".gz")
        content = gzip.compress(content)
    path.write_bytes(content)


def _write(folder, num_private=400, num_test=60, packed=True):
    """Images of ten classes, each bright in a place of its own."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for prefix, number in (("train", num_private), ("t10k", num_test)):
        labels = rng.integers(10, size=number).astype(np.uint8)
        pixels = rng.integers(60, size=(number, 28, 28)).astype(np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            row, column = 5 * (label // 5) + 8, 5 * (label % 5)
            image[row : row + 5, column : column + 5] = 220
        _idx(folder / f"{prefix}-images-idx3-ubyte", pixels, packed)
        _idx(folder / f"{prefix}-labels-idx1-ubyte", labels, packed)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    _write(folder / "mnist")
    _write(folder / "fashion_mnist", packed=False)
    return folder


def _images_config(data_dir, output_dir, **others):
    chosen = {
        "data_dir": str(data_dir),
        "datasets": ("mnist",),
        "epsilons": (1.0,),
        "num_seeds": 1,
        "num_samples": 120,
        "num_large_seeds": 0,
        "classifiers": FAST,
        "num_steps": 4,
        "output_dir": str(output_dir),
    }
    return images.ImagesConfig(**(chosen | others))


SMALL_GAUSSIANS = {
    name: dataclasses.replace(variant, num_features=200, network=dataclasses.replace(variant.network, widths=(20,)))
    for name, variant in gaussians.VARIANTS.items()
}
SMALL_IMAGES = {name: dataclasses.replace(variant, num_features=200) for name, variant in images.VARIANTS.items()}


class TestGaussians:
    def test_the_mixture(self):
        means, classes = gaussians.centres()
        assert means.shape == (25, 2)
        np.testing.assert_array_equal(np.bincount(classes), [5] * 5)
        for label in range(5):
            for column in range(2):
                assert len(set(means[classes == label, column])) == 5
        rows = gaussians.draw(50_000, 0)
        judged = gaussians.judge(rows)
        assert judged["modes"] == 25
        assert np.mean(judged["spreads"]) == pytest.approx(0.2, rel=0.01)
        # Entropy of a mode: log(2πe s²), and log 25 for which one it is.
        assert judged["nll"] == pytest.approx(math.log(2 * math.pi * math.e * 0.04 * 25), abs=0.02)
        assert judged["outside"] < 0.02

    def test_what_is_wrong_is_found(self):
        rows = gaussians.draw(50_000, 0)
        dropped = rows[~((rows[:, 0] < 0.6) & (rows[:, 1] < 0.6))]
        assert gaussians.judge(dropped)["modes"] == 24
        wide = rows.copy()
        wide[:, :2] += 0.3 * np.random.default_rng(1).normal(size=(len(rows), 2))
        assert np.mean(gaussians.judge(wide)["spreads"]) == pytest.approx(math.hypot(0.2, 0.3), rel=0.1)
        swapped = rows.copy()
        swapped[:, 2] = (swapped[:, 2] + 1) % 5
        assert gaussians.judge(swapped)["modes"] == 0
        assert gaussians.judge(swapped)["nll"] > 10

    @pytest.mark.long
    @pytest.mark.parametrize("variants", [("improved",), tuple(gaussians.VARIANTS)], ids=len)
    def test_a_run_can_be_drawn_and_goes_on(self, variants, tmp_path):
        config = gaussians.GaussiansConfig(
            num_rows=500, num_samples=300, num_steps=2, num_seeds=1, output_dir=str(tmp_path)
        )
        first = gaussians.run(dataclasses.replace(config, variants=("improved",)), SMALL_GAUSSIANS)
        assert [cell["variant"] for cell in first["cells"]] == ["real rows", "improved"]
        result = gaussians.run(dataclasses.replace(config, variants=variants), SMALL_GAUSSIANS)
        assert {cell["variant"] for cell in result["cells"]} == {"real rows", *variants}
        assert result["cells"][:2] == first["cells"]
        assert result == json.loads((tmp_path / "merf_gaussians.json").read_text())
        assert "| improved | " in gaussians.markdown(result)
        picture = plot.draw_gaussians(tmp_path / "merf_gaussians.json", tmp_path / "picture.png")
        assert picture.stat().st_size > 10_000


class TestImages:
    def test_files_are_read(self, data_dir):
        for name in image_files.NAMES:
            data = image_files.load(name, str(data_dir))
            assert data.private.shape == (400, 784)
            assert data.test_labels.shape == (60,)
            rows = data.rows()
            assert (rows.dtype, rows.shape) == (np.float32, (400, 785))
            assert rows[:, :-1].max() <= 1
            np.testing.assert_array_equal(rows[:, -1], data.private_labels)

    @pytest.mark.long
    def test_a_run_can_be_drawn_and_goes_on(self, data_dir, tmp_path):
        config = _images_config(data_dir, tmp_path, variants=("improved",))
        first = images.run(config, SMALL_IMAGES)["mnist"]
        assert [cell["variant"] for cell in first["cells"]] == ["real rows", "improved"]
        assert set(first["cells"][0]["scores"]) == set(FAST)
        assert first["cells"][0]["scores"]["lda"]["accuracy"] > 0.9
        result = images.run(dataclasses.replace(config, num_large_seeds=1, large_samples=200), SMALL_IMAGES)["mnist"]
        assert result["cells"][:2] == first["cells"]
        added = [(cell["variant"], cell["num_samples"]) for cell in result["cells"][2:]]
        assert added == [("real rows", 200), ("improved", 200)]
        assert result == json.loads((tmp_path / "merf_images_mnist.json").read_text())
        for sheet in ("sheet", "sheet_without_noise"):
            assert image_files.unpack(result["cells"][1][sheet]).shape == (100, 28, 28)
        lines = images.markdown(result).splitlines()
        title = f"| improved: {images.VARIANTS['improved'].about} | 1 | "
        assert [line.startswith(f"{title}120 | 0.") for line in lines].count(True) == 1
        assert lines[-1].startswith(f"{title}200 | 0.")
        picture = plot.draw_images([tmp_path / "merf_images_mnist.json"], tmp_path / "picture.png")
        assert picture.stat().st_size > 10_000

    def test_validation_leaves_test_images_alone(self, data_dir, tmp_path):
        data = image_files.load("mnist", str(data_dir))
        aside = images.set_aside(data, 100)
        np.testing.assert_array_equal(aside.test, data.private[-100:])
        assert len(aside.private) == 300
        with pytest.raises(InputError, match="--validation"):
            images.set_aside(data, 400)

    @pytest.mark.long
    def test_all_classifiers_learn(self, data_dir):
        data = image_files.load("mnist", str(data_dir))
        names = [name for name in classifiers.NAMES if name != "xgboost"]
        all_scores = classifiers.scores(
            data.private / 255, data.private_labels, data.test / 255, data.test_labels, 0, names=names
        )
        assert list(all_scores) == names
        for name, scores in all_scores.items():
            assert scores["accuracy"] > 0.25, name
            assert 0 <= scores["f1"] <= 1

    def test_one_class_alone_is_no_error(self):
        pixels, labels = np.random.default_rng(0).uniform(size=(20, 784)), np.full(20, 3)
        all_scores = classifiers.scores(pixels, labels, pixels, np.arange(20) % 10, 0, names=FAST)
        assert all_scores["lda"]["accuracy"] == pytest.approx(0.1)

    def test_sheets_survive(self):
        pixels = np.random.default_rng(0).integers(256, size=(5, 784)) / 255
        np.testing.assert_array_equal(
            image_files.unpack(image_files.pack(pixels)).reshape(5, -1), np.rint(255 * pixels)
        )


class TestCnn:
    @pytest.mark.long
    def test_a_network_learns_and_repeats(self, data_dir):
        data = image_files.load("mnist", str(data_dir))
        found = [
            resnet.predicted(data.private / 255, data.private_labels, data.test / 255, 0, num_epochs=12)
            for _ in range(2)
        ]
        assert np.mean(found[0] == data.test_labels) > 0.6
        np.testing.assert_array_equal(*found)

    def test_changes_are_small_and_differ(self):
        image = np.zeros((3, 28, 28, 1), np.float32)
        image[:, 10:18, 12:16] = 1
        none = resnet.Augmentation(0.0, 0.0, 0.0)(jax.random.key(0), jnp.asarray(image))
        np.testing.assert_allclose(none, image, atol=1e-4)
        changed = np.asarray(resnet.Augmentation()(jax.random.key(0), jnp.asarray(image)))
        assert np.abs(changed[0] - changed[1]).max() > 0.1
        places = np.arange(28)
        for one in changed[..., 0]:
            assert abs(one.sum(axis=1) @ places / one.sum() - 13.5) < 2.5
            assert one.sum() == pytest.approx(32, rel=0.25)

    @pytest.mark.long
    def test_a_run_can_be_drawn_and_goes_on(self, data_dir, tmp_path):
        config = cnn.CnnConfig(
            data_dir=str(data_dir), datasets=("mnist",), num_seeds=1, num_samples=200, num_epochs=1, num_steps=2,
            changes=("none",), output_dir=str(tmp_path),
        )  # fmt: skip
        small = {name: dataclasses.replace(variant, num_features=200) for name, variant in cnn.VARIANTS.items()}
        first = cnn.run(config, small)["mnist"]
        assert [cell["variant"] for cell in first["cells"]] == ["real rows", *cnn.VARIANTS]
        assert all(len(cell["recalls"]) == 10 for cell in first["cells"])
        more = cnn.run(dataclasses.replace(config, changes=tuple(cnn.CHANGES)), small)["mnist"]
        assert more["cells"][: len(first["cells"])] == first["cells"]
        assert len(more["cells"]) == 2 * len(first["cells"])
        picture = plot.draw_cnn([tmp_path / "merf_cnn_mnist.json"], cnn.QUOTED, 1.0, tmp_path / "picture.png")
        assert picture.stat().st_size > 10_000

    def test_the_table(self):
        def cell(variant, epsilon, seed, changes, accuracy):
            seconds = {"embedding": 1.0, "training": 2.0, "network": 5.0}
            about = {"variant": variant, "epsilon": epsilon, "seed": seed, "changes": changes}
            return about | {"accuracy": accuracy, "seconds": seconds}

        cells = [
            cell("improved", 1.0, 0, "none", 0.9),
            cell("improved", 1.0, 1, "none", 0.8),
            cell("improved", 1.0, 0, "affine", 0.7),
            cell("real rows", None, 0, "none", 0.99),
        ]
        config = {"dataset": "mnist", "delta": 1e-5}
        lines = cnn.markdown({"config": config, "cells": cells}).splitlines()
        assert lines[2] == "| real rows | – | 0.990 | – | 1 | – | 5 |"
        assert lines[3] == f"| improved: {cnn.VARIANTS['improved'].about} | 1 | 0.850 ± 0.050 | 0.700 | 2 | 3 | 5 |"
        assert lines[4] == "| DP-MERF (quoted) | 1 | 0.803 | – | – | – | – |"
        assert len({line.count("|") for line in lines}) == 1


class TestRare:
    def test_a_class_is_cut(self):
        rows = np.column_stack([np.arange(40.0), np.repeat([0, 1], 20)])
        left = rare.cut(rows, 1, 10, seed=3)
        np.testing.assert_array_equal(np.bincount(left[:, 1].astype(int)), [20, 2])
        np.testing.assert_array_equal(left, rare.cut(rows, 1, 10, seed=3))
        assert any(not np.array_equal(left, rare.cut(rows, 1, 10, seed=seed)) for seed in range(5))

    def test_recalls_are_those_of_each_class(self):
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(3), 30)
        rows = np.eye(3)[labels] + 0.01 * rng.normal(size=(90, 3))
        truth = labels.copy()
        truth[:15] = 2  # so many of the 45 images of the last class look like the first
        found = classifiers.recalls(rows, labels, rows, truth, 0, "logistic_regression")
        np.testing.assert_allclose(found, [1, 1, 30 / 45])

    def test_the_table(self):
        def cell(seed, label, source, recalls, **others):
            divisor = 1 if label is None else 10
            about = {"seed": seed, "label": label, "divisor": divisor, "source": source, "recalls": recalls}
            return about | {"num_rows": 40} | others

        cells = [
            cell(0, None, "borrowing", [0.9, 0.8, 0.7]),
            cell(0, 1, "borrowing", [0.8, 0.5, 0.6], below_noise=[1]),
            cell(0, 2, "borrowing", [0.9, 0.8, 0.3], below_noise=[]),
            cell(0, 1, "real rows", [0.9, 0.6, 0.9]),
        ]
        lines = rare.markdown({"config": {"dataset": "mnist", "epsilon": 1.0}, "cells": cells}).splitlines()
        title = f"| {rare.SOURCES['borrowing']} |"
        assert lines[2:5] == [
            f"{title} mean | 40 | 0.400 | 0.750 | 0.050 | 1 of 2 | 1 |",
            f"{title} 1 | 40 | 0.500 | 0.800 | 0.100 | 1 of 1 | 1 |",
            f"{title} 2 | 40 | 0.300 | 0.700 | 0.000 | 0 of 1 | 1 |",
        ]
        assert lines[-1] == f"| {rare.SOURCES['real rows']} | 1 | 40 | 0.600 | 0.800 | – | – | 1 |"

    @pytest.mark.long
    def test_a_run_goes_on(self, data_dir, tmp_path):
        config = rare.RareConfig(
            data_dir=str(data_dir), classes=(8,), divisors=(10,), num_seeds=1, num_samples=200, num_steps=2,
            num_cycles=2, sources=("borrowing", "real rows"), output_dir=str(tmp_path),
        )  # fmt: skip
        first = rare.run(config, SMALL_IMAGES["improved"])
        assert [(cell["label"], cell["source"]) for cell in first["cells"]] == [
            (None, "borrowing"),
            (8, "borrowing"),
            (8, "real rows"),
        ]
        assert len(first["cells"][1]["visibility"]) == len(first["cells"][1]["recalls"]) == 10
        more = rare.run(dataclasses.replace(config, sources=tuple(rare.SOURCES)), SMALL_IMAGES["improved"])
        assert more["cells"][:3] == first["cells"]
        assert [cell["source"] for cell in more["cells"][3:]] == ["alone"]
        assert more == json.loads((tmp_path / "merf_rare_mnist.json").read_text())
        assert f"| {rare.SOURCES['borrowing']} | 8 | " in rare.markdown(more)


class TestPublishedNoise:
    def test_is_as_private_as_it_claims(self):
        """Noise multipliers 5 and 25 have ε = 0.726 and 0.125 at δ = 1e-5, below the 1 and 0.2 of the paper."""
        for epsilon, multiplier in images.VARIANTS["published"].privacy.noise_multipliers:
            assert gaussian_epsilon(multiplier, 1e-5) < epsilon
        rows = np.concatenate([np.random.default_rng(0).normal(size=(100, 2)), np.zeros((100, 1))], axis=1)
        variant = gaussians.VARIANTS["published"]
        small = dataclasses.replace(variant, num_features=20)
        sums = release.mean_of(small.features(jax.random.key(0)), rows)
        measured = variant.privacy.measure(jax.random.key(1), sums, PrivacyBudget(1.0, 1e-5))
        assert measured.embedding.mechanism.scale == pytest.approx(5 * 2 / 100, rel=1e-6)
        with pytest.raises(ValueError, match="is known for"):
            variant.privacy.measure(jax.random.key(1), sums, PrivacyBudget(0.5, 1e-5))
        with pytest.raises(ValueError, match="not 1"):
            variant.privacy.measure(jax.random.key(1), sums, PrivacyBudget(1.0, 1e-9))
        assert "SENSITIVE" in repr(sums)


def _spoil(folder, what):
    name = "train-labels-idx1-ubyte.gz" if "label" in what else "train-images-idx3-ubyte.gz"
    path = folder / name
    if what == "missing":
        path.unlink()
    elif what == "no gzip":
        path.write_bytes(b"no")
    elif what == "cut short":
        path.write_bytes(path.read_bytes()[:-40])
    elif what == "no idx":
        path.write_bytes(gzip.compress(b"12345678"))
    elif what == "too short":
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    elif what == "header":
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:6]))
    elif what == "shape":
        _idx(folder / name.removesuffix(".gz"), np.zeros((400, 32, 32), np.uint8))
    elif what == "label beyond":
        _idx(folder / name.removesuffix(".gz"), np.full(400, 10, np.uint8))
    elif what == "labels fewer":
        _idx(folder / name.removesuffix(".gz"), np.zeros(399, np.uint8))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("missing", "no such file"),
        ("no gzip", "cannot be read"),
        ("cut short", "cannot be read"),
        ("no idx", "no idx file"),
        ("too short", "its header says"),
        ("header", "within its header"),
        ("shape", r"expected images of 28 x 28, got shape \[400, 32, 32\]"),
        ("label beyond", "beyond the classes 0 to 9"),
        ("labels fewer", "a label for each of 400 images"),
    ],
)
def test_damaged_files_are_one_line(tmp_path, what, says):
    _write(tmp_path / "mnist")
    _spoil(tmp_path / "mnist", what)
    with pytest.raises(InputError, match=says) as caught:
        image_files.load("mnist", str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "mnist" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (images.ImagesConfig(datasets=("cifar",)), "expected one or more different names among mnist, fashion_mnist"),
        (images.ImagesConfig(variants=("best",)), "expected one or more different names among"),
        (images.ImagesConfig(classifiers=()), "expected one or more different names among"),
        (images.ImagesConfig(epsilons=(1.0, 1.0)), "and different"),
        (images.ImagesConfig(epsilons=(-1.0,)), "epsilon must be positive"),
        (images.ImagesConfig(num_samples=0), "--num_samples must be at least 1"),
        (images.ImagesConfig(num_steps=-1), "--num_steps must be at least 0"),
        (cnn.CnnConfig(changes=("mirror",)), "expected one or more different names among none, affine"),
        (cnn.CnnConfig(epsilons=()), "and different"),
        (cnn.CnnConfig(num_epochs=0), "--num_epochs must be at least 1"),
        (rare.RareConfig(classes=(10,)), "--classes must be one or more numbers from 0 to 9"),
        (rare.RareConfig(divisors=(1,)), "--divisors must be one or more numbers of at least 2"),
        (rare.RareConfig(sources=("none",)), "expected one or more different names among"),
        (rare.RareConfig(num_cycles=-1), "--num_cycles must be at least 0"),
        (gaussians.GaussiansConfig(num_rows=99), "multiple of 25"),
        (gaussians.GaussiansConfig(delta=2.0), "delta must be in"),
        (gaussians.GaussiansConfig(variants=("worst",)), "expected one or more different names among"),
        (gaussians.GaussiansConfig(num_seeds=0), "--num_seeds must be at least 1"),
    ],
)
def test_bad_configurations_are_one_line(config, says):
    with pytest.raises(InputError, match=says) as caught:
        config.validate()
    assert "\n" not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "flags", "says"),
    [
        ("images", ["--data_dir=/nowhere"], "has no folder mnist"),
        ("gaussians", ["here"], "unknown word"),
    ],
)
def test_bad_flags_are_one_line(module, flags, says, tmp_path):
    command = [sys.executable, "-m", f"experiments.merf.{module}", *flags, f"--output_dir={tmp_path}"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert says in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


@pytest.mark.long
def test_help_lists_the_flags():
    run = subprocess.run([sys.executable, "-m", "experiments.merf.gaussians", "--help"], capture_output=True, text=True)
    assert all(f"--{field.name}:" in run.stdout for field in dataclasses.fields(gaussians.GaussiansConfig))


@pytest.mark.long
def test_a_missing_library_is_one_line():
    program = "from experiments.common.program import run_main; run_main(lambda: __import__('no_such_library'))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.strip() == 'error: no_such_library is not installed: pip install -e ".[experiments]"'
