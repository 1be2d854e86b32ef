"""Strategies of parallel training, elastic membership, devices and cores of a rank."""
