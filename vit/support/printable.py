"""Text from outside, such as names of files, as a terminal and a page can show it."""


def printable(text: str) -> str:
    r"""Return a text with control characters, and bytes that are no text, as their numbers.

    >>> print(printable("a cat\x1b[2J\udcff.png"))
    a cat\x1b[2J\udcff.png
    """
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
