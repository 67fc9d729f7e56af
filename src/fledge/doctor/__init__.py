"""Explains why a head's acceptance is low, here or in another engine."""

from fledge.doctor.diagnose import PROMPTS, Diagnosis, chain_tau, diagnose
from fledge.doctor.findings import Defect, Fault, Measured
from fledge.doctor.served import ServedAnswer, ServedEngine

__all__ = [
    "PROMPTS",
    "Defect",
    "Diagnosis",
    "Fault",
    "Measured",
    "ServedAnswer",
    "ServedEngine",
    "chain_tau",
    "diagnose",
]
