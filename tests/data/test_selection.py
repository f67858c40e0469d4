"""Who is a task's best, and who has to be compared first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tlmd.data.selection import FINALISTS, fastest, finalists, leading
from tlmd.data.types import Candidate, Outcome, Record, Status


def record(
    number: int, seconds: float, width: float = 0.05, compared: bool = False, created: float = 0.0
) -> Record:
    outcome = Outcome(
        Status.OK,
        (seconds,),
        verified=True,
        estimate=seconds,
        low=seconds * (1 - width),
        high=seconds * (1 + width),
        compared=compared,
    )
    return Record(Candidate("t", 0, ((number,),)), outcome, created=created)


records = st.lists(
    st.tuples(st.floats(1e-3, 2e-3), st.floats(0, 0.2), st.booleans()), min_size=1, max_size=12
).map(lambda rows: [record(i, *row) for i, row in enumerate(rows)])


def test_one_timed_alone_must_win_clearly_against_one_that_was_raced() -> None:
    compared, close, clear = record(0, 1.0, 0.01, compared=True), record(1, 0.98), record(2, 0.8)
    assert fastest([close, compared]) is compared
    assert fastest([close, compared, clear]) is clear
    assert fastest([close, clear]) is clear
    assert fastest([]) is None


def test_who_won_the_newest_race_is_the_best() -> None:
    lost = record(0, 1.0, compared=True, created=1.0)  # to the winner, at a faster moment
    winner = record(1, 1.2, compared=True, created=2.0)
    second = record(2, 1.3, compared=True, created=2.0)
    for order in ([lost, winner, second], [second, winner, lost]):
        assert fastest(order) is winner


def test_what_is_wrong_or_failed_is_never_best() -> None:
    wrong = Record(Candidate("t", 0, ((1,),)), Outcome(Status.WRONG_OUTPUT, (0.1,)))
    untimed = Record(Candidate("t", 0, ((2,),)), Outcome(Status.OK, (), verified=True))
    assert fastest([wrong, untimed]) is None and finalists([wrong, untimed], None) == ()
    assert leading([wrong, untimed], 2) == ()


@given(records)
def test_finalists_are_the_best_and_who_may_be_faster(found: list[Record]) -> None:
    best = fastest(found)
    assert best is not None
    rivals = finalists(found, best)
    assert len(rivals) != 1 and len(rivals) <= FINALISTS
    for rival in rivals[1:]:
        assert rival.outcome.low <= 1.1 * best.outcome.high
        assert not (rival.outcome.compared and best.outcome.compared)
    if not rivals:
        others = (r for r in found if r is not best and not r.outcome.compared)
        assert all(r.outcome.low > best.outcome.high for r in others)


def test_the_best_of_another_alternative_is_a_finalist_if_it_may_be_faster() -> None:
    found = [record(i, 1.0 + i / 100) for i in range(6)]
    near, far = record(6, 1.1), record(7, 1.5)
    other = replace(near, candidate=Candidate("u", 0, ((0,),)))
    slow = replace(far, candidate=Candidate("v", 0, ((0,),)))
    rivals = finalists([*found, near, slow, other], found[0])
    assert rivals == (found[0], other, found[1], found[2])


def test_of_times_that_a_limit_made_equal_the_fastest_sample_is_first() -> None:
    def limited(number: int, *samples: float) -> Record:
        one = record(number, 1.0)
        return replace(one, outcome=replace(one.outcome, samples=samples))

    found = [limited(0, 1.2, 1.3), limited(1, 1.1, 1.9), limited(2, 1.15)]
    assert fastest(found) is found[1]
    assert leading(found, 3) == (found[1], found[2], found[0])
