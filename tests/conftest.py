"""Settings of the test process itself."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# For `make check`: a quarter of the examples, where a test does not say how many it needs.
settings.register_profile("quick", max_examples=25)

# Read when torch is first imported: threads that spin for long while they wait slow a busy machine down.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# A shell starts background jobs with SIGINT ignored, and processes that tests start would inherit that: with a handler
# here, they begin with the default again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
