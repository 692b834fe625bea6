"""Make src/l0arm/lab/data/mini/mnist_mini.npz from MNIST's t10k files.

    python scripts/make_mnist_mini.py --data-dir DIR

DIR holds t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or with .gz. The same input gives
the same bytes: NumPy stamps every archive member 1980-01-01.
"""

import argparse
import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l0arm.lab.data.mini import content_sha256

Bytes = npt.NDArray[np.uint8]

OUT = Path(__file__).parents[1] / "src/l0arm/lab/data/mini/mnist_mini.npz"
TRAIN_SHARE = 0.8
SEED = 0
SHA256 = {
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def main() -> None:
    """Read, split, write, and report what was written."""
    parser = argparse.ArgumentParser(description="Make mnist_mini.npz from MNIST's t10k files.")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the t10k files")
    parser.add_argument("--out", type=Path, default=OUT, help="file to write")
    args = parser.parse_args()
    # The idx headers are 16 bytes (images) and 8 bytes (labels) long.
    images = read_checked(args.data_dir, "t10k-images-idx3-ubyte")[16:].reshape(-1, 28, 28)
    labels = read_checked(args.data_dir, "t10k-labels-idx1-ubyte")[8:]
    arrays = split(images, labels)
    write(args.out, arrays)
    print(f"{args.out.name}: {args.out.stat().st_size:,} bytes")
    for name, array in arrays.items():
        print(f"  {name:12} {array.dtype} {array.shape}")
    print(f"  content SHA-256 {content_sha256(arrays)}")


def read_checked(folder: Path, name: str) -> Bytes:
    """Read one MNIST file, plain or gzipped, and check that it is the published one."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.exists() and not packed.exists():
        raise SystemExit(f"{folder}: expected {name} or {name}.gz, but neither is there")
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[name]:
        raise SystemExit(
            f"{name}: expected SHA-256 {SHA256[name]}, found {found}; download it again"
        )
    return np.frombuffer(content, np.uint8)


def split(images: Bytes, labels: Bytes) -> dict[str, Bytes]:
    """Split every class 80/20 and shuffle both parts. Rounding gives exactly 8,000 and 2,000."""
    # RandomState, because NumPy promises that its stream never changes; default_rng's may.
    rng = np.random.RandomState(SEED)
    train, test = [], []
    for digit in range(10):
        of_digit = rng.permutation(np.flatnonzero(labels == digit))
        cut = round(TRAIN_SHARE * len(of_digit))
        train.append(of_digit[:cut])
        test.append(of_digit[cut:])
    i, j = rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))
    return {
        "train_images": images[i],
        "train_labels": labels[i],
        "test_images": images[j],
        "test_labels": labels[j],
    }


def write(path: Path, arrays: dict[str, Any]) -> None:
    """Write the archive atomically: to a temporary file first, then rename it."""
    partial = path.with_suffix(".partial.npz")
    try:
        np.savez_compressed(partial, **arrays)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
