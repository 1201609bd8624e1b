"""Weights from and to folders in the Hugging Face format."""
