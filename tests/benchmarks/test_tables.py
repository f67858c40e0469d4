"""The tables of the pages are what the JSON files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.tables import PAGES, rewritten


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_its_files(page: Path) -> None:
    assert rewritten(page) == page.read_text(), "run `python -m benchmarks.tables`"


def test_several_tables_are_made_from_files() -> None:
    assert sum(page.read_text().count("<!-- table: ") for page in PAGES) >= 5


def test_a_table_is_made_from_rows_and_a_wrong_comment_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"rows": [{"n": "x", "s": 0.0125}, {"n": "y|z", "s": 2}]}')
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n<!-- table: a.json\nname = n\nms = s | 1000 .1f\n-->\n\n| old |\n\nEnd\n"
    )
    lines = rewritten(page).splitlines()
    assert lines[7:11] == ["| name | ms |", "| --- | --- |", "| x | 12.5 |", "| y\\|z | 2000.0 |"]
    assert lines[-1] == "End" and "old" not in rewritten(page)
    page.write_text("<!-- table: a.json\nno column\n-->\n")
    with pytest.raises(ValueError, match="no column"):
        rewritten(page)
