"""Results for people and programs: tables, JSON, rows."""
