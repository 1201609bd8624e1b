"""Measured layer profiles: the file that holds them, and importers of other tools' files."""
