#!/usr/bin/env python3
"""DLPack against NumPy: dlpack_numpy_test.py LIBRARY

LIBRARY is dlpack_exchange, called through ctypes. Tensors go both ways: into numpy.from_dlpack, and out of
ndarray.__dlpack__. NumPy before 2.1 speaks the older form only; the versioned one is tested where NumPy has it.
"""

import ctypes
import gc
import os
import sys
import unittest
import weakref

try:
    import numpy
except ImportError:
    print("skipped: this Python has no NumPy (Debian: python3-numpy)")
    sys.exit(77)
if not hasattr(numpy, "from_dlpack"):
    print(f"skipped: NumPy {numpy.__version__} has no from_dlpack, which came with 1.23")
    sys.exit(77)

LIBRARY = ctypes.CDLL(os.path.abspath(sys.argv.pop(1)))
POINTER, INT64 = ctypes.c_void_p, ctypes.c_int64
for name, result, *arguments in [
    ("exchange_problem", ctypes.c_char_p),
    ("tensor_arange", POINTER, INT64, INT64, ctypes.c_int),
    ("tensor_zeros", POINTER, ctypes.c_int),
    ("tensor_transposed", POINTER, POINTER),
    ("tensor_delete", None, POINTER),
    ("tensor_data", POINTER, POINTER),
    ("tensor_dtype", ctypes.c_int, POINTER),
    ("tensor_rank", INT64, POINTER),
    ("tensor_size", INT64, POINTER, INT64),
    ("tensor_stride", INT64, POINTER, INT64),
    ("tensor_uses", INT64, POINTER),
    ("tensor_get", ctypes.c_double, POINTER, INT64, INT64),
    ("tensor_set", None, POINTER, INT64, INT64, ctypes.c_double),
    ("export_old", POINTER, POINTER),
    ("export_versioned", POINTER, POINTER),
    ("give_back_old", None, POINTER),
    ("give_back_versioned", None, POINTER),
    ("import_old", POINTER, POINTER),
    ("import_versioned", POINTER, POINTER),
]:
    function = getattr(LIBRARY, name)
    function.restype, function.argtypes = result, arguments

# A destructor gets its capsule while the reference count is 0: as a bare address, so that ctypes does not touch it.
DESTRUCTOR = ctypes.PYFUNCTYPE(None, POINTER)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, POINTER, ctypes.c_char_p, DESTRUCTOR)(
    ("PyCapsule_New", ctypes.pythonapi))
is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
pointer_of = ctypes.PYFUNCTYPE(POINTER, POINTER, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
set_name = ctypes.PYFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


def destroy_unused(capsule):
    """An unconsumed capsule still owns its tensor; a consumed one has another name."""
    for capsule_name, give_back in ((b"dltensor", LIBRARY.give_back_old),
                                    (b"dltensor_versioned", LIBRARY.give_back_versioned)):
        if is_capsule(capsule, capsule_name):
            give_back(pointer_of(capsule, capsule_name))


DESTROY_UNUSED = DESTRUCTOR(destroy_unused)
HAS_VERSIONED = tuple(int(part) for part in numpy.__version__.split(".")[:2]) >= (2, 1)


class Tensor:
    """A tensor of ferry, for Python's side of the protocol."""

    def __init__(self, address):
        if not address:
            raise BufferError(LIBRARY.exchange_problem().decode())
        self.address = address

    def __del__(self):
        if hasattr(self, "address"):
            LIBRARY.tensor_delete(self.address)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if max_version is not None and max_version[0] >= 1:
            return new_capsule(LIBRARY.export_versioned(self.address), b"dltensor_versioned", DESTROY_UNUSED)
        return new_capsule(LIBRARY.export_old(self.address), b"dltensor", DESTROY_UNUSED)

    def __getitem__(self, index):
        return LIBRARY.tensor_get(self.address, *index)

    def __setitem__(self, index, value):
        LIBRARY.tensor_set(self.address, *index, value)

    def data(self):
        return LIBRARY.tensor_data(self.address) or 0

    def shape(self):
        return tuple(LIBRARY.tensor_size(self.address, axis) for axis in range(LIBRARY.tensor_rank(self.address)))

    def uses(self):
        return LIBRARY.tensor_uses(self.address)


def take(array, version=None):
    """Consumes an array's capsule."""
    capsule = array.__dlpack__() if version is None else array.__dlpack__(max_version=version)
    # NumPy may answer with the older form.
    versioned = is_capsule(id(capsule), b"dltensor_versioned")
    capsule_name = b"dltensor_versioned" if versioned else b"dltensor"
    bring_in = LIBRARY.import_versioned if versioned else LIBRARY.import_old
    result = Tensor(bring_in(pointer_of(id(capsule), capsule_name)))
    # The name must live as long as the capsule.
    set_name(id(capsule), USED_VERSIONED if versioned else USED)
    return result


USED, USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
FORMS = [None, (1, 0)] if HAS_VERSIONED else [None]
# Numbers of ferry's dtypes that NumPy has, too.
DTYPES = {2: "u1", 3: "i1", 4: "i2", 5: "i4", 6: "i8", 7: "f2", 9: "f4", 10: "f8", 11: "c8", 12: "c16"}


class FromFerry(unittest.TestCase):
    def test_the_memory_is_shared(self):
        tensor = Tensor(LIBRARY.tensor_arange(3, 4, 9))
        array = numpy.from_dlpack(tensor)
        self.assertEqual(array.__array_interface__["data"][0], tensor.data())
        self.assertEqual((array.shape, array.dtype), ((3, 4), numpy.float32))
        self.assertTrue((array == numpy.arange(12, dtype="f4").reshape(3, 4)).all())
        tensor[1, 2] = 60
        self.assertEqual(array[1, 2], 60)
        if array.flags.writeable:
            array[2, 3] = 70
            self.assertEqual(tensor[2, 3], 70)
        else:  # NumPy before 2.1 marks tensors in the older form as read-only; the memory is the same
            view = numpy.ndarray((3, 4), "f4", (ctypes.c_float * 12).from_address(tensor.data()))
            view[2, 3] = 70
            self.assertEqual((tensor[2, 3], array[2, 3]), (70, 70))

    def test_views_keep_their_strides(self):
        tensor = Tensor(LIBRARY.tensor_arange(3, 4, 6))
        array = numpy.from_dlpack(Tensor(LIBRARY.tensor_transposed(tensor.address)))
        self.assertEqual((array.shape, array.strides), ((4, 3), (8, 32)))
        self.assertEqual(array.__array_interface__["data"][0], tensor.data())

    def test_every_dtype_that_numpy_has(self):
        for number, kind in DTYPES.items():
            array = numpy.from_dlpack(Tensor(LIBRARY.tensor_zeros(number)))
            self.assertEqual((array.dtype, array.shape), (numpy.dtype(kind), (2,)))

    def test_the_array_keeps_the_memory(self):
        tensor = Tensor(LIBRARY.tensor_arange(2, 2, 9))
        array = numpy.from_dlpack(tensor)
        other = Tensor(LIBRARY.tensor_transposed(tensor.address))
        self.assertEqual(other.uses(), 2)  # the export holds the tensor itself, the transposed one its storage
        del tensor
        gc.collect()
        self.assertEqual(other.uses(), 2)
        self.assertEqual(array[1, 0], 2)
        del array
        gc.collect()
        self.assertEqual(other.uses(), 1)

    def test_a_capsule_that_nobody_takes_gives_the_tensor_back(self):
        tensor = Tensor(LIBRARY.tensor_arange(2, 2, 9))
        other = Tensor(LIBRARY.tensor_transposed(tensor.address))
        for form in (None, (1, 0)):
            capsule = tensor.__dlpack__(max_version=form)
            self.assertIn("dltensor", repr(capsule))
            del capsule
        del tensor
        gc.collect()
        self.assertEqual(other.uses(), 1)


class FromNumPy(unittest.TestCase):
    def test_the_memory_is_shared(self):
        for form in FORMS:
            array = numpy.arange(6, dtype="f8").reshape(2, 3)
            tensor = take(array, form)
            self.assertEqual(tensor.data(), array.__array_interface__["data"][0])
            self.assertEqual(tensor.shape(), (2, 3))
            self.assertEqual(tensor[1, 2], 5)
            array[0, 1] = 11
            self.assertEqual(tensor[0, 1], 11)
            tensor[1, 0] = 12
            self.assertEqual(array[1, 0], 12)

    def test_strides_and_offsets(self):
        for form in FORMS:
            array = numpy.arange(20, dtype="i4").reshape(4, 5)
            tensor = take(array[1:, ::2].T, form)
            self.assertEqual(tensor.shape(), (3, 3))
            self.assertEqual(tensor.data(), array.__array_interface__["data"][0] + 20)
            self.assertEqual([tensor[0, 0], tensor[1, 0], tensor[0, 1]], [5, 7, 10])

    def test_every_dtype_that_numpy_has(self):
        for form in FORMS:
            for number, kind in DTYPES.items():
                tensor = take(numpy.zeros(2, kind), form)
                self.assertEqual(LIBRARY.tensor_dtype(tensor.address), number)

    def test_the_tensor_keeps_the_array(self):
        class Watched(numpy.ndarray):
            pass

        for form in FORMS:
            array = numpy.ones((2, 2)).view(Watched)
            gone = weakref.ref(array)
            tensor = take(array, form)
            del array
            gc.collect()
            self.assertIsNotNone(gone())
            self.assertEqual(tensor[1, 1], 1)
            del tensor
            gc.collect()
            self.assertIsNone(gone())

    def test_what_is_refused_stays_numpys(self):
        for form in FORMS:
            array = numpy.arange(4.0)
            before = sys.getrefcount(array)
            with self.assertRaisesRegex(BufferError, "runs backwards"):
                take(array[::-1], form)
            with self.assertRaisesRegex(BufferError, "64-bit unsigned integer"):
                take(array.view("u8"), form)
            gc.collect()
            self.assertEqual(sys.getrefcount(array), before)


if __name__ == "__main__":
    print(f"NumPy {numpy.__version__}: {'both forms' if HAS_VERSIONED else 'the older form'}")
    unittest.main(verbosity=2)
