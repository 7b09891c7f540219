"""Words: a label finds its word, and a list of words fits a terminal."""

from vit.support.words import Word, find_word, listed


def test_the_first_group_that_has_a_label_gives_its_word():
    first, second = {"speed": Word("One")}, {"speed": Word("Two"), "count": Word("Three")}
    assert find_word("Speed", first, second) is first["speed"]
    assert find_word("validation speed over views, px", second) is second["speed"]
    assert find_word("Count, %", first, second) is second["count"]
    assert find_word("speed of a cat", first, second) is None


def test_help_lists_words_with_hanging_lines():
    words = {"one": Word("The first", "a paper", "Take it"), "three": Word("word " * 30)}
    lines = listed(words, width=60).splitlines()
    assert lines[0] == "  one    The first (a paper). Take it."
    assert [line[:9] for line in lines[1:3]] == ["  three  ", " " * 9]
    assert max(map(len, lines)) <= 60
