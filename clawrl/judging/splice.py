"""A hint put into a prompt whose ids are not what the template's text encodes to.

A prompt may hold ids that an earlier turn sampled, and then encoding its text anew would speak of another prompt. The
special tokens tell where a message ends in both spellings: the hint goes in front of the one that ends the message
which it belongs to, and every other id stays as it was served. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def spliced(
    served: Sequence[int],
    plain: Sequence[int],
    hinted: Sequence[int],
    told: Sequence[int],
    special: Collection[int],
) -> list[int] | None:
    """``served`` with ``told`` put in where ``hinted`` has more than ``plain``.

    ``plain`` and ``hinted`` are the template's ids of the request without and with the hint, ``told`` the ids of the
    hint alone. ``None`` where the special tokens of ``served`` and ``plain`` are not the same in the same order: then
    they are not two spellings of one request.
    """
    marks = [index for index, token in enumerate(served) if token in special]
    if [served[index] for index in marks] != [token for token in plain if token in special]:
        return None
    differ = next((i for i, (a, b) in enumerate(zip(plain, hinted, strict=False)) if a != b), len(plain))
    before = sum(token in special for token in plain[:differ])
    at = marks[before] if before < len(marks) else len(served)
    return [*served[:at], *told, *served[at:]]
