"""Texts at many places of one buffer, told apart: a number for each, and what the numbers stand for."""

from __future__ import annotations

import numpy as np

from onewriter_pipeline.binaries import Signed


def names_of(data: bytes, starts: Signed, stops: Signed, which: Signed) -> tuple[Signed, list[str]]:
    """The texts ``data[starts[i] : stops[i]]`` of some ``i``: codes, and the texts by code."""
    codes = np.zeros(len(which), np.int64)
    names: list[str] = []
    buffer = np.frombuffer(data, np.uint8)
    lengths = stops[which] - starts[which]
    for length in np.unique(lengths).tolist():
        mine = np.flatnonzero(lengths == length)
        letters = buffer[starts[which[mine]][:, None] + np.arange(length)]
        if not length or (letters == letters[0]).all():
            codes[mine] = len(names)
            names.append(letters[0].tobytes().decode(errors="replace"))
            continue
        words = letters.view(f"V{length}").ravel()
        found, inverse = np.unique(words, return_inverse=True)
        codes[mine] = len(names) + inverse
        names += [each.tobytes().decode(errors="replace") for each in found]
    return codes, names
