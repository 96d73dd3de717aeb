"""Settings of the test process itself."""

from __future__ import annotations

import os

# Read when torch is first imported: threads that spin for long while they wait slow a busy machine down.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
