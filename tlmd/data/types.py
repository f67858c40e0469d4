"""The data that crosses processes: small frozen dataclasses, msgpack on the wire.

Every class has an example in its docstring. Times are seconds, sizes bytes. TVM is not imported.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from dataclasses import dataclass, field
from typing import Any

from tlmd.data import wire


class Status(enum.StrEnum):
    """How the measurement of a candidate ended. CONTRIBUTING says where each is decided."""

    OK = "ok"
    INVALID = "invalid"
    """TVM cannot apply a decision, changes it, or a postprocessor refuses it. Never built."""
    BUILD_ERROR = "build_error"
    """TVM or LLVM cannot compile or link the program."""
    RUN_ERROR = "run_error"
    """The program raised an error or ended its process."""
    CRASH = "crash"
    """A signal ended the child, or its server or slot died with it more than once."""
    TIMEOUT = "timeout"
    """The child was killed after its time limit."""
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_OUTPUT = "wrong_output"
    """The outputs differ from those of the unscheduled program."""


class Writer(enum.StrEnum):
    """Who wrote a candidate."""

    UNKNOWN = ""  # older records do not name their writer
    TLM = "tlm"
    REFINEMENT = "refinement"  # a small change of one of the best programs
    RANDOM = "random"
    IMPORT = "import"
    CARRIED = "carried"  # a program of an older revision of the task
    KNOWN = "known"  # a program that was shipped or shared


class JobState(enum.StrEnum):
    """The states of a job, from its submission to its end."""

    PREPARING = "preparing"  # its model is being lowered to tasks
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_finished(self) -> bool:
        return self in (JobState.DONE, JobState.CANCELLED, JobState.FAILED)


Decision = tuple[int, ...]
NOISY_WEIGHT = 0.3
"""Weight of a noisy time in training."""


@dataclass(frozen=True)
class Candidate:
    """A task with one sketch and all its decisions.

    Example: ``Candidate("t1f0", 0, ((1, 1, 128, 1), (2, 32, 2, 1), (64, 8), (1,), (16,)))``.
    """

    task_id: str
    sketch: int
    decisions: tuple[Decision, ...]
    """One tuple per open decision. Tile: all factors, outermost first. Category: the index.
    Location: the loop index (-1 root, -2 inline). Parallel extent: the extent."""

    @functools.cached_property
    def id(self) -> str:
        """Content hash, the same on every platform: measuring a candidate twice is harmless."""
        return content_hash((self.task_id, self.sketch, self.decisions))


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """A TVM target plus the hardware facts that the language model reads.

    Example: ``TargetInfo('{"kind":"llvm","mcpu":"znver4","num-cores":1}', "cpu", "x86_64",
    "avx512", 512, 1, 32768, 1048576, 33554432, "9c1d...")``.
    """

    spec: str
    """The TVM target as JSON."""
    device: str
    arch: str
    isa: str
    vector_bits: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    fingerprint: str
    """Hash of the hardware. Times with different fingerprints must not be mixed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One fused subgraph for one target: the unit that is tuned.

    Example: ``Task("t1f0...", "fused_matmul_add", 8, 33_554_432, '{"root_index": ...}', target)``.
    """

    id: str
    """Content hash of the computation; names do not matter."""
    name: str
    weight: int
    """How often the model runs the task."""
    flops: float
    module: str
    """The TensorIR module with one function ``main``, as TVM's JSON."""
    target: TargetInfo
    constants: tuple[int, ...] = ()  # indices of the arguments that are weights, where known
    alternative: str = ""
    """The name of an alternative (`tlmd.alternatives`); empty: this is the direct task."""
    group: str = ""
    direct: str = ""
    """The direct task of an alternative, id and module; its outputs are the right ones."""
    attention: str = ""  # of a direct task: the `Attention` that it was made from, as JSON

    @property
    def computation(self) -> str:
        """Id of the direct task: equal for all alternatives."""
        return self.group or self.id

    @property
    def key(self) -> tuple[str, str]:
        """Id and fingerprint: what is measured for a task is valid on one kind of machine."""
        return self.id, self.target.fingerprint


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that a generator has written and picked for measuring.

    Example: ``Proposal(candidate, "[[...], [...]]", "77ab...", version=2, score=0.4,
    picked_by=2)``.
    """

    candidate: Candidate
    trace: str
    """JSON text of ``[instructions, decisions]``, without the postprocessors."""
    module_hash: str
    version: int
    """The checkpoint that wrote the candidate; -1: refinement or a random draw."""
    score: float = 0.0  # the cost model's
    picked_by: int = 0
    """The checkpoint whose cost model picked it."""
    features: bytes = b""
    """Features that the cost model read, float16."""
    writer: Writer = Writer.UNKNOWN


@dataclass(frozen=True, slots=True)
class MeasureInput:
    """The input of a slot that measures one candidate.

    Example: ``MeasureInput("f00d...", "[[...], [...]]", incumbent_s=1.6e-3)``.
    """

    candidate_id: str
    trace: str
    """JSON text of ``[instructions, decisions]``, without the postprocessors."""
    incumbent_s: float | None = None
    """Drift-corrected seconds of the task's best program so far, if there is one."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the stages of measuring one candidate took, in seconds.

    Example: ``Timing(start=0.005, schedule=0.003, build=0.09, wait=0.0, run=0.04, check=0.001)``.
    """

    start: float = 0.0
    """From the fork to the child's first line."""
    schedule: float = 0.0
    build: float = 0.0
    """TVM's passes and LLVM."""
    wait: float = 0.0
    """Waiting for the slot."""
    run: float = 0.0
    check: float = 0.0
    allocate: float = 0.0
    """Making the arguments."""
    report: float = 0.0
    """From the child's message to its arrival at the server."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of measuring a candidate: every sample, or the reason why it failed.

    Example: ``Outcome(Status.OK, samples=(1.61e-3, 1.60e-3), estimate=1.59e-3, low=1.56e-3,
    high=1.61e-3, verified=True, max_abs_err=2e-6)``.
    """

    status: Status
    samples: tuple[float, ...] = ()
    """Clocked seconds per run, one per repeat."""
    detail: str = ""
    drift: float = 1.0
    """Time of the reference kernel around the samples over its time when the server started."""
    noisy: bool = False
    """The interval is wide, or the machine's speed changed during the measurement."""
    verified: bool = False
    """The outputs matched those of the unscheduled program."""
    max_abs_err: float | None = None  # largest difference from those outputs
    energy_j: float | None = None
    """Joules per run, where the machine shows them."""
    timing: Timing = field(default_factory=Timing)
    estimate: float = 0.0
    """Drift-corrected seconds (`tlmd.measure.timing.noise`)."""
    low: float = 0.0
    high: float = 0.0
    """The true time is between ``low`` and ``high`` with 95 % confidence."""
    compared: bool = False
    """Timed in a finalist comparison, in interleaved rounds with other finalists."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def seconds(self) -> float:
        """Drift-corrected seconds per run; infinite for a failure."""
        if not self.ok or not self.samples:
            return float("inf")
        return self.estimate or min(self.samples) / self.drift

    @property
    def weight(self) -> float:
        """Weight of the time in training, 0 to 1."""
        return NOISY_WEIGHT if self.noisy else 1.0


@dataclass(frozen=True, slots=True)
class Record:
    """A measured candidate and where it comes from.

    Example: ``Record(candidate, outcome, version=0, batch=3, fingerprint="9c1d")``.
    """

    candidate: Candidate
    outcome: Outcome
    version: int = 0
    """The checkpoint that wrote the candidate; -1: refinement, a random draw or an import."""
    batch: int = 0
    """The batch it was measured in; -1: imported."""
    fingerprint: str = ""
    module_hash: str = ""
    """Hash of the final module. Equal modules are not built twice."""
    created: float = 0.0
    """Seconds since the epoch."""
    lag: int = 0
    """How many newer versions there were when it was measured."""
    features: bytes = b""
    """Features that the cost model read, float16; empty where they were not kept."""
    writer: Writer = Writer.UNKNOWN


@dataclass(frozen=True, slots=True)
class Baseline:
    """The time of a task's unscheduled program, which TVM runs without a record.

    Example: ``Baseline("t1f0", seconds=0.031, fingerprint="9c1d")``.
    """

    task_id: str
    seconds: float
    """Infinite where the program fails."""
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Published:
    """Whether a new checkpoint is in force; ``reason`` says why not.

    Example: ``Published(13, False, "held-out loss 2.31 against 1.90 nats")``.
    """

    version: int
    accepted: bool
    reason: str = ""


def content_hash(value: Any) -> str:
    """32 hexadecimal digits of SHA-256 over the msgpack form of a plain or dataclass value."""
    return hashlib.sha256(wire.pack(value)).hexdigest()[:32]
