"""Explains why a head's acceptance is low, here or in another engine."""

from fledge.doctor.comparison import chain_tau as chain_tau
from fledge.doctor.diagnose import PROMPTS as PROMPTS
from fledge.doctor.diagnose import Diagnosis as Diagnosis
from fledge.doctor.diagnose import diagnose as diagnose
from fledge.doctor.findings import Defect as Defect
from fledge.doctor.findings import Fault as Fault
from fledge.doctor.findings import Measured as Measured
from fledge.doctor.served import ServedAnswer as ServedAnswer
from fledge.doctor.served import ServedEngine as ServedEngine
