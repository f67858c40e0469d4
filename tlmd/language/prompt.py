"""The prompt: the hardware, the computation and its sketches, in words without names."""

from __future__ import annotations

from tlmd.data.computation import Access, Block, Computation, Sketch
from tlmd.data.types import TargetInfo
from tlmd.language import vocabulary
from tlmd.language.numbers import free
from tlmd.language.vocabulary import MAX_BLOCKS, MAX_ITERATORS, MAX_LEVELS, MAX_SKETCHES, known

# In tokens. A longer description of a computation drops blocks, element-wise ones first.
MAX_COMPUTATION = 420
MAX_PROMPT = 640


def prompt(computation: Computation, target: TargetInfo, sketches: tuple[Sketch, ...]) -> list[int]:
    """Token ids of the prompt of a task, at most `MAX_PROMPT`; ends with ``[decide]``."""
    words = ["[begin]", *_hardware(target), *_computation(computation)]
    for sketch in sketches[:MAX_SKETCHES]:
        steps = [f"sketch:{sketch.index}", *map(_step, sketch.steps)]
        if len(words) + len(steps) < MAX_PROMPT:
            words += steps
    return vocabulary.ids([*words, "[decide]"])


def _hardware(target: TargetInfo) -> list[str]:
    isa = "sm" if target.isa.startswith("sm_") else target.isa
    words = [known(f"device:{target.device}", "device:cpu"), known(f"isa:{isa}", "isa:generic")]
    words += ["vector", *free(target.vector_bits), "cores", *free(target.cores)]
    for name, size in (("l1", target.l1_bytes), ("l2", target.l2_bytes), ("l3", target.l3_bytes)):
        words += [name, *free(size >> 10)]
    return words


def _computation(computation: Computation) -> list[str]:
    blocks = [_block(block) for block in computation.blocks]
    dropped = 0
    while sum(map(len, blocks)) > MAX_COMPUTATION and len(blocks) > 1:
        # Drop the longest block without a reduction; if all have one, the longest block.
        plain = [i for i, words in enumerate(blocks) if "R" not in words] or range(len(blocks))
        blocks.pop(max(plain, key=lambda i: len(blocks[i])))
        dropped += 1
    words = [word for block in blocks for word in block][:MAX_COMPUTATION]
    return [*words, "more", *free(dropped)] if dropped else words


def _block(block: Block) -> list[str]:
    words = ["block"]
    for kind, extent in block.iters[:MAX_ITERATORS]:
        words += [kind, *free(extent)]
    for access in block.reads:
        words += ["read", *_access(access)]
    for access in block.writes:
        words += ["write", *_access(access)]
    return words + [known(f"op:{op}", "op:other") for op in block.ops]


def _access(access: Access) -> list[str]:
    # The source of a write is its own block.

    source = "argument" if access.source < 0 else f"block:{min(access.source, MAX_BLOCKS - 1)}"
    words = [source, known(f"dtype:{access.dtype}", "dtype:other")]
    for terms in access.dims:
        words.append("dim")
        for iterator, stride in terms:
            words.append(f"it:{min(iterator, MAX_ITERATORS - 1)}")
            if stride == 0:
                words.append("opaque")
            elif stride != 1:
                words += free(stride)
    return words


def _step(word: str) -> str:
    """A step of a sketch as a word of the vocabulary. Indices that are too large are clipped."""
    kind, _, index = word.partition(":")
    if kind == "block":
        return f"block:{min(int(index), MAX_BLOCKS - 1)}"
    if kind == "level":
        return f"level:{min(int(index), MAX_LEVELS - 1)}"
    return word
