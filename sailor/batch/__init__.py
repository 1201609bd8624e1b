"""Many jobs at once: one result each, resumable, safe against kills and second writers."""
