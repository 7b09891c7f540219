import io
import itertools
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from vit.support import progress as module
from vit.support.progress import progress


class Terminal(io.StringIO):
    """A terminal of one line after the other, that keeps what a reader sees and all that was ever seen."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.seen = [""], []
        self.column = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for letter in text:
            if letter == "\n":
                self.lines.append("")
                self.column = 0
            elif letter == "\r":
                self.column = 0
            else:
                line = self.lines[-1]
                self.lines[-1] = line[: self.column] + letter + line[self.column + 1 :]
                self.column += 1
        self.seen.append(self.lines[-1].rstrip())
        return len(text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error and standard output on one terminal, where a second passes at each look at the clock."""
    terminal, clock = Terminal(), itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=terminal, stdout=terminal))
    return terminal


def test_the_line_says_how_many_are_done_and_how_long_the_others_take(terminal: Terminal) -> None:
    assert list(progress(range(5), "images read")) == [0, 1, 2, 3, 4]
    assert "0 of 5 images read" in terminal.seen
    assert "1 of 5 images read, 0:00:08 left" in terminal.seen  # two looks at the clock before the second image
    assert "4 of 5 images read, 0:00:01 left" in terminal.seen


def test_nothing_of_the_line_is_left_at_the_end(terminal: Terminal) -> None:
    list(progress(range(5), "images read"))
    assert [line.strip() for line in terminal.lines] == [""]


def test_what_the_loop_prints_stands_in_lines_of_its_own(terminal: Terminal) -> None:
    for number in progress(range(4), "images read"):
        print(f"image {number}")
    assert [line.rstrip() for line in terminal.lines] == ["image 0", "image 1", "image 2", "image 3", ""]


def test_a_loop_that_ends_early_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    def stop(number: int) -> None:
        raise KeyboardInterrupt

    out = sys.stdout
    with pytest.raises(KeyboardInterrupt):
        [stop(number) for number in progress(range(9), "images read")]
    assert terminal.lines[-1].strip() == ""
    assert sys.stdout is out


def test_items_of_unknown_number_are_counted(terminal: Terminal) -> None:
    list(progress(iter("abcd"), "images read"))
    assert "3 images read, 0:00:04 so far" in terminal.seen


def test_a_number_given_counts_what_has_no_length(terminal: Terminal) -> None:
    def items() -> Iterator[int]:
        yield from range(5)

    list(progress(items(), "images read", total=5))
    assert "4 of 5 images read, 0:00:01 left" in terminal.seen


def test_a_narrow_terminal_gets_the_start_of_the_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    list(progress(range(5), "images read"))
    assert max(map(len, terminal.seen)) == 11


@pytest.mark.parametrize("count", [0, 1, 3])
def test_few_items_need_no_line(terminal: Terminal, count: int) -> None:
    assert list(progress(range(count), "images read")) == list(range(count))
    assert not terminal.seen


def test_it_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(5), "images read")) == [0, 1, 2, 3, 4]
    assert capsys.readouterr() == ("", "")
