"""`sailor profile`: layer profiles."""

from __future__ import annotations
