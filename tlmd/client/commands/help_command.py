"""`tlmd help`: the pages of the guide, in the terminal."""

from __future__ import annotations

import argparse
import difflib
import json
from pathlib import Path

from tlmd.data.errors import BadInput

GUIDE = Path(__file__).parents[2] / "guide"


def show(options: argparse.Namespace) -> int:
    """Show the page ``options.topic``, or list all pages. Raises `BadInput` for an unknown one."""
    pages = {path.stem: path for path in sorted(GUIDE.glob("*.md"))}
    if options.topic and options.topic not in pages:
        near = difflib.get_close_matches(options.topic, pages, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(pages)}"
        raise BadInput(f"no page {options.topic!r} in the guide; {hint}")
    if options.json:
        chosen = {options.topic: pages[options.topic]} if options.topic else pages
        print(
            json.dumps({name: path.read_text("utf-8") for name, path in chosen.items()}, indent=1)
        )
        return 0
    from rich.console import Console
    from rich.markdown import Markdown

    if options.topic:
        Console().print(Markdown(pages[options.topic].read_text("utf-8")))
        return 0
    for name, path in pages.items():
        print(f"{name:16} {summary(path)}")
    print("\n`tlmd help TOPIC` shows one of them; `tlmd COMMAND --help` lists a command's options.")
    return 0


def summary(path: Path) -> str:
    """The first sentence of a page, after its title."""
    _, _, text = path.read_text("utf-8").strip().partition("\n")
    first, end, _ = " ".join(text.strip().split("\n\n")[0].split()).partition(". ")
    return first + ("." if end else "")
