"""One training being written down: from the callback's arguments to the files of a recording.

What is measured comes from `steps`, `backends`, `gpus` and `profiling`; what is written goes to
`recording`. Nothing raised in here may reach `fit`.
"""
