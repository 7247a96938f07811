"""Tests with other programs that really run."""
