"""Texts as rows of tokens."""

import pytest
import torch

from vit.data.alphabet import Alphabet

LETTERS = Alphabet("abc ")


def test_texts_stand_between_start_and_end_and_come_back():
    texts = ["", "a", "cab", "b ab "]
    tokens = LETTERS.encode(texts, length=5)
    assert tokens.tolist()[2] == [4, 2, 0, 1, 5, 5, 5]
    assert LETTERS.decode(tokens) == texts
    assert LETTERS.decode(tokens[:, 1:]) == texts
    assert LETTERS.size == 6


def test_a_row_without_end_is_read_to_its_last_letter():
    assert LETTERS.decode(torch.tensor([[2, 1, 1]])) == ["cbb"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abcabc", "text 'abcabc' has 6 letters, more than the maximum of 5: shorten it, or raise the maximum"),
        ("cat", "text 'cat' has the letter 't', which 'abc ' lacks: add it"),
    ],
)
def test_texts_that_do_not_fit_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        LETTERS.encode(["a", text], length=5)


def test_one_text_is_no_list_of_texts():
    with pytest.raises(ValueError, match="texts 'ab' is one text: give a list of texts"):
        LETTERS.encode("ab", length=5)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[-1, -1]]), "tokens from -1 to -1 are not all in 0 to 5: leave out rows of padding"),
        (torch.tensor([[0, 6]]), "tokens from 0 to 6 are not all in 0 to 5"),
        (torch.tensor([1, 2]), r"tokens are torch.int64 of shape \(2,\): give whole numbers \(N, T\)"),
        (torch.zeros(1, 2), "tokens are torch.float32"),
    ],
)
def test_tokens_of_no_letter_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        LETTERS.decode(tokens)


@pytest.mark.parametrize(("letters", "message"), [("", "has no letters: name those"), ("abca", "'abca' has 'a' twice")])
def test_an_alphabet_has_each_letter_once(letters, message):
    with pytest.raises(ValueError, match=message):
        Alphabet(letters)
