"""The data that crosses processes: small frozen dataclasses, msgpack on the wire.

Every class carries an example in its docstring. Times are seconds, sizes are bytes. Nothing here
imports TVM, torch or Ray, so every part of tlmd may import this module.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from dataclasses import dataclass, field
from typing import Any

from tlmd import wire

Shapes = tuple[tuple[int, ...], ...]
"""One shape per input of a model."""


class Status(enum.StrEnum):
    """What became of one candidate."""

    OK = "ok"
    INVALID = "invalid"  # a postprocessor of the space refused it; never built
    BUILD_ERROR = "build_error"
    RUN_ERROR = "run_error"
    CRASH = "crash"  # the child died of a signal
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_OUTPUT = "wrong_output"


class SlotKind(enum.StrEnum):
    """What kind of instruction a decision belongs to."""

    TILE = "tile"
    PARTITION = "partition"
    CATEGORY = "category"
    LOCATION = "location"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class Slot:
    """One open decision of a sketch.

    ``inst`` is the index of the instruction in the trace. For tiles ``extent`` is the loop extent,
    ``arity`` the number of factors and ``limit`` the largest innermost factor (0: none); for
    categories and parallel extents ``options`` are the values to choose from, in the order of their
    indices; a location's options depend on earlier decisions and are asked of the space.
    ``partition`` is ``(position, factor)`` of a partitioned tile: the product of the factors from
    that position on is a multiple of the factor. ``block`` and ``iterator`` say what is decided
    about: the block's index in the computation (-1: made by the sketch) and its iterator.

    Example: ``Slot(SlotKind.TILE, inst=11, extent=128, arity=4, limit=64, block=0, iterator=1)``.
    """

    kind: SlotKind
    inst: int
    extent: int = 0
    arity: int = 1
    limit: int = 0
    options: tuple[int, ...] = ()
    partition: tuple[int, int] = (0, 1)
    block: int = -1
    iterator: int = 0


@dataclass(frozen=True, slots=True)
class Sketch:
    """One design space of a task: its open decisions and how it is built, in words.

    ``steps`` are the words of the language that tell sketches of one task apart, such as
    ``("inline", "block1", "tile:SSRSRS", "block0")``.

    Example: ``Sketch(index=0, slots=(...), steps=("tile:SSRSRS", "block0"))``.
    """

    index: int
    slots: tuple[Slot, ...]
    steps: tuple[str, ...] = ()


Decision = tuple[int, ...]
NOISY_WEIGHT = 0.3
"""What a noisy time counts in training."""


@dataclass(frozen=True)
class Candidate:
    """A task with one sketch and all its decisions, one tuple of integers per slot.

    A tile's decision lists all factors, outermost first; a category's is the index; a location's is
    the loop index (-1 root, -2 inline); a parallel extent's is the extent itself.

    Example: ``Candidate("t1f0", 0, ((1, 1, 128, 1), (2, 32, 2, 1), (64, 8), (1,), (16,)))``.
    """

    task_id: str
    sketch: int
    decisions: tuple[Decision, ...]

    @functools.cached_property
    def id(self) -> str:
        """Content hash, the same on every platform: measuring a candidate twice is harmless."""
        return content_hash((self.task_id, self.sketch, self.decisions))


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """A TVM target plus the hardware facts that the language model is told.

    ``spec`` is the TVM target as JSON; ``fingerprint`` tells machines apart whose times must not be
    mixed. Cache sizes are bytes, ``peak_gflops`` is 0 where it has not been measured.

    Example: ``TargetInfo('{"kind":"llvm","mcpu":"znver4","num-cores":1}', "cpu", "x86_64",
    "avx512", 512, 1, 32768, 1048576, 33554432, "9c1d...")``.
    """

    spec: str
    device: str
    arch: str
    isa: str
    vector_bits: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Task:
    """One fused subgraph for one target: the unit that is tuned.

    ``id`` is a content hash of the computation (names do not matter), ``module`` the TensorIR
    module as TVM's JSON with one function ``main``, ``weight`` how often the model runs it,
    ``constants`` which of its arguments are the model's weights (indices), where that is known.

    Example: ``Task("t1f0...", "fused_matmul_add", 8, 33_554_432, '{"root_index": ...}', target)``.
    """

    id: str
    name: str
    weight: int
    flops: float
    module: str
    target: TargetInfo
    constants: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Id and fingerprint: what is known of a task holds on one kind of machine."""
        return self.id, self.target.fingerprint


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the stages of measuring one candidate took, in seconds.

    ``start`` is from the fork to the child's first line, ``schedule`` and ``build`` make its
    program (TVM's passes and LLVM), ``allocate`` its arguments, ``wait`` is for the slot and
    ``report`` from its last word to the server's having noted it.

    Example: ``Timing(start=0.005, schedule=0.003, build=0.09, wait=0.0, run=0.04, check=0.001)``.
    """

    start: float = 0.0
    schedule: float = 0.0
    build: float = 0.0
    wait: float = 0.0
    run: float = 0.0
    check: float = 0.0
    allocate: float = 0.0
    report: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What measuring gave: every sample, or the reason it failed.

    ``samples`` are seconds per run as clocked, one per repeat; ``drift`` is the reference kernel's
    time around them over its time when the server started (1.0: the machine's speed has not
    changed). ``estimate`` is the drift-corrected time that they tell, and with 95 % confidence the
    true one lies in ``low .. high`` (`tlmd.measure.noise`); ``noisy`` says that this is wide, or
    that the machine's speed changed meanwhile. ``raced``: timed against other finalists in
    interleaved rounds. ``max_abs_err`` compares the outputs with the unscheduled program's.
    ``energy_j`` is joules per run where the machine tells.

    Example: ``Outcome(Status.OK, samples=(1.61e-3, 1.60e-3), estimate=1.59e-3, low=1.56e-3,
    high=1.61e-3, verified=True, max_abs_err=2e-6)``.
    """

    status: Status
    samples: tuple[float, ...] = ()
    detail: str = ""
    drift: float = 1.0
    noisy: bool = False
    verified: bool = False
    max_abs_err: float | None = None
    energy_j: float | None = None
    timing: Timing = field(default_factory=Timing)
    estimate: float = 0.0
    low: float = 0.0
    high: float = 0.0
    raced: bool = False

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
        """How much a model that learns from it should believe it, 0 to 1."""
        return NOISY_WEIGHT if self.noisy else 1.0


@dataclass(frozen=True, slots=True)
class Record:
    """A measured candidate with its provenance.

    ``version`` is the checkpoint that wrote the candidate (-1: a search step or an import),
    ``module_hash`` the hash of the final module (equal modules are never built twice),
    ``created`` seconds since the epoch, ``lag`` how many versions newer than the writer there were
    when it was measured. ``features`` are the ranker's, as float16; empty where nobody kept them.

    Example: ``Record(candidate, outcome, version=0, batch=3, fingerprint="9c1d")``.
    """

    candidate: Candidate
    outcome: Outcome
    version: int = 0
    batch: int = 0
    fingerprint: str = ""
    module_hash: str = ""
    created: float = 0.0
    lag: int = 0
    features: bytes = b""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate worth measuring, as a generator wrote it.

    ``trace`` is the JSON text of ``[instructions, decisions]`` before the postprocessors, ``score``
    the ranker's, ``version`` the checkpoint that wrote it (-1: local refinement) and ``ranked`` the
    checkpoint whose ranker picked it; ``features`` are what it looked at, as float16.

    Example: ``Proposal(candidate, "[[...], [...]]", "77ab...", version=2, score=0.4, ranked=2)``.
    """

    candidate: Candidate
    trace: str
    module_hash: str
    version: int
    score: float = 0.0
    ranked: int = 0
    features: bytes = b""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The unscheduled program of a task, measured once: what TVM runs without a record.

    Example: ``Baseline("t1f0", seconds=0.031, fingerprint="9c1d")``.
    """

    task_id: str
    seconds: float
    fingerprint: str


def content_hash(value: Any) -> str:
    """32 hexadecimal digits of SHA-256 over the msgpack form of a plain or dataclass value."""
    return hashlib.sha256(wire.pack(value)).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a block: which buffer, and which iterators index which dimension.

    ``source`` is the index of the block that writes the buffer, -1 for an argument. ``dims`` holds
    per dimension the ``(iterator, stride)`` terms of its index; a dimension that is not a sum of
    strided iterators is ``opaque`` and lists the iterators it depends on with stride 0.

    Example: ``Access(-1, "float32", (((0, 1),), ((1, 2), (4, 1))))`` reads ``A[i0, i1 * 2 + i4]``.
    """

    source: int
    dtype: str
    dims: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a computation: iterators as ``("S" | "R" | "O", extent)``, accesses, arithmetic.

    Example: ``Block((("S", 128), ("R", 512)), (Access(...),), Access(...), ("mul", "add"))``.
    """

    iters: tuple[tuple[str, int], ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Computation:
    """What a task computes, without names: its blocks in execution order.

    Example: ``Computation((Block(...), Block(...)))``.
    """

    blocks: tuple[Block, ...]
