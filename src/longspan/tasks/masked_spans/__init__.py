"""Spans that are masked in texts, written by an encoder and a decoder."""
