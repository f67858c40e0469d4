"""The TLM: the same numbers as transformers, legal by construction, able to learn, safe on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import modules
from tests.support.learning import fast_in_one_sketch
from tlmd.data.errors import BadInput
from tlmd.data.types import Task
from tlmd.language import vocabulary
from tlmd.language.prompt import prompt
from tlmd.language.sentence import BEST_QUALITY, decode, encode
from tlmd.learn.candidate_encoder import Encoder
from tlmd.space.space import TaskSpace
from tlmd.tlm import checkpoint, network, training
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.cost_model import CostModel, Measured
from tlmd.tlm.decoder import Decoder
from tlmd.tlm.demonstration import Demonstration, TaskDemonstrations, TaskTensors
from tlmd.tlm.demonstration_file import read_demonstrations, write_demonstrations
from tlmd.tlm.ranking import rank
from tlmd.tlm.sampling import Sampler, SampleRequest
from tlmd.tlm.training import Trainer, TrainingPlan


def request(task: Task, count: int, **changes: object) -> tuple[TaskSpace, SampleRequest]:
    space = TaskSpace(task)
    words = tuple(prompt(space.computation, task.target, space.sketches))
    return space, SampleRequest(
        task.id,
        words,
        space.sketches,
        space.locations,
        count,
        **changes,  # type: ignore[arg-type]
    )


def test_decoding_in_chunks_equals_transformers() -> None:
    import transformers

    model = network.create("nano", seed=3)
    shape = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": network.POSITIONS}
    config = transformers.GPT2Config(vocab_size=vocabulary.SIZE, **shape)
    original = transformers.GPT2LMHeadModel(config).eval()
    missing, unexpected = original.load_state_dict(model.state_dict(), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    decoder = Decoder(model)
    words, prompt_words = torch.randint(0, 600, (3, 24)), torch.randint(0, 600, (11,))
    with torch.inference_mode():
        expected = original(torch.cat([prompt_words.expand(3, -1), words], 1)).logits[:, 11:]
        cache, group = decoder.prompt(prompt_words), decoder.new_group(3, 24)
        parts = [(0, 3), (3, 4), (4, 19), (19, 24)]
        chunks = [decoder.extend(cache, words[:, i:j], group) for i, j in parts]
        torch.testing.assert_close(decoder.logits(torch.cat(chunks, 1)), expected)
        torch.testing.assert_close(decoder.logits(decoder.sentences(cache, words)), expected)


_NETWORK = network.create("nano", seed=4)


@st.composite
def _demonstrations(draw: st.DrawFn) -> Demonstration:
    """A sentence of any length whose decided words are legal."""
    words = draw(st.lists(st.integers(1, 40), min_size=2, max_size=9))
    places = tuple(range(1, len(words), draw(st.integers(1, 2))))
    legal = tuple(tuple({words[at], *draw(st.sets(st.integers(1, 40)))}) for at in places)
    share = draw(st.floats(0, 1, width=32))
    return Demonstration((9, *words[1:]), places, legal, share, draw(st.sampled_from((1.0, 0.5))))


_SENTENCES = _demonstrations()


@pytest.mark.parametrize(
    "task", [modules.gemm(), modules.convolution(), modules.softmax()], ids=lambda t: t.name
)
def test_every_sample_is_legal_and_is_what_tvm_applies(task: Task) -> None:
    space, asked = request(task, 64)
    samples = Sampler(network.create("nano"), seed=1).sample(asked)
    assert len(samples) == 64
    for sample in samples:
        space.schedule(sample.candidate)  # raises where TVM applies something else
        sketch = space.sketches[sample.candidate.sketch]
        assert decode(space.sketches, encode(sketch, sample.candidate), task.id) == sample.candidate
        assert sample.log_prob <= 0
    assert len({s.candidate.id for s in samples}) > 32


def test_sampling_is_reproducible_and_keeps_a_prefix() -> None:
    model = network.create("nano")
    _, asked = request(modules.gemm(), 8)
    first = Sampler(model, seed=5).sample(asked)
    assert first == Sampler(model, seed=5).sample(asked)
    assert first != Sampler(model, seed=6).sample(asked)
    start = first[0].candidate
    _, again = request(modules.gemm(), 8, start=start, keep=2)
    for sample in Sampler(model, seed=5).sample(again):
        assert sample.candidate.sketch == start.sketch
        assert sample.candidate.decisions[:2] == start.decisions[:2]


def test_log_probabilities_are_those_of_the_network() -> None:
    """A sample's probability, computed token by token under the same masks, sums to one."""
    _, asked = request(modules.elementwise(), 400)
    samples = Sampler(network.create("nano"), seed=2).sample(asked)
    by_id = {s.candidate.id: s.log_prob for s in samples}
    assert len(by_id) == 6  # all parallel extents turn up
    assert np.exp(list(by_id.values())).sum() == pytest.approx(1.0, abs=1e-4)
    counts = Counter(s.candidate.id for s in samples)
    for key, log_prob in by_id.items():
        assert counts[key] / 400 == pytest.approx(np.exp(log_prob), abs=0.1)


@pytest.mark.slow
def test_training_teaches_what_the_demonstrations_show() -> None:
    space, asked = request(modules.gemm(), 200)
    shown = fast_in_one_sketch(space, 80, seed=0, slow=0.1)
    model = network.create("nano")
    before = rank(model, [TaskTensors(shown)])
    losses = Trainer(model, TrainingPlan(steps=20, tasks_per_step=1)).fit([shown])
    assert losses[-1] < 0.6 * losses[0]
    after = rank(model, [TaskTensors(shown)])
    assert after.correlation > max(0.6, before.correlation) and after.first == 1.0
    sketches = Counter(s.candidate.sketch for s in Sampler(model).sample(asked))
    assert sketches[1] > 180


@pytest.mark.slow
def test_training_stops_at_a_step_boundary() -> None:
    sentence = Demonstration((9, 2, 3), (1, 2), ((2, 4), (3, 5)), 1.0)
    shown = TaskDemonstrations("t", (1, 8), (sentence,))
    losses = Trainer(network.create("nano"), TrainingPlan(steps=50)).fit(
        [shown], lambda step, loss: step < 2
    )
    assert len(losses) == 3
    assert Trainer(network.create("nano"), TrainingPlan()).fit([]) == []
    assert Trainer(network.create("nano"), TrainingPlan(steps=0)).fit([shown]) == []
    clock = iter(range(100))
    half_a_minute = training.until(30, lambda: next(clock))
    losses = Trainer(network.create("nano"), TrainingPlan(steps=3)).fit(
        [shown], progress=half_a_minute
    )
    assert len(losses) == 30


@pytest.mark.parametrize("task", [modules.gemm(), modules.softmax()], ids=lambda t: t.name)
def test_training_and_sampling_have_the_same_probabilities(task: Task) -> None:
    space, asked = request(task, 12)
    encoder, model = Encoder(space), network.create("nano", seed=3)
    samples = Sampler(model).sample(asked)
    sentences = [encoder.encode(sample.candidate) for sample in samples]
    assert None not in sentences
    shown = TaskTensors(
        TaskDemonstrations(task.id, encoder.prompt, tuple(s for s in sentences if s))
    )
    with torch.no_grad():
        found = shown.log_probabilities(Decoder(model), BEST_QUALITY)
        chosen = torch.tensor([7, 0, 3])
        some = shown.choose(chosen).log_probabilities(Decoder(model), BEST_QUALITY)
    expected = torch.tensor([sample.log_prob for sample in samples], dtype=torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(some, found[chosen], rtol=1e-3, atol=1e-3)
    uniform = torch.tensor([sample.log_uniform for sample in samples], dtype=torch.float32)
    torch.testing.assert_close(shown.log_uniform(), uniform, rtol=1e-4, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(_SENTENCES, min_size=2, max_size=8), min_size=1, max_size=4))
def test_tasks_in_one_pass_have_the_same_loss_and_gradient(
    tasks: list[list[Demonstration]],
) -> None:
    shown = [
        TaskTensors(TaskDemonstrations(str(n), tuple(range(1, 9 + 7 * n)), tuple(sentences)))
        for n, sentences in enumerate(tasks)
    ]
    plan = training.TrainingPlan(worst=0.3)
    decoder = Decoder(_NETWORK)

    def gradient(losses: torch.Tensor) -> torch.Tensor:
        _NETWORK.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        return torch.cat([p.grad.flatten() for p in _NETWORK.parameters() if p.grad is not None])

    alone = torch.stack([training.task_loss(decoder, task, plan) for task in shown])
    together = training.batch_loss(decoder, shown, plan)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient(together), gradient(alone), rtol=1e-3, atol=1e-5)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_the_loss_is_small_only_in_the_right_order(shares: list[float]) -> None:
    speeds = torch.tensor(shares)
    right = training.pair_loss(50 * speeds, speeds, torch.ones(len(shares)))
    wrong = training.pair_loss(-50 * speeds, speeds, torch.ones(len(shares)))
    none = training.pair_loss(-50 * speeds, speeds, torch.zeros(len(shares)))
    assert right <= wrong and none == 0
    if max(shares) - min(shares) > 0.1:
        assert right < 0.1 < 1 < wrong


def test_demonstrations_survive_the_disk_and_damage_is_said(tmp_path: Path) -> None:
    shown = TaskDemonstrations("t", (1, 8), (Demonstration((9, 2), (1,), ((2, 4),), 0.5, 0.3),))
    path = tmp_path / "demonstrations.msgpack.gz"
    write_demonstrations(path, [shown])
    assert read_demonstrations(path) == (shown,)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadInput, match="no file of demonstrations"):
        read_demonstrations(path)


def test_the_ranker_orders_an_unseen_task() -> None:
    rng = np.random.default_rng(0)

    def table(scale: float) -> Measured:
        features = rng.random((60, 10), dtype=np.float32)
        seconds = scale * np.exp(2.0 * features[:, 0] - features[:, 3]).astype(np.float64)
        seconds[:3] = np.inf
        return Measured(features, seconds)

    cost_model = CostModel().fit([table(s) for s in (1e-3, 1e-1, 5.0)])
    unseen = table(1e-5)
    scores, speed = cost_model.score(unseen.features)[3:], -np.log(unseen.seconds[3:])
    order = np.corrcoef(scores.argsort().argsort(), speed.argsort().argsort())[0, 1]
    assert order > 0.6
    again = CostModel.from_bytes(cost_model.to_bytes())
    np.testing.assert_array_equal(again.score(unseen.features), cost_model.score(unseen.features))
    adapted = cost_model.adapt([unseen])
    assert np.isfinite(adapted.score(unseen.features)).all()
    assert (CostModel().score(unseen.features) == 0).all()


def test_what_counts_little_is_little_believed() -> None:
    features = np.repeat(np.asarray([[0, 1], [1, 0]], np.float32), 20, axis=0)
    seconds = np.repeat([1.0, 2.0], 20)
    lies = Measured(features, seconds[::-1].copy(), np.full(40, 0.3, np.float32))
    cost_model = CostModel().fit([Measured(features, seconds), lies])
    first, second = cost_model.score(np.asarray([[0, 1], [1, 0]], np.float32))
    assert first > second


def test_checkpoints_survive_the_disk_and_damage_is_noticed(tmp_path: Path) -> None:
    model = network.create("nano", seed=9)
    saved = Checkpoint(4, "nano", model, CostModel(), {"why": "test"})
    checkpoint.save(saved, tmp_path / "v4")
    loaded = checkpoint.load(tmp_path / "v4")
    assert (loaded.version, loaded.notes) == (4, {"why": "test"})
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], weight)
    checkpoint.save(saved, tmp_path / "v4")  # replacing is fine
    assert [p.name for p in tmp_path.iterdir()] == ["v4"]
    weights = tmp_path / "v4" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(BadInput, match="damaged"):
        checkpoint.load(tmp_path / "v4")
    with pytest.raises(BadInput, match="no checkpoint"):
        checkpoint.load(tmp_path / "v5")


def test_the_presets_have_the_sizes_they_promise() -> None:
    assert 0.8e6 < network.parameters(network.create("nano")) < 1.2e6
    assert 10e6 < network.parameters(network.create("small")) < 12e6
    with pytest.raises(BadInput, match="huge"):
        network.create("huge")
