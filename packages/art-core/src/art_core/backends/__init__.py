"""Where models are served and trained, as a user's script sees it: `LocalBackend`, `RemoteBackend`.

Importing this package loads no torch and no server.
"""

from __future__ import annotations

from art_core.backends.local import LocalBackend
from art_core.backends.remote import RemoteBackend

__all__ = ["LocalBackend", "RemoteBackend"]
