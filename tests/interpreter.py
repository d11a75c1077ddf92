"""Triton's interpreter, in half of its time: what it repeats at each call is done once."""

import functools

import numpy as np


def quicken() -> None:
    """Patch the language once a launch, look up each NumPy type once, type no shapes.

    Triton patches ``triton.language`` again whenever one function of a kernel calls another, by a
    look at all its members, though the launch has done so; and each tensor's shape is a tuple that
    knows the type of all its members, which only compilation asks for. Releases whose
    interpreter has another shape are left as they are.
    """
    from triton.language import core
    from triton.runtime import interpreter

    if not (
        all(hasattr(interpreter, name) for name in ('_LangPatchScope', '_get_np_dtype'))
        and hasattr(core, '_type_for_tuple_values')
    ):
        return
    patch, np_dtype = interpreter._patch_lang, functools.cache(interpreter._get_np_dtype)
    patched = set()

    def patch_once(function):
        names = id(function.__globals__)
        if names in patched:
            return interpreter._LangPatchScope()
        patched.add(names)
        scope = patch(function)
        restore = scope.restore

        def restore_and_forget():
            restore()
            patched.clear()

        scope.restore = restore_and_forget
        return scope

    def np_dtype_once(dtype):
        if isinstance(dtype.scalar, interpreter.tl.pointer_type):
            return np.dtype(np.uint64)
        return np_dtype(dtype.scalar)

    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = np_dtype_once

    known = core.tuple.__init__

    def values_only(self, args, type=None):
        if type is None:
            self.values = list(args)
        else:
            known(self, args, type)

    core.tuple.__init__ = values_only
    core.tuple.type = functools.cached_property(
        lambda self: core._type_for_tuple_values(self.values)
    )
    core.tuple.type.__set_name__(core.tuple, 'type')
