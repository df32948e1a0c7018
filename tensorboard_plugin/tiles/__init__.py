"""Tiles: any stretch of a recording, at any zoom, as a bounded number of buckets.

`server.py` takes requests and packs replies; `recording_tiles.py` answers for one recording, out of its top
or of its rows.
"""
