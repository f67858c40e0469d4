"""The cost model's first choice: nothing is measured, it is always the same, TVM takes it."""

from __future__ import annotations

from tests.support import modules
from tlmd.data.types import Candidate
from tlmd.generate.first_choice import FirstChoice
from tlmd.space.features import FeatureExtractors, speedup
from tlmd.space.space import TaskSpace
from tlmd.tlm import checkpoint
from tlmd.tlm.cost_model import CostModel
from tlmd.tlm.decision_features import decision_features

TASK = modules.gemm()


def test_a_choice_is_a_candidate_that_tvm_accepts_and_is_the_same_each_time() -> None:
    cost_model, space = checkpoint.load_cost_model(), TaskSpace(TASK)
    first = FirstChoice(cost_model).of(space)
    assert first is not None and first == FirstChoice(cost_model).of(TaskSpace(TASK))
    assert space.trace_json(first)


def test_the_choice_is_predicted_to_be_better_than_chance() -> None:
    cost_model, space = checkpoint.load_cost_model(), TaskSpace(TASK)
    choice, chance = FirstChoice(cost_model).of(space), FirstChoice(CostModel()).of(space)
    assert choice is not None and chance is not None
    liked, random = predicted(cost_model, space, choice), predicted(cost_model, space, chance)
    assert liked > random


def predicted(cost_model: CostModel, space: TaskSpace, candidate: Candidate) -> float:
    target = space.task.target
    features = FeatureExtractors().of(target).rows([space.finish(candidate)])
    decisions = decision_features(space.computation, space.sketches, [candidate])
    return float(cost_model.score(features, speedup(features, target.cores), decisions)[0])
