"""The library's functions that the translation puts around parts of a program, by their names in the headers."""

from __future__ import annotations

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX

ANY_THREAD, WHEN, WHERE = (f"{name}{RENAMED_SUFFIX}" for name in ("any_thread", "when", "where"))
RETURNED = f"returned{RENAMED_SUFFIX}"
AT, LENT = (f"{name}{RENAMED_SUFFIX}" for name in ("at", "lent"))
WHOLE = f"whole{RENAMED_SUFFIX}"
WHOLE_NUMBER = f"whole_number{RENAMED_SUFFIX}"
VALUE = f"value{RENAMED_SUFFIX}"
UNALIGNED = f"unaligned{RENAMED_SUFFIX}"
UNALIGNED_READ = f"unaligned_read{RENAMED_SUFFIX}"
CAST = f"cast{RENAMED_SUFFIX}"
CONSTRUCT = f"construct{RENAMED_SUFFIX}"
CONSTRUCT_ALL = f"construct_all{RENAMED_SUFFIX}"
CONSTRUCT_ONE = f"construct_one{RENAMED_SUFFIX}"
CHOOSE, ARM, ARM_OF_BFLOAT = (f"{name}{RENAMED_SUFFIX}" for name in ("choose", "arm", "arm_of_bfloat"))
OTHERWISE = f"otherwise{RENAMED_SUFFIX}"
COPY = f"copy{RENAMED_SUFFIX}"
WRAP, COUNT = f"wrap{RENAMED_SUFFIX}", f"count{RENAMED_SUFFIX}"
INCREMENT = f"increment{RENAMED_SUFFIX}"
LIFT = f"lift{RENAMED_SUFFIX}"
CONVERT_OPERAND = f"convert_operand{RENAMED_SUFFIX}"
OF_TEMPORARIES = f"of_temporaries{RENAMED_SUFFIX}"
OF_ANOTHER = f"of_another{RENAMED_SUFFIX}"
DECLARED = f"declared{RENAMED_SUFFIX}"
UNPACK = f"unpack{RENAMED_SUFFIX}"
VECTOR = f"vector{RENAMED_SUFFIX}"
VECTOR_OF_BOOL, VECTOR_OF_BFLOAT = f"bool_vector{RENAMED_SUFFIX}", f"bfloat_vector{RENAMED_SUFFIX}"
NATIVE_VECTOR, CLASS_VECTOR = f"vec{RENAMED_SUFFIX}", f"class_vector{RENAMED_SUFFIX}"
VECTOR_TEMPLATES = frozenset({"vec", "packed_vec", NATIVE_VECTOR, CLASS_VECTOR})
