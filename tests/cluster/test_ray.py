"""The runner "ray", on a cluster of two nodes: the bytes of every other runner, also when a node is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runners import stages
from runners.record_groups import record_groups
from runners.stages import Forgetful, Stage
from thoroughness import examples

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from zephon import Dataset, Pipeline, StaticMixtureWorkSource  # noqa: E402
from zephon.errors import DataError, RecipeError, RunnerError  # noqa: E402
from zephon.runners import make_runner  # noqa: E402

TESTS = str(Path(__file__).resolve().parent.parent)
NODE = {"num_cpus": 1, "object_store_memory": 128 << 20, "include_dashboard": False}
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, on this machine; the second has something called "far"."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            made.far = made.add_node(**NODE, resources={"far": 1})
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture
def started(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Starts the runner with these stages; whatever happens, it is closed."""
    runners: list[Any] = []

    def start(*stages: Any, **resources: Any) -> Any:
        runners.append(make_runner("ray", workers=None, resources=resources))
        runners[-1].start(stages)
        return runners[-1]

    yield start
    for runner in runners:
        runner.close()


def where_am_i(_groups: Any, note: Any) -> Any:
    return [], (ray.get_runtime_context().get_node_id(), os.environ["OMP_NUM_THREADS"], os.environ["RAYON_NUM_THREADS"], note)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_groups_come_back_the_same(started: Callable[..., Any], data: Any) -> None:
    runner = started(Stage("echo", stages.echo), Stage("reverse", stages.reverse))
    groups = data.draw(st.lists(record_groups(), max_size=3))
    for stage, work in enumerate((stages.echo, stages.reverse)):
        expected, _ = work(groups, None)
        made, note = runner.submit(stage, groups, ("n", 1), label="t").result(60)
        assert note == ("n", 1)
        assert [len(g) for g in made] == [len(g) for g in expected]
        assert all(m.equals(e, check_metadata=True) for m, e in zip(made, expected, strict=True))


def test_a_group_is_read_where_the_object_store_has_it(started: Callable[..., Any]) -> None:
    group = pa.record_batch({"x": pa.array(range(500_000), pa.int64())})
    (made,), _ = started(Stage("echo", stages.echo)).submit(0, [group], None, label="t").result(60)
    address = made.column(0).buffers()[1].address
    # /proc/self/maps: "7f00-7f80 rw-s 00000000 00:19 42  /dev/shm/plasmaXXXX (deleted)"
    (line,) = (
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
    )
    assert "plasma" in line
    assert made.equals(group)


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("locked", "LockedError: item 3 is bad [operator 'raise']"),
        ("placed", "bad row [dataset 'wiki', row 7, operator 'raise']\n  → fix it"),
    ],
)
def test_an_exception_of_any_kind_reaches_the_future_with_its_traceback(
    started: Callable[..., Any], note: str, said: str
) -> None:
    error = started(Stage("raise", stages.raise_it)).submit(0, [], note, label="t").exception(60)
    assert type(error) is DataError
    assert str(error) == said
    assert "in raise_it" in error.trace


def test_a_word_to_stop_reaches_the_future_as_it_is(started: Callable[..., Any]) -> None:
    error = started(Stage("raise", stages.raise_it)).submit(0, [], "exit", label="t").exception(60)
    assert isinstance(error, SystemExit)
    assert error.code == 3


def test_a_task_that_kills_its_worker_each_time_is_named(started: Callable[..., Any]) -> None:
    runner = started(Stage("die", stages.die), Stage("echo", stages.echo), die={"max_retries": 1})
    error = runner.submit(0, [], "SIGKILL", label="lane 3, chunk 5").exception(60)
    assert isinstance(error, RunnerError)
    assert "a Ray worker died while it ran 'die' [lane 3, chunk 5]" in str(error)
    assert runner.submit(1, [], 1, label="t").result(60) == ([], 1)  # the others live


def test_a_stage_that_loses_something_on_its_way_is_refused(started: Callable[..., Any]) -> None:
    error = started(Forgetful()).submit(0, [], None, label="t").exception(60)
    assert "stage 'forgetful' changed on its way" in str(error)


def test_an_operator_runs_where_its_resources_are(cluster: Any, started: Callable[..., Any]) -> None:
    runner = started(Stage("a+b", where_am_i), b={"resources": {"far": 0.5}}, a={"num_cpus": 0.5})
    node, threads, pool, _ = runner.submit(0, [], None, label="t").result(60)[1]
    assert node == cluster.far.node_id
    assert threads == pool == "1"


def test_resources_that_no_node_has_and_operators_that_are_not_there_are_refused(started: Callable[..., Any]) -> None:
    with pytest.raises(RunnerError, match=r"none of the cluster's 2 nodes has what 'echo' asks for: CPU 1, GPU 1"):
        started(Stage("echo", stages.echo), echo={"num_gpus": 1})
    with pytest.raises(RecipeError, match="did you mean 'tokenize'"):
        started(Stage("tokenize+map", stages.echo), tokenise={"num_cpus": 1})


def test_close_ends_every_future(started: Callable[..., Any]) -> None:
    runner = started(Stage("nap", stages.nap))
    futures = [runner.submit(0, [], 30, label=str(i)) for i in range(4)]
    time.sleep(0.2)
    began = time.monotonic()
    runner.close()
    assert not wait(futures, timeout=10).not_done
    assert time.monotonic() - began < 10
    assert all(isinstance(future.exception(), RunnerError) for future in futures)
    with pytest.raises(RunnerError, match="'late'"):
        runner.submit(0, [], 0, label="late").result(10)
    runner = started(Stage("echo", stages.echo))  # and the cores are free again
    assert runner.submit(0, [], 1, label="t").result(60) == ([], 1)


def recipe(function: Callable[..., Any] | None = None) -> Pipeline:
    """A stage, a shuffle, and a stage after it."""
    data = Dataset.from_records("x", [{"a": i, "text": f"record {i}" * (i % 7)} for i in range(600)])
    source = StaticMixtureWorkSource(data, chunk_size=20, stop_after_passes=1, seed=3)
    return Pipeline(source).map(function or longer).shuffle(buffer_size=30).map(twice).batch(5).options(lanes=3)


def longer(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "length": len(record["text"])}


def twice(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "length": 2 * record["length"]}


def stream(pipeline: Pipeline) -> list[Any]:
    return [(batch.lane_ids, batch.group.to_pydict()) for batch in pipeline]


@pytest.fixture(scope="module")
def inline() -> list[Any]:
    return stream(recipe().options(runner="inline"))


def test_the_stream_is_that_of_inline_also_after_a_restore(cluster: Any, inline: list[Any]) -> None:
    pipeline = recipe().options(runner="ray")
    made, iterator = [], iter(pipeline)
    for _ in range(39):  # 13 steps of 3 lanes
        batch = next(iterator)
        made.append((batch.lane_ids, batch.group.to_pydict()))
    state = pipeline.checkpoint()
    iterator.close()
    made += stream(recipe().options(runner="ray").restore(state))
    assert made == inline
    assert "map" in pipeline.stats()["time"]["operators_s"]


def test_a_pipeline_names_the_row_that_failed(cluster: Any) -> None:
    def fussy(record: dict[str, Any]) -> dict[str, Any]:
        if record["a"] == 77:
            raise ValueError("not this one")
        return {**record, "length": 0}

    with pytest.raises(DataError, match=r"ValueError: not this one \[dataset 'x'.*row 77.*operator 'map'"):
        stream(recipe(fussy).options(runner="ray"))


SCRIPT = f"""
import sys, time
sys.path.insert(0, {TESTS!r})
from cluster import test_ray
import ray
if sys.argv[1] == "nap":
    def nap(record):
        time.sleep(0.2)
        return test_ray.longer(record)
    for _ in test_ray.recipe(nap).options(runner="ray", workers=2):
        print("batch", flush=True)
else:
    print(len(test_ray.stream(test_ray.recipe().options(runner="ray"))), ray.is_initialized())
"""


def program(cluster: Any, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_without_ray_init_is_connected_for_as_long_as_it_iterates(cluster: Any, inline: list[Any]) -> None:
    with program(cluster, "all") as process:
        out, err = process.communicate(timeout=90)
    assert out.split() == [str(len(inline)), "False"], err


def test_ctrl_c_ends_a_program_and_what_it_had_running(cluster: Any, started: Callable[..., Any]) -> None:
    with program(cluster, "nap") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "batch\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode in (1, 130, -signal.SIGINT)
    assert err.rstrip().endswith("KeyboardInterrupt")
    began = time.monotonic()
    assert started(Stage("echo", stages.echo)).submit(0, [], 1, label="t").result(60) == ([], 1)
    assert time.monotonic() - began < 30


def test_a_lost_node_changes_no_byte(cluster: Any, inline: list[Any], tmp_path: Path) -> None:
    """The last test: the node doesn't come back. It is lost in the midst of its first task, which Ray runs again elsewhere.

    Ray prefers the near node, and may give the far one nothing for as long as a quick run takes: so the near one's task waits for it.
    """
    far, places = cluster.far.node_id, str(tmp_path)

    def slow(record: dict[str, Any]) -> dict[str, Any]:
        here = ray.get_runtime_context().get_node_id()
        Path(places, here).touch()
        if here == far:
            time.sleep(90)  # until it is lost
        _await(Path(places, far))
        return longer(record)

    def lose() -> None:
        _await(tmp_path / far)
        cluster.remove_node(cluster.far, allow_graceful=False)

    with ThreadPoolExecutor(1) as executor:
        lost = executor.submit(lose)
        made = stream(recipe(slow).options(runner="ray", workers=4, prefetch_batches=2))
        lost.result()
    assert len(list(tmp_path.iterdir())) == 2
    assert made == inline


def _await(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} was never made")
        time.sleep(0.005)
