"""The guide: its generated pages say what the code says, and `tlmd help` shows every page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tlmd import cli
from tlmd.client.commands.help_command import GUIDE, summary
from tlmd.data import config
from tlmd.data.job_request import JobRequest
from tlmd.guide.reference import pages

PAGES = sorted(GUIDE.glob("*.md"))


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    committed = (GUIDE / f"{name}.md").read_text()
    assert committed == pages()[name], "run `python -m tlmd.guide`"


def test_every_setting_and_every_option_is_explained() -> None:
    settings, python = pages()["settings"], pages()["python"]
    keys = [key for key in config.known_keys() if "." in key]
    assert len(keys) > 50 and all(f"`{key}`" in settings for key in keys)
    assert "None" not in settings and ": \n" not in settings
    assert all(
        f"`{word}`" in python for word in JobRequest.keywords() if word not in ("name", "cwd")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_title_and_says_in_one_sentence_what_it_answers(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert lines[0].startswith("# ") and lines[1] == ""
    assert 20 < len(summary(page)) < 120 and summary(page).endswith(".")
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_help_lists_the_pages_and_shows_one(
    capfd: pytest.CaptureFixture[str], run: Callable[..., str]
) -> None:
    assert cli.main(["help"]) == 0
    listed = capfd.readouterr().out
    assert all(page.stem in listed and summary(page) in listed for page in PAGES)
    assert cli.main(["help", "cluster"]) == 0
    assert "ray up ray_cluster.yaml" in capfd.readouterr().out
    assert "did you mean 'cluster'?" in run("help", "cluste")
