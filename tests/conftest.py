"""Settings of every test run: property tests are repeatable and have no deadline of their own."""

from __future__ import annotations

from hypothesis import settings

# The two cores are shared with whatever else runs; pytest's own timeout bounds a test instead.
settings.register_profile("sailor", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("sailor")
