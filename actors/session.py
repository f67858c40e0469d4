"""Starts and ends Ray: a private instance on loopback, or a cluster that runs already.

Ray reads its environment when it is imported, so nothing here imports it before `prepare`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
from platformdirs import user_cache_path

from actors import cluster_head
from actors.cluster_head import ClusterHead
from tlmd.data.config import SHIPPED, Config
from tlmd.data.errors import ClusterLost, Failed, TlmdError
from tlmd.measure.cores.core_plan import plan_slots
from tlmd.processes import scratch

_log = logging.getLogger("tlmd.cluster")

_SYSTEM = {"gcs_server", "raylet"}
_END_S = 1.0  # its actors have closed: nothing of the others is worth waiting for
REAL_SLOT = "actors.measurer:MeasurerActor"
REAL_GENERATOR = "actors.generator:GeneratorActor"
_OBJECT_STORE_BYTES = 512 << 20  # a gpt2 checkpoint is 474 MB on disk; pages are taken when used
_LARGE_STORE_BYTES = 2 << 30


@dataclass
class Settings:
    """How the worker pool is set up."""

    config: Config
    state_dir: Path
    address: str = ""
    """Address of a running cluster ('auto'); empty: start a private instance."""
    slot_class: str = REAL_SLOT
    """The measuring actor; benchmarks simulate it."""
    slot_count: int = 0
    """Simulated slots; 0: the slots of the configuration."""
    generator_class: str = REAL_GENERATOR
    """The writing actor; benchmarks simulate it."""
    scratch: str = ""
    """Ray's own folder."""
    system: tuple[psutil.Process, ...] = ()
    """The processes of a private instance without which it does not work."""
    head: ClusterHead | None = None
    """Address of the cluster that was joined."""
    stopping: bool = False
    """The daemon is to end: it does not wait for a cluster."""
    cores: frozenset[int] = frozenset()
    """Cores that all processes may use; empty: those of this process."""

    def __post_init__(self) -> None:
        self.cores = self.cores or frozenset(os.sched_getaffinity(0))

    @property
    def is_local(self) -> bool:
        return not self.address

    @property
    def offered(self) -> dict[str, float]:
        """The slots of a private instance, as Ray's resources."""
        measure = self.config.measure
        cards: dict[str, float] = {"measure:cuda": measure.cards} if measure.cards else {}
        return {"measure": self.slot_count or measure.slots, **cards}

    @property
    def run_cores(self) -> int | None:
        return self.config.measure.run_cores or None

    @property
    def base(self) -> str:
        return str(Path(self.config.generate.checkpoint or SHIPPED).absolute())

    def slot_folder(self, local: bool) -> str:
        """Where a node keeps reference outputs and the locks of its slots."""
        return str((self.state_dir if local else user_cache_path("tlmd")) / "references")


def start(settings: Settings) -> None:
    """Start or join Ray in this process. Raises `Failed` and `BadInput`."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if settings.is_local:
            _start_private(settings, ray)
        else:
            settings.head = cluster_head.join(settings.address, ray, lambda: settings.stopping)
    except TlmdError:
        raise
    except Exception as error:  # ConnectionError, RuntimeError, OSError, ValueError: all mean this
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Failed(f"Ray cannot be started: {lines[-1][:200]}") from error


def prepare(settings: Settings) -> None:
    """Set this process up for Ray, before anything imports it.

    A private instance listens on 127.0.0.1 only, asks for a token, sends no usage statistics, runs
    its workers at normal priority and keeps to the cores that no slot owns.
    """
    if not settings.is_local:
        return
    if "ray" in sys.modules and os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") != "0":
        _log.warning("ray was imported before tlmd could set it up; it may listen on all addresses")
    token = settings.state_dir / "ray_token"
    if not token.exists():
        descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    os.environ.pop("RAY_ADDRESS", None)
    os.environ |= {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes every socket bind 127.0.0.1
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token.absolute()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_worker_niceness": "0",
        "RAY_worker_maximum_startup_concurrency": "16",  # else one actor at a time per core
        "RAY_memory_monitor_refresh_ms": "0",  # it would kill bystanders; children have limits
        "RAY_gcs_rpc_server_reconnect_timeout_s": "15",  # then this process ends
        "RAY_DEDUP_LOGS": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(settings.state_dir / "torch"),  # not below /tmp
    }


def keep_to_build_cores(settings: Settings) -> None:
    """Move this process, Ray and all actors to the cores that no slot owns.

    Done when all of them have started and before anything is timed: starting takes half as long
    with all cores. Threads that start later inherit it, and a slot's own processes widen it again.
    """
    if settings.slot_class != REAL_SLOT or not settings.is_local:
        return
    layout = plan_slots(settings.config.measure.slots, set(settings.cores), settings.run_cores)
    for process in (own := psutil.Process()), *own.children(recursive=True):
        for thread in Path(f"/proc/{process.pid}/task").glob("*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                os.sched_setaffinity(int(thread.name), layout[0].build)


def _start_private(settings: Settings, ray: ModuleType) -> None:
    if told := scratch.note():
        _log.warning(told)
    settings.scratch = tempfile.mkdtemp(prefix="tlmd-", dir=scratch.folder_for_sockets())
    large = _free_shared_memory() > 2 * _LARGE_STORE_BYTES
    with _without_helpers():
        ray.init(
            address="local",
            namespace=cluster_head.NAMESPACE,
            num_cpus=max(1, len(settings.cores)),
            resources=settings.offered,
            include_dashboard=False,
            object_store_memory=_LARGE_STORE_BYTES if large else _OBJECT_STORE_BYTES,
            logging_level="ERROR",
            log_to_driver=False,
            _temp_dir=settings.scratch,
        )
    started = psutil.Process().children(recursive=True)
    settings.system = tuple(p for p in started if p.name() in _SYSTEM)


@contextlib.contextmanager
def _without_helpers() -> Iterator[None]:
    """Ray starts no autoscaler, no API server, and nothing that prints logs, during the block.

    tlmd uses none of them, and starting them is a third of Ray's start: half a minute on a busy
    machine. `ray.init` has no option for it.
    """
    from ray._private import parameter, services

    made, start_api = parameter.RayParams, services.start_api_server
    fewer: Any = functools.partial(made, include_log_monitor=False, no_monitor=True)
    none: Any = lambda *_, **__: (None, None)  # noqa: E731 - as where it fails, which Ray tolerates
    parameter.RayParams, services.start_api_server = fewer, none
    try:
        yield
    finally:
        parameter.RayParams, services.start_api_server = made, start_api


def check(settings: Settings) -> bool:
    """Whether Ray answers. Raises `ClusterLost` where it has died, which it says later or never.

    The head of a cluster may be away for some seconds.
    """
    for process in settings.system:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            raise ClusterLost("Ray's own processes have died; `tlmd start` goes on")
    return settings.head is None or settings.head.is_there()


def _free_shared_memory() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return 0


def stop(settings: Settings) -> None:
    """Leave Ray; a private instance ends with its folder and all its processes."""
    import ray

    started = psutil.Process().children(recursive=True) if settings.is_local else []
    ray.shutdown()
    if settings.head is not None:
        settings.head.leave()
        settings.head = None
    for process in psutil.wait_procs(started, _END_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if settings.scratch:
        shutil.rmtree(settings.scratch, ignore_errors=True)
        settings.scratch = ""
