"""The corpus, the hold-out, and the names of the zoo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tlmd.corpus import corpus
from tlmd.data.errors import BadInput
from tlmd.data.types import TargetInfo
from tlmd.models.zoo.catalogue import zoo
from tlmd.records.task_file import load_tasks, read_tasks, save_tasks

NAMES = {
    *("resnet18", "resnet50", "resnext50", "wide-resnet50", "resnet3d18", "densenet121", "vgg16"),
    *("mobilenet-v2", "mobilenet-v3", "inception-v3", "dcgan", "efficientnet-lite", "bert-tiny"),
    *("bert-medium", "bert-base", "bert-large", "gpt2", "llama", "vit-b16"),
    *("gemm-int8", "gemm-bf16"),
}
INFO = TargetInfo(
    '{"kind":"llvm","num-cores":1}', "cpu", "x86_64", "avx2", 256, 1, 32768, 1048576, 0, "test"
)


def test_names_are_listed_without_torch_and_tvm() -> None:
    code = (
        "import sys; from tlmd.corpus import corpus; from tlmd.models.zoo.catalogue import zoo; "
        "assert len(zoo()) > 20; "
        "assert corpus.training_corpus(); bad = {'torch', 'tvm', 'ray'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_zoo_has_the_papers_networks() -> None:
    assert set(zoo()) >= NAMES
    for name, shape in (*corpus.paper_corpus(), *corpus.training_corpus(strict=False)):
        assert zoo()[name].check(shape) == shape


def test_paper_corpus_has_the_papers_size() -> None:
    works = corpus.paper_corpus()
    assert len(works) == len(set(works)) == 138
    assert set(corpus.held_out()) <= set(works)
    assert len(corpus.held_out()) == 12


def test_whole_families_are_held_out() -> None:
    families = {name for name, _ in corpus.held_out()}
    strict, paper = corpus.training_corpus(), corpus.training_corpus(strict=False)
    assert not {n for n, _ in strict if n in families or n.startswith(("bert", "resnet"))}
    assert not set(corpus.held_out()) & set(paper)
    assert families & {name for name, _ in paper}
    assert len(strict) == len(set(strict))


@pytest.mark.slow
def test_no_held_out_task_is_trained_on() -> None:
    held = [("gemm", (32, 64)), ("gemm", (16, 128))]
    excluded = corpus.held_out_ids(INFO, held)
    works = [("gemm", (32, 64)), ("gemm", (32, 128)), ("gemm", (16, 128)), ("gemm", (32, 128))]
    tasks = list(corpus.training_tasks(INFO, works, excluded))
    ids = [task.id for task in tasks]
    assert excluded and ids and not excluded & set(ids)
    assert len(ids) == len(set(ids)) == 4


def test_tasks_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.msgpack"
    tasks = corpus.workload_tasks(("gemm", (4, 16)), INFO)
    save_tasks(path, tasks)
    assert load_tasks(path) == read_tasks(path) == tasks
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(BadInput, match="no file of tasks"):
        read_tasks(path)
    with pytest.raises(BadInput, match="cannot read"):
        load_tasks(tmp_path / "none")
