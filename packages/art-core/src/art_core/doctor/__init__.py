"""What is wrong: with this machine (`machine`), and with a run, from its history (`diagnose`) and while it trains
(`Watch`). docs/doctor.md lists every finding with its threshold and its remedy.

A run's numbers become a `RunHistory`; each symptom is one pure function of it, in the module of its area: `groups`,
`rows`, `optimiser`, `sampling`, `text`, `infrastructure`.
"""

from art_core.doctor.diagnosis import SYMPTOMS, diagnose
from art_core.doctor.history import RunHistory, Step
from art_core.doctor.watch import Watch

__all__ = ["SYMPTOMS", "RunHistory", "Step", "Watch", "diagnose"]
