"""`python -m tlmd.guide`: write the pages of the guide that are made from the code."""

from pathlib import Path

from tlmd.guide.reference import pages

for name, text in pages().items():
    (Path(__file__).parent / f"{name}.md").write_text(text)
    print(f"{name}.md")
