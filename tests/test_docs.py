"""Every Python block of the README and of the pages in docs runs as it stands, page by page, in an empty folder."""

import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if page.exists()]
BLOCK = re.compile(r"^(?P<fence>`{3,})python(?P<words>[^\n]*)\n(?P<code>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
FIXTURES = {"bus", "clock", "fake_loop", "recorder"}


def blocks(text):
    """The blocks to run, as (line of the page, code); one that says ``python no-run`` is left out."""
    for found in BLOCK.finditer(text):
        words = found["words"].split()
        assert words in ([], ["no-run"]), f"```python{found['words']}: the only word that means something is no-run"
        if not words:
            yield text.count("\n", 0, found.start("code")), found["code"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    space, run = {"__name__": "__main__"}, []
    for line, code in blocks(page.read_text()):
        exec(compile("\n" * line + code, str(page), "exec"), space)  # so that an error shows the line of the page
        run.append(line)
    for test in [value for name, value in space.items() if name.startswith("test_")]:
        if set(names := inspect.signature(test).parameters) <= FIXTURES and names:  # as pytest would
            test(**{name: request.getfixturevalue(name) for name in names})
    assert run == [line for line, _ in blocks(page.read_text())]


def test_blocks_are_found_with_their_lines_and_no_run_is_left_out():
    text = "# A\n\n```python\na = 1\n```\n\n```python no-run\n1 / 0\n```\n```sh\nls\n```\n````python\nb = '```'\n````\n"
    assert list(blocks(text)) == [(3, "a = 1\n"), (13, "b = '```'\n")]
