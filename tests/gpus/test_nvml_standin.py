"""The stand-in has the layout that the installed binding expects."""

import ctypes

import pynvml
from nvml import Scenario


class _Layout(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("field", ctypes.c_char_p),
        ("size", ctypes.c_long),
        ("offset", ctypes.c_long),
    )


def test_structures_have_the_layout_of_the_installed_binding(play):
    library = play(Scenario()).lib
    library.standin_layout.restype = ctypes.POINTER(_Layout)
    compared = 0
    while row := library.standin_layout(compared):
        layout = row.contents
        structure, field = getattr(pynvml, layout.type.decode()), layout.field.decode()
        if not field:
            assert ctypes.sizeof(structure) == layout.size, structure
        else:
            member = getattr(structure, field)
            assert member.offset == layout.offset, (structure, field)
            assert layout.size in (-1, member.size), (structure, field)
        compared += 1
    assert compared > 30
