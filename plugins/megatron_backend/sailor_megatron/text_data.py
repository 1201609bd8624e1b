"""Text as training samples: bytes are tokens, and a sample's index says which window it is."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sailor.errors import PluginError

BYTE_VALUES = 256


def standard_text() -> bytes:
    """Return the help topics that Python ships with: 0.5 MB of English about Python."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()


class TextSamples:
    """Windows of seq_len + 1 bytes that overlap by one, each seen once an epoch.

    Sample i is window i % n of epoch i // n under a permutation of that epoch. So a run that
    stops and goes on under another plan, from the same index, neither repeats nor skips any.
    """

    def __init__(self, text: bytes, seq_len: int, seed: int, *, where: str) -> None:
        self.num_windows = (len(text) - 1) // seq_len
        if self.num_windows < 1:
            raise PluginError(
                f"the text has {len(text)} bytes, and one sample takes {seq_len + 1}",
                where=where,
                hint="give a longer text, or train with a shorter seq_len",
            )
        self._bytes = np.frombuffer(text, dtype=np.uint8)
        self._seq_len = seq_len
        self._seed = seed

    def window(self, sample: int) -> int:
        """Return which window of the text a sample is."""
        count = self.num_windows
        epoch, position = divmod(sample, count)
        digest = hashlib.sha256(f"{self._seed}:{epoch}".encode()).digest()
        offset = int.from_bytes(digest[:8], "big") % count
        stride = int.from_bytes(digest[8:16], "big") % count
        while math.gcd(stride, count) != 1:
            stride += 1
        return (stride * position + offset) % count

    def __call__(self, samples: Sequence[int]) -> Tensor:
        """Return the tokens of samples, int64 [samples, seq_len + 1]."""
        starts = [self.window(sample) * self._seq_len for sample in samples]
        rows = [self._bytes[start : start + self._seq_len + 1] for start in starts]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def read_text(path: str | None) -> tuple[bytes, str]:
    """Return a text and its name for messages; Python's own help topics without a path."""
    if path is None:
        return standard_text(), "Python's help topics"
    try:
        return Path(path).read_bytes(), path
    except OSError as error:
        raise PluginError(
            f"can't be read: {(error.strerror or str(error)).lower()}",
            where=path,
            hint="name a text file that every worker may read",
        ) from None
