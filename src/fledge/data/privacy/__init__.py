"""Personal data and secrets in prompts and answers: found, and dropped, redacted or replaced.

options     what a recipe can say                entities    what can be found
clues       one cheap look at a text             lexicon     names, places, everyday words
forms, labels, contact, secrets                  recognisers of identifiers and secrets
names, places, addresses, organizations          recognisers of names
recognizers the rules in Presidio's analyser     ner, cloud  models and services beside them
reserved, fiction, surrogates                    invented values that belong to nobody
filter      scan, treat, look again              audit       counts that are safe to share
answers     the same look at the target's own words
"""

from fledge.data.privacy.audit import Audit, AuditWriter, read_audit
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.filter import FilterFactory, PrivacyFilter, Treated
from fledge.data.privacy.options import (
    CloudDlp,
    CustomPattern,
    DenyList,
    NerModel,
    Policy,
    PrivacyOptions,
)

__all__ = [
    "Audit",
    "AuditWriter",
    "CloudDlp",
    "CustomPattern",
    "DenyList",
    "FilterFactory",
    "Finding",
    "NerModel",
    "Policy",
    "PrivacyFilter",
    "PrivacyOptions",
    "Treated",
    "read_audit",
]
