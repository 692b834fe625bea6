"""From trained gates to a small plain network, in memory and on disk."""

from l0arm.compaction._compact import compact
from l0arm.compaction._expand import expand
from l0arm.compaction._shrink import shrink
from l0arm.compaction.provenance import certificate
from l0arm.compaction.saved.folder import inspect_saved, load, save
from l0arm.compaction.saved.weights import SavedError
from l0arm.equality.certificate import Certificate, CertificateError, Comparison
from l0arm.gating.cutting import InputSelection

__all__ = [
    "Certificate",
    "CertificateError",
    "Comparison",
    "InputSelection",
    "SavedError",
    "certificate",
    "compact",
    "expand",
    "inspect_saved",
    "load",
    "save",
    "shrink",
]
