"""Campaigns: many problems from one plan, run by several processes, resumable, in one SQLite file."""
