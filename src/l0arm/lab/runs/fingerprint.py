"""Which images a run is about, in a few letters."""

from __future__ import annotations

import hashlib

from l0arm.lab.data import Dataset


def fingerprint(data: Dataset) -> str:
    """Of all images and labels, in their order: another order makes other minibatches."""
    digest = hashlib.sha256()
    for tensor in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
