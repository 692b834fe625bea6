"""From trained gates to a small plain network, in memory and on disk."""

from l0arm.compaction.certificate import Certificate, CertificateError, Judged, certify
from l0arm.compaction.compact import Certified, certified, compact
from l0arm.compaction.expand import expand
from l0arm.compaction.saved import inspect_saved, load, save
from l0arm.compaction.selection import InputSelection
from l0arm.compaction.shrink import shrink
from l0arm.compaction.weights_file import SavedError

__all__ = [
    "Certificate",
    "CertificateError",
    "Certified",
    "InputSelection",
    "Judged",
    "SavedError",
    "certified",
    "certify",
    "compact",
    "expand",
    "inspect_saved",
    "load",
    "save",
    "shrink",
]
