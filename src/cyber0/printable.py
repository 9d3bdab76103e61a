"""Texts of others, made harmless for a terminal; numbers of things in words."""

__all__ = ["LONGEST", "many", "printable"]

LONGEST = 4000  # characters of a text that are shown


def printable(text: object, *, lines: bool = False) -> str:
    r"""Return a text so that it changes nothing on a terminal but by its letters.

    Control characters, escapes and characters that are not seen or that turn the direction of writing are shown as
    Python writes them. What is very long is cut.

    Args:
        text: What somebody else wrote: a name, a reason, what a file holds.
        lines: Whether it may have several lines.

    >>> printable("\x1b]0;owned\x07 ann\nbob")
    '\\x1b]0;owned\\x07 ann\\nbob'

    """
    whole = str(text)
    shown = whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}... ({len(whole):,} characters)"
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() or (lines and each == "\n") else each.encode("unicode_escape").decode()
        for each in shown
    )


def many(number: int, one: str, several: str = "") -> str:
    """Return a number of things in words: of one, and of several, which otherwise has an s more.

    >>> many(1, "round"), many(4000, "round"), many(0, "commit is", "commits are")
    ('1 round', '4,000 rounds', '0 commits are')
    """
    return f"{number:,} {one}" if number == 1 else f"{number:,} {several or one + 's'}"
