# SPDX-License-Identifier: Apache-2.0
"""The declarations in python/hocket/_abi.py agree with engine/hocket.h, and those in direct.py with
python/native/walk.h."""

import ctypes
import os
import re
import subprocess

import pytest

from hocket import _abi, direct

STRUCTURES = {
    "hocket_group": _abi.Group,
    "hocket_tensor": _abi.Tensor,
    "hocket_options": _abi.Options,
    "hocket_gradient": _abi.Gradient,
    "hocket_state": _abi.State,
    "hocket_step_options": _abi.StepOptions,
    "hocket_step_info": _abi.StepInfo,
    "hk_torch": direct.Torch,
}
CONSTANTS = {
    "HOCKET_ABI": _abi.ABI,
    "HOCKET_MESSAGE": _abi.MESSAGE,
    "HOCKET_AGAIN": _abi.AGAIN,
    "HOCKET_BF16": _abi.BF16,
    "HOCKET_FP16": _abi.FP16,
    "HOCKET_FP32": _abi.FP32,
    "HOCKET_OVERLAP_PLAN": _abi.OVERLAP_PLAN,
    "HOCKET_OVERLAP_NONE": _abi.OVERLAP_NONE,
    "HOCKET_OVERLAP_FORWARD": _abi.OVERLAP_FORWARD,
    "HOCKET_OVERLAP_BOTH": _abi.OVERLAP_BOTH,
    "HOCKET_SQUARES": _abi.SQUARES,
    "HOCKET_P": _abi.P,
    "HOCKET_M": _abi.M,
    "HOCKET_V": _abi.V,
}


def test_layouts_and_constants_are_the_header_s(root, tmp_path):
    lines = ["#include <stdio.h>", '#include "python/native/walk.h"', "int main(void) {"]
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in structure._fields_:
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                f"sizeof((({name} *)0)->{field}));"
            )
    for name in CONSTANTS:
        lines.append(f'printf("{name} %d\\n", (int){name});')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines + ["return 0;", "}"]))
    program = tmp_path / "layout"
    subprocess.run(
        [os.environ.get("CC", "cc"), f"-I{root}", "-o", program, source], check=True
    )
    found = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    expected = []
    for name, structure in STRUCTURES.items():
        expected.append(f"{name} {ctypes.sizeof(structure)}")
        for field, _ in structure._fields_:
            place = getattr(structure, field)
            expected.append(f"{name}.{field} {place.offset} {place.size}")
    expected += [f"{name} {value}" for name, value in CONSTANTS.items()]
    assert found.splitlines() == expected


HEADERS = ("engine/hocket.h", "python/native/walk.h")


def declarations(root):
    text = "".join((root / header).read_text() for header in HEADERS)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def header_functions(root):
    text = declarations(root)
    found = {}
    for match in re.finditer(r"HOCKET_API\s+([\w\s*]+?)((?:hocket|hk_walk)_\w+)\(([^)]*)\)", text):
        arguments = [a.strip() for a in match.group(3).split(",")]
        found[match.group(2)] = (match.group(1).strip(), [] if arguments == ["void"] else arguments)
    return found


def kind_of(argument):
    """The kind of a C declaration in ctypes: pointer, double, or the size of an integer."""
    if "*" in argument or "[" in argument:
        return "pointer"
    return {
        "int32_t": "int32",
        "int": "int32",
        "int64_t": "int64",
        "size_t": "int64",
        "double": "double",
    }[argument.replace("const ", "").split()[0]]


def kind_of_ctypes(kind):
    if kind in (ctypes.c_char_p, ctypes.c_void_p) or hasattr(kind, "contents"):
        return "pointer"
    if kind is ctypes.c_double:
        return "double"
    return {4: "int32", 8: "int64"}[ctypes.sizeof(kind)]


def test_prototypes_are_the_header_s(root):
    functions = header_functions(root)
    prototypes = {**_abi.PROTOTYPES, **direct.PROTOTYPES}
    assert set(functions) == set(prototypes)
    for name, (_, arguments) in functions.items():
        declared = [kind_of_ctypes(kind) for kind in prototypes[name][1]]
        assert declared == [kind_of(argument) for argument in arguments], name


def test_structures_have_every_field(root):
    text = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", declarations(root))  # pointers to functions
    found = re.findall(r"typedef struct \{(.*?)\} (\w+);", text, flags=re.S)
    assert {name for _, name in found} == set(STRUCTURES)
    for body, name in found:
        fields = [
            re.sub(r".*[\s*]", "", part.strip())
            for line in body.split(";")
            if line.strip()
            for part in line.split(",")
        ]
        assert fields == [field for field, _ in STRUCTURES[name]._fields_], name


def test_a_missing_library_is_an_error_that_names_the_variable(monkeypatch, tmp_path):
    monkeypatch.setattr(_abi, "_library", None)
    monkeypatch.setenv("HOCKET_LIBRARY", str(tmp_path / "libhocket.so"))
    with pytest.raises(_abi.HocketError, match="libhocket was not found.*HOCKET_LIBRARY") as error:
        _abi.library()
    assert error.value.code == 3


@pytest.mark.parametrize(
    "abi, says",
    [
        (_abi.ABI, r"libold.so lacks hocket_\w+: install"),
        (1, "has ABI 1, but this package needs 10"),
    ],
)
def test_a_library_of_another_version_is_refused(monkeypatch, tmp_path, abi, says):
    """One that lacks functions, and one of another ABI."""
    source = tmp_path / "old.c"
    source.write_text(f"#include <stdint.h>\nint32_t hocket_abi(void) {{ return {abi}; }}\n")
    library = tmp_path / "libold.so"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True
    )
    monkeypatch.setattr(_abi, "_library", None)
    monkeypatch.setenv("HOCKET_LIBRARY", str(library))
    with pytest.raises(_abi.HocketError, match=says):
        _abi.library()
