"""Helpers that know nothing of Vision Transformers: files, checks, pages, plots."""
