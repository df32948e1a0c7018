"""The training thread's side: when each batch was asked for, came, and its step was over.

Everything here runs on the training thread or turns what it left behind into rows. Needs numpy and
the standard library only; knows no framework, no recording and no GPU.
"""
