"""Tiles: any stretch of a recording, at any zoom, as a bounded number of buckets.

`server.py` takes requests and packs replies; `engine.py` answers for one recording, out of its
overview, its entries or its rows, each of which has a file here.
"""
