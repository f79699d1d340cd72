"""Releases of tables of Spark: the same to the last bit as of the same rows in memory, in any number of partitions.

They need pyspark and Java, and are skipped without. ``KME_JAX_TESTS_SPARK`` names another master than local processes,
such as local-cluster[2,1,1024], whose executors are processes of their own.
"""

import os
import shutil
import signal
import sys

import numpy as np
import pytest

from kme_jax import Ledger, PrivacyBudget, Spending, measure_table, release_table
from kme_jax.storage.files import FileError
from kme_jax.table.engines import engine_source
from kme_jax.table.engines.base import EngineError
from tests import engine_tables
from tests.engine_tables import SCHEMA, WEIGHTED, assert_equal, measured, people

pyspark_sql = pytest.importorskip("pyspark.sql")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]
MASTER = os.environ.get("KME_JAX_TESTS_SPARK", "local[2,4]")  # four tries of each task


@pytest.fixture(scope="module")
def spark():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    builder = pyspark_sql.SparkSession.builder.master(MASTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def frame():
    return people()


@pytest.mark.parametrize("relation", engine_tables.RELATIONS)
def test_any_number_of_partitions_gives_the_same_release(spark, frame, relation):
    expected = measured(frame, relation=relation)
    for num_partitions in (1, 2, 7):
        scattered = spark.createDataFrame(frame).repartition(num_partitions)
        assert scattered.rdd.getNumPartitions() == num_partitions
        assert_equal(measured(scattered, relation=relation), expected)


def test_workers_combine_many_partials(spark, frame, monkeypatch):
    expected = measured(frame)
    monkeypatch.setattr("kme_jax.table.engines.spark.MOST_PARTIALS", 2)
    assert_equal(measured(spark.createDataFrame(frame).repartition(9)), expected)


def test_rows_with_weights_and_partitions_without_rows(spark, frame):
    weighted = frame.assign(**{"stands for": np.random.default_rng(1).uniform(-1, 4, len(frame))})
    expected = measured(weighted, WEIGHTED, "add_remove")
    assert_equal(measured(spark.createDataFrame(weighted).repartition(3), WEIGHTED, "add_remove"), expected)
    few = weighted[weighted["age"] > 127]
    scattered = spark.createDataFrame(weighted).repartition(5).where("age > 127")
    assert_equal(measured(scattered, WEIGHTED, "add_remove"), measured(few, WEIGHTED, "add_remove"))
    nothing = spark.createDataFrame(weighted).where("age > 1000")
    assert_equal(measured(nothing, WEIGHTED, "add_remove"), measured(weighted.iloc[:0], WEIGHTED, "add_remove"))


def test_a_task_whose_worker_is_killed_counts_once(spark, frame, tmp_path):
    expected, marks = measured(frame), tmp_path / "marks"
    marks.mkdir()

    def killed_once(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        mark = os.path.join(str(marks), f"{context.stageId()}-{context.partitionId()}")
        if context.partitionId() == 1 and not os.path.exists(mark):
            open(mark, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)

    scattered = spark.createDataFrame(frame).repartition(3)
    killing = scattered.mapInArrow(killed_once, scattered.schema)
    assert_equal(measured(killing), expected)
    assert len(list(marks.iterdir())) >= 3  # in every pass


@pytest.mark.skipif(not MASTER.startswith("local-cluster"), reason="executors are no processes of their own")
def test_an_executor_that_is_killed_counts_once(spark, frame, tmp_path):
    expected, marks = measured(frame), tmp_path / "marks"
    marks.mkdir()

    def killed_once(batches):
        from pyspark import TaskContext

        yield from batches
        mark = os.path.join(str(marks), str(TaskContext.get().stageId()))
        if TaskContext.get().partitionId() == 1 and not os.path.exists(mark):
            open(mark, "x").close()
            with open(f"/proc/{os.getppid()}/stat") as of_daemon:  # the executor has started the parent of this process
                os.kill(int(of_daemon.read().rpartition(")")[2].split()[1]), signal.SIGKILL)

    scattered = spark.createDataFrame(frame).repartition(3)
    assert_equal(measured(scattered.mapInArrow(killed_once, scattered.schema)), expected)
    assert list(marks.iterdir())


def test_a_task_that_always_fails_releases_nothing(spark, frame, tmp_path):
    def failing(batches):
        for batch in batches:
            yield batch
            raise RuntimeError("a private cell")

    scattered = spark.createDataFrame(frame).repartition(2)
    failing_frame = scattered.mapInArrow(failing, scattered.schema)
    spending, folder = Spending(Ledger(tmp_path / "ledger"), "people"), tmp_path / "measured"
    for relation in engine_tables.RELATIONS:
        with pytest.raises(EngineError) as error:
            measured(failing_frame, relation=relation, secure=True, spending=spending, folder=folder)
        assert str(error.value) == "the table of Spark: a job failed; the logs of Spark say why"
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__ or error.value.__context__ is None
    assert not folder.exists()
    assert not spending.ledger.path.exists()


def test_workers_without_a_library(spark, frame):
    def lacking(batches):
        import no_such_library  # noqa: F401

        yield from batches

    scattered = spark.createDataFrame(frame)
    lacking_frame = scattered.mapInArrow(lacking, scattered.schema)
    with pytest.raises(EngineError, match=r"^the workers of Spark have no no_such_library: install it on each of them"):
        measured(lacking_frame)


def test_a_release_is_recorded_once(spark, frame, tmp_path):
    spending = Spending(Ledger(tmp_path / "ledger"), "people")
    released = release_table(
        spark.createDataFrame(frame), SCHEMA, budget=engine_tables.budget(), spending=spending, num_rows=5
    )
    assert released.table.num_rows == 5
    assert released.statement["private"]
    assert len(spending.ledger.spent("people")) == 1


def test_a_table_that_changes_releases_nothing(spark, frame, tmp_path):
    random = spark.createDataFrame(frame).repartition(2).where("rand() < 0.5")
    folder = tmp_path / "measured"
    # Spark draws the same rows again if a seed is fixed; here each task draws its own.
    changing = random.mapInArrow(_some_rows, random.schema)
    with pytest.raises(ValueError, match=r"^partials: (a part is missing, or the rows have|they have more than)"):
        measured(changing, secure=True, folder=folder)
    assert not folder.exists()


def _some_rows(batches):
    import time

    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(time.time_ns())
    for batch in batches:
        yield batch.filter(pa.array(rng.random(batch.num_rows) < 0.5))


def test_other_columns_and_persons_are_refused(spark, frame):
    scattered = spark.createDataFrame(frame)
    with pytest.raises(FileError, match=r"^the table of Spark: it lacks the schema's age"):
        measured(scattered.drop("age"))
    with pytest.raises(FileError, match=r"^the table of Spark: persons need all rows of a person in one place, "):
        measure_table(scattered, SCHEMA, budget=PrivacyBudget(1.0, 1e-5, "add_remove_person", 3, "note"))
    with pytest.raises(EngineError, match=r"^the table of Spark: expected a DataFrame$"):
        engine_source(scattered.groupBy("age"), SCHEMA)
    dots = scattered.withColumnRenamed("note", "a.b`c")
    assert_equal(measured(dots, type(SCHEMA)(SCHEMA.columns, dropped=("a.b`c",))), measured(frame))
