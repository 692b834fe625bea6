"""From trained gates to a small plain network."""

from l0arm.compaction.certificate import Certificate, Judged, certify
from l0arm.compaction.compact import CertificateError, Certified, certified, compact
from l0arm.compaction.expand import expand
from l0arm.compaction.selection import InputSelection
from l0arm.compaction.shrink import shrink

__all__ = [
    "Certificate",
    "CertificateError",
    "Certified",
    "InputSelection",
    "Judged",
    "certified",
    "certify",
    "compact",
    "expand",
    "shrink",
]
