"""The glossary as the tables and lists of docs/."""

from glossary_tables import glossary, kinds, methods

from vit.explain import CONTROLS
from vit.glossary import HEADS, MAPS, OF_PAGES, RUN


def test_every_word_is_on_a_page():
    lists = glossary()
    assert all(f"**{name}" in lists or f", {name}" in lists for words in OF_PAGES.values() for name in words)
    assert all(lists.count(f"**: {word}\n") == 1 for word in {str(word) for word in RUN.values()})
    assert lists.count("**effective rank**") == 1  # of an analysis and of a run
    assert [name for name in MAPS if f"`{name}`" not in methods()] == [*CONTROLS]
    assert all(word.says in kinds() and word.take in kinds() for word in HEADS.values())


def test_a_word_with_another_meaning_is_followed_by_the_name_of_its_page():
    lists = glossary()
    for name in ("attention", "class", "precision"):
        assert lists.count(f"- **{name}**: ") == 1
    assert "- **class (on the report of trust)**: Whether the map" in lists
    assert "- **precision (facts of a run)**: The format" in lists
