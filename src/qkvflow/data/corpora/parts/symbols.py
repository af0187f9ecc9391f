"""The characters that stand for a source's integers, so that its text can be read and prompted."""

import string

_PLAIN = string.ascii_lowercase + string.ascii_uppercase + string.digits
_MORE = 0x4E00  # The first of 20,000 characters that all print, once letters run out.
LARGEST = len(_PLAIN) + 20_000


def symbols(count: int) -> str:
    """`count` different characters: letters and digits first, one byte each."""
    extra = "".join(chr(_MORE + i) for i in range(max(count - len(_PLAIN), 0)))
    return (_PLAIN + extra)[:count]
