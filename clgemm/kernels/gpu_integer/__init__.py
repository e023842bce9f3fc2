"""Integers and bool on any device: tiles in local memory, unsigned arithmetic."""
