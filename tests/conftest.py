"""Settings of the test process itself."""

from __future__ import annotations

import os

# Read when torch is first imported: threads that spin while they wait slow a busy machine down by an order of magnitude.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
