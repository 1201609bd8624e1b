"""The domain model: frozen, closed records that every part of sailor exchanges."""
