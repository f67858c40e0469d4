"""What tests share: markers of folders, the order, one torch thread, a measurer, a daemon.

``pytest -m "not slow"`` runs what takes less than about 3 s each and starts no daemon. The quick
tests run first, so that a mistake shows early. ``pytest --full`` runs the long sweeps whole, which
are sampled by a fixed seed otherwise (`test_zoo.py`). The weekly run uses it; the run before each
change does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tlmd.client.connection import Daemon
    from tlmd.client.job import Job
    from tlmd.measure.measurer import Measurer

# What the tests of a folder need beside Python; tests add what else they need.
_NEEDS = {
    "ray": ("system", "chaos"),
    "tvm": (
        "alternatives",
        "cases",
        "corpus",
        "export",
        "generate",
        "integrations",
        "lowering",
        "space",
    ),
    "torch": ("cases", "corpus", "export", "generate", "integrations", "learn", "lowering", "tlm"),
    "chaos": ("chaos",),
}

# The files that take longest, the longest first: at the end no worker waits long for the other one.
# But `test_daemon.py` reads the whole trace of a daemon whose actors `test_daemon_kills.py` kills
# where one worker runs both.
_LONG = (
    "tests/system/test_daemon.py",
    "tests/system/test_daemon_kills.py",
    "tests/system/test_interrupt.py",
    "tests/system/test_tune.py",
    "tests/system/test_cluster.py",
    "tests/measure/test_background.py",
    "tests/chaos/test_chaos.py",
)

# Every step of the pipeline is strict, so that the trace follows the paper's table.
_STRICT = {
    "pipeline.strict": True,
    "pipeline.batch": 4,
    "pipeline.per_task": 2,
    "pipeline.chunk": 2,
    "train.steps": 2,
    "train.seconds": 0,
    "generate.oversample": 2,
    "pipeline.window": 8,
    "pipeline.gain": 0.9,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run long sweeps whole instead of sampled (weekly)"
    )
    parser.addoption("--blows", type=int, default=2, help="of the monkey in tests/chaos")
    parser.addoption("--seed", type=int, default=1, help="of the monkey in tests/chaos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folders; quick tests first, then the long files, then the others."""
    for item in items:
        folder = item.nodeid.split("/")[1]
        for marker, folders in _NEEDS.items():
            if folder in folders:
                item.add_marker(marker)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if item.get_closest_marker("slow") is None:
        return -1
    file, _, _ = item.nodeid.partition("::")
    return _LONG.index(file) if file in _LONG else len(_LONG)


def pytest_configure() -> None:
    """Daemons of the tests have the priority of the tests, which wait for them.

    Hundreds of processes are started. Where the user's environment forbids bytecode, each of them
    would compile all sources anew, for a second.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("TLMD_DAEMON__NICENESS", "0")
    os.environ.setdefault("TLMD_GENERATE__WIDE", "1")  # the untrained TLMs of tests prefer nothing


def pytest_runtest_setup() -> None:
    """Torch uses one thread in tests that use torch; tests would fight over the cores otherwise."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether long sweeps run whole."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `measurer` keeps references."""
    return tmp_path_factory.mktemp("measure")


@pytest.fixture(scope="module")
def measurer(cache: Path) -> Iterator[Measurer]:
    """A measuring server on this machine's slot."""
    from tests.support import traps
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.measure.measurer import Measurer

    with Measurer(plan_cores(run=1), cache, traps.CONFIG) as measurer:
        measurer.start(traps.TARGET)
        yield measurer


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a small TLM that has learnt nothing."""
    from tests.support import endtoend

    return endtoend.save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tlm")


@pytest.fixture(scope="module")
def small_tlm(untrained: Path) -> Iterator[Path]:
    """Every daemon that a test of this module starts uses `untrained`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLMD_GENERATE__CHECKPOINT", str(untrained))
        yield untrained


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory, untrained: Path) -> Iterator[Daemon]:
    """One daemon for all tests that neither stop nor kill it. Its actors may still be starting."""
    import tlmd

    settings = {**_STRICT, "generate.checkpoint": str(untrained), "daemon.niceness": 1}
    settings["measure.background_share"] = 1.0  # other tests use the cores
    with tlmd.start(tmp_path_factory.mktemp("daemon") / "state", None, **settings) as running:
        yield running


@pytest.fixture(scope="session")
def job(daemon: Daemon) -> Job:
    """A job of `daemon` that is done, submitted while the actors started."""
    from tests.support import endtoend

    job = daemon.submit(endtoend.MODEL, trials=3)
    assert job.wait(timeout=200)["state"] == "done"
    return job


@pytest.fixture
def libraries_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled graphs are put in use in PyTorch, however long they take."""
    from tests.support.torch_graphs import use_libraries

    use_libraries(monkeypatch)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """A command in this process that is refused: checks its exit code, returns its one line."""
    from tlmd import cli

    def one(*arguments: object, code: int = 2) -> str:
        state = () if "--state-dir" in arguments else ("--state-dir", tmp_path / "state")
        assert cli.main([*map(str, arguments), *map(str, state)]) == code
        printed = capfd.readouterr()
        (line,) = printed.err.splitlines()
        assert line.startswith("tlmd: ") and printed.out == ""
        return line

    return one
