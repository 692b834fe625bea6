"""From trained gates to a small plain network, in memory and on disk."""

from l0arm.compaction._compact import Certified, certified, compact
from l0arm.compaction._expand import expand
from l0arm.compaction._shrink import shrink
from l0arm.compaction.saved.saving import inspect_saved, load, save
from l0arm.compaction.saved.weights import SavedError
from l0arm.equality.certificate import Certificate, CertificateError, Judged, certify
from l0arm.gating.selection import InputSelection

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
